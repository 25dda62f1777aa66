"""A router that decides, token by token and step by step, whom a shared block updates: a family of its own."""
