"""PAR Transformer-XL: a supernet whose blocks choose between attention, feed-forward and identity, and its networks."""
