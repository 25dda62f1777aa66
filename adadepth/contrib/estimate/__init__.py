"""`mode=estimate`: memory, operations and duration of a training run, before data are prepared."""
