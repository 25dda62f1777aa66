"""A user's own texts, and what a model says about them: in the terminal, and as a page."""
