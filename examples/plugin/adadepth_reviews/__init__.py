"""Reviews in one CSV file, and stick-breaking halting, for adadepth."""
