"""Reports: read the files of runs, build sections with tables and figures, and write them as HTML pages."""
