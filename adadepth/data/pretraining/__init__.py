"""Masked-language-model examples: segments in order or swapped, masked n-grams, prepared on disk or streamed."""
