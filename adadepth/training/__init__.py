"""Training with a thin subclass of transformers' Trainer: optimizers, metrics, callbacks and trackers."""
