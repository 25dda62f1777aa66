"""Summary of exits and halting distributions, compared with plain loops and scikit-learn."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from sklearn.metrics import accuracy_score, f1_score, log_loss

from adadepth.metrics.step_records import StepRecords
from adadepth.metrics.step_summary import (
    confidence_calibration,
    flatten_exits,
    halting_calibration,
    summarise_steps,
)
from adadepth.metrics.task_metrics import UNDEFINED
from tests.unit.report.synthetic_exits import LABELS, make_records, make_summary

STEPS = 5


@pytest.fixture(scope="module")
def records() -> StepRecords:
    return make_records(size=200, steps=STEPS)


def compute_posterior(z: np.ndarray, truncation: str) -> np.ndarray:
    """Return the halting distribution of one example by its definition, one step after the other."""
    pmf, reached = [], 1.0
    for logit in z:
        halt = 1 / (1 + math.exp(-logit))
        pmf.append(reached * halt)
        reached *= 1 - halt
    if truncation == "leftover":
        pmf[-1] += reached
    scale = sum(pmf) if truncation == "renormalise" else 1.0
    return np.array(pmf) / scale


@pytest.mark.parametrize("truncation", ["renormalise", "leftover", "none"])
def test_halting_figures_equal_a_plain_loop(records: StepRecords, truncation: str) -> None:
    summary = make_summary(records, truncation=truncation)
    pmf = np.stack([compute_posterior(row, truncation) for row in records.halting_logits.double().numpy()])
    expected = (pmf * np.arange(1, STEPS + 1)).sum(axis=1)
    prior = np.array([0.3 * 0.7**step for step in range(STEPS)])
    prior /= prior.sum()
    assert summary["halting"]["truncation"] == truncation
    assert summary["halting"]["expected_steps"]["mean"] == pytest.approx(expected.mean(), rel=1e-5)
    assert summary["halting"]["expected_steps"]["std"] == pytest.approx(expected.std(), rel=1e-4)
    assert summary["halting"]["entropy"]["mean"] == pytest.approx(-(pmf * np.log(pmf)).sum(axis=1).mean(), rel=1e-5)
    divergence = (pmf * np.log(pmf / prior)).sum(axis=1)
    assert summary["halting"]["kl"]["mean"] == pytest.approx(divergence.mean(), rel=1e-4)
    assert summary["halting"]["prior_expected_steps"] == pytest.approx((prior * np.arange(1, 6)).sum(), rel=1e-5)
    for step, row in enumerate(summary["steps"]):
        assert row["posterior"] == pytest.approx(pmf[:, step].mean(), rel=1e-4)
        assert row["prior"] == pytest.approx(prior[step], rel=1e-5)
        probabilities = 1 / (1 + np.exp(-records.halting_logits[:, step].double().numpy()))
        assert row["halting_probability"] == pytest.approx(probabilities.mean(), rel=1e-5)


def test_the_divergence_has_the_requested_direction(records: StepRecords) -> None:
    first, second = (
        make_summary(records, kl_direction=way)["halting"] for way in ("posterior_prior", "prior_posterior")
    )
    assert first["kl"]["mean"] != pytest.approx(second["kl"]["mean"], rel=0.01)
    assert second["kl_direction"] == "prior_posterior"


def test_every_step_has_the_quality_of_a_fixed_exit(records: StepRecords) -> None:
    labels = records.labels.numpy()
    summary = make_summary(records)
    for step, row in enumerate(summary["steps"]):
        logits = records.step_logits[:, step]
        accuracy = accuracy_score(labels, logits.argmax(dim=1))
        f1 = f1_score(labels, logits.argmax(dim=1))
        expected = {"accuracy": accuracy, "f1": f1, "score": (accuracy + f1) / 2}
        assert row["quality"] == pytest.approx(expected)
        assert row["loss"] == pytest.approx(log_loss(labels, logits.double().softmax(dim=1), labels=[0, 1]), rel=1e-5)
        assert row["n"] == int((records.exit_steps == step + 1).sum())
        assert row["survival"] == pytest.approx(float((records.exit_steps > step).float().mean()))
    assert summary["exit"]["quality"]["accuracy"] == accuracy_score(labels, records.logits.argmax(dim=1))
    assert summary["exit"]["mean"] == pytest.approx(float(records.exit_steps.float().mean()))
    assert sum(summary["exit"]["histogram"]) == len(records)


def test_depth_by_class_and_correlations(records: StepRecords) -> None:
    summary = make_summary(records)
    right = records.logits.argmax(dim=1) == records.labels
    for name, mask in (("correct", right), ("wrong", ~right), (f"label: {LABELS[1]}", records.labels == 1)):
        assert summary["classes"][name]["n"] == int(mask.sum())
        assert summary["classes"][name]["mean"] == pytest.approx(float(records.depth[mask].mean()))
    assert summary["classes"]["correct"]["expected_steps"] < summary["classes"]["wrong"]["expected_steps"]
    for column, values in (("length", records.lengths), ("difficulty", records.difficulty)):
        expected = spearmanr(records.depth, values).statistic
        assert summary["spearman"][f"updates_{column}"]["value"] == pytest.approx(expected, abs=1e-9)
    assert summary["spearman"]["expected_steps_loss"]["n"] == len(records)


def test_a_regression_has_errors_and_no_calibration() -> None:
    records = make_records(size=100, steps=STEPS, classes=1)
    summary = make_summary(records)
    squared = (records.logits[:, 0] - records.labels) ** 2
    assert summary["exit"]["loss"] == pytest.approx(float(squared.mean()), rel=1e-5)
    assert summary["calibration"] == {}
    assert "regression" in summary["missing"]["calibration"]
    assert set(summary["exit"]["quality"]) == {"pearson", "spearman", "score"}


def test_figures_that_a_model_lacks_are_missing_with_a_reason(records: StepRecords) -> None:
    plain = dataclasses.replace(records, step_logits=None, halting_logits=None, exit_steps=None)
    summary = make_summary(plain, truncation=None, prior_pmf=None)
    assert summary["halting"] == {}
    assert set(summary["missing"]) == {"halting", "exit/histogram", "steps/quality", "calibration/halting"}
    assert all(set(row) == {"step"} for row in summary["steps"])
    assert not any(name.startswith(("halting/kl", "eval/step", "halting/exit_step")) for name in flatten_exits(summary))
    unlabelled = make_summary(dataclasses.replace(records, labels=None))
    assert "quality" not in unlabelled["exit"]
    assert "labels" in unlabelled["missing"]["exit/quality"]
    assert unlabelled["halting"]["kl"]["n"] == len(records)


def test_steps_that_did_not_run_for_all_are_not_measured(records: StepRecords) -> None:
    holes = records.step_logits.clone()
    holes[0, -1] = torch.nan
    summary = make_summary(dataclasses.replace(records, step_logits=holes))
    assert "quality" not in summary["steps"][0]
    assert summary["missing"]["steps/quality"] == summary["missing"]["calibration/halting"]


def test_an_undefined_metric_is_named_with_its_steps() -> None:
    records = make_records(size=20, steps=3, classes=1)
    records.step_logits[:, 1] = 1.0
    summary = make_summary(records)
    assert summary["missing"]["steps/pearson"] == f"{UNDEFINED} at step 2"


def test_the_summary_of_a_diverged_model_is_valid_json() -> None:
    records = make_records(size=30, steps=3)
    records.step_logits[4, 1, 0] = records.logits[4, 0] = torch.inf
    summary = make_summary(records)
    json.dumps(summary, allow_nan=False)
    assert {"exit/loss", "steps/2/loss", "calibration", "spearman/updates_loss"} <= set(summary["missing"])
    assert "loss" in summary["steps"][0]


def test_a_single_example_has_a_summary(records: StepRecords) -> None:
    one = {field.name: getattr(records, field.name) for field in dataclasses.fields(records)}
    one = {name: value[:1] if isinstance(value, torch.Tensor) else value for name, value in one.items()}
    summary = summarise_steps(StepRecords(**one), problem="classification", labels=LABELS, metrics=["accuracy"])
    assert summary["exit"]["std"] == 0.0
    assert "3 are needed" in summary["missing"]["spearman/updates_loss"]
    json.dumps(summary, allow_nan=False)


def test_the_summary_is_json_and_its_scalars_are_finite(records: StepRecords) -> None:
    summary = make_summary(records)
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    flat = flatten_exits(summary)
    assert all(isinstance(value, float) and math.isfinite(value) for value in flat.values())
    assert flat["eval/step_2/score"] == summary["steps"][1]["quality"]["score"]
    assert flat["halting/kl"] == summary["halting"]["kl"]["mean"]
    assert flat["halting/calibration/tv"] == summary["calibration"]["halting"]["total_variation"]


# ---- calibration

# Examples are right from step 1, from step 2, at step 2 only, and never.
RIGHT = torch.tensor([[1, 1, 1], [0, 1, 1], [0, 1, 0], [0, 0, 0]])
TABLE_LOGITS = torch.stack([1.0 - RIGHT, RIGHT.float()], dim=-1)
ONES = torch.ones(4, dtype=torch.int64)


def test_total_variation_by_hand() -> None:
    pmf = torch.tensor([0.5, 0.25, 0.25]).expand(4, 3)
    calibration = halting_calibration(TABLE_LOGITS, ONES, pmf)
    assert calibration["first_correct"] == [0.25, 0.5, 0.0]
    assert calibration["never_correct"] == 0.25
    # |.25 - .5|, |.5 - .25|, |0 - .25|, and .25 never right against no mass beyond the last step
    assert calibration["total_variation"] == pytest.approx(0.5 * (0.25 + 0.25 + 0.25 + 0.25))


def test_a_distribution_over_first_correct_steps_is_calibrated() -> None:
    # The mass that an untruncated distribution leaves over is compared with "never correct".
    pmf = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    assert halting_calibration(TABLE_LOGITS, ONES, pmf)["total_variation"] == pytest.approx(0.0)


def score_confidence(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return how sure a classification is, and whether it is right."""
    confidence, predictions = logits.double().softmax(dim=-1).max(dim=-1)
    return confidence, predictions == labels


def test_calibration_error_by_hand() -> None:
    confidence = torch.tensor([0.9, 0.9, 0.9, 0.6])
    logits = torch.stack([torch.zeros(4), (confidence / (1 - confidence)).log()], dim=1)
    labels = torch.tensor([1, 1, 0, 1])
    calibration = confidence_calibration(*score_confidence(logits, labels))
    # Three at .9 of which two are right, one at .6 that is right.
    assert calibration["ece"] == pytest.approx(0.75 * (0.9 - 2 / 3) + 0.25 * (1 - 0.6), abs=1e-6)
    assert [row["n"] for row in calibration["bins"]] == [1, 3]
    assert confidence_calibration(*score_confidence(logits, labels), bins=1)["ece"] == pytest.approx(
        0.825 - 0.75, abs=1e-6
    )


@pytest.mark.parametrize(("logit", "error"), [(0.0, 0.5), (200.0, 0.0)])
def test_certain_and_undecided_predictions_have_a_bin(logit: float, error: float) -> None:
    calibration = confidence_calibration(*score_confidence(torch.tensor([[0.0, logit]]), torch.tensor([1])))
    assert [row["n"] for row in calibration["bins"]] == [1]
    assert calibration["ece"] == pytest.approx(error)
