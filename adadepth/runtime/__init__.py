"""Services for runs: files, console, processes, signals, timing, and access to models and data."""
