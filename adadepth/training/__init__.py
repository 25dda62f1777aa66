"""Training of models with a subclass of transformers' Trainer: optimizers, extensions, callbacks and trackers."""
