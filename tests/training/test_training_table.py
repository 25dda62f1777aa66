"""Every way of training by two processes, whole and sharded, against one: the rows of `training_table`."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from adadepth.models.registry import families
from tests.configs.support import configured
from tests.training.processes_support import run_on_processes
from tests.training.training_table import BASES, DRAWN, ROUNDED, SHARES, STEPS, WHOLE, Row, list_rows, write_files


def is_any(row: str, names: frozenset[str]) -> bool:
    return any(name in row for name in names)


def train(folder: Path, way: str, rows: list[Row]) -> dict[str, Any]:
    """Train the rows in one way: `one` process, or two with `whole` or `sharded` parameters. Return the results by
    name.
    """
    (folder / way).mkdir()
    configs = {row.name: configured(*row.overrides) for row in rows}
    (folder / "rows.pickle").write_bytes(pickle.dumps(configs))
    run_on_processes("training_table", folder / way, 1 if way == "one" else 2)
    results: dict[str, Any] = torch.load(folder / way / "0.pt")
    for name, result in results.items():
        assert "error" not in result, f"{way}: {name}: {result['error']}"
    assert list(results) == [row.name for row in rows]
    return results


def find_differences(results: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """Name the rows whose losses or weights differ by more than sums of float32 in another order do."""
    differences = []
    for name, result in results.items():
        assert len(result["losses"]) == STEPS, name
        if is_any(name, DRAWN | SHARES):
            continue
        if result["losses"] != pytest.approx(expected[name]["losses"], rel=1e-4, abs=1e-4):
            differences.append(f"{name}: losses {result['losses']}, not {expected[name]['losses']}")
        for weight, value in expected[name]["weights"].items():
            if any(row in name and weight.endswith(end) for row, end in ROUNDED.items()):
                continue
            if not torch.allclose(result["weights"][weight], value, rtol=1e-3, atol=1e-4):
                distance = float((result["weights"][weight] - value).abs().max())
                differences.append(f"{name}: {weight} differs by {distance:.2g}")
    return differences


def test_every_head_of_every_family_has_a_base() -> None:
    assert set(BASES) == {(name, head) for name, family in families().items() for head in family.heads}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({name for name, _ in BASES}))
def test_two_processes_train_as_one(name: str, tmp_path: Path) -> None:
    write_files(tmp_path)
    rows = list_rows(tmp_path, *(base for base in BASES if base[0] == name))
    one = train(tmp_path, "one", rows)
    assert not find_differences(train(tmp_path, "whole", rows), one)
    assert not find_differences(train(tmp_path, "sharded", [row for row in rows if not is_any(row.name, WHOLE)]), one)
