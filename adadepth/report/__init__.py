"""Reports of runs: HTML pages with tables and figures, made from the files of run directories."""
