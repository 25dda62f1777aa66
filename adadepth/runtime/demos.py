"""Small trained demo models in the package, which settings name as `demo:NAME`.

A demo is the directory of a finished run, reduced to the files that evaluations, predictions and the demo page read.
Demos are read-only; `make demos` trains them.
"""

from __future__ import annotations

from pathlib import Path

from adadepth.errors import CheckpointError, nearest

DEMO_PREFIX = "demo:"
_DEMOS = Path(__file__).resolve().parents[1] / "demos"


def list_demos() -> list[str]:
    """Return the names of all demos, including the prefix `demo:`."""
    return sorted(DEMO_PREFIX + record.parent.name for record in _DEMOS.glob("*/run.json"))


def resolve_demo(key: str, value: str) -> Path | None:
    """Return the run directory of the demo that a setting names, or None if it names no demo.

    Args:
        key: Name of the setting, for the message.
        value: Path, hub id, or `demo:NAME`.

    Raises:
        CheckpointError: If no demo has that name.
    """
    if not value.startswith(DEMO_PREFIX):
        return None
    demos = list_demos()
    if value not in demos:
        raise CheckpointError(f"{key}={value}: must be one of {', '.join(demos)}{nearest(value, demos)}")
    return _DEMOS / value.removeprefix(DEMO_PREFIX)


def is_demo(run: Path) -> bool:
    """Return whether a run directory belongs to a demo."""
    return run.resolve().parent == _DEMOS


def format_run(run: Path) -> str:
    """Return how `checkpoint=` names a run: as `demo:NAME`, or by the path of its directory."""
    return DEMO_PREFIX + run.name if is_demo(run) else str(run)
