"""What a run asks of its machine: files, the console, processes, signals, time, and where things come from."""
