"""Parts that several families share: the ALBERT block, predictions after every step, losses, conversions."""
