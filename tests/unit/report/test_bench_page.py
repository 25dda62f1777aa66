"""The tables of a bench's page, and that docs/results.md is what the files in results/ say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from adadepth.report.bench import as_markdown, bench_sections, read_results, rules_table

ROOT = Path(__file__).resolve().parents[3]


def result(seed: int, score: float) -> dict[str, Any]:
    point = {"rule": "margin:0.5", "chosen_score": score, "score": score, "updates": 2.0, "macs": 5.0}
    rule = point | {
        "online": None, "permuted": 0.5, "mixture": 0.6, "spearman": 0.7, "calibration": 0.01,
        "time": {"1": 0.5, "16": 0.25, "8": 0.3},
    }  # fmt: skip
    inside = {"n": 10, "readings": {"margin": [point]}, "rules": [rule], "overthinking": {}}
    return {
        "name": f"hops.mean.{seed}", "task": "hops", "way": "mean", "setting": [], "seed": seed, "overrides": [],
        "commit": None, "hardware": None, "seconds": 1.0, "sets": {"inside": inside},
    }  # fmt: skip


RESULTS = [result(0, 0.8), result(1, 0.9)]


def test_rules_are_means_over_seeds() -> None:
    (table,) = rules_table("hops", "inside", RESULTS)
    (row,) = table.rows
    assert (row["way"], row["rule"], row["seeds"]) == ("mean", "margin:0.5", 2)
    assert row["score"] == pytest.approx(0.85)
    assert row["online"] is None
    assert (row["time_1"], row["time_16"]) == (0.5, 0.25)
    assert "time_8" not in row
    names = [table.name for section in bench_sections(RESULTS, {}, []) for table in section.tables]
    assert names == ["advice", "hops_inside", "hops_inside_rules", "conditions"]
    assert "margin:0.5" in as_markdown(RESULTS, {})


@pytest.mark.skipif(not (ROOT / "results").is_dir(), reason="no results of a full bench yet")
def test_the_page_is_what_the_files_say() -> None:
    files = sorted((ROOT / "configs" / "bench" / "task").glob("*.yaml"))
    about = {file.stem: yaml.safe_load(file.read_text(encoding="utf-8"))["about"] for file in files}
    found = as_markdown(read_results(ROOT / "results"), about)
    assert (ROOT / "docs" / "results.md").read_text(encoding="utf-8") == found
