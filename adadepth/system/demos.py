"""Small trained models that lie in the package: `demo:NAME` where a setting names a checkpoint.

Each is the directory of a finished run, cut down to what evaluations, predictions and the page read of it. Nothing is
written there. `make demos` makes them.
"""

from __future__ import annotations

from pathlib import Path

from adadepth.errors import CheckpointError, nearest

DEMO_PREFIX = "demo:"
_DEMOS = Path(__file__).resolve().parents[1] / "demos"


def list_demos() -> list[str]:
    """Return the names of all demos with their prefix."""
    return sorted(DEMO_PREFIX + record.parent.name for record in _DEMOS.glob("*/run.json"))


def resolve_demo(key: str, value: str) -> Path | None:
    """Return the run directory of the demo that a setting names; None: it names something else.

    Args:
        key: The setting, for the message.
        value: A path, a hub id, or `demo:NAME`.

    Raises:
        CheckpointError: There is no demo of that name.
    """
    if not value.startswith(DEMO_PREFIX):
        return None
    known = list_demos()
    if value not in known:
        raise CheckpointError(f"{key}={value}: must be one of {', '.join(known)}{nearest(value, known)}")
    return _DEMOS / value.removeprefix(DEMO_PREFIX)


def is_demo(run: Path) -> bool:
    """Whether a run directory is that of a demo."""
    return run.resolve().parent == _DEMOS


def format_run(run: Path) -> str:
    """Return what `checkpoint` calls a run: `demo:NAME`, or the path of its directory."""
    return DEMO_PREFIX + run.name if is_demo(run) else str(run)
