"""The answers of a run in plain sentences: whether depth adapts, whether that is worth it, what it cost."""
