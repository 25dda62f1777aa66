"""Hidden states of a frozen base model, which are computed once and stored on disk as features."""
