"""Nested brackets: a kind of data for adadepth, with a scorer, a regime of training and a section of the report."""
