"""Halting statistics, compared with numpy and scipy on the raw traces, or with a loop over tokens."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import entropy, spearmanr

from adadepth.halting.trace import DepthTrace, Execution, Halting
from adadepth.metrics.depth_statistics import COSINE_GROUPS, HaltingStatistics, flatten
from adadepth.metrics.unit_classes import TOKEN_CLASSES, token_classes
from tests.marks_support import keep_one_quick
from tests.unit.report import synthetic

MAX_UPDATES = 7


def make_updates(seed: int, batches: int = 3, size: int = 6) -> list[dict[str, Any]]:
    generator = np.random.default_rng(seed)
    arguments = []
    for _ in range(batches):
        batch = synthetic.make_batch(generator, size=size)
        trace = synthetic.make_trace(generator, batch, MAX_UPDATES, progress=0.6)
        arguments.append(
            {
                "trace": trace,
                "classes": token_classes(batch, cls_id=synthetic.CLS, sep_id=synthetic.SEP, mask_id=synthetic.MASK),
                "token_losses": synthetic.make_losses(generator, batch, trace),
                "hidden_states": synthetic.make_states(generator, trace),
                "work": synthetic.make_work(trace),
            }
        )
    return arguments


def accumulate(updates: list[dict[str, Any]], max_updates: int = MAX_UPDATES) -> HaltingStatistics:
    statistics = HaltingStatistics(max_updates, TOKEN_CLASSES, "cpu")
    for update in updates:
        statistics.update(**update)
    return statistics


@pytest.fixture(scope="module")
def updates() -> list[dict[str, Any]]:
    return make_updates(0)


@pytest.fixture(scope="module")
def summary(updates: list[dict[str, Any]]) -> dict[str, Any]:
    return accumulate(updates).summary()


def select_values(updates: list[dict[str, Any]], name: str, field: str) -> np.ndarray:
    """Return the values of a trace's field (or the losses) over the tokens of a class, batch after batch."""
    values = []
    for update in updates:
        trace = update["trace"]
        facts = {"updates": trace.updates, "remainders": trace.halting.remainders, "loss": update["token_losses"]}
        tensor = facts[field]
        values.append(tensor[update["classes"][name]].double().numpy())
    return np.concatenate(values)


@pytest.mark.parametrize("name", TOKEN_CLASSES)
def test_depths_of_a_class_equal_numpy(updates: list[dict[str, Any]], summary: dict[str, Any], name: str) -> None:
    depth, figures = select_values(updates, name, "updates"), summary["classes"][name]
    assert figures["n"] == len(depth) > 0
    assert figures["mean"] == pytest.approx(depth.mean())
    assert figures["std"] == pytest.approx(depth.std())
    for key, level in (("p10", 10), ("median", 50), ("p90", 90)):
        assert figures[key] == np.percentile(depth, level, method="inverted_cdf")
    assert figures["at_cap"] == pytest.approx((depth == MAX_UPDATES).mean())
    assert figures["histogram"] == np.bincount(depth.astype(int), minlength=MAX_UPDATES + 1).tolist()
    assert figures["entropy"] == pytest.approx(entropy(figures["histogram"]))


@pytest.mark.parametrize("name", TOKEN_CLASSES)
def test_remainder_ponder_cost_and_loss_of_a_class_equal_numpy(
    updates: list[dict[str, Any]], summary: dict[str, Any], name: str
) -> None:
    depth, remainder = select_values(updates, name, "updates"), select_values(updates, name, "remainders")
    losses, figures = select_values(updates, name, "loss"), summary["classes"][name]
    losses = losses[~np.isnan(losses)]
    assert figures["remainder"] == pytest.approx(remainder.mean())
    assert figures["ponder_cost"] == pytest.approx((depth + remainder).mean())
    assert figures["loss_n"] == len(losses)
    if len(losses):
        assert figures["loss"] == pytest.approx(losses.mean())
    else:
        assert "loss" not in figures


def test_shares_of_steps_equal_a_loop(updates: list[dict[str, Any]], summary: dict[str, Any]) -> None:
    depth, losses = select_values(updates, "all", "updates"), select_values(updates, "all", "loss")
    for row in summary["steps"]:
        k = row["depth"]
        assert row["share"] == pytest.approx((depth == k).mean())
        assert row["survival"] == pytest.approx((depth >= k).mean())
        step_losses = losses[(depth == k) & ~np.isnan(losses)]
        assert row["loss_n"] == len(step_losses)
        assert row.get("loss") == (pytest.approx(step_losses.mean()) if len(step_losses) else None)
        probabilities = [
            float(probability)
            for update in updates
            for probability, updates_ in zip(
                update["trace"].halting.probabilities[..., k - 1 : k].flatten(),
                update["trace"].updates.flatten(),
                strict=False,
            )
            if updates_ >= k
        ]
        assert row.get("probability") == (pytest.approx(np.mean(probabilities)) if probabilities else None)
    assert [row["depth"] for row in summary["steps"]] == list(range(1, MAX_UPDATES + 1))


@pytest.mark.parametrize("group", COSINE_GROUPS)
def test_cosines_equal_a_loop(group: str) -> None:
    updates = make_updates(1, batches=2, size=2)
    updates[0]["trace"].updates.clamp_(max=4)  # one batch stops early: iterations that it did not execute
    updates[0]["hidden_states"] = synthetic.make_states(
        np.random.default_rng(0),
        DepthTrace("token", updates[0]["trace"].updates, updates[0]["trace"].valid, 7, execution=Execution(4)),
    )
    rows = accumulate(updates).summary()["cosine"][group]
    for k in range(1, MAX_UPDATES + 1):
        running, everyone = [], []
        for update in updates:
            states = update["hidden_states"]
            for position in update["classes"][group].nonzero().tolist():
                if k < len(states):
                    before, after = (states[index][tuple(position)].double().numpy() for index in (k - 1, k))
                    cosine = before @ after / np.sqrt((before @ before) * (after @ after))
                else:
                    cosine = 1.0
                everyone.append(cosine)
                if update["trace"].updates[tuple(position)] >= k:
                    running.append(cosine)
        row = rows[k - 1]
        assert (row["step"], row["running_n"], row["all_n"]) == (k, len(running), len(everyone))
        assert row.get("running") == (pytest.approx(np.mean(running), abs=1e-6) if running else None)
        assert row["all"] == pytest.approx(np.mean(everyone), abs=1e-6)


def test_negative_cosines_count() -> None:
    state = torch.ones(1, 1, 4)
    statistics = HaltingStatistics(1, ["all"], "cpu")
    real = torch.ones(1, 1, dtype=torch.bool)
    statistics.update(DepthTrace("token", real.float(), real, 1), {"all": real}, hidden_states=[state, -state])
    assert statistics.summary()["cosine"]["all"][0]["running"] == pytest.approx(-1)


@pytest.mark.parametrize("spread", keep_one_quick(3, [0.02, 0.3, 3.0]))
def test_spearman_equals_that_of_the_raw_losses(spread: float) -> None:
    """Include losses that are all close together, as at initialisation: the mean is 10 nats."""
    generator = np.random.default_rng(0)
    depth = generator.integers(1, 25, 20_000)
    losses = np.exp(np.log(10) + spread * (0.05 * (depth - 12) + generator.normal(size=depth.size)) / 3)
    real = torch.ones(100, 200, dtype=torch.bool)
    statistics = HaltingStatistics(24, ["all"], "cpu")
    losses = torch.from_numpy(losses).float()
    trace = DepthTrace("token", torch.from_numpy(depth).float().view(100, 200), real, 24)
    statistics.update(trace, {"all": real}, losses.view(100, 200))
    correlation = statistics.summary()["spearman"]["all"]
    assert correlation["value"] == pytest.approx(spearmanr(depth, losses.numpy()).statistic, abs=1e-3)
    assert correlation["low"] < correlation["value"] < correlation["high"]
    assert correlation["n"] == depth.size


def test_extreme_losses_are_ranked() -> None:
    depth, losses = torch.tensor([[1.0, 2, 3, 4]]), torch.tensor([[0.0, 1e-30, 5.0, 1e9]])
    real = torch.ones(1, 4, dtype=torch.bool)
    statistics = HaltingStatistics(4, ["all"], "cpu")
    statistics.update(DepthTrace("token", depth, real, 4), {"all": real}, losses)
    # the two smallest share a bin, so they tie
    assert statistics.summary()["spearman"]["all"]["value"] == pytest.approx(spearmanr([1, 2, 3, 4], [0, 0, 1, 2])[0])


def test_compute_is_summed_over_batches(updates: list[dict[str, Any]], summary: dict[str, Any]) -> None:
    cost = summary["cost"]
    for name in ("executed", "dense", "adaptive", "full"):
        assert cost[f"{name}_macs"] == pytest.approx(sum(float(getattr(update["work"], name)) for update in updates))
    assert cost["executed_over_dense"] == pytest.approx(cost["executed_macs"] / cost["dense_macs"])
    assert 0.5 < cost["executed_over_dense"] < 1
    assert cost["layer_ratio"] == pytest.approx(MAX_UPDATES / select_values(updates, "all", "updates").mean())
    assert cost["adaptive_over_full"] == pytest.approx(1 / cost["layer_ratio"])


@pytest.mark.parametrize("cut", [1, 2])
def test_two_added_accumulators_equal_one_over_both(
    updates: list[dict[str, Any]], summary: dict[str, Any], cut: int
) -> None:
    first, second = accumulate(updates[:cut]), accumulate(updates[cut:])
    for mine, other in zip(first.tensors(), second.tensors(), strict=True):
        mine += other  # in place, as an all-reduce does
    assert_close(drop_intervals(first.summary()), drop_intervals(summary))


def drop_intervals(summary: dict[str, Any]) -> dict[str, Any]:
    """Remove intervals and errors: which sequences are a group depends on the process that reads them."""
    return {
        key: drop_intervals(value) if isinstance(value, dict) else value
        for key, value in summary.items()
        if key not in ("low", "high") and not key.endswith("_error")
    }


def assert_close(actual: Any, expected: Any) -> None:
    """Check equal structure and whole numbers, and floats to rounding."""
    assert type(actual) is type(expected)
    if isinstance(actual, dict):
        assert actual.keys() == expected.keys()
        for key in actual:
            assert_close(actual[key], expected[key])
    elif isinstance(actual, list):
        assert len(actual) == len(expected)
        for item, other in zip(actual, expected, strict=True):
            assert_close(item, other)
    else:
        assert actual == (pytest.approx(expected, rel=1e-12) if isinstance(expected, float) else expected)


def test_bfloat16_states_probabilities_and_losses(updates: list[dict[str, Any]], summary: dict[str, Any]) -> None:
    halves = [
        update
        | {
            "hidden_states": [state.bfloat16() for state in update["hidden_states"]],
            "token_losses": update["token_losses"].bfloat16(),
        }
        for update in updates
    ]
    halves_summary = accumulate(halves).summary()
    for row, expected in zip(halves_summary["cosine"]["all"], summary["cosine"]["all"], strict=True):
        assert row["all"] == pytest.approx(expected["all"], abs=2e-3)
    assert halves_summary["classes"]["all"]["loss"] == pytest.approx(summary["classes"]["all"]["loss"], rel=1e-2)
    assert halves_summary["classes"]["all"]["histogram"] == summary["classes"]["all"]["histogram"]


def test_padding_never_counts(updates: list[dict[str, Any]], summary: dict[str, Any]) -> None:
    spoilt = []
    for update in updates:
        trace, padding = update["trace"], ~update["trace"].valid
        states = [state.masked_fill(padding[..., None], float("nan")) for state in update["hidden_states"]]
        part = DepthTrace(
            "token", trace.updates.masked_fill(padding, 5.0), trace.valid, MAX_UPDATES, execution=trace.execution,
            halting=Halting(
                trace.halting.probabilities, trace.halting.remainders.masked_fill(padding, float("nan"))
            ),
        )  # fmt: skip
        classes = {name: mask | padding for name, mask in update["classes"].items()}
        losses = update["token_losses"].masked_fill(padding, 3.0)
        spoilt.append(update | {"trace": part, "classes": classes, "hidden_states": states, "token_losses": losses})
    assert_close(accumulate(spoilt).summary(), summary)


def test_statistics_of_sequences() -> None:
    depth, valid = torch.tensor([3.0, 1.0, 4.0, 2.0]), torch.tensor([True, True, True, False])
    halting = Halting(torch.full((4, 4), 0.3), torch.tensor([0.5, 0.25, 0.0, 9.0]))
    trace = DepthTrace("sequence", depth, valid, 4, halting=halting)
    statistics = HaltingStatistics(4, ["all", "label/1"], "cpu")
    states = [torch.randn(4, 8) for _ in range(5)]
    classes = {"all": valid, "label/1": torch.tensor([True, False, False, True])}
    statistics.update(trace, classes, torch.tensor([0.1, 0.2, 0.9, 5.0]), states)
    figures = statistics.summary()
    assert (figures["unit"], figures["n"]) == ("sequence", 3)
    assert figures["classes"]["all"]["mean"] == pytest.approx(8 / 3)
    assert figures["classes"]["label/1"] | {"mean": 3.0, "n": 1, "loss_n": 1} == figures["classes"]["label/1"]
    assert [row["survival"] for row in figures["steps"]] == pytest.approx([1, 2 / 3, 2 / 3, 1 / 3])
    assert figures["spearman"]["all"]["value"] == pytest.approx(spearmanr([3, 1, 4], [0.1, 0.2, 0.9])[0])


def test_absent_inputs_are_missing_with_a_reason() -> None:
    real = torch.ones(1, 5, dtype=torch.bool)
    statistics = HaltingStatistics(3, ["all", "mask", "cls"], "cpu")
    statistics.update(DepthTrace("token", real.float(), real, 3), {"all": real, "mask": ~real, "cls": real})
    figures = statistics.summary()
    assert figures["classes"]["mask"] == {"n": 0}
    assert not {"remainder", "ponder_cost", "loss"} & figures["classes"]["all"].keys()
    assert figures["spearman"] == figures["cosine"] == {}
    assert set(figures["cost"]) == {"layer_ratio"}
    assert {
        "halting/mask", "halting/all/remainder", "halting/all/loss", "halting/cosine", "halting/probability",
        "halting/spearman_depth_loss/all", "cost/executed_macs",
    } <= figures["missing"].keys()  # fmt: skip
    assert "halting/cls/remainder" not in figures["missing"]  # reported once, for all units


def test_statistics_without_updates_are_empty() -> None:
    figures = HaltingStatistics(3, TOKEN_CLASSES, "cpu").summary()
    assert figures["n"] == 0
    assert figures["classes"]["all"] == {"n": 0}
    json.dumps(figures, allow_nan=False)


def test_an_infinite_loss_is_missing(updates: list[dict[str, Any]]) -> None:
    losses = updates[0]["token_losses"].clone()
    losses[0, losses[0].isnan().logical_not().nonzero()[0]] = float("inf")
    figures = accumulate([updates[0] | {"token_losses": losses}]).summary()
    assert figures["missing"]["halting/all/loss"] == "not finite"
    json.dumps(figures, allow_nan=False)


def test_summary_is_json_and_flat_names_are_scalars_or_histograms(summary: dict[str, Any]) -> None:
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    flat = flatten(summary)
    assert flat["halting/mask/mask/mean"] == summary["classes"]["mask/mask"]["mean"]
    assert flat["halting/all/histogram"] == summary["classes"]["all"]["histogram"]
    assert flat["halting/cosine/1"] == summary["cosine"]["all"][0]["running"]
    assert flat["halting/probability/2"] == summary["steps"][1]["probability"]
    assert flat["cost/executed_macs"] == summary["cost"]["executed_macs"]
    assert {"halting/remainder", "halting/ponder_cost", "halting/entropy", "halting/spearman_depth_loss"} <= flat.keys()
    for name, value in flat.items():
        assert isinstance(value, list) if name.endswith("/histogram") else isinstance(value, int | float)


def test_accumulators_do_not_grow(updates: list[dict[str, Any]]) -> None:
    few, many = accumulate(updates[:1]), accumulate(updates)
    assert [tensor.shape for tensor in few.tensors()] == [tensor.shape for tensor in many.tensors()]


@pytest.mark.gpu
def test_bfloat16_on_a_gpu_is_accumulated_without_host_reads(
    updates: list[dict[str, Any]], summary: dict[str, Any]
) -> None:
    def move_to_gpu(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.cuda()
        if isinstance(value, DepthTrace | Execution | Halting):
            return replace(value, **{name: move_to_gpu(field) for name, field in vars(value).items()})
        if isinstance(value, dict):
            return {name: move_to_gpu(item) for name, item in value.items()}
        if isinstance(value, list):
            return [move_to_gpu(item).bfloat16() for item in value]
        return type(value)(*map(move_to_gpu, value)) if isinstance(value, tuple) else value

    statistics = HaltingStatistics(MAX_UPDATES, TOKEN_CLASSES, "cuda")
    on_gpu = [move_to_gpu(update) for update in updates]
    torch.cuda.set_sync_debug_mode("error")
    try:
        for update in on_gpu:
            statistics.update(**update)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    gpu_summary = statistics.summary()
    for row, expected in zip(gpu_summary["cosine"]["all"], summary["cosine"]["all"], strict=True):
        assert row["all"] == pytest.approx(expected["all"], abs=2e-3)
    for name in ("classes", "steps", "spearman", "cost"):
        assert_close(gpu_summary[name], summary[name])
