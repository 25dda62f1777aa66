"""Reports: files of runs are read, told as sections with tables and figures, and drawn as pages."""
