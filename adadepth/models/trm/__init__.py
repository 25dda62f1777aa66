"""Tiny recursive models: a small network refines an answer, and a Q head estimates whether the answer is right."""
