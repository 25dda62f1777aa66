"""Tokenised examples as named arrays on disk, and a view of them for each kind of data."""
