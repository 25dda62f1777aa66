"""Tiny recursive models (TRM): a small network refines its answer to a puzzle and estimates whether it is right."""
