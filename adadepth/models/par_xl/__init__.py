"""PAR Transformer-XL: a supernet that selects attention, feed-forward or identity per block, and networks from it."""
