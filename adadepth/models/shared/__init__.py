"""Parts shared by families: the ALBERT block, predictions after every step, losses, conversions."""
