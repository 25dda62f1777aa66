"""What every ALBERT family shares: its shape, block, attention, pricing, and the loops over its steps."""
