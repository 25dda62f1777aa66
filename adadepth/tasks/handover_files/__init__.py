"""Scripts that mode `export` copies into the folder of a model. They run without adadepth, which imports none."""
