"""Read the file in which W&B keeps a run, as `wandb sync` does: blocks of records in the format of LevelDB's log."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK, HEADER = 32768, 7
WHOLE, LAST = 1, 4


def wandb_records(folder: Path, kind: str) -> list[Any]:
    """The records of a kind (`history`, `metric`, `summary`, `run`, `artifact`) of all parts of a run, oldest first."""
    files = sorted(folder.glob("wandb/offline-run-*/*.wandb"))
    return [getattr(record, kind) for file in files for record in _whole(file) if record.HasField(kind)]


def _whole(file: Path) -> list[Any]:
    """All records, once the end is there: W&B's own process writes it a moment after a run is finished.

    What it has found out about the machine may come after the end.
    """
    for _ in range(3000):
        records = list(_records(file))
        if any(record.HasField("exit") for record in records):
            return records
        time.sleep(0.1)
    raise AssertionError(f"{file} has no end")


def _records(file: Path) -> Iterator[Any]:
    from wandb.proto import wandb_internal_pb2

    data, at, parts = file.read_bytes(), HEADER, b""
    while at + HEADER <= len(data):
        left = BLOCK - at % BLOCK
        if left < HEADER:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + HEADER])
        if at + HEADER + length > len(data):
            return  # W&B's process is in the middle of writing this record
        parts += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (WHOLE, LAST):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


def wandb_history(folder: Path) -> list[dict[str, Any]]:
    """What was logged, a dictionary a call."""
    return [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in call.item}
        for call in wandb_records(folder, "history")
    ]


def wandb_summary(folder: Path) -> dict[str, Any]:
    """What a table of runs shows of a run."""
    updates = (update for record in wandb_records(folder, "summary") for update in record.update)
    found = {"/".join(update.nested_key) or update.key: json.loads(update.value_json) for update in updates}
    return {name: value for name, value in found.items() if not name.startswith("_")}
