"""Modes of a run, as messages advise them."""

from adadepth.settings import ExperimentConfig
from adadepth.settings.modes import modes


def format_mode(mode: str, config: ExperimentConfig) -> str:
    """Write the override of a mode, with a checkpoint where it reads one and the command names none."""
    needs_one = modes()[mode].checkpoints != "none" and config.checkpoint is None
    return f"mode={mode} checkpoint=latest" if needs_one else f"mode={mode}"
