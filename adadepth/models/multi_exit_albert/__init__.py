"""ALBERT with a classifier after every step. All classifiers are trained together: the PABEE baseline."""
