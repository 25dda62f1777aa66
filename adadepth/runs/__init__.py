"""Run directories: records, checkpoints, locks, inheritance of settings, and upload of models."""
