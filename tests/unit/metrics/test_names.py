"""Names of metrics: letters, digits and `_./-`, unique whatever data sets and classes are called."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from adadepth.metrics.metric_names import metric_name
from adadepth.report.run_files import read_run
from adadepth.report.training_curves import _means
from adadepth.training.callbacks import rename_metrics
from tests.before.runs import list_former_names

SAFE = re.compile(r"[A-Za-z0-9_./-]+")


def test_all_names_of_all_families_become_safe_and_stay_apart() -> None:
    before = list_former_names()
    assert any(not SAFE.fullmatch(name) for name in before), "something is mended"
    after = {metric_name(name) for name in before}
    assert all(SAFE.fullmatch(name) for name in after)
    assert len(after) == len(before)
    assert {name.partition("/")[0] for name in after if "/" in name} <= {
        "train", "eval", "halting", "cost", "search", "budget", "figures",
    }, "an evaluation set makes no section of its own"  # fmt: skip


@pytest.mark.parametrize(("raw_name", "expected"), [
    ("halting/length <= 5/mean", "halting/length_up_to_5/mean"), ("halting/length > 9/n", "halting/length_over_9/n"),
    ("halting/length 6-9/n", "halting/length_6-9/n"), ("halting/label: not [it]/n", "halting/label_not_it_/n"),
    ("eval/step_3/score", "eval/step_3/score"), ("halting/label: ja", "halting/label_ja"),
])  # fmt: skip
def test_a_name_stays_readable(raw_name: str, expected: str) -> None:
    assert metric_name(raw_name) == expected


def test_names_in_other_scripts_stay_unique() -> None:
    names = [metric_name(f"halting/label: {name}/mean") for name in ("好", "坏", "é", "è")]
    assert len(set(names)) == 4
    assert all(map(SAFE.fullmatch, names))


def test_a_set_of_any_name_stays_under_eval() -> None:
    assert rename_metrics({"eval_my set: é/loss": 1.0, "loss": 2.0}) == {"eval/my_set_ue9/loss": 1.0, "train/loss": 2.0}


@pytest.mark.parametrize("logged", ["halting/label: yes/mean", "halting/label_yes/mean"])
def test_the_report_reads_names_of_older_runs(tmp_path: Path, logged: str) -> None:
    depths = {"n": 3, "mean": 2.5, "std": 0.5}
    classes = dict.fromkeys(("all", "correct", "wrong", "label: yes"), depths)
    (tmp_path / "halting.json").write_text(json.dumps({"unit": "sequence", "classes": classes}))
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 3, logged: 2.5}) + "\n")
    assert dict(_means(read_run(tmp_path)))["label: yes"] == [(3, 2.5)]
