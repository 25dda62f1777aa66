"""Stores of tokenised examples, which are named arrays on disk, with a class for each kind of data."""
