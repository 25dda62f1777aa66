"""ALBERT with a classifier after every step, all trained together: the PABEE baseline."""
