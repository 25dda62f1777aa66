"""Bench: compares methods of allocating depth on tasks over seeds, and recommends one for each task."""
