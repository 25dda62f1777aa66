"""Environment of a run: files, console, processes, signals, timing, and access to models and data."""
