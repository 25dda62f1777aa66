"""Lines of a small text as a stream, and the numbers of its rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adadepth.config import Source, StreamConfig

LINES = [f"{'The' if n % 3 else 'A'} cat number {n} sât  down ." * (n % 4) for n in range(40)]  # every fourth is blank


ROWS = {"train_rows": 2, "evaluation_rows": 1}


def make_stream_config(folder: Path, **changes: Any) -> StreamConfig:
    if "source" not in changes:
        (folder / "text.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
        changes = {"source": Source.local, "path": str(folder / "text.txt"), **changes}
    settings = {"name": "test", "sequence_length": 4, "cache_dir": str(folder / "cache"), "evaluation_fraction": 0.2}
    return StreamConfig(**{**settings, **changes})
