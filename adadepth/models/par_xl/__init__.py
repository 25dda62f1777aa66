"""PAR Transformer-XL: architecture search with a supernet whose blocks are attention, feed-forward or identity."""
