"""Routed models: networks of transformers in which routers choose the tokens that each part processes."""
