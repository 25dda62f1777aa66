"""Runtime environment: files, console, processes, signals, timing, and sources of models and data."""
