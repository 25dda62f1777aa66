"""Bench: compares methods of adaptive and fixed depth on tasks over several seeds, and recommends one per task."""
