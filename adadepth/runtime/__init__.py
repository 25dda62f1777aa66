"""The machine of a run: files, console, processes, signals, time, and where models and data come from."""
