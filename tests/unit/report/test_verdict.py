"""Verdict of a run: its sentences are built from the figures of the files, and say no where the answer is no."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import settings as limits
from hypothesis import strategies as st
from scipy import stats

from adadepth.metrics.architectures import describe_architecture
from adadepth.metrics.layer_weights import describe_layers
from adadepth.report.baseline_comparison import _estimate_label_error, to_json
from adadepth.report.compute_cost import build_compute_section, format_speed, overview
from adadepth.report.depth_by_class import describe_cost, format_halting
from adadepth.report.pages import build_report
from adadepth.report.quality_pairs import QualityPair, correct_pairs
from adadepth.report.run_files import (
    ARCHITECTURES,
    BUDGETS,
    EXIT_RULES,
    EXITS,
    HALTING,
    MATCHED_BASELINE,
    RIVALS,
    SEEDS,
    RunFiles,
    read_run,
)
from adadepth.report.verdict import build_baseline_table, describe_strength, verdict
from tests.unit.report.synthetic import make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("run"), max_updates=6, evaluations=2)


def replace_files(files: RunFiles, **changed: Any) -> RunFiles:
    return dataclasses.replace(files, **changed)


def test_the_verdict_has_the_figures_of_the_files(run: Path) -> None:
    files = read_run(run)
    findings, everyone = verdict(files), files.halting["classes"]["all"]
    assert findings["adapts"].answer == "yes"
    (first, *_) = findings["adapts"].sentences
    assert first.startswith(f"{everyone['mean']:.2f} ± {everyone['std']:.2f} updates per token, at most 6")
    assert f"{max(everyone['histogram']) / everyone['n']:.0%}".removesuffix("%") + " % of" in first
    assert findings["adapts"].figures["effective_depths"] == pytest.approx(math.exp(everyone["entropy"]))
    assert f"{100 * files.halting['cost']['adaptive_over_full']:.0f} %" in findings["cost"].sentences[1]
    assert json.loads(json.dumps(to_json(findings), allow_nan=False))["adapts"].keys() == {
        "answer",
        "sentences",
        "figures",
    }


@pytest.mark.parametrize(
    ("predictions", "prediction_macs", "brief"),
    [
        (2.0, 50.0, "87 % of the compute (30 % without predictions)"),  # (30 + 100) / 150
        (1.0, 50.0, "53 % of the compute (30 % without predictions)"),  # (30 + 50) / 150
        (1.0, 0.0, "30 % of the compute"),
        (None, 50.0, "30 % of the compute"),  # of an earlier version
    ],
)
def test_the_share_of_compute_equals_that_of_the_tables_of_exits(
    predictions: float | None, prediction_macs: float, brief: str, run: Path
) -> None:
    """Use ten tokens with a mean of two updates, 30 MACs each at their exits and 100 at full depth."""
    files = read_run(run)
    halting = dict(files.halting) | {"n": 10, "prediction_macs": prediction_macs, "max_depth": 6}
    halting |= {
        "classes": {"all": files.halting["classes"]["all"] | {"mean": 2.0}},
        "predictions_per_unit": predictions,
    }
    halting["cost"] = {"adaptive_macs": 300.0, "full_macs": 1000.0, "adaptive_over_full": 0.3}
    cost = verdict(replace_files(files, halting=halting))["cost"]
    assert re.sub(r", evaluation.*|; .*", "", cost.brief) == f"33 % of updates, {brief}"
    assert brief.replace("the compute", "the multiply-accumulates of full depth") in cost.sentences[1]
    # The first row of the report's table, the first tile, and the console's line on an evaluation agree.
    (table,) = build_compute_section(replace_files(files, halting=halting)).tables
    share = f"{100 * table.rows[0]['of_full']:.1f}"
    assert f"{float(share):.0f} %" == brief.partition(" of")[0]
    tile = overview(replace_files(files, halting=halting)).html
    assert f"Compute needed</dt><dd>{share}%" in tile
    halting["cost"] |= {"executed_over_full": 1.0}
    assert describe_cost(halting)[0].startswith(f"compute needed {share}%")


def test_the_verdict_comes_first_and_the_settings_last(run: Path) -> None:
    sections = build_report(read_run(run)).sections
    assert [sections[0].anchor, sections[-1].anchor] == ["verdict", "run"]


def test_a_demo_that_stops_at_one_update_does_not_adapt(run: Path) -> None:
    files = read_run(run)
    everyone = {"n": 1000, "mean": 3.11, "std": 0.31, "entropy": 0.347, "histogram": [0, 0, 0, 890, 110, 0, 0]}
    halting = {"unit": "token", "max_depth": 6, "classes": {"all": everyone}}
    finding = verdict(replace_files(files, halting=halting))["adapts"]
    assert finding.answer == "no"
    assert finding.brief.startswith("89 % of tokens stop at update 3; 3.11 ± 0.31")
    assert finding.sentences[0].startswith("Depth did not adapt: 89 % of 1,000 tokens stop at update 3 (3.11 ± 0.31")


def test_a_fixed_depth_by_setting_is_no_failure(run: Path) -> None:
    files = read_run(run)
    halting = {**files.halting, "adaptation": {"is_set": True}}
    assert verdict(replace_files(files, halting=halting))["adapts"].answer == "set"


@pytest.mark.parametrize(("loss", "answer"), [(6.0, "unknown"), (6.995, "no"), (7.5, "no")])
def test_a_model_that_knows_only_frequencies_is_not_worth_it(run: Path, loss: float, answer: str) -> None:
    baselines = {"unigram": {"cross_entropy": 7.0, "positions": 1523}}
    record = {"final_metrics": {"eval/mlm_loss": loss}, "baselines": baselines}
    finding = verdict(replace_files(read_run(run), run=record))["worth"]
    assert finding.answer == answer
    assert ("does not beat one that ignores its input" in finding.brief) == (answer == "no")
    assert finding.figures["gain_over_unigram"] == pytest.approx(7.0 - loss)
    assert "word frequencies only: mlm_loss" in finding.sentences[0]
    assert "not tested (nats per masked token, n 1,523; error unknown)" in finding.sentences[0]
    # An unknown error gives no interval and no p in files and tables.
    (recorded,) = to_json({"worth": finding})["worth"]["comparisons"]
    assert {recorded[key] for key in ("low", "high", "p", "corrected_p")} == {None}
    (row,) = build_baseline_table(finding.comparisons).rows
    assert row["interval"] is None


@pytest.mark.parametrize(("score", "remark"), [
    (0.9, ""), (0.7, "not clearly better than a bag of words (score 0.700 against 0.700)"),
    (0.5, "worse than a bag of words (score 0.500 against 0.700)"),
])  # fmt: skip
def test_a_bag_of_words_changes_the_remark_and_not_the_answer(run: Path, score: float, remark: str) -> None:
    scored = {"model": "logistic regression", "sets": {"held_out": {"score": 0.7}, "test": {"score": 0.99}}}
    record = {"final_metrics": {"eval/score": score}, "baselines": {"bag_of_words": scored}}
    files = read_run(run)
    files.halting["classes"]["all"] |= {"accuracy": score, "accuracy_error": 0.01}
    finding = verdict(replace_files(files, run=record))["worth"]
    assert finding.answer == "unknown"
    assert f"Compared with logistic regression: score {score:.3f} against 0.700" in finding.sentences[0]
    assert finding.brief == "; ".join(filter(None, ["no comparable baseline was run", remark]))
    sentence = f"The model is {remark}; the answer does not depend on this."
    assert (sentence in finding.sentences) == bool(remark)


def test_a_bag_of_words_does_not_displace_the_fixed_depth(run: Path) -> None:
    scored = {"model": "logistic regression", "sets": {"held_out": {"score": 0.96}}}
    record = {"final_metrics": {"eval/score": 0.971}, "baselines": {"bag_of_words": scored}}
    files = read_run(run)
    files.halting["classes"]["all"] |= {"accuracy": 0.971, "accuracy_error": 0.01}
    compared = {"sets": {"held_out": make_matched_set(4.0, 4.2, 4.3, depth=2.0)}}
    finding = verdict(replace_files(files, run=record, others={MATCHED_BASELINE: compared}))["worth"]
    assert finding.answer == "yes"
    assert finding.brief.startswith(
        "held_out/mlm_loss 4.000 against 4.200 of the same network at fixed depth 2, better"
    )
    assert finding.brief.endswith("one seed; not clearly better than a bag of words (score 0.971 against 0.960)")


def test_a_model_that_always_predicts_the_commonest_class_is_not_worth_it(run: Path) -> None:
    files = read_run(run)
    predicted = {"all": (200, 0.75), "label: common": (150, 1.0), "label: rare": (50, 0.0)}
    classes = {
        name: {**files.halting["classes"]["all"], "accuracy_n": n, "accuracy": right}
        for name, (n, right) in predicted.items()
    }
    finding = verdict(replace_files(files, halting={**files.halting, "classes": classes}))["worth"]
    assert finding.answer == "no"
    assert (
        "always predicting the most frequent label: accuracy 0.750 against 0.750, equal, below the least "
        "relevant difference of 0.005"
    ) in finding.sentences[0]


@pytest.mark.parametrize(("other", "answer"), [(0.8, "yes"), (0.9, "unclear"), (0.95, "no"), (0.88, "unclear")])
def test_a_run_is_compared_with_a_fixed_depth(run: Path, other: float, answer: str) -> None:
    rows = [{"kind": "adaptive", "max_depth": 6, "metrics": {"eval/score": 0.9, "eval/mlm_loss": 1}},
            {"kind": "fixed depth", "max_depth": 4, "metrics": {"eval/score": other, "eval/mlm_loss": 1}}]  # fmt: skip
    files = read_run(run)
    # Of two networks with an error of .01 each, a difference of .02 is 1.4 standard errors.
    files.halting["classes"]["all"] |= {"accuracy": 0.9, "accuracy_error": 0.01}
    finding = verdict(replace_files(files, others={RIVALS: {"rows": rows}}))["worth"]
    assert finding.answer == answer
    assert f"score 0.900 against {other:.3f}" in finding.sentences[0]
    assert "one seed each" in finding.sentences[0]
    # Without an error of the same figure, nothing is tested.
    files.halting["classes"]["all"].pop("accuracy_error")
    untested = verdict(replace_files(files, others={RIVALS: {"rows": rows}}))["worth"]
    assert untested.answer == "unknown"
    assert "not tested" in untested.sentences[0]


@pytest.mark.parametrize(
    ("errors", "answer", "words"),
    [
        ({"eval/score": 0.02}, "yes", "better by 0.100 (95 % interval of the gain +0.058 to +0.142)"),
        ({}, "unknown", "not tested"),
    ],
)
def test_a_run_without_mistakes_has_the_error_of_its_baseline(
    run: Path, errors: dict[str, float], answer: str, words: str
) -> None:
    rows = [{"kind": "adaptive", "max_depth": 6, "metrics": {"eval/score": 1.0}},
            {"kind": "fixed depth", "max_depth": 4, "metrics": {"eval/score": 0.9}, "errors": errors}]  # fmt: skip
    files = read_run(run)
    files.halting["classes"]["all"] |= {"accuracy": 1.0, "accuracy_error": 0.0}
    finding = verdict(replace_files(files, others={RIVALS: {"rows": rows}}))["worth"]
    assert finding.answer == answer
    assert words in finding.sentences[0]


def test_the_table_of_baselines_has_the_comparisons_of_the_verdict(run: Path) -> None:
    rows = [{"kind": "adaptive", "max_depth": 6, "mean": 2.5, "adaptive_macs": 30.0, "metrics": {"eval/score": 0.9}},
            {"kind": "fixed depth", "max_depth": 4, "mean": 4.0, "adaptive_macs": 40.0, "metrics": {"eval/score": 0.8},
             "errors": {"eval/score": 0.03}}]  # fmt: skip
    files = read_run(run)
    files.halting["classes"]["all"] |= {"accuracy": 0.9, "accuracy_error": 0.04}
    files = replace_files(files, others={RIVALS: {"rows": rows}})
    (recorded,) = to_json(verdict(files))["worth"]["comparisons"]
    half_width = stats.t.ppf(0.975, 19) * 0.05
    assert recorded | {"remark": ""} == {
        "baseline": "the matched baseline trained at fixed depth 4 (133 % of its compute)", "metric": "score",
        "depth": 2.5, "baseline_depth": 4.0, "full_depth": None, "full_depth_value": None,
        "compute_ratio": 0.75, "value": 0.9, "baseline_value": 0.8, "gain": pytest.approx(0.1),
        "low": pytest.approx(0.1 - half_width), "high": pytest.approx(0.1 + half_width),
        "p": pytest.approx(2 * stats.t.sf(2, 19)), "corrected_p": pytest.approx(2 * stats.t.sf(2, 19)), "remark": "",
    }  # fmt: skip
    (table,) = next(section.tables for section in build_report(files).sections if section.title == "Verdict")
    assert [row["gain"] for row in table.rows] == [recorded["gain"]]


@pytest.mark.parametrize(("greater", "answer"), [(False, "yes"), (True, "no"), (None, "no")])
def test_the_direction_of_the_selecting_metric_follows_the_settings(
    run: Path, greater: bool | None, answer: str
) -> None:
    rival = {"kind": "fixed depth", "max_depth": 4, "metrics": {"eval/edits": 0.9}, "errors": {"eval/edits": 0.01}}
    rows = [{"kind": "adaptive", "max_depth": 6, "metrics": {"eval/edits": 0.2}}, rival]
    files = read_run(run)
    files.halting["classes"]["all"] |= {"accuracy": 0.2, "accuracy_error": 0.01}
    files.config["trainer"] = {"metric_for_best_model": "eval_edits", "greater_is_better": greater}
    finding = verdict(replace_files(files, others={RIVALS: {"rows": rows}}))["worth"]
    assert finding.answer == answer
    assert f"{'better' if answer == 'yes' else 'worse'} by 0.700" in finding.sentences[0]


def make_networks(depth: int | None, macs: float, scores: dict[int, float], **fields: Any) -> list[dict[str, Any]]:
    """Return rows of networks that differ only in the seed; the adaptive one has no depth."""
    kind = {"kind": "adaptive", "max_depth": 6} if depth is None else {"kind": "fixed depth", "depth": depth}
    return [
        {**kind, "group": "g", "seed": seed, "n": 10, "mean": 2.5, "std": 0.0, "max_depth": 6, "adaptive_macs": macs,
         "metrics": {"eval/score": score}, **fields}
        for seed, score in scores.items()
    ]  # fmt: skip


def test_the_best_baseline_within_the_compute_decides(run: Path) -> None:
    """Add a costlier one that is better, and a cheaper one that is worse than the one that decides."""
    rows = [*make_networks(None, 100.0, {0: 0.9}), *make_networks(1, 60.0, {0: 0.5}),
            *make_networks(2, 100.9, {0: 0.8}), *make_networks(3, 130.0, {0: 0.99})]  # fmt: skip
    for row in rows[1:]:
        row["errors"] = {"eval/score": 0.01}
    files = read_run(run)
    files.halting["classes"]["all"] |= {"accuracy": 0.9, "accuracy_error": 0.01}
    finding = verdict(replace_files(files, others={RIVALS: {"rows": rows}}))["worth"]
    assert finding.answer == "yes"
    decided = {pair.key: pair.is_deciding for pair in finding.comparisons}
    assert decided == {"fixed_depth/1": False, "fixed_depth": True, "fixed_depth/3": False}
    assert "the matched baseline trained at fixed depth 2 (101 % of its compute), better by 0.100" in finding.brief
    (costly,) = [sentence for sentence in finding.sentences if "depth 3 (130 % of its compute)" in sentence]
    assert "worse by 0.090" in costly
    assert costly.endswith("(one seed each; not counted in the answer).")


@pytest.mark.parametrize(("steps", "remark"), [
    ((48, 10), "depth 2 (101 % of its compute), trained for 10 steps, not 48, better by"),
    ((48, 48), "depth 2 (101 % of its compute), better by"), ((48, None), "depth 2 (101 % of its compute), better by"),
])  # fmt: skip
def test_a_baseline_of_another_number_of_steps_is_named_in_the_answer(
    run: Path, steps: tuple[int, int | None], remark: str
) -> None:
    rows = [*make_networks(None, 100.0, {0: 0.9}), *make_networks(2, 100.9, {0: 0.8}, errors={"eval/score": 0.01})]
    counted = [{**row, "steps": count} for row, count in zip(rows, steps, strict=True)]
    files = read_run(run)
    files.halting["classes"]["all"] |= {"accuracy": 0.9, "accuracy_error": 0.01}
    finding = verdict(replace_files(files, others={RIVALS: {"rows": counted}}))["worth"]
    assert remark in finding.brief
    assert remark.removesuffix(", better by") in finding.sentences[0]


def test_seeds_are_compared_by_welch_and_holm(run: Path) -> None:
    adaptive, first, second = {0: 0.9, 1: 0.92, 2: 0.93}, {0: 0.85, 1: 0.84, 2: 0.87}, {0: 0.9, 1: 0.91, 2: 0.89}
    rows = [*make_networks(None, 100.0, adaptive), *make_networks(2, 80.0, first), *make_networks(3, 120.0, second)]
    files = dataclasses.replace(read_run(run), halting={}, missing={HALTING: "there is none"})
    summary = replace_files(files, others={RIVALS: {"rows": rows}, SEEDS: {"seeds": [0, 1, 2], "n": 3, "metrics": {}}})
    spread = {"mean": 0.4, "std": 0.1, "n": 3, "values": {}}
    seeds = {"seeds": [0, 1, 2], "n": 3, "metrics": {"halting/all/std": spread}}
    alone = verdict(replace_files(files, others={SEEDS: seeds}))
    assert alone["worth"].answer == "unknown"
    assert "No baseline was trained for these seeds" in alone["worth"].sentences[0]
    assert "rival_of" in alone["worth"].brief
    seeds["metrics"] = {"halting/all/std": {**spread, "mean": 0.0}}
    assert verdict(replace_files(files, others={SEEDS: seeds})) == {}, "a fixed depth is a baseline itself"
    (finding,) = verdict(summary).values()
    p_values = [
        stats.ttest_ind([*adaptive.values()], [*scores.values()], equal_var=False).pvalue for scores in (first, second)
    ]
    assert [pair.p for pair in finding.comparisons] == pytest.approx(p_values)
    assert [pair.corrected for pair in finding.comparisons] == pytest.approx([2 * p_values[0], p_values[1]])
    expected = stats.ttest_ind([*adaptive.values()], [*first.values()], equal_var=False).confidence_interval()
    interval = f"95 % interval of the gain {expected.low:+.3f} to {expected.high:+.3f}"
    assert f"score 0.917 against 0.853, better by 0.063 ({interval}) (n 3 seeds each)." in finding.sentences[0]
    assert finding.answer == "yes"
    assert finding.brief.endswith("; 3 seeds")


def make_gain(measure: str, adaptive: float, baseline: float, error: float | None = 0.001, **other: Any) -> dict:
    gain = {"measure": measure, "adaptive": adaptive, "baseline": baseline, "error": error, "freedom": 19}
    return gain | {"sequences": 64, "baseline_depth": None} | other


def make_matched_set(
    loss: float, fixed: float, shuffled: float, *, std: float = 1.0, depth: float = 3.25
) -> dict[str, Any]:
    """Return a set that was read at one depth, with a mean of 3.25."""
    counts = {"examples": 64, "of_examples": 100, "predictions": 500, "mean": 3.25, "std": std, "rule": None}
    gains = {
        "fixed": {"mlm_loss": make_gain("mlm_loss", loss, fixed, baseline_depth=depth)},
        "permuted": {"mlm_loss": make_gain("mlm_loss", loss, shuffled)},
    }
    return {**counts, "own": {"mlm_loss": loss}, "gains": gains}


@pytest.mark.parametrize(
    ("fixed", "shuffled", "answer"),
    [
        (4.2, 4.3, "yes"),
        (4.2, 4.001, "partly"),
        (4.005, 4.001, "unclear"),
        (3.9, 3.9, "no"),
        (3.0, 4.02, "no"),
        (4.001, 4.2, "partly"),
    ],
)
def test_a_run_is_compared_with_itself_at_one_depth_and_at_shuffled_depths(
    run: Path, fixed: float, shuffled: float, answer: str
) -> None:
    compared = {"sets": {"held_out": make_matched_set(4.0, fixed, shuffled)}}
    finding = verdict(replace_files(read_run(run), others={MATCHED_BASELINE: compared}))["worth"]
    assert finding.answer == answer
    assert finding.figures == {
        "gain_over_fixed_step/held_out": pytest.approx(fixed - 4.0),
        "gain_over_random_depths/held_out": pytest.approx(shuffled - 4.0),
    }
    fixed_words, shuffled_words = finding.sentences[-2:]
    assert "the same network at fixed depths 3 and 4, mixed to its mean of 3.25 updates" in fixed_words
    assert "one seed" in fixed_words
    assert "64 of 100 sequences" in shuffled_words


@pytest.mark.parametrize(
    ("fixed", "shuffled", "words"),
    [(4.2, 4.001, "better than fixed depth 2, not clearly better than its own depths shuffled"),
     (3.5, 4.2, "better than its own depths shuffled, worse than fixed depth 2")],
)  # fmt: skip
def test_mixed_results_name_the_beaten_baselines(run: Path, fixed: float, shuffled: float, words: str) -> None:
    compared = {"sets": {"held_out": make_matched_set(4.0, fixed, shuffled, depth=2.0)}}
    finding = verdict(replace_files(read_run(run), others={MATCHED_BASELINE: compared}))["worth"]
    assert finding.brief.startswith(f"{words}; held_out/mlm_loss 4.000 against {fixed:.3f} of the same network")
    assert finding.sentences[0] == f"The run is {words}."


@pytest.mark.parametrize(
    ("inside", "beyond", "answer", "start"),
    [(0.1, 0.0, "partly", "better than fixed depth 2 (inside), not clearly better than fixed depth 2 (beyond); "
      "inside/accuracy"),
     (0.0, 0.1, "partly", "better than fixed depth 2 (beyond), not clearly better than fixed depth 2 (inside); "
      "beyond/accuracy"),
     (0.1, -0.1, "no", "better than fixed depth 2 (inside), worse than fixed depth 2 (beyond); beyond/accuracy"),
     (0.2, 0.1, "yes", "beyond/accuracy")],
)  # fmt: skip
def test_the_headline_is_of_the_set_that_earns_the_answer(
    run: Path, inside: float, beyond: float, answer: str, start: str
) -> None:
    sets = {
        name: {"n": 64, "exit": {"mean": 2.5, "gain": make_gain("accuracy", 0.7, 0.7 - gain, baseline_depth=2.0)}}
        for name, gain in (("inside", inside), ("beyond", beyond))
    }
    finding = verdict(replace_files(read_run(run), others={EXITS: {"sets": sets}}))["worth"]
    assert finding.answer == answer
    assert finding.brief.startswith(start)


@pytest.mark.parametrize(
    ("fixed", "error", "depth", "answer", "start"),
    [
        # Better by less than the least relevant difference of .01, but significantly.
        (3.996, 0.0015, 2.0, "no", "fixed depth 2 is at least as good with less compute; held_out/mlm_loss 4.000"),
        (3.996, 0.0015, 3.25, "no", "fixed depths 3 and 4, mixed is at least as good with the same compute; "),
        # Equal: the interval of the gain ends at .001 + .003.
        (4.001, 0.0015, 2.0, "no", "fixed depth 2 is as good to within 0.01 with less compute; "),
        (4.001, 0.0015, 3.25, "partly", "better than its own depths shuffled, not clearly better than fixed depths"),
        # Not shown to be equal: the interval reaches .02.
        (3.999, 0.01, 2.0, "partly", "better than its own depths shuffled, not clearly better than fixed depth 2; "),
        # Significantly worse, by less than what is relevant.
        (4.006, 0.001, 2.0, "partly", "better than its own depths shuffled, not clearly better than fixed depth 2; "),
    ],
)
def test_an_equally_good_fixed_depth_with_less_compute_suffices(
    run: Path, fixed: float, error: float, depth: float, answer: str, start: str
) -> None:
    entry = make_matched_set(4.0, fixed, 4.2, depth=depth)
    entry["gains"]["fixed"]["mlm_loss"]["error"] = error
    finding = verdict(replace_files(read_run(run), others={MATCHED_BASELINE: {"sets": {"held_out": entry}}}))["worth"]
    assert finding.answer == answer
    assert finding.brief.startswith(start)
    assert finding.sentences[0].lower().startswith(start.partition(";")[0] if answer == "no" else "the run is better")
    assert ("better than 1 of 2 baselines" in finding.brief) == (answer == "no")


@pytest.mark.parametrize(
    ("cheaper", "error", "answer", "start"),
    [
        # The interval of the gain ends at .003, or at .02.
        (4.0, 0.0015, "no", "Fixed depth 1 is at least as good with less compute."),
        (
            3.999,
            0.01,
            "unclear",
            "Fixed depth 1 measured at least as good with less compute, which this evaluation is ",
        ),
        # It is better on the half that selects it, but not on the other.
        (4.003, 0.01, "unclear", "Compared with the same network at fixed depths 3 and 4, mixed"),
    ],
)
def test_the_cheapest_depth_that_is_as_good_is_tested_beside_the_mixture(
    run: Path, cheaper: float, error: float, answer: str, start: str
) -> None:
    entry = make_matched_set(4.0, 4.001, 4.001)
    entry["gains"]["permuted"]["mlm_loss"]["error"] = entry["gains"]["fixed"]["mlm_loss"]["error"] = 0.01
    entry["gains"]["cheaper"] = {"mlm_loss": make_gain("mlm_loss", 4.0, cheaper, error, baseline_depth=1.0)}
    matched = {MATCHED_BASELINE: {"sets": {"held_out": entry}}}
    finding = verdict(replace_files(read_run(run), others=matched))["worth"]
    assert finding.answer == answer
    assert finding.sentences[0].startswith(start)
    assert any("fixed depth 1, the cheapest that measured at least as good" in words for words in finding.sentences)
    assert "gain_over_fixed_cheaper/held_out" in finding.figures
    # The study of all examples replaces it.
    exit_statistics = {"mean": 3.25, "std": 1.0, "gain": make_gain("loss", 4.0, 4.1, baseline_depth=3.25)}
    exits = {"sets": {"held_out": {"n": 64, "exit": exit_statistics}}}
    finding = verdict(replace_files(read_run(run), others={**matched, EXITS: exits}))["worth"]
    assert [pair.key for pair in finding.comparisons] == ["fixed_step/held_out", "random_depths/held_out"]


@pytest.mark.parametrize(("error", "answer"), [(0.0040, "no"), (0.0046, "unclear")])
def test_intervals_of_several_cheaper_depths_are_corrected(run: Path, error: float, answer: str) -> None:
    """Use a half width of 2.09 errors for one cheaper depth and of 2.43 for two, with a margin of .01."""
    entry = make_matched_set(4.0, 4.0, 4.001, depth=2.0)
    entry["gains"]["permuted"]["mlm_loss"]["error"] = 0.01
    entry["gains"]["fixed"]["mlm_loss"]["error"] = error
    files = replace_files(read_run(run), others={MATCHED_BASELINE: {"sets": {"held_out": entry}}})
    assert verdict(files)["worth"].answer == "no"
    entry["gains"]["cheaper"] = {"mlm_loss": make_gain("mlm_loss", 4.0, 4.0, error, baseline_depth=1.0)}
    assert verdict(files)["worth"].answer == answer


def test_an_untested_fixed_depth_is_not_beaten(run: Path) -> None:
    entry = make_matched_set(4.0, 4.2, 4.3)
    entry["gains"]["fixed"]["mlm_loss"]["error"] = None
    finding = verdict(replace_files(read_run(run), others={MATCHED_BASELINE: {"sets": {"held_out": entry}}}))["worth"]
    assert finding.answer == "partly"


def test_a_shallower_fixed_depth_may_be_the_better_baseline(run: Path) -> None:
    compared = {"sets": {"held_out": make_matched_set(4.0, 3.9, 4.3, depth=2.0)}}
    finding = verdict(replace_files(read_run(run), others={MATCHED_BASELINE: compared}))["worth"]
    assert finding.answer == "no"
    assert "at fixed depth 2, the best up to its mean of 3.25 updates" in finding.sentences[1]
    assert "of the same network at fixed depth 2, " in finding.brief


def test_full_depth_is_reported_beside_the_best_fixed_depth(run: Path) -> None:
    gain = make_gain("accuracy", 0.7, 0.6, 0.01, baseline_depth=2.0, selected_on=63)
    gain |= {"full_depth": 6, "full_depth_value": 0.75}
    exits = {"sets": {"test": {"n": 127, "exit": {"mean": 2.5, "gain": gain}}}}
    finding = verdict(replace_files(read_run(run), others={EXITS: exits}))["worth"]
    assert finding.answer == "yes"
    phrase = "; 0.700 against 0.750 at full depth (6 updates, 100 % of the compute)"
    assert phrase in finding.sentences[0]
    assert phrase in finding.brief
    assert "accuracy 0.700 against 0.600 on half of the 127 sequences, better by" in finding.sentences[0]
    assert ", on half of the 127 sequences; " in finding.brief
    assert "n 64 sequences or groups of them; the fixed step was selected on 63 others)" in finding.sentences[0]
    (recorded,) = to_json({"worth": finding})["worth"]["comparisons"]
    assert (recorded["full_depth"], recorded["full_depth_value"]) == (6, 0.75)


@pytest.mark.parametrize(
    ("adaptive", "baseline", "words"),
    [(0.6724, 0.6716, "accuracy 0.6724 against 0.6716, better by 0.001"), (0.672, 0.6719, "0.672 against 0.672, equal"),
     (0.672, 0.668, "0.672 against 0.668, better by 0.004")],
)  # fmt: skip
def test_values_that_differ_print_as_different(adaptive: float, baseline: float, words: str) -> None:
    assert words in QualityPair("", "", "accuracy", adaptive, baseline, 0.0001, 19, "", False).sentence


def test_a_significant_difference_may_be_too_small_to_matter() -> None:
    pair = QualityPair("", "", "loss", 4.0, 3.993, 0.0015, 100, "", True)
    assert pair.p < 0.001
    assert "below the least relevant difference of 0.01" in pair.difference
    assert "not significant" not in pair.difference


def add_difficulties(files: RunFiles, accuracies: dict[str, float], **everyone: Any) -> RunFiles:
    """Return a run whose units have one of two labels, 400 each, and equally many units of every difficulty."""
    base = {**files.halting["classes"]["all"], "n": 800, **everyone}
    classes = {"all": {**base, "accuracy_n": 800, "accuracy": sum(accuracies.values()) / len(accuracies)}}
    classes |= {f"label: {name}": {**base, "accuracy_n": 400, "accuracy": 0.5} for name in ("a", "b")}
    n = 800 // len(accuracies)
    classes |= {
        f"difficulty {name}": {**base, "n": n, "accuracy_n": n, "accuracy": right} for name, right in accuracies.items()
    }
    return replace_files(files, halting={**files.halting, "classes": classes, "adaptation": {}})


@pytest.mark.parametrize(
    ("accuracies", "phrase"),
    [({"<= 1": 0.9, "2": 0.52, "3": 0.5, "> 3": 0.45}, "above chance (50 %) only at difficulty <= 1"),
     ({"<= 1": 0.9, "2": 0.9, "3": 0.9, "> 3": 0.45}, ""), ({"<= 1": 0.9, "> 1": 0.9}, None),
     ({"<= 1": 0.52, "> 1": 0.49}, "above chance (50 %) at no difficulty")],
)  # fmt: skip
def test_depth_of_a_model_at_chance_is_reported(run: Path, accuracies: dict[str, float], phrase: str | None) -> None:
    finding = verdict(add_difficulties(read_run(run), accuracies))["adapts"]
    assert finding.answer in ("yes", "varies")
    assert any("of a model at chance" in sentence for sentence in finding.sentences) == (phrase is not None)
    assert ("above chance" in finding.brief) == bool(phrase)
    assert (phrase or "") in finding.brief


def test_tokens_of_one_sequence_are_not_independent_predictions(run: Path) -> None:
    accuracies = {"<= 1": 0.6, "> 1": 0.6}
    assert "chance" not in " ".join(verdict(add_difficulties(read_run(run), accuracies))["adapts"].sentences)
    wide = add_difficulties(read_run(run), accuracies, accuracy_error=0.1)  # of 24 independent predictions
    assert "above chance (50 %) at no difficulty" in verdict(wide)["adapts"].brief


def test_depth_and_cost_name_the_set_if_there_are_several(run: Path) -> None:
    files = read_run(run)
    halting = {**files.halting, "set": "inside"}
    assert "on inside, " not in verdict(replace_files(files, halting=halting))["adapts"].brief
    several = {**files.run, "final_metrics": {"eval/tokens_per_second": 9.0, "eval/beyond/tokens_per_second": 9.0}}
    findings = verdict(replace_files(files, run=several, halting=halting))
    for question in ("adapts", "cost"):
        assert findings[question].brief.startswith("on inside, ")
        assert findings[question].sentences[-1] == "These are figures of inside, the first of 2 evaluated sets."


def test_the_cost_of_a_fitted_rule_is_reported_beside_that_of_no_rule(run: Path) -> None:
    entry = make_matched_set(4.0, 3.9, 3.9) | {"rule": "margin:0.123456", "max_depth": 6}
    findings = verdict(replace_files(read_run(run), others={MATCHED_BASELINE: {"sets": {"held_out": entry}}}))
    assert "of updates with margin:0.123" in findings["cost"].brief
    assert "With margin:0.123, whose quality is compared above, it is 3.25 of 6 updates (54 %)." in " ".join(
        findings["cost"].sentences
    )
    assert findings["worth"].brief.startswith("with exit rule margin:0.123, held_out/mlm_loss 4.000")


@pytest.mark.parametrize(("rule", "brief"), [
    ("margin:0.9", "exit rule margin:0.90: measured 80 to 125 % of the time of full depth"),
    (None, "2 timed exit rules: measured 50 to 125 % of the time of full depth"),
])  # fmt: skip
def test_measured_times_of_exit_rules_stand_beside_their_compute(run: Path, rule: str | None, brief: str) -> None:
    times = {"margin:0.90": {"1": 1.25, "8": 0.8}, "kl:0.1": {"1": 2.0}, "fixed:1": {"1": 6.0}}
    rows = [{"rule": name, "macs_ratio": 2.0, "time_ratio": ratios} for name, ratios in times.items()]
    files = read_run(run)
    files.config["model"] = {"exit_rule": rule}
    finding = verdict(replace_files(files, others={EXIT_RULES: {"sets": {"test": {"rows": rows}}}}))["cost"]
    assert finding.brief.endswith(brief)
    assert (
        "Measured: the exit rule margin:0.90 takes 80 % (batch size 1), 125 % (batch size 8) of the time of full "
        "depth, with 50 % of its compute."
    ) in finding.sentences


@pytest.mark.parametrize(("ratio", "text"), [
    (1.5, "1.50 times as fast"), (0.8, "slower, 1.25 times the time"),
])  # fmt: skip
def test_a_slow_down_is_not_called_a_speed_up(ratio: float, text: str) -> None:
    assert format_speed(ratio) == text


@pytest.mark.parametrize(("ratio", "limits", "text"), [
    (1.5, (1.25, 1.6), "1.50 times as fast (1.25 to 1.60)"),
    (0.8, (0.5, 0.99), "slower, 1.25 times the time (1.01 to 2.00)"),
    (1.3, (0.98, 1.6), "no measurable difference in time (0.98 to 1.60 times as fast)"),
    (0.8, (0.5, 1.01), "no measurable difference in time (0.50 to 1.01 times as fast)"),
])  # fmt: skip
def test_a_speed_has_its_range(ratio: float, limits: tuple[float, float], text: str) -> None:
    assert format_speed(ratio, limits) == text


@pytest.mark.parametrize(("limits", "brief", "sentence"), [
    ({"8": [1.1, 1.6]}, "measured 62 to 91 % of the time of full depth", "takes 80 % (62 to 91 %, batch size 8) of"),
    ({"8": [0.8, 1.6]}, "no measurable difference from the time of full depth (62 to 125 %)",
     "takes 80 % (62 to 125 %, no measurable difference, batch size 8) of"),
    ({"1": [2.0, 3.0], "8": [0.55, 1.6]}, "measured 33 to 50 % of the time of full depth in 1 of 2 measurements, no "
     "measurable difference in 1", "80 % (62 to 182 %, no measurable difference, batch size 8) of"),
])  # fmt: skip
def test_measured_times_have_their_range(run: Path, limits: dict[str, list[float]], brief: str, sentence: str) -> None:
    row = {"rule": "kl:0.1", "macs_ratio": 2.0, "time_ratio": dict.fromkeys(limits, 1.25), "time_ratio_range": limits}
    files = read_run(run)
    finding = verdict(replace_files(files, others={EXIT_RULES: {"sets": {"test": {"rows": [row]}}}}))["cost"]
    assert finding.brief.endswith(brief)
    assert any(sentence in line for line in finding.sentences)


def test_a_record_without_errors_is_not_tested(run: Path) -> None:
    entry = make_matched_set(4.0, 4.0, 4.0)
    del entry["gains"]
    fixed = [{"depth": depth, "quality": {"mlm_loss": loss}} for depth, loss in ((3, 4.3), (4, 4.2))]
    entry |= {"n": 900, "fixed": fixed, "permuted": {"draws": 3, "quality": {"mlm_loss": 4.2}}}
    finding = verdict(replace_files(read_run(run), others={MATCHED_BASELINE: {"sets": {"held_out": entry}}}))["worth"]
    assert finding.answer == "unknown"
    assert "4.000 against 4.300, better by 0.300, not tested" in finding.sentences[0]


@pytest.mark.parametrize(
    ("gain", "error", "sign"),
    [(0.02, 0.004, 1), (-0.02, 0.004, -1), (0.02, 0.012, 0), (0.009, 0.0001, 0), (0.02, None, 0), (0.02, 0.0, 1)],
)
def test_a_gain_counts_if_it_is_significant_and_relevant(gain: float, error: float | None, sign: int) -> None:
    pair = QualityPair("", "", "loss", 4.0 - gain, 4.0, error, 19, "", True)
    assert pair.result == sign
    if error:
        assert pair.p == pytest.approx(2 * stats.t.sf(abs(gain) / error, 19))


def test_p_values_are_corrected_for_all_comparisons_of_a_verdict() -> None:
    """Check p = .03, which is significant alone, and not as the least of four."""
    pair = QualityPair("", "", "loss", 3.9, 4.0, 0.1 / stats.t.isf(0.015, 19), 19, "", True)
    assert pair.p == pytest.approx(0.03)
    assert pair.result == 1
    assert [one.result for one in correct_pairs([pair] * 4)] == [0] * 4


def test_a_model_without_its_exit_rule_has_the_reason_of_its_constant_depth(run: Path) -> None:
    files = read_run(run)
    everyone = files.halting["classes"]["all"]
    constant = {"mean": 6.0, "std": 0.0, "entropy": 0.0, "histogram": [0] * 6 + [everyone["n"]]}
    halting = {**files.halting, "classes": {"all": {**everyone, **constant}}}
    halting.pop("adaptation", None)
    for settings, is_explained in (({"exit_rule": None}, True), ({"exit_rule": "margin:0.9"}, False), ({}, False)):
        changed = replace_files(files, halting=halting, config={**files.config, "model": settings})
        finding = verdict(changed)["adapts"]
        assert finding.answer == "no"
        assert any("model.exit_rule=null" in sentence for sentence in finding.sentences) == is_explained
        assert ("model.exit_rule is null" in finding.brief) == is_explained
        assert ("the exit rule margin:0.9 never exits early" in finding.brief) == (
            "exit_rule" in settings and not is_explained
        )


def test_the_answer_on_the_target_has_the_changes_by_its_correction(run: Path) -> None:
    files = read_run(run)
    config = {**files.config, "budget": {"target": files.halting["classes"]["all"]["mean"], "unit": "updates"}}
    before = {"mean": 3.248, "std": 0.43, "effective_depths": 1.75, "metrics": {"score": 0.784}}
    after = {"mean": 3.0, "std": 0.0, "effective_depths": 1.0, "metrics": {"score": 0.758}}
    lost = "the shift to the target made all depths equal"
    for end, is_lost in ((after, True), ({**before, "mean": 3.0}, False)):
        correction = {"set": "inside", "examples": 256, "shift": -0.5, "before": before, "after": end}
        finding = verdict(replace_files(files, config=config, run={**files.run, "depth_correction": correction}))[
            "target"
        ]
        assert finding.answer == "yes"
        assert "shifted by -0.50 to meet the target: from 3.25 ± 0.43 updates (1.75 effective" in finding.sentences[1]
        assert f"score from 0.784 to {end['metrics']['score']:.3f}, on 256 sequences of inside." in finding.sentences[1]
        assert any(lost in sentence.lower() for sentence in finding.sentences) == is_lost
        assert (lost in finding.brief) == is_lost


def test_one_depth_for_all_without_a_comparison_is_not_known(run: Path) -> None:
    compared = {"sets": {"held_out": make_matched_set(4.0, 4.0, 4.0, std=0.0)}}
    finding = verdict(replace_files(read_run(run), others={MATCHED_BASELINE: compared}))["worth"]
    assert finding.answer == "unknown"
    nothing = "Nothing was compared: every token stops at update 3.25, so a fixed depth gives the same network."
    assert finding.sentences == [nothing]
    assert finding.brief == "nothing was compared, because every token stops at update 3.25"


def test_one_depth_for_all_is_compared_with_a_trained_fixed_depth(run: Path) -> None:
    rows = [{"kind": "adaptive", "max_depth": 6, "metrics": {"eval/score": 0.9}},
            {"kind": "fixed depth", "max_depth": 1, "depth": 2, "metrics": {"eval/score": 0.95}}]  # fmt: skip
    files = read_run(run)
    files.halting["classes"]["all"] |= {"accuracy": 0.9, "accuracy_error": 0.01}
    compared = {"sets": {"held_out": {**make_matched_set(4.0, 4.0, 4.0, std=0.0, depth=2.0), "mean": 2.0}}}
    finding = verdict(replace_files(files, others={MATCHED_BASELINE: compared, RIVALS: {"rows": rows}}))["worth"]
    assert finding.answer == "no"
    comparison = "worse than the matched baseline trained at fixed depth 2"
    stops = "every token stops at update 2"
    first = f"Depth does not vary: {stops}, as in a network of fixed depth. The model is {comparison}."
    assert finding.sentences[0] == first
    assert "score 0.900 against 0.950, worse by 0.050" in finding.sentences[1]
    assert finding.brief.startswith(f"{stops}; {comparison}; score 0.900 against 0.950 of the matched baseline")


def test_the_fitted_rule_that_was_compared_is_named_beside_the_depth_without_a_rule(run: Path) -> None:
    files = read_run(run)
    files.halting["classes"]["all"] |= {"mean": 6.0, "std": 0.0}
    entry = make_matched_set(4.0, 4.001, 3.9) | {"rule": "margin:0.0462123", "max_depth": 6}
    exits = {"sets": {"held_out": {"exit": {"mean": 6.0, "std": 0.0}}}}
    finding = verdict(replace_files(files, others={MATCHED_BASELINE: {"sets": {"held_out": entry}}, EXITS: exits}))
    stops, results = "every token stops at update 6", "worse than its own depths shuffled and not clearly better than"
    assert finding["worth"].brief.startswith(f"{stops}; with exit rule margin:0.0462, {results} fixed depths 3 and 4")
    first = (
        f"Depth does not vary: {stops}, as in a network of fixed depth. With exit rule margin:0.0462, it is {results}"
    )
    assert finding["worth"].sentences[0].startswith(first)


def make_targets(gains: Mapping[float, float]) -> dict[str, Any]:
    """Return budgets.json of targets with exits that are better than fixed and shuffled ones by some gains."""
    study: list[dict[str, Any]] = [
        {"rule": f"fixed:{k}", "mean_updates": float(k), "macs": float(k)} for k in range(1, 7)
    ]
    targets: list[dict[str, Any]] = [{"target": None, "mean": 6.0, "metrics": {}}]
    for target, gain in gains.items():
        rule, estimates = f"kl:{target / 100 + 1e-12!r}", {
            "fixed": make_gain("loss", 4.0, 4.0 + gain, baseline_depth=target),
            "permuted": make_gain("loss", 4.0, 4.0 + gain),
        }  # fmt: skip
        study.append({"rule": rule, "mean_updates": target, "macs": target, "permuted": {}, "gains": estimates})
        targets.append({"target": target, "rule": rule, "mean": target, "metrics": {}})
    return {"set": "held_out", "unit": "updates", "rows": targets, "exits": {"rows": study}}


@pytest.mark.parametrize(
    ("gains", "answer", "words"),
    [
        (
            {2.5: 0.1},
            "yes",
            "With exit rule kl:0.025, it is better than fixed depths 2 and 3, mixed at target 2.5 and ",
        ),
        ({2.5: 0.1, 4.0: 0.0}, "partly", "With exit rule kl:0.04, it is not clearly better than fixed depth 4 at "),
        ({2.5: -0.1}, "no", "With exit rule kl:0.025, it is worse than fixed depths 2 and 3, mixed at target 2.5"),
    ],
)
def test_exits_at_target_depths_are_compared_with_fixed_exits(
    run: Path, gains: dict[float, float], answer: str, words: str
) -> None:
    files = read_run(run)
    exits = {"sets": {"held_out": {"exit": {"mean": 6.0, "std": 0.0}}}}
    files = replace_files(files, others={EXITS: exits, BUDGETS: make_targets(gains)})
    finding = verdict(files)["worth"]
    assert finding.answer == answer
    assert finding.sentences[0].startswith("Depth does not vary: every token stops at update 6")
    assert words in finding.sentences[0]
    assert len(finding.comparisons) == 2 * len(gains)
    assert "held_out/loss 4.000 against" in finding.brief
    assert any("exit rule kl:0.025, 2.50 updates; one seed" in sentence for sentence in finding.sentences)


def test_exits_at_target_depths_do_not_decide_for_the_own_exits_of_a_model(run: Path) -> None:
    exit_statistics = {"mean": 3.0, "std": 1.0, "gain": make_gain("loss", 4.0, 4.1, baseline_depth=3.0)}
    exits = {"sets": {"held_out": {"n": 64, "exit": exit_statistics}}}
    files = replace_files(read_run(run), others={EXITS: exits, BUDGETS: make_targets({2.5: -0.1})})
    finding = verdict(files)["worth"]
    assert finding.answer == "yes"
    assert any("at target 2.5: held_out/loss 4.000 against 3.900" in sentence for sentence in finding.sentences)


@pytest.mark.parametrize(("baseline", "words"), [(0.82, "worse than"), (0.803, "not clearly better than")])
def test_one_depth_for_all_is_compared_with_the_best_fixed_depth(run: Path, baseline: float, words: str) -> None:
    """Compare exit rules, too: the fixed depths of their study are on the page, so the answer is known."""
    gain = make_gain("accuracy", 0.8, baseline, 0.002, baseline_depth=2.0, full_depth=6, full_depth_value=0.8)
    rows = [{"rule": "kl:0.1", "mean_updates": 4.0, "macs": 4.0, "gains": {"fixed": gain}}]
    rows += [{"rule": f"fixed:{depth}", "mean_updates": float(depth), "macs": float(depth)} for depth in (2, 4)]
    files = read_run(run)
    files.halting["classes"]["all"] |= {"mean": 4.0, "std": 0.0}
    files.config["model"] = {"exit_rule": "kl:0.10"}
    evaluated = replace_files(files, others={EXIT_RULES: {"sets": {"test": {"rows": rows}}}})
    entry = {**make_matched_set(4.0, 4.0, 4.0, std=0.0), "mean": 4.0}
    entry["own"], entry["gains"] = {"accuracy": 0.8}, {"fixed": {"accuracy": gain}, "permuted": {}}
    trained = replace_files(files, others={MATCHED_BASELINE: {"sets": {"test": entry}}})
    for rule, finding in ((" with exit rule kl:0.1", verdict(evaluated)["worth"]), ("", verdict(trained)["worth"])):
        assert finding.answer == "no"
        stops = f"every token stops{rule} at update 4"
        first = f"Depth does not vary: {stops}, as in a network of fixed depth. The model is {words} fixed depth 2."
        assert finding.sentences[0] == first
        assert f"accuracy 0.800 against {baseline:.3f}" in finding.sentences[1]
        assert [pair.key for pair in finding.comparisons] == ["fixed_step/test"]
    gain["baseline_depth"] = 4.0  # the best is the model itself
    nothing = "Nothing was compared: every token stops with exit rule kl:0.1 at update 4"
    assert verdict(evaluated)["worth"].sentences[0].startswith(nothing)


@pytest.mark.parametrize(("other", "answer"), [(0.8, "yes"), (0.9, "unclear")])
def test_a_run_is_compared_with_the_last_layer_trained_alone(run: Path, other: float, answer: str) -> None:
    network = {"about": "the last layer only", "steps": 100, "predictions": 1000}
    network |= {"metrics": {"eval/score": other, "eval/loss": 1.0}}
    record = {"final_metrics": {"eval/loss": 1.0, "eval/score": 0.9}}
    files_by_name = {MATCHED_BASELINE: {"networks": [network]}}
    files = replace_files(read_run(run), run=record, others=files_by_name)
    files.halting["classes"]["all"] |= {"accuracy": 0.9, "accuracy_error": 0.01}
    finding = verdict(files)["worth"]
    assert finding.answer == answer
    assert (
        f"the last layer only, trained the same way in this run: score 0.900 against {other:.3f}"
    ) in finding.sentences[0]


def test_the_verdict_has_the_reason_of_a_skipped_matched_baseline(run: Path) -> None:
    files_by_name = {MATCHED_BASELINE: {"left_out": "training was too short"}}
    finding = verdict(replace_files(read_run(run), others=files_by_name))["worth"]
    assert finding.answer == "unknown"
    assert "the matched baseline was skipped, training was too short" in finding.sentences[-1]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"matched_baseline": False, "bag_of_words": True}, "no matched baseline (matched_baseline=false), "),
        ({"matched_baseline": False, "bag_of_words": False}, "no matched baseline (baseline=none), "),
        ({"matched_baseline": False}, "no matched baseline (baseline=none), "),  # of an earlier version
        ({"matched_baseline": True}, "no matched baseline for this model, "),
    ],
)
def test_the_verdict_names_the_setting_that_skips_the_matched_baseline(
    run: Path, settings: dict[str, bool], words: str
) -> None:
    files = read_run(run)
    finding = verdict(replace_files(files, config={**files.config, **settings}))["worth"]
    assert words in finding.sentences[-1]


def test_exit_rules_are_compared_with_shuffled_exits_and_the_best_fixed_step(run: Path) -> None:
    rows = [
        {
            "rule": f"quantile:{level}",
            "gains": {
                "fixed": make_gain("accuracy", 0.8 + gain, 0.8, 0.005, baseline_depth=2.0),
                "permuted": make_gain("accuracy", 0.8 + gain, 0.7, 0.005),
            },
        }
        for level, gain in ((0.3, 0.01), (0.5, 0.03), (0.7, 0.05), (0.9, 0.06))
    ]
    rules = {"sets": {"validation": {"draws": 5, "rows": [*rows, {"rule": "fixed:1", "quality": {"score": 0.5}}]}}}
    finding = verdict(replace_files(read_run(run), others={EXIT_RULES: rules}))["worth"]
    assert finding.answer == "yes"
    assert finding.figures == {
        "gain_over_fixed_exits/validation": pytest.approx(0.03),  # of the worse of the middle two
        "gain_over_random_exits/validation": pytest.approx(0.13),
    }
    assert "the median of 4 exit rules by gain; significantly better: 3, significantly worse: 0" in finding.sentences[0]
    assert "fixed depth 2, the best with at most the compute of quantile:0.5" in finding.sentences[0]
    # A model that halts by itself is compared by its own exits, for which no exit rule stands.
    gain = make_gain("accuracy", 0.8, 0.7, 0.01, baseline_depth=1.5)
    exits = {"sets": {"validation": {"n": 5000, "exit": {"mean": 1.5, "gain": gain}}}}
    halting = verdict(replace_files(read_run(run), others={EXIT_RULES: rules, EXITS: exits}))["worth"]
    assert halting.figures == {"gain_over_fixed_step/validation": pytest.approx(0.1)}


def test_only_the_exit_rule_of_the_model_decides(run: Path) -> None:
    rows = [
        {
            "rule": rule, "mean_updates": 2.5, "macs": 3.0,
            "gains": {
                "fixed": make_gain("accuracy", 0.8 + gain, 0.8, 0.005, baseline_depth=2.5),
                "permuted": make_gain("accuracy", 0.8 + gain, 0.7, 0.005),
            },
        }
        for rule, gain in (("quantile:0.5", 0.05), ("margin:0.9", -0.2), ("kl:0.1", -0.3))
    ]  # fmt: skip
    files = read_run(run)
    files.config["model"] = {"exit_rule": "quantile:0.50"}
    finding = verdict(replace_files(files, others={EXIT_RULES: {"sets": {"test": {"rows": rows}}}}))["worth"]
    assert finding.answer == "yes"
    assert finding.figures == {
        "gain_over_fixed_step/test": pytest.approx(0.05), "gain_over_random_depths/test": pytest.approx(0.15),
    }  # fmt: skip
    assert finding.comparisons[0].compute_ratio == 1.0
    # The rule of an evaluated checkpoint is that of its model, whatever the settings of the evaluation.
    for setting in (None, "kl:0.1"):
        files.config["model"] = {"exit_rule": setting}
        evaluated = replace_files(files, run={**files.run, "exit_rule": "quantile:0.5"})
        evaluated = replace_files(evaluated, others={EXIT_RULES: {"sets": {"test": {"rows": rows}}}})
        assert verdict(evaluated)["worth"].figures == finding.figures
    # A rule that the model does not use is no evidence about it.
    files.config["model"] = {"exit_rule": "quantile:0.7"}
    unknown = verdict(replace_files(files, others={EXIT_RULES: {"sets": {"test": {"rows": rows}}}}))["worth"]
    assert unknown.answer == "unknown"


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=30, max_size=60))
@limits(max_examples=25)
def test_the_gain_over_the_commonest_label_has_the_error_of_pairs(pairs: list[tuple[bool, bool]]) -> None:
    """Use predictions of which each has a label, the commonest one or not, and is right or wrong."""
    is_common, right = (np.array(column, dtype=float) for column in zip(*pairs, strict=True))
    assume(is_common.any())
    everyone = {"accuracy": right.mean()}
    commonest = {"n": int(is_common.sum()), "accuracy": right[is_common == 1].mean()}
    expected = (right - is_common).std() / math.sqrt(len(pairs))
    assert _estimate_label_error(everyone, commonest, len(pairs)) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("value", "low", "text"),
    [(0.7, 0.6, "follows loss strongly"), (0.4, 0.3, "follows loss moderately"), (0.2, 0.1, "follows loss weakly"),
     (0.05, 0.04, "does not follow loss"), (0.2, -0.1, "does not follow loss"),
     (-0.6, -0.7, "runs strongly against loss")],
)  # fmt: skip
def test_correlations_are_described_in_words(value: float, low: float, text: str) -> None:
    assert describe_strength({"value": value, "low": low, "high": 2 * value - low}, "loss") == text


@pytest.mark.parametrize(
    ("value", "high", "answer"), [(-0.22, -0.19, "against"), (-0.22, 0.01, "varies"), (0.4, 0.5, "yes")]
)
def test_depth_unrelated_or_opposed_to_difficulty_is_not_a_yes(
    run: Path, value: float, high: float, answer: str
) -> None:
    files = read_run(run)
    correlation = {"value": value, "low": value - 0.03, "high": high, "n": 8192}
    findings = verdict(
        replace_files(files, halting={**files.halting, "difficulty": {"rows": [], "spearman": correlation}})
    )
    assert findings["adapts"].answer == answer
    assert ("unrelated to the difficulty of" in " ".join(findings["adapts"].sentences)) == (answer == "varies")
    assert ("Harder tokens get less depth than easier ones" in " ".join(findings["adapts"].sentences)) == (
        answer == "against"
    )


@pytest.mark.parametrize(
    ("spearman", "low", "share", "share_low", "answer"),
    [(0.3, 0.2, 0.0, -0.1, "yes"), (0.05, 0.04, 0.0, -0.1, "varies"), (0.3, -0.1, 0.0, -0.1, "varies"),
     (0.0, -0.1, 0.2, 0.1, "yes"), (0.0, -0.1, 0.2, -0.1, "varies"), (0.0, -0.1, 0.005, 0.004, "varies"),
     (-0.3, -0.4, 0.0, -0.1, "varies")],
)  # fmt: skip
def test_depth_adapts_only_if_it_is_related_to_loss_or_class(
    run: Path, spearman: float, low: float, share: float, share_low: float, answer: str
) -> None:
    files = read_run(run)
    adaptation = files.halting["adaptation"] | {"between": {"label": {"share": share, "low": share_low}}}
    correlation = {"value": spearman, "low": low, "high": 2 * spearman - low, "n": 900}
    halting = {**files.halting, "adaptation": adaptation, "spearman": {"all": correlation}}
    finding = verdict(replace_files(files, halting=halting))["adapts"]
    assert finding.answer == answer
    assert ("; 20 % of its variance lies between labels" in finding.brief) == (answer == "yes" and spearman < 0.1)
    assert ("unrelated to the loss or known class" in " ".join(finding.sentences)) == (answer == "varies")


def test_nothing_is_compared_if_all_exit_at_one_step(run: Path) -> None:
    exits = {"sets": {"validation": {"n": 9, "steps": [{"step": 2, "quality": {"score": 0.5}}],
                                     "exit": {"mean": 2.0, "std": 0.0, "quality": {"score": 0.5}}}}}  # fmt: skip
    finding = verdict(replace_files(read_run(run), others={EXITS: exits}))["worth"]
    assert finding.answer == "unknown"
    assert finding.sentences == [
        "Nothing was compared: every token stops at update 2, so a fixed depth gives the same network."
    ]


def test_weights_by_setting_are_not_learned(run: Path) -> None:
    halting = {"unit": "task", "layers": {**describe_layers([0.0, 0.0, 1.0]), "is_set": True}, "cost": {}}
    assert verdict(replace_files(read_run(run), halting=halting))["adapts"].answer == "set"


def test_learned_layers_adapt_if_they_are_concentrated(run: Path) -> None:
    def judge_weights(weights: list[float]) -> Any:
        halting = {"unit": "task", "layers": describe_layers(weights), "cost": {}}
        return verdict(replace_files(read_run(run), halting=halting))

    assert judge_weights([0.2] * 5)["adapts"].answer == "no"
    findings = judge_weights([0.0, 0.1, 0.8, 0.1, 0.0])
    assert findings["adapts"].answer == "yes"
    assert "80 %, belongs to state 2" in findings["adapts"].sentences[0]
    assert findings["cost"].sentences[0] == "3 of 4 blocks must run."


@pytest.mark.parametrize(
    ("row", "temperature", "answer"),
    [((1.0, 0.0, 0.0), None, "set"), ((0.34, 0.33, 0.33), 1.0, "no"), ((0.95, 0.03, 0.02), 1.0, "yes"),
     ((0.7, 0.2, 0.1), 1.0, "partly")],
)  # fmt: skip
def test_architectures_adapt_if_their_gates_are_certain(
    run: Path, row: tuple[float, ...], temperature: float | None, answer: str
) -> None:
    halting = {"unit": "architecture", "architecture": describe_architecture([row] * 6, temperature), "cost": {}}
    finding = verdict(replace_files(read_run(run), halting=halting))["adapts"]
    assert finding.answer == answer
    assert "first 2 attention" in finding.sentences[1]


def test_a_searched_architecture_is_compared_with_retrained_ones(run: Path) -> None:
    halting = {"unit": "architecture", "architecture": describe_architecture([(0.6, 0.3, 0.1)] * 6, 1.0), "cost": {}}

    def make_row(name: str, kind: str, trained: str, loss: float, macs: float) -> dict[str, Any]:
        return {"name": name, "kind": kind, "trained": trained, "quality": {"loss": loss}, "quality_set": "test",
                "macs": {"T=8": macs}}  # fmt: skip

    rows = [
        make_row("derived", "searched", "not retrained", 9.0, 50),
        make_row("derived", "searched", "from scratch", 4.0, 50),
    ]
    rows += [
        make_row("paper", "baseline", "from scratch", 5.0, 100),
        make_row("other", "baseline", "continued", 1.0, 100),
    ]
    finding = verdict(replace_files(read_run(run), halting=halting, others={ARCHITECTURES: {"rows": rows}}))["worth"]
    assert finding.answer == "unknown"  # one seed each, and no error
    (sentence,) = finding.sentences
    assert (
        "paper, trained the same way (from scratch): test/loss 4.000 against 5.000, better by 1.000, not tested (50 %"
    ) in sentence
    assert "one seed each" in sentence
    none = verdict(replace_files(read_run(run), halting=halting, others={ARCHITECTURES: {"rows": rows[:1]}}))["worth"]
    assert none.answer == "unknown"
    assert "exit_rules" not in none.sentences[0]


def test_no_statistics_give_no_verdict(tmp_path: Path) -> None:
    assert verdict(read_run(tmp_path)) == {}


def test_a_correlation_with_a_wide_interval_is_not_measurable(run: Path) -> None:
    files = read_run(run)
    files.halting.pop("difficulty", None)
    loss = {"value": 0.087, "low": -1.0, "high": 1.0, "n": 900}
    files.halting["spearman"] = {"all": loss}
    text = format_halting(files.halting)
    assert "Spearman(depth, loss) not measurable, n 900" in text
    sentences = verdict(files)["adapts"].sentences
    assert any(sentence.startswith("The correlation of depth with loss is not measurable") for sentence in sentences)
    files.halting["spearman"] = {"all": loss | {"low": -0.9}}
    assert "Spearman(depth, loss) +0.087 [-0.900, +1.000], n 900" in format_halting(files.halting)
