"""Mode `estimate`: memory, operations and duration of a training run, estimated before it starts and without data."""
