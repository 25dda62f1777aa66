"""Plain ALBERT, which always runs all its layers: the fixed-depth baseline."""
