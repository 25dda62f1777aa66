"""Depth by linguistic classes of words: parts of speech, relations, places in the tree, frequencies."""
