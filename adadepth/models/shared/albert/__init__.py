"""Modules shared by all ALBERT families: configuration, block, attention, heads, MAC counts, and the step loop."""
