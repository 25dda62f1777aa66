"""Mode `estimate`: memory, operations and duration of a training run, before any data are prepared."""
