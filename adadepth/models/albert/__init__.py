"""Plain ALBERT under this project's contract: the baseline of one depth."""
