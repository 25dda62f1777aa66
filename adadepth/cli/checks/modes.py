"""Formatting of modes as overrides in the messages of checks."""

from adadepth.config import ExperimentConfig
from adadepth.config.modes import modes


def format_mode(mode: str, config: ExperimentConfig) -> str:
    """Return the override that selects a mode.

    A checkpoint is added if the mode reads one and the command names none.
    """
    needs_one = modes()[mode].checkpoints != "none" and config.checkpoint is None
    return f"mode={mode} checkpoint=latest" if needs_one else f"mode={mode}"
