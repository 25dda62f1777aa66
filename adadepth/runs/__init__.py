"""A run's folder: what lies where, checkpoints, locks, what another run takes over, and what is handed on."""
