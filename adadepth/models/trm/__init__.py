"""Tiny recursive reasoning: a small network refines an answer, and a Q head says when it is right."""
