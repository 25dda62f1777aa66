"""Parts shared by all ALBERT families: configuration, block, attention, heads, compute counts, and the step loop."""
