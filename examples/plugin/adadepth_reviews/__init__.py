"""Reviews in one CSV file, stick-breaking halting, and metrics as CSV, for adadepth."""
