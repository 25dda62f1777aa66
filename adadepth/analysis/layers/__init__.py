"""A distribution over layers that a whole task shares."""
