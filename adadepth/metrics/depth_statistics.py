"""Depth statistics: sums over the batches of an evaluation, the values of halting.json, and names for trackers.

A value that could not be computed is absent and never 0. `missing` states the reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from adadepth.halting.trace import DepthTrace, Halting, Work
from adadepth.metrics.adaptation import describe_adaptation, spearman_from_table
from adadepth.metrics.layer_weights import WEIGHT, WEIGHTS, describe_layers
from adadepth.metrics.metric_names import ADAPTATION, CLASS_SCALARS, LAYER_SCALARS, find_least_depth
from adadepth.metrics.significance import GROUPS, choose_group, estimate_by_jackknife

_Sums = Mapping[str, NDArray[Any]]


def summarise(
    sums: _Sums, classes: Sequence[str], cosine_groups: Sequence[str], correlated: Sequence[str], unit: str
) -> dict[str, Any]:
    """Convert the sums of `HaltingStatistics` to the JSON content of halting.json.

    Returns:
        `unit`, `max_depth` and `n`;
        `classes`, the statistics of each class by name;
        `steps`, one row for every depth k = 1..L (from 0 if units have that depth), with its share of units and their
        loss, the share of units that run iteration k, and their halting probability;
        `cosine`, one row per step for every group;
        `spearman`; `cost`;
        `difficulty`, if the data set has one: see `_describe_difficulties`;
        `layers`, if the traces have weights of layers: see `describe_layers`;
        and `missing`, the reason for every absent value by its name.
    """
    missing: dict[str, str] = {}
    described = {
        name: _describe_class({key: sums[key][row] for key in _CLASS_SUMS}, f"halting/{name}", missing)
        for row, name in enumerate(classes)
    }
    everyone = classes.index("all")
    for key, total in (("loss", "group_loss"), ("accuracy", "group_right")):
        if key in described["all"]:
            _put_error(described["all"], key, sums[total], sums[f"{total}_n"])
    summary = {
        "unit": unit,
        "max_depth": sums["depth"].shape[1] - 1,
        "n": described["all"]["n"],
        "classes": described,
        "adaptation": describe_adaptation(described, unit, list(_leave_out_groups(sums["group_depth"], classes))),
        "steps": _describe_steps(sums, sums["depth"][everyone], missing),
        "cosine": _describe_cosines(sums, cosine_groups, missing),
        "spearman": _describe_correlations(sums, correlated, missing),
        "cost": _describe_cost(sums, described["all"], missing),
        **_describe_difficulties(sums, missing),
        **_describe_layers(sums, missing),
    }
    if unit == "task":  # one depth for all examples: nothing halts, so no figure of halting is missing
        missing = {name: reason for name, reason in missing.items() if not name.startswith(_HALTING_NAMES)}
    return summary | {"missing": missing}


_HALTING_NAMES = tuple(
    f"halting/{name}" for name in ("all/remainder", "all/loss", "probability", "cosine", "spearman_depth_loss")
)
_CLASS_SUMS = ("depth", "remainder", "remainder_n", "loss", "loss_n", "right", "right_n")


def _describe_class(sums: _Sums, name: str, missing: dict[str, str]) -> dict[str, Any]:
    """Return the depth statistics of one class of tokens or sequences, from its histogram and sums."""
    histogram = sums["depth"]
    n = int(histogram.sum())
    if n == 0:
        missing[name] = "no unit of this class in the evaluated set"
        return {"n": 0}
    shares = histogram / n
    described: dict[str, Any] = {
        **describe_histogram(histogram),
        "at_cap": float(shares[-1]),
        "entropy": float(-(shares[shares > 0] * np.log(shares[shares > 0])).sum()) + 0.0,  # one depth has 0, not -0
        "histogram": histogram.tolist(),
    }
    # A trace has remainders for all units or for none, so one remark for class `all` is enough.
    remark = missing if name == "halting/all" or sums["remainder_n"] else None
    if _put_mean(described, "remainder", sums["remainder"], sums["remainder_n"], name, remark):
        described["ponder_cost"] = described["mean"] + described["remainder"]
    described["loss_n"] = int(sums["loss_n"])
    # `loss_n` shows that a class without predictions has no loss; only class `all` gets a remark.
    _put_mean(described, "loss", sums["loss"], sums["loss_n"], name, missing if name == "halting/all" else None)
    set_accuracy(described, sums["right"], sums["right_n"])
    return described


def _leave_out_groups(depth: NDArray[np.int64], classes: Sequence[str]) -> Iterator[dict[str, dict[str, Any]]]:
    """Yield count, mean and standard deviation of the depths of all classes without each group of sequences.

    Args:
        depth: Counts by class, group and depth, (C, G, depths).
        classes: Names of the classes, (C,).
    """
    counts = depth.sum(axis=1, keepdims=True) - depth[:, depth.any(axis=(0, 2))]
    n, depths = counts.sum(axis=-1), np.arange(depth.shape[-1])
    mean = (counts * depths).sum(axis=-1) / np.maximum(n, 1)
    std = np.sqrt((counts * (depths - mean[..., np.newaxis]) ** 2).sum(axis=-1) / np.maximum(n, 1))
    for group in range(n.shape[1]):
        yield {
            name: {"n": int(n[row, group]), "mean": float(mean[row, group]), "std": float(std[row, group])}
            for row, name in enumerate(classes)
        }


def _put_error(target: dict[str, Any], key: str, totals: NDArray[Any], counts: NDArray[np.int64]) -> None:
    """Store the standard error of a mean over sequences as `target[f"{key}_error"]`, if there are enough sequences."""
    filled = counts > 0
    rest = counts.sum() - counts[filled]
    if (rest > 0).all():
        left_out = (totals.sum() - totals[filled]) / rest
        if (error := estimate_by_jackknife(target[key], left_out).error) is not None:
            target[f"{key}_error"] = error


def describe_histogram(histogram: NDArray[np.int64]) -> dict[str, Any]:
    """Return count, mean, standard deviation and quantiles of depths 0..L, from a non-empty histogram."""
    n = int(histogram.sum())
    shares, depths = histogram / n, np.arange(len(histogram))
    mean = float((shares * depths).sum())
    return {
        "n": n,
        "mean": mean,
        "std": math.sqrt((shares * (depths - mean) ** 2).sum()),
        "p10": _quantile(histogram, 0.1),
        "median": _quantile(histogram, 0.5),
        "p90": _quantile(histogram, 0.9),
    }


def set_accuracy(target: dict[str, Any], right: Any, count: Any) -> None:
    """Store accuracy and number of predictions in `target`, if there are any predictions."""
    if count:
        target |= {"accuracy": float(right) / int(count), "accuracy_n": int(count)}


def _quantile(histogram: NDArray[np.int64], level: float) -> int:
    """Return a quantile of depth: the smallest depth that a share `level` of tokens or sequences does not exceed."""
    cumulated = np.cumsum(histogram)
    return int(np.searchsorted(cumulated, level * cumulated[-1] * (1 - 1e-12)))


def _put_mean(
    target: dict[str, Any], key: str, total: Any, count: Any, owner: str, missing: dict[str, str] | None = None
) -> bool:
    """Store total / count as `target[key]` or, for count 0, the reason in `missing`; return whether it is stored."""
    value = float(total) / int(count) if count else math.nan
    if math.isfinite(value):
        target[key] = value
    elif missing is not None:
        missing[f"{owner}/{key}"] = "not finite" if count else "not measured for any unit"
    return key in target


def _describe_steps(sums: _Sums, histogram: NDArray[np.int64], missing: dict[str, str]) -> list[dict[str, Any]]:
    """Return a row of statistics for every depth k = 1..L, without values that were never measured.

    If units have a depth of 0, a row for it comes first, without the values of an iteration.
    """
    n = int(histogram.sum())
    loss_counts = sums["depth_by_loss"][0].sum(axis=1)
    if not sums["probability_n"].any():
        missing["halting/probability"] = "the trace has no halting probabilities"
    rows = []
    for depth in range(find_least_depth([histogram.tolist()]), len(histogram)):
        row: dict[str, Any] = {"depth": depth, "n": int(histogram[depth])}
        if n:
            row["share"] = row["n"] / n
        if depth:
            row |= _describe_iteration(sums, depth - 1, n)
        row["loss_n"] = int(loss_counts[depth])
        _put_mean(row, "loss", sums["loss_by_depth"][depth], loss_counts[depth], "")
        rows.append(row)
    return rows


def _describe_iteration(sums: _Sums, index: int, n: int) -> dict[str, Any]:
    """Return how many of the n tokens or sequences executed an iteration, with their mean halting probability."""
    reached = int(sums["ran"][index])
    described: dict[str, Any] = {"reached": reached} | ({"survival": reached / n} if n else {})
    _put_mean(described, "probability", sums["probability"][index], sums["probability_n"][index], "")
    return described


def _describe_cosines(sums: _Sums, groups: Sequence[str], missing: dict[str, str]) -> dict[str, list[dict[str, Any]]]:
    """Return the cosine similarity of the hidden states before and after each iteration k, for every group.

    Each row has both versions, over the units that run the iteration and over all units.
    """
    if not sums["cosine_all_n"].any():
        missing["halting/cosine"] = "no states were recorded: mode=evaluate records them, for models that return states"
        return {}
    described: dict[str, list[dict[str, Any]]] = {}
    for group, name in enumerate(groups):
        described[name] = []
        for step in range(sums["cosine_all"].shape[1]):
            row: dict[str, Any] = {"step": step + 1}
            for version in ("running", "all"):
                total, count = sums[f"cosine_{version}"][group, step], sums[f"cosine_{version}_n"][group, step]
                _put_mean(row, version, total, count, "")
                row[f"{version}_n"] = int(count)
            described[name].append(row)
    return described


def _describe_correlations(sums: _Sums, classes: Sequence[str], missing: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Return Spearman's correlation of depth with loss for each class."""
    described: dict[str, dict[str, Any]] = {}
    for table, groups, name in zip(sums["depth_by_loss"], sums["group_depth_by_loss"], classes, strict=True):
        key = f"halting/spearman_depth_loss/{name}"
        _put_correlation(described, name, table, groups, "loss", key, missing)
    return described


def _put_correlation(
    target: dict[str, Any],
    key: str,
    table: NDArray[np.int64],
    groups: NDArray[np.int64],
    variable: str,
    name: str,
    missing: dict[str, str],
) -> None:
    """Store the rank correlation of depth with a variable as `target[key]`, or in `missing` why there is none."""
    if (correlation := spearman_from_table(table, groups)) is not None:
        target[key] = correlation._asdict()
    else:
        n = int(table.sum())
        missing[name] = f"depth or {variable} is constant" if n >= 3 else f"{n} units with a {variable}, 3 are needed"


def _describe_difficulties(sums: _Sums, missing: dict[str, str]) -> dict[str, Any]:
    """Return statistics of depth and accuracy by difficulty, and the rank correlation of depth with difficulty.

    Returns:
        `difficulty`, with `rows`, one for every difficulty that occurs, with its statistics of depth, `accuracy` and
        `accuracy_n` (if there are predictions), and with `spearman`, if it exists. The dictionary is empty if the data
        have no difficulties.
    """
    if "depth_by_difficulty" not in sums:
        return {}
    groups = sums["depth_by_difficulty"]
    table = groups.sum(axis=0)
    columns = zip(table.T, sums["right_by_difficulty"], sums["right_by_difficulty_n"], strict=True)
    rows = []
    for difficulty, (histogram, total, count) in enumerate(columns):
        if histogram.any():
            row = {"difficulty": difficulty, **describe_histogram(histogram)}
            set_accuracy(row, total, count)
            rows.append(row)
    described: dict[str, Any] = {"rows": rows}
    _put_correlation(described, "spearman", table, groups, "difficulty", "halting/spearman_depth_difficulty", missing)
    return {"difficulty": described}


def _describe_cost(sums: _Sums, everyone: Mapping[str, Any], missing: dict[str, str]) -> dict[str, Any]:
    """Return the multiply-accumulates of an evaluation, and their ratios to full depth and to mean depth."""
    cost: dict[str, Any] = {}
    if everyone["n"] and everyone["mean"] > 0:
        cost["layer_ratio"] = (len(everyone["histogram"]) - 1) / everyone["mean"]
    if not sums["work_n"].any():
        missing["cost/executed_macs"] = "the model reported no compute for its traces"
        return cost
    return cost | describe_work(sums["work"].tolist())


def describe_work(sums: Sequence[float]) -> dict[str, float]:
    """Return multiply-accumulates and their ratios under the names in the section `cost` of halting.json.

    The sums are in the order of the fields of `Work`.
    """
    executed, dense, adaptive, full = sums
    described = {f"{name}_macs": value for name, value in zip(Work._fields, sums, strict=True)}
    if dense > 0:
        described["executed_over_dense"] = executed / dense
    if full > 0:
        described |= {"executed_over_full": executed / full, "adaptive_over_full": adaptive / full}
    return described


def _describe_layers(sums: _Sums, missing: dict[str, str]) -> dict[str, Any]:
    """Return the mean layer weights over all batches. The mean is exact because all batches have the same weights."""
    if not sums["layers_n"].any():
        return {}
    weights = sums["layers"] / sums["layers_n"]
    if not np.isfinite(weights).all():
        missing["halting/layers"] = "not finite"
        return {}
    return {"layers": describe_layers(weights.tolist())}


def flatten(summary: Mapping[str, Any]) -> dict[str, float | list[Any]]:
    """Flatten halting.json into named scalars that trackers plot as curves. Absent values are skipped.

    The names are `halting/<class>/<name>`, such as `halting/all/mean`, `halting/remainder`, `halting/ponder_cost`,
    `halting/entropy`, `halting/probability/<k>`, `halting/cosine/<k>` (of class all, running units),
    `halting/spearman_depth_loss`, `cost/<name>`, such as `cost/executed_macs`; for every difficulty k
    `halting/difficulty/<k>/mean`, `halting/difficulty/<k>/accuracy` and `halting/spearman_depth_difficulty`; for models
    that mix layers `halting/layers/weights` (a list), `halting/layers/weight/<n>`, the other values of
    `describe_layers`, such as `halting/layers/entropy`, and `cost/added_parameters`.
    """
    flat: dict[str, float | list[Any]] = {}
    for name, described in summary["classes"].items():
        flat |= {f"halting/{name}/{key}": described[key] for key in CLASS_SCALARS if key in described}
    everyone = summary["classes"]["all"]
    adaptation = summary.get("adaptation", {})
    flat |= {f"halting/{key}": adaptation[key] for key in ADAPTATION if key in adaptation}
    shares = adaptation.get("between", {})
    flat |= {f"halting/between/{partition}": share["share"] for partition, share in shares.items()}
    flat |= {f"halting/{key}": everyone[key] for key in ("remainder", "ponder_cost", "entropy") if key in everyone}
    for row in summary["steps"]:
        if "probability" in row:
            flat[f"halting/probability/{row['depth']}"] = row["probability"]
    for row in summary["cosine"].get("all", []):
        if "running" in row:
            flat[f"halting/cosine/{row['step']}"] = row["running"]
    if correlation := summary["spearman"].get("all"):
        flat["halting/spearman_depth_loss"] = correlation["value"]
    if "difficulty" in summary:
        flat |= _flatten_difficulties(summary["difficulty"])
    if "layers" in summary:
        flat |= _flatten_layers(summary["layers"])
    return flat | {f"cost/{key}": value for key, value in summary["cost"].items()}


def _flatten_difficulties(difficulty: Mapping[str, Any]) -> dict[str, float]:
    flat = {
        f"halting/difficulty/{row['difficulty']}/{key}": row[key]
        for row in difficulty["rows"]
        for key in ("mean", "accuracy")
        if key in row
    }
    if "spearman" in difficulty:
        flat["halting/spearman_depth_difficulty"] = difficulty["spearman"]["value"]
    return flat


def _flatten_layers(layers: Mapping[str, Any]) -> dict[str, float | list[Any]]:
    flat: dict[str, float | list[Any]] = {WEIGHTS: layers["weights"]}
    flat |= {f"{WEIGHT}{state}": weight for state, weight in enumerate(layers["weights"])}
    flat |= {f"halting/layers/{key}": layers[key] for key in LAYER_SCALARS}
    if "added_parameters" in layers:
        flat["cost/added_parameters"] = layers["added_parameters"]
    return flat


COSINE_GROUPS = ("all", "mask", "unmasked", "cls", "sep")
CORRELATED_CLASSES = ("all", "mask")

# Losses are counted in fine bins: of equal ratio (0.54 %) from 2^-20 nats to 1, of equal width (0.0054) from there to
# 33. The scale is smooth at 1, and smaller or larger losses join the outermost bin. The rank correlation equals that of
# the raw losses to three decimals, even if they lie close together, as around log(vocabulary) at the start.
_BINS_PER_OCTAVE, _OCTAVES, _LARGEST = 128, 20, 33.0
LOSS_BINS = _BINS_PER_OCTAVE * (_OCTAVES + math.ceil((_LARGEST - 1) / math.log(2)))
_COARSE = 16  # bins that are one bin of the tables by group of sequences, which give the intervals


class HaltingStatistics:
    """Accumulator of depth statistics over the depth traces of an evaluation.

    Args:
        max_updates: Maximum number of updates L of every trace.
        classes: Names of the classes. `all` must be one of them.
        device: Device of the traces and the sums. It needs float64.
        difficulties: Number D of difficulties. Units have difficulties 0 to D - 1. It is 0 if the data have none.
    """

    def __init__(
        self, max_updates: int, classes: Sequence[str], device: torch.device | str, difficulties: int = 0
    ) -> None:
        assert "all" in classes, "the class of all units is the reference of every other figure"
        self.max_updates = max_updates
        self.classes = tuple(classes)
        self.cosine_groups = tuple(name for name in COSINE_GROUPS if name in classes)
        self.correlated = tuple(name for name in CORRELATED_CLASSES if name in classes)
        self.unit = "token"
        self._everyone = self.classes.index("all")
        self._sequences = 0  # so far, of this process
        depths, count, groups = max_updates + 1, len(self.classes), len(self.cosine_groups)

        def counts(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        def sums(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        self._sums = {
            "depth": counts(count, GROUPS, depths),
            "ran": counts(max_updates),
            "remainder": sums(count),
            "remainder_n": counts(count),
            "loss": sums(count),
            "loss_n": counts(count),
            "right": sums(count),
            "right_n": counts(count),
            "group_loss": sums(GROUPS),
            "group_loss_n": counts(GROUPS),
            "group_right": sums(GROUPS),
            "group_right_n": counts(GROUPS),
            "loss_by_depth": sums(depths),
            "depth_by_loss": counts(len(self.correlated), depths, LOSS_BINS),
            "group_depth_by_loss": counts(len(self.correlated), GROUPS, depths, LOSS_BINS // _COARSE),
            "probability": sums(max_updates),
            "probability_n": counts(max_updates),
            "cosine_running": sums(groups, max_updates),
            "cosine_running_n": counts(groups, max_updates),
            "cosine_all": sums(groups, max_updates),
            "cosine_all_n": counts(groups, max_updates),
            "layers": sums(depths),
            "layers_n": counts(1),
            "work": sums(len(Work._fields)),
            "work_n": counts(1),
        }
        if difficulties:
            self._sums |= {
                "depth_by_difficulty": counts(GROUPS, depths, difficulties),
                "right_by_difficulty": sums(difficulties),
                "right_by_difficulty_n": counts(difficulties),
            }

    @torch.no_grad()
    def update(
        self,
        trace: DepthTrace,
        classes: Mapping[str, Tensor],
        token_losses: Tensor | None = None,
        hidden_states: Sequence[Tensor] | None = None,
        work: Work | None = None,
        *,
        right: Tensor | None = None,
        difficulty: Tensor | None = None,
    ) -> None:
        """Add the depths of a batch to the statistics, without synchronising with the device.

        Args:
            trace: Depths of the units of the batch. Its `unit` is `token`, `sequence` or `task`.
            classes: Boolean masks by class name, of the shape of `trace.updates`: (B, T) or (B,).
            token_losses: Loss of each unit in nats, of the same shape, or NaN for a unit without a loss.
            hidden_states: States x_0 to x_n before and after the n iterations that ran, each (*updates.shape, H). A
                model that halts whole sequences passes one vector per sequence.
            work: Multiply-accumulates of the batch.
            right: 1 for a unit with a right prediction, 0 for a wrong one, NaN for none, float, of the shape of
                `trace.updates`.
            difficulty: Difficulty of each unit, int64, of the same shape, negative for a unit without one. It is used
                only if `difficulties` is not 0.
        """
        self.unit = trace.unit
        valid = trace.valid.flatten()
        members = torch.stack([classes[name].flatten() for name in self.classes]) & valid
        depth = trace.updates.round().long().clamp(0, self.max_updates).flatten()
        sequences = self._sequences + torch.arange(len(trace.updates), device=trace.updates.device)
        self._sequences += len(trace.updates)
        groups = torch.as_tensor(choose_group(sequences))  # of whole sequences, (B,) int64
        group = groups.view(-1, *[1] * (trace.updates.dim() - 1)).expand_as(trace.updates).flatten()
        cell = group * (self.max_updates + 1) + depth
        self._sums["depth"].flatten(1).scatter_add_(1, cell.expand(members.shape), members.long())
        ran = trace.iterations_run.flatten(0, -2).T
        self._sums["ran"][: len(ran)] += (ran & members[self._everyone]).sum(dim=-1)
        if trace.halting is not None:
            self._add_halting(trace.halting, ran & valid, members)
        if token_losses is not None:
            self._add_losses(token_losses.flatten(), depth, members, group)
        if right is not None:
            predicted = members & ~right.flatten().isnan()
            values = _mask_values(predicted, right.flatten())
            self._add("right", values, predicted)
            self._add_by_group("right", values[self._everyone], predicted[self._everyone], group)
        if difficulty is not None and "depth_by_difficulty" in self._sums:
            self._add_difficulties(
                difficulty.flatten(), cell, members[self._everyone], None if right is None else right.flatten()
            )
        if hidden_states is not None:
            assert hidden_states[0].shape[:-1] == trace.updates.shape, "one state a unit"
            self._add_cosines(hidden_states, ran, members)
        if trace.layer_weights is not None:
            self._sums["layers"] += trace.layer_weights.double()
            self._sums["layers_n"] += 1
        if work is not None:
            self._sums["work"] += torch.stack(list(work)).double()
            self._sums["work_n"] += 1

    def _add_by_group(self, name: str, values: Tensor, counted: Tensor, group: Tensor) -> None:
        """Add values of tokens or sequences, (M,), to the totals of their groups, with the number of values."""
        self._sums[f"group_{name}"].scatter_add_(0, group, values.double())
        self._sums[f"group_{name}_n"].scatter_add_(0, group, counted.long())

    def _add(self, name: str, values: Tensor, counted: Tensor) -> None:
        """Add sums over tokens or sequences to the named totals, with the number of summed values."""
        self._sums[name][: len(values)] += values.double().sum(dim=-1)
        self._sums[f"{name}_n"][: len(values)] += counted.sum(dim=-1)

    def _add_halting(self, halting: Halting, running: Tensor, members: Tensor) -> None:
        """Add the remainders of tokens or sequences, and the halting probabilities of their iterations, (N, M)."""
        if halting.remainders is not None:
            self._add("remainder", _mask_values(members, halting.remainders.flatten()), members)
        running = running[: halting.probabilities.shape[-1]]
        self._add("probability", _mask_values(running, halting.probabilities.flatten(0, -2).T), running)

    def _add_losses(self, losses: Tensor, depth: Tensor, members: Tensor, group: Tensor) -> None:
        members = members & ~losses.isnan()
        values = _mask_values(members, losses)
        self._add("loss", values, members)
        self._add_by_group("loss", values[self._everyone], members[self._everyone], group)
        self._sums["loss_by_depth"].scatter_add_(0, depth, values[self._everyone].double())
        column = _loss_bin(losses)
        tables = self._sums["depth_by_loss"], self._sums["group_depth_by_loss"]
        rows = depth, group * (self.max_updates + 1) + depth
        columns = column, column // _COARSE
        for table, row, position in zip(tables, rows, columns, strict=True):
            for name, counts in zip(self.correlated, table, strict=True):
                cell = row * table.shape[-1] + position
                counts.view(-1).scatter_add_(0, cell, members[self.classes.index(name)].long())

    def _add_difficulties(self, difficulty: Tensor, cell: Tensor, counted: Tensor, right: Tensor | None) -> None:
        """Add tokens or sequences by group, depth and difficulty; a cell, (M,), is the first two of them."""
        counted = counted & (difficulty >= 0)
        table = self._sums["depth_by_difficulty"]
        column = difficulty.clamp(0, table.shape[-1] - 1)
        table.view(-1).scatter_add_(0, cell * table.shape[-1] + column, counted.long())
        if right is not None:
            counted = counted & ~right.isnan()
            self._sums["right_by_difficulty"].scatter_add_(0, column, _mask_values(counted, right).double())
            self._sums["right_by_difficulty_n"].scatter_add_(0, column, counted.long())

    def _add_cosines(self, states: Sequence[Tensor], ran: Tensor, members: Tensor) -> None:
        """Add cosine similarities of x_k and x_(k+1), over tokens that execute iteration k + 1 and over all tokens."""
        members = torch.stack([members[self.classes.index(name)] for name in self.cosine_groups])
        steps = len(states) - 1
        for step in range(steps):
            before, after = states[step].float(), states[step + 1].float()
            cosine = nn.functional.cosine_similarity(before, after, dim=-1).flatten()
            for name, counted in (("cosine_running", members & ran[step]), ("cosine_all", members)):
                self._sums[name][:, step] += _mask_values(counted, cosine).double().sum(dim=-1)
                self._sums[f"{name}_n"][:, step] += counted.sum(dim=-1)
        # An iteration that the batch did not execute would have left every state as it is.
        frozen = members.sum(dim=-1, keepdim=True)
        self._sums["cosine_all"][:, steps:] += frozen
        self._sums["cosine_all_n"][:, steps:] += frozen

    def tensors(self) -> list[Tensor]:
        """Return the accumulated sums as tensors, which the caller all-reduces over processes.

        Before `summary`, sum each over processes, in place and in this order.
        """
        return list(self._sums.values())

    def summary(self) -> dict[str, Any]:
        """Return the accumulated depth statistics as JSON values; see `summarise`."""
        sums = {name: tensor.cpu().numpy() for name, tensor in self._sums.items()}
        sums["group_depth"] = sums["depth"]
        sums["depth"] = sums["depth"].sum(axis=1)
        return summarise(sums, self.classes, self.cosine_groups, self.correlated, self.unit)


def _loss_bin(losses: Tensor) -> Tensor:
    """Return the index of the histogram bin of each loss, int64, and 0 for NaN."""
    losses = losses.double().nan_to_num().clamp(min=2.0**-_OCTAVES)
    position = torch.where(losses < 1, losses.log2(), (losses - 1) / math.log(2)) + _OCTAVES
    return (position * _BINS_PER_OCTAVE).clamp(max=LOSS_BINS - 1).long()


def _mask_values(counted: Tensor, values: Tensor) -> Tensor:
    """Return `values` at counted tokens or sequences and 0 elsewhere, even where values are not finite."""
    return torch.where(counted, values, torch.zeros_like(values))
