"""Modules shared by several model families: the ALBERT block, the loop over steps, losses and conversions."""
