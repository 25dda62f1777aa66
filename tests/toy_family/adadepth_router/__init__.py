"""A family whose router decides in every step which tokens a shared block updates."""
