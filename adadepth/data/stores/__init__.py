"""Tokenised examples as flat arrays on disk, written as they come and read through memory maps."""
