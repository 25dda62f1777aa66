"""Predictions after every step: what exits are worth, and which rule would do better."""
