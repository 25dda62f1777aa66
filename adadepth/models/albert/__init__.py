"""What every ALBERT family shares, and plain ALBERT under this project's contract."""
