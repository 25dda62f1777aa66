"""Several runs on one page: what differs between them, and what came of it."""
