"""Looped language models: a core of decoder layers that is applied repeatedly."""
