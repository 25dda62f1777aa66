"""Reader of the file in which W&B stores a run, as `wandb sync` reads it: records in the format of LevelDB's log."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK, HEADER = 32768, 7
WHOLE, LAST = 1, 4


def read_wandb_records(folder: Path, kind: str) -> list[Any]:
    """Return the records of a kind (`history`, `metric`, `summary`, `run`, `artifact`) of all parts of a run, oldest
    first.
    """
    files = sorted(folder.glob("wandb/offline-run-*/*.wandb"))
    return [getattr(record, kind) for file in files for record in _wait_for_records(file) if record.HasField(kind)]


def _wait_for_records(file: Path) -> list[Any]:
    """Return all records, once the end is there: W&B's own process writes it a moment after a run is finished.

    Records about the machine may come after the end.
    """
    for _ in range(3000):
        records = list(_parse_records(file))
        if any(record.HasField("exit") for record in records):
            return records
        time.sleep(0.1)
    raise AssertionError(f"{file} has no end")


def _parse_records(file: Path) -> Iterator[Any]:
    from wandb.proto import wandb_internal_pb2

    data, at, parts = file.read_bytes(), HEADER, b""
    while at + HEADER <= len(data):
        remaining = BLOCK - at % BLOCK
        if remaining < HEADER:
            at += remaining
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


def read_wandb_history(folder: Path) -> list[dict[str, Any]]:
    """Return the logged metrics, one dictionary per call."""
    return [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in call.item}
        for call in read_wandb_records(folder, "history")
    ]


def read_wandb_summary(folder: Path) -> dict[str, Any]:
    """Return the summary that a table of runs shows for a run."""
    updates = (update for record in read_wandb_records(folder, "summary") for update in record.update)
    values = {"/".join(update.nested_key) or update.key: json.loads(update.value_json) for update in updates}
    return {name: value for name, value in values.items() if not name.startswith("_")}
