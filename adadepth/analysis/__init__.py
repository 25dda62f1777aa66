"""What depth traces tell: streaming statistics, tables, figures, and the report of a run."""
