"""Training rows that are held out to select the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adadepth.config import TokenizerConfig
from adadepth.config.data import SequenceProblem
from adadepth.data import load_labelled_data
from adadepth.data.held_out import select_held_out

from .labelled_support import load, make_labelled_config, make_pair_rows, write_splits


@given(st.integers(1, 60), st.floats(0.02, 0.98), st.lists(st.integers(0, 4), min_size=60, max_size=60))
def test_every_class_has_its_share(rows: int, share: float, labels: list[int]) -> None:
    classes = np.array(labels[:rows])
    aside = select_held_out(rows, share, classes)
    assert abs(int(aside.sum()) - rows * share) <= 0.5 + 1e-9
    for number in set(classes.tolist()):
        assert abs(int(aside[classes == number].sum()) - (classes == number).sum() * share) < 1 + 1e-9
    assert (select_held_out(rows, share, classes) == aside).all()


def test_rows_are_set_aside_at_random_but_always_the_same() -> None:
    aside = np.flatnonzero(select_held_out(1000, 0.1, None))
    assert len(aside) == 100
    assert len(set(np.diff(aside))) > 5
    assert (aside < 500).sum() == pytest.approx(50, abs=20)


def list_row_numbers(examples: Any) -> set[int]:
    return {examples[index]["index"] for index in range(len(examples))}


def test_training_does_not_contain_held_out_rows(tmp_path: Path) -> None:
    path = write_splits(tmp_path / "in", train=make_pair_rows(40), test=make_pair_rows(6, 40))
    options = {"held_out": 0.25, "evaluation_splits": ["held_out", "test"], "test_splits": []}
    data = load(make_labelled_config(path, tmp_path / "cache", **options))
    assert list(data.evaluation) == ["held_out", "test"]
    aside, train = list_row_numbers(data.evaluation["held_out"]), list_row_numbers(data.train)
    assert (len(aside), len(train), aside & train, aside | train) == (10, 30, set(), set(range(40)))
    assert data.summary["evaluation"]["held_out"]["labels"] == {"0": 5, "1": 5}
    again = load_labelled_data(
        make_labelled_config(path, tmp_path / "cache", **options), TokenizerConfig(vocab_size=60), seed=7
    )
    assert list_row_numbers(again.evaluation["held_out"]) == aside
    few = load(
        make_labelled_config(path, tmp_path / "cache", max_train_examples=12, max_evaluation_examples=4, **options)
    )
    assert (len(few.train), len(few.evaluation["held_out"])) == (12, 4)
    assert list_row_numbers(few.train) < train
    assert list_row_numbers(few.evaluation["held_out"]) < aside


def test_regression_values_are_not_stratified(tmp_path: Path) -> None:
    rows = [{**row, "label": row["number"] / 7} for row in make_pair_rows(20)]
    path = write_splits(tmp_path / "in", train=rows)
    data = load(make_labelled_config(path, tmp_path / "cache", held_out=0.2, evaluation_splits=["held_out"],
                       problem=SequenceProblem.regression, metrics=["mse"]))  # fmt: skip
    assert (len(data.train), len(data.evaluation["held_out"])) == (16, 4)
