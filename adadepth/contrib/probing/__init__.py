"""Linear probes of the hidden states of a frozen model after each update: `mode=probe`."""
