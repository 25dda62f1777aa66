"""Masked-language-model examples: segments in order or swapped, n-grams masked, prepared or streamed."""
