"""Formatting of `mode=NAME` for error messages."""

from adadepth.config import ExperimentConfig
from adadepth.config.modes import modes


def format_mode(mode: str, config: ExperimentConfig) -> str:
    """Return the command-line override that selects a mode, such as `mode=evaluate`.

    A checkpoint is added if the mode reads one and the command names none.
    """
    needs_one = modes()[mode].checkpoints != "none" and config.checkpoint is None
    return f"mode={mode} checkpoint=latest" if needs_one else f"mode={mode}"
