"""The verdict of a run: its sentences are built from the figures of the files, and say no where the answer is no."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from adadepth.metrics.architectures import describe_architecture
from adadepth.metrics.layer_weights import describe_layers
from adadepth.report.baseline_comparison import estimate_score_noise, interpolate_quality, to_json
from adadepth.report.pages import build_sections
from adadepth.report.run_files import (
    ARCHITECTURES,
    EXIT_RULES,
    EXITS,
    MATCHED_BASELINE,
    RIVALS,
    RunFiles,
    read_run,
)
from adadepth.report.verdict import describe_strength, verdict
from tests.unit.report.synthetic import make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("run"), max_updates=6, evaluations=2)


def with_files(files: RunFiles, **changed: Any) -> RunFiles:
    return dataclasses.replace(files, **changed)


def test_it_tells_the_figures_of_the_files(run: Path) -> None:
    files = read_run(run)
    found, everyone = verdict(files), files.halting["classes"]["all"]
    assert found["adapts"].answer == "yes"
    (first, *_) = found["adapts"].sentences
    assert first.startswith(f"{everyone['mean']:.2f} ± {everyone['std']:.2f} updates per token, at most 6")
    assert f"{max(everyone['histogram']) / everyone['n']:.0%}".removesuffix("%") + " % of" in first
    assert found["adapts"].figures["effective_depths"] == pytest.approx(math.exp(everyone["entropy"]))
    assert f"{100 * files.halting['cost']['adaptive_over_full']:.0f} %" in found["cost"].sentences[1]
    assert json.loads(json.dumps(to_json(found), allow_nan=False))["adapts"].keys() == {
        "answer",
        "sentences",
        "figures",
    }


def test_it_comes_first_and_what_ran_comes_last(run: Path) -> None:
    sections = build_sections(read_run(run))
    assert [sections[0].anchor, sections[-1].anchor] == ["verdict", "run"]


def test_the_demo_that_stopped_at_one_update(run: Path) -> None:
    files = read_run(run)
    everyone = {"n": 1000, "mean": 3.11, "std": 0.31, "entropy": 0.347, "histogram": [0, 0, 0, 890, 110, 0, 0]}
    halting = {"unit": "token", "max_depth": 6, "classes": {"all": everyone}}
    found = verdict(with_files(files, halting=halting))["adapts"]
    assert found.answer == "no"
    assert found.sentences[0].startswith("Depth did not adapt: 89 % of 1,000 tokens stop at update 3 (3.11 ± 0.31")


def test_a_depth_that_is_set_is_no_failure(run: Path) -> None:
    files = read_run(run)
    halting = {**files.halting, "adaptation": {"is_set": True}}
    assert verdict(with_files(files, halting=halting))["adapts"].answer == "set"


@pytest.mark.parametrize(("loss", "answer"), [(6.0, "unknown"), (6.98, "no"), (7.5, "no")])
def test_a_model_that_knows_only_frequencies_is_not_worth_it(run: Path, loss: float, answer: str) -> None:
    baselines = {"unigram": {"cross_entropy": 7.0, "positions": 1523}}
    record = {"final_metrics": {"eval/mlm_loss": loss}, "baselines": baselines}
    found = verdict(with_files(read_run(run), run=record))["worth"]
    assert found.answer == answer
    assert found.figures["gain_over_unigram"] == pytest.approx(7.0 - loss)
    assert "word frequencies only: mlm_loss" in found.sentences[0]
    assert "n 1,523" in found.sentences[0]


@pytest.mark.parametrize(("own", "answer"), [(0.9, "unknown"), (0.7, "no")])
def test_a_model_that_knows_no_more_than_a_bag_of_words_is_not_worth_it(run: Path, own: float, answer: str) -> None:
    scored = {"model": "logistic regression", "sets": {"held_out": {"score": 0.7}, "test": {"score": 0.99}}}
    record = {"final_metrics": {"eval/score": own}, "baselines": {"bag_of_words": scored}}
    files = read_run(run)
    files.halting["classes"]["all"]["accuracy_n"] = 1000
    found = verdict(with_files(files, run=record))["worth"]
    assert found.answer == answer
    assert f"Compared with logistic regression: score {own:.3f} against 0.700" in found.sentences[0]


def test_a_model_that_always_says_the_commonest_class_of_sequences_is_not_worth_it(run: Path) -> None:
    files = read_run(run)
    predicted = {"all": (200, 0.75), "label: common": (150, 1.0), "label: rare": (50, 0.0)}
    classes = {
        name: {**files.halting["classes"]["all"], "accuracy_n": n, "accuracy": right}
        for name, (n, right) in predicted.items()
    }
    found = verdict(with_files(files, halting={**files.halting, "classes": classes}))["worth"]
    assert found.answer == "no"
    assert (
        "always predicting the most frequent label: accuracy 0.750 against 0.750, no clear difference"
    ) in found.sentences[0]


@pytest.mark.parametrize(("other", "answer"), [(0.8, "yes"), (0.9, "no"), (0.95, "no")])
def test_against_a_fixed_depth(run: Path, other: float, answer: str) -> None:
    rows = [{"kind": "adaptive", "max_depth": 6, "metrics": {"eval/score": 0.9, "eval/mlm_loss": 1}},
            {"kind": "fixed depth", "max_depth": 4, "metrics": {"eval/score": other, "eval/mlm_loss": 1}}]  # fmt: skip
    files = read_run(run)
    files.halting["classes"]["all"]["accuracy_n"] = 1000
    found = verdict(with_files(files, others={RIVALS: {"rows": rows}}))["worth"]
    assert found.answer == answer
    assert f"score 0.900 against {other:.3f}" in found.sentences[0]


def matched_set(own: float, low: float, high: float, dealt: float, *, std: float = 1.0) -> dict[str, Any]:
    """A set that was read at one depth, with a mean of 3.25 between 3 and 4."""
    permuted = {"draws": 3, "quality": {"mlm_loss": dealt}, "quality_std": {"mlm_loss": 0.001}}
    fixed = [{"depth": 3, "quality": {"mlm_loss": low}}, {"depth": 4, "quality": {"mlm_loss": high}}]
    about = {"examples": 64, "of_examples": 100, "predictions": 500, "mean": 3.25, "std": std, "rule": None}
    return {**about, "own": {"mlm_loss": own}, "fixed": fixed, "permuted": permuted}


@pytest.mark.parametrize(
    ("low", "high", "dealt", "answer"),
    [(4.2, 4.2, 4.3, "yes"), (4.2, 4.2, 4.01, "partly"), (4.01, 3.9, 3.9, "no"), (3.0, 3.0, 4.02, "no")],
)
def test_against_itself_at_one_depth_and_with_its_depths_dealt_at_random(
    run: Path, low: float, high: float, dealt: float, answer: str
) -> None:
    compared = {"sets": {"held_out": matched_set(4.0, low, high, dealt)}}
    found = verdict(with_files(read_run(run), others={MATCHED_BASELINE: compared}))["worth"]
    assert found.answer == answer
    assert found.figures == {
        "gain_over_fixed_step/held_out": pytest.approx(low + 0.25 * (high - low) - 4.0),
        "gain_over_random_depths/held_out": pytest.approx(dealt - 4.0),
    }
    assert "the same network at a fixed depth of 3.25 updates, its mean" in found.sentences[0]
    assert "64 of 100 examples" in found.sentences[1]


@pytest.mark.parametrize(
    ("low", "dealt", "answer"), [(4.03, 4.02, "no"), (4.03, 4.1, "partly"), (4.2, 4.1, "yes"), (3.9, 3.9, "no")]
)
def test_a_language_model_is_compared_by_its_loss_which_has_a_tolerance(
    run: Path, low: float, dealt: float, answer: str
) -> None:
    """One percent of a loss of four nats is .04; the score is minus the loss."""

    def both(loss: float) -> dict[str, float]:
        return {"loss": loss, "score": -loss}

    permuted = {"draws": 3, "quality": both(dealt), "quality_std": {"loss": 0.001, "score": 0.001}}
    fixed = [{"depth": depth, "quality": both(low)} for depth in (3, 4)]
    entry = matched_set(4.0, 4.0, 4.0, 4.0) | {"own": both(4.0), "fixed": fixed, "permuted": permuted}
    entry["rule"] = "margin:0.03760863550580657"
    found = verdict(with_files(read_run(run), others={MATCHED_BASELINE: {"sets": {"held_out": entry}}}))["worth"]
    assert found.answer == answer
    assert "3.25 updates, its mean with exit rule margin:0.0376: held_out/loss 4.000 against" in found.sentences[0]


def test_a_model_with_exits_and_no_exit_rule_says_why_its_depth_does_not_adapt(run: Path) -> None:
    files = read_run(run)
    everyone = files.halting["classes"]["all"]
    constant = {"mean": 6.0, "std": 0.0, "entropy": 0.0, "histogram": [0] * 6 + [everyone["n"]]}
    halting = {**files.halting, "classes": {"all": {**everyone, **constant}}}
    halting.pop("adaptation", None)
    for settings, is_explained in (({"exit_rule": None}, True), ({"exit_rule": "margin:0.9"}, False), ({}, False)):
        changed = with_files(files, halting=halting, config={**files.config, "model": settings})
        found = verdict(changed)["adapts"]
        assert found.answer == "no"
        assert any("model.exit_rule=null" in sentence for sentence in found.sentences) == is_explained
        assert ("model.exit_rule is null" in found.brief) == is_explained


def test_one_depth_for_all_is_not_worth_it(run: Path) -> None:
    compared = {"sets": {"held_out": matched_set(4.0, 4.0, 4.0, 4.0, std=0.0)}}
    found = verdict(with_files(read_run(run), others={MATCHED_BASELINE: compared}))["worth"]
    assert found.answer == "no"
    assert found.sentences == ["Every token stops at update 3.25, so a fixed depth gives the same network."]


@pytest.mark.parametrize(("other", "answer"), [(0.8, "yes"), (0.9, "no")])
def test_against_the_last_layer_that_was_trained(run: Path, other: float, answer: str) -> None:
    network = {"about": "the last layer only", "steps": 100, "predictions": 1000}
    network |= {"metrics": {"eval/score": other, "eval/loss": 1.0}}
    record = {"final_metrics": {"eval/loss": 1.0, "eval/score": 0.9}}
    others = {MATCHED_BASELINE: {"networks": [network]}}
    found = verdict(with_files(read_run(run), run=record, others=others))["worth"]
    assert found.answer == answer
    assert (
        f"the last layer only, trained the same way in this run: score 0.900 against {other:.3f}"
    ) in found.sentences[0]


def test_it_says_why_the_matched_baseline_was_left_out(run: Path) -> None:
    others = {MATCHED_BASELINE: {"left_out": "training was too short"}}
    found = verdict(with_files(read_run(run), others=others))["worth"]
    assert found.answer == "unknown"
    assert "the matched baseline was skipped, training was too short" in found.sentences[-1]


def test_exits_against_those_dealt_at_random_and_one_step_for_all(run: Path) -> None:
    rows = [{"rule": f"quantile:{level}", "quality": {"score": 0.8 + gain},
             "permuted": {"quality": {"score": 0.8}, "quality_std": {"score": 0.01}}}
            for level, gain in ((0.3, 0.01), (0.5, 0.03), (0.7, 0.05))]  # fmt: skip
    rules = {"sets": {"validation": {"draws": 5, "rows": [*rows, {"rule": "fixed:1", "quality": {"score": 0.5}}]}}}
    steps = [{"step": 1, "quality": {"score": 0.5}}, {"step": 2, "quality": {"score": 0.9}}]
    exits = {"sets": {"validation": {"n": 5000, "steps": steps, "exit": {"mean": 1.5, "quality": {"score": 0.8}}}}}
    found = verdict(with_files(read_run(run), others={EXIT_RULES: rules, EXITS: exits}))["worth"]
    assert found.answer == "yes"
    assert found.figures == {
        "gain_over_fixed_step/validation": pytest.approx(0.1), "gain_over_random_exits/validation": pytest.approx(0.03)
    }  # fmt: skip
    assert "2 of 3 rules gain more than 2 standard deviations over 5 permutations" in found.sentences[1]


def test_noise_is_that_of_a_difference_of_shares() -> None:
    noise, remark = estimate_score_noise(0.5, 0.5, 10_000)
    assert noise == pytest.approx(1.96 * math.sqrt(2 * 0.25 / 10_000))
    assert "n 10,000" in remark
    assert estimate_score_noise(0.5, 0.5, None)[0] == 0.0


def test_a_fixed_depth_between_two_steps() -> None:
    assert interpolate_quality([(2, 0.6), (1, 0.4), (3, 0.7)], 1.25) == pytest.approx(0.45)
    assert interpolate_quality([(1, 0.4), (2, 0.6)], 2.5) is None


@pytest.mark.parametrize(
    ("value", "low", "said"),
    [(0.7, 0.6, "follows loss strongly"), (0.4, 0.3, "follows loss moderately"), (0.2, 0.1, "follows loss weakly"),
     (0.05, 0.04, "does not follow loss"), (0.2, -0.1, "does not follow loss"),
     (-0.6, -0.7, "runs strongly against loss")],
)  # fmt: skip
def test_correlations_in_words(value: float, low: float, said: str) -> None:
    assert describe_strength({"value": value, "low": low, "high": 2 * value - low}, "loss") == said


@pytest.mark.parametrize(
    ("value", "high", "answer"), [(-0.22, -0.19, "against"), (-0.22, 0.01, "yes"), (0.4, 0.5, "yes")]
)
def test_depth_against_difficulty_is_no_plain_yes(run: Path, value: float, high: float, answer: str) -> None:
    files = read_run(run)
    correlation = {"value": value, "low": value - 0.03, "high": high, "n": 8192}
    found = verdict(with_files(files, halting={**files.halting, "difficulty": {"rows": [], "spearman": correlation}}))
    assert found["adapts"].answer == answer
    assert ("Harder tokens get less depth than easier ones" in " ".join(found["adapts"].sentences)) == (
        answer == "against"
    )


def test_a_difference_is_of_what_the_run_was_to_be_good_at(run: Path) -> None:
    """Exact accuracy where it is optimised, and not its mean with that of cells."""

    def quality(exact: float) -> dict[str, float]:
        return {"exact_accuracy": exact, "cell_accuracy": 0.9, "score": (exact + 0.9) / 2}

    steps = [{"step": step, "quality": quality(exact)} for step, exact in ((1, 0.2), (2, 0.4))]
    exits = {"sets": {"validation": {"n": 5000, "steps": steps, "exit": {"mean": 1.5, "quality": quality(0.7)}}}}
    files = read_run(run)
    for config, name, gain in (({"optimise": "eval/exact_accuracy"}, "exact_accuracy", 0.4), ({}, "score", 0.2)):
        found = verdict(with_files(files, others={EXITS: exits}, config=config))["worth"]
        assert f"validation/{name}" in found.sentences[0]
        assert found.figures["gain_over_fixed_step/validation"] == pytest.approx(gain)


def test_where_all_exit_at_one_step_there_is_nothing_to_compare(run: Path) -> None:
    exits = {"sets": {"validation": {"n": 9, "steps": [{"step": 2, "quality": {"score": 0.5}}],
                                     "exit": {"mean": 2.0, "std": 0.0, "quality": {"score": 0.5}}}}}  # fmt: skip
    found = verdict(with_files(read_run(run), others={EXITS: exits}))["worth"]
    assert found.answer == "unknown"
    assert "All examples exit at the same step" in found.sentences[0]


def test_weights_that_were_set_chose_nothing(run: Path) -> None:
    halting = {"unit": "task", "layers": {**describe_layers([0.0, 0.0, 1.0]), "is_set": True}, "cost": {}}
    assert verdict(with_files(read_run(run), halting=halting))["adapts"].answer == "set"


def test_layers(run: Path) -> None:
    def found(weights: list[float]) -> Any:
        halting = {"unit": "task", "layers": describe_layers(weights), "cost": {}}
        return verdict(with_files(read_run(run), halting=halting))

    assert found([0.2] * 5)["adapts"].answer == "no"
    chosen = found([0.0, 0.1, 0.8, 0.1, 0.0])
    assert chosen["adapts"].answer == "yes"
    assert "80 %, belongs to state 2" in chosen["adapts"].sentences[0]
    assert chosen["cost"].sentences[0] == "3 of 4 blocks must run."


@pytest.mark.parametrize(
    ("row", "temperature", "answer"),
    [((1.0, 0.0, 0.0), None, "set"), ((0.34, 0.33, 0.33), 1.0, "no"), ((0.95, 0.03, 0.02), 1.0, "yes"),
     ((0.7, 0.2, 0.1), 1.0, "partly")],
)  # fmt: skip
def test_architectures(run: Path, row: tuple[float, ...], temperature: float | None, answer: str) -> None:
    halting = {"unit": "architecture", "architecture": describe_architecture([row] * 6, temperature), "cost": {}}
    found = verdict(with_files(read_run(run), halting=halting))["adapts"]
    assert found.answer == answer
    assert "first 2 attention" in found.sentences[1]


def test_a_found_architecture_is_compared_with_those_retrained_beside_it(run: Path) -> None:
    halting = {"unit": "architecture", "architecture": describe_architecture([(0.6, 0.3, 0.1)] * 6, 1.0), "cost": {}}

    def row(name: str, kind: str, trained: str, loss: float, macs: float) -> dict[str, Any]:
        return {"name": name, "kind": kind, "trained": trained, "quality": {"loss": loss}, "quality_set": "test",
                "macs": {"T=8": macs}}  # fmt: skip

    rows = [row("derived", "searched", "not retrained", 9.0, 50), row("derived", "searched", "from scratch", 4.0, 50)]
    rows += [row("paper", "baseline", "from scratch", 5.0, 100), row("other", "baseline", "continued", 1.0, 100)]
    found = verdict(with_files(read_run(run), halting=halting, others={ARCHITECTURES: {"rows": rows}}))["worth"]
    assert found.answer == "yes"
    (sentence,) = found.sentences
    assert (
        "paper, trained the same way (from scratch): test/loss 4.000 against 5.000, better by 1.000 (50 % of"
    ) in sentence
    none = verdict(with_files(read_run(run), halting=halting, others={ARCHITECTURES: {"rows": rows[:1]}}))["worth"]
    assert none.answer == "unknown"
    assert "exit_rules" not in none.sentences[0]


def test_without_statistics_nothing_is_said(tmp_path: Path) -> None:
    assert verdict(read_run(tmp_path)) == {}
