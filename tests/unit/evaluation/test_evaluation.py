"""Evaluations: the loss of a set is a mean over targets, and a scorer decides what else is recorded."""

from __future__ import annotations

import pytest
import torch

from adadepth.evaluation import evaluation as evaluation_module
from adadepth.evaluation.evaluation import Evaluation, LossAccumulator
from tests.unit.evaluation.evaluation_support import Even, Fixed

CPU = torch.device("cpu")


def make_tensors(**values):
    return {name: torch.tensor(value) for name, value in values.items()}


def test_losses_are_means_over_targets_and_not_over_batches():
    sums = LossAccumulator()
    sums.add(make_tensors(task=1.0, extra=0.5), make_tensors(task=3, extra=1))
    sums.add(make_tensors(task=5.0), make_tensors(task=1, unused=7))  # a batch without the other part
    assert sums.means() == {"task_loss": pytest.approx((3 * 1.0 + 5.0) / 4), "extra_loss": 0.5}


def test_a_part_without_targets_is_absent():
    sums = LossAccumulator()
    sums.add(make_tensors(task=1.0, order=0.0), make_tensors(task=2, order=0))
    assert sums.means() == {"task_loss": 1.0}


def test_an_evaluation_reads_the_vocabulary_at_its_first_batch(monkeypatch):
    """Read no vocabulary at the start: matched baselines start many evaluations and use their scorers only."""
    built = []
    monkeypatch.setattr(evaluation_module, "vocabulary_depths", lambda *arguments: built.append(arguments))
    model = Fixed("token")
    evaluation = Evaluation(model, Even(), CPU, wants_statistics=True)
    assert built == []
    batch = {"depth": torch.tensor([1, 2])}
    for _ in range(2):
        evaluation.update(batch | {"inputs": batch["depth"]}, model(**batch))
    assert len(built) == 1


def evaluate_fixed(unit, *, wants_statistics=True):
    model = Fixed(unit)
    evaluation = Evaluation(model, Even(), CPU, wants_statistics=wants_statistics)
    for depths in ([1, 2, 4], [4]):
        batch = {"depth": torch.tensor(depths)}
        evaluation.update(batch | {"inputs": batch["depth"]}, model(**batch))
    evaluation.merge()
    return evaluation


def test_metrics_are_the_loss_parts_and_the_scorers():
    evaluation = evaluate_fixed("sequence", wants_statistics=False)
    assert evaluation.metrics() == {"loss": 2.75, "depth_loss": 2.75, "even": 3.0}
    assert evaluation.report() is None


def test_statistics_have_the_classes_of_the_scorer():
    statistics = evaluate_fixed("sequence").report().statistics
    assert statistics["classes"]["all"]["histogram"] == [0, 1, 1, 0, 2]
    assert statistics["classes"]["even"]["histogram"] == [0, 0, 1, 0, 2]


def test_one_depth_for_all_units_gives_one_class():
    evaluation = evaluate_fixed("task")
    assert evaluation.metrics()["even"] == 3.0
    assert evaluation.report().statistics["classes"].keys() == {"all"}
