"""Training: a thin subclass of transformers' Trainer, its optimizers, metrics, callbacks and sinks."""
