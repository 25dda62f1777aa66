"""Modes of a run, as messages advise them."""

from adadepth.settings import ExperimentConfig, Mode


def format_mode(mode: Mode, config: ExperimentConfig) -> str:
    """Write the override of a mode that reads a checkpoint, with a checkpoint where the command names none."""
    return f"mode={mode}" if config.checkpoint is not None else f"mode={mode} checkpoint=latest"
