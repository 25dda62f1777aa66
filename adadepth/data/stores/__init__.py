"""Tokenised examples as named arrays on disk, with a class of views for each kind of data."""
