"""Hidden states of a frozen base model, computed once and stored on disk."""
