"""From the files of a run to tables, figures and the report."""
