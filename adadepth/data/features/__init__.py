"""Hidden states of a frozen base, computed once and kept on disk."""
