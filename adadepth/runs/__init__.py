"""Run directories: records, checkpoints, locks, inheritance of settings from earlier runs, and upload of models."""
