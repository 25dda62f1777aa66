"""From accumulated sums to the figures of halting.json, and from those to flat names for trackers.

A figure that could not be computed is absent, with the reason under `missing`: never 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adadepth.analysis.layers.distribution import WEIGHT, WEIGHTS, describe_layers
from adadepth.analysis.measure.adaptation import describe_adaptation
from adadepth.analysis.measure.correlation import spearman_from_table
from adadepth.analysis.measure.depths import least_depth
from adadepth.analysis.measure.names import ADAPTATION, CLASS_SCALARS, LAYER_SCALARS
from adadepth.halting.trace import Work

Sums = Mapping[str, NDArray[Any]]


def summarise(
    sums: Sums, classes: Sequence[str], cosine_groups: Sequence[str], correlated: Sequence[str], unit: str
) -> dict[str, Any]:
    """Turn the sums of `HaltingStatistics` into JSON values.

    Returns:
        `unit`, `max_depth` and `n`; `classes`: figures of each class by name; `steps`: for every depth k = 1..L (from
        0 where units have it) its share and loss, and of iteration k the share of units that run it and their halting
        probability; `cosine`: for every group a row a step; `spearman`; `cost`;
        `difficulty`, if the data set knows one: see `_describe_difficulties`;
        `layers`, if the traces have weights of layers: see `describe_layers`; and `missing`: why a figure is absent,
        by its name.
    """
    missing: dict[str, str] = {}
    described = {
        name: _describe_class({key: sums[key][row] for key in _CLASS_SUMS}, f"halting/{name}", missing)
        for row, name in enumerate(classes)
    }
    everyone = classes.index("all")
    found = {
        "unit": unit,
        "max_depth": sums["depth"].shape[1] - 1,
        "n": described["all"]["n"],
        "classes": described,
        "adaptation": describe_adaptation(described, unit),
        "steps": _describe_steps(sums, sums["depth"][everyone], missing),
        "cosine": _describe_cosines(sums, cosine_groups, missing),
        "spearman": _describe_correlations(sums["depth_by_loss"], correlated, missing),
        "cost": _describe_cost(sums, described["all"], missing),
        **_describe_difficulties(sums, missing),
        **_describe_layers(sums, missing),
    }
    if unit == "task":  # one depth for all: nothing halts, so what is told of halting is not missing
        missing = {name: reason for name, reason in missing.items() if not name.startswith(_OF_HALTING)}
    return found | {"missing": missing}


_OF_HALTING = (
    "halting/all/remainder", "halting/all/loss", "halting/probability", "halting/cosine", "halting/spearman_depth_loss",
)  # fmt: skip
_CLASS_SUMS = ("depth", "remainder", "remainder_n", "loss", "loss_n", "right", "right_n")


def _describe_class(sums: Sums, name: str, missing: dict[str, str]) -> dict[str, Any]:
    """Figures of one class from its histogram and sums."""
    histogram = sums["depth"]
    n = int(histogram.sum())
    if n == 0:
        missing[name] = "no unit of this class in the evaluated set"
        return {"n": 0}
    shares = histogram / n
    described: dict[str, Any] = {
        **describe_histogram(histogram),
        "at_cap": float(shares[-1]),
        "entropy": float(-(shares[shares > 0] * np.log(shares[shares > 0])).sum()),
        "histogram": histogram.tolist(),
    }
    # A trace has remainders for all units or for none: once said for all of them, it is said.
    remark = missing if name == "halting/all" or sums["remainder_n"] else None
    if _put_mean(described, "remainder", sums["remainder"], sums["remainder_n"], name, remark):
        described["ponder_cost"] = described["mean"] + described["remainder"]
    described["loss_n"] = int(sums["loss_n"])
    # A class in which nothing is predicted has no loss: `loss_n` says so. Only for all units is that worth a remark.
    _put_mean(described, "loss", sums["loss"], sums["loss_n"], name, missing if name == "halting/all" else None)
    put_accuracy(described, sums["right"], sums["right_n"])
    return described


def describe_histogram(histogram: NDArray[np.int64]) -> dict[str, Any]:
    """Number, mean, spread and quantiles of the depths 0..L that a histogram counts, at least one."""
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


def put_accuracy(target: dict[str, Any], right: Any, count: Any) -> None:
    """Set the share of right predictions and their number, where anything is predicted."""
    if count:
        target |= {"accuracy": float(right) / int(count), "accuracy_n": int(count)}


def _quantile(histogram: NDArray[np.int64], level: float) -> int:
    """The smallest depth that at least a share `level` of the units do not exceed."""
    cumulated = np.cumsum(histogram)
    return int(np.searchsorted(cumulated, level * cumulated[-1] * (1 - 1e-12)))


def _put_mean(
    target: dict[str, Any], key: str, total: Any, count: Any, owner: str, missing: dict[str, str] | None = None
) -> bool:
    """Set `target[key]` to total / count, or say why there is none."""
    value = float(total) / int(count) if count else math.nan
    if math.isfinite(value):
        target[key] = value
    elif missing is not None:
        missing[f"{owner}/{key}"] = "not finite" if count else "not measured for any unit"
    return key in target


def _describe_steps(sums: Sums, histogram: NDArray[np.int64], missing: dict[str, str]) -> list[dict[str, Any]]:
    """A row for every depth k = 1..L, over all units; a value that has no unit behind it is absent from its row.

    Where units have a depth of 0 a row for it comes first, without what is told of an iteration.
    """
    n = int(histogram.sum())
    loss_counts = sums["depth_by_loss"][0].sum(axis=1)
    if not sums["probability_n"].any():
        missing["halting/probability"] = "the trace carries no halting probabilities"
    rows = []
    for depth in range(least_depth([histogram.tolist()]), len(histogram)):
        row: dict[str, Any] = {"depth": depth, "n": int(histogram[depth])}
        if n:
            row["share"] = row["n"] / n
        if depth:
            row |= _describe_iteration(sums, depth - 1, n)
        row["loss_n"] = int(loss_counts[depth])
        _put_mean(row, "loss", sums["loss_by_depth"][depth], loss_counts[depth], "")
        rows.append(row)
    return rows


def _describe_iteration(sums: Sums, index: int, n: int) -> dict[str, Any]:
    """How many of the n units run the iteration with this index, their share, and their mean halting probability."""
    reached = int(sums["ran"][index])
    described: dict[str, Any] = {"reached": reached} | ({"survival": reached / n} if n else {})
    _put_mean(described, "probability", sums["probability"][index], sums["probability_n"][index], "")
    return described


def _describe_cosines(sums: Sums, groups: Sequence[str], missing: dict[str, str]) -> dict[str, list[dict[str, Any]]]:
    """For every group a row a step k: similarity of the states before and after iteration k, in both versions."""
    if not sums["cosine_all_n"].any():
        missing["halting/cosine"] = "no states were kept; mode=evaluate compares them, of models that show theirs"
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


def _describe_correlations(
    tables: NDArray[np.int64], classes: Sequence[str], missing: dict[str, str]
) -> dict[str, dict[str, Any]]:
    """Spearman's correlation of depth with loss, within each class."""
    described: dict[str, dict[str, Any]] = {}
    for table, name in zip(tables, classes, strict=True):
        _put_correlation(described, name, table, "loss", f"halting/spearman_depth_loss/{name}", missing)
    return described


def _put_correlation(
    target: dict[str, Any], key: str, table: NDArray[np.int64], other: str, name: str, missing: dict[str, str]
) -> None:
    """Set `target[key]` to the rank correlation of depth with something else, or say under `name` why there is none."""
    if (correlation := spearman_from_table(table)) is not None:
        target[key] = correlation._asdict()
    else:
        n = int(table.sum())
        missing[name] = f"depth or {other} is constant" if n >= 3 else f"{n} units with a {other}, 3 are needed"


def _describe_difficulties(sums: Sums, missing: dict[str, str]) -> dict[str, Any]:
    """Depth and accuracy by difficulty, and the rank correlation of depth with difficulty.

    Returns:
        `difficulty`: `rows`, one for every difficulty that occurs, with its figures of depth, `accuracy` and
        `accuracy_n` (where anything is predicted), and `spearman`, if it exists. Empty where no difficulty is known.
    """
    if "depth_by_difficulty" not in sums:
        return {}
    table = sums["depth_by_difficulty"]
    columns = zip(table.T, sums["right_by_difficulty"], sums["right_by_difficulty_n"], strict=True)
    rows = []
    for difficulty, (histogram, total, count) in enumerate(columns):
        if histogram.any():
            row = {"difficulty": difficulty, **describe_histogram(histogram)}
            put_accuracy(row, total, count)
            rows.append(row)
    found: dict[str, Any] = {"rows": rows}
    _put_correlation(found, "spearman", table, "difficulty", "halting/spearman_depth_difficulty", missing)
    return {"difficulty": found}


def _describe_cost(sums: Sums, everyone: Mapping[str, Any], missing: dict[str, str]) -> dict[str, Any]:
    """Multiply-accumulates, their ratios, and the ratio of layers."""
    cost: dict[str, Any] = {}
    if everyone["n"] and everyone["mean"] > 0:
        cost["layer_ratio"] = (len(everyone["histogram"]) - 1) / everyone["mean"]
    if not sums["work_n"].any():
        missing["cost/executed_macs"] = "the model did not price its traces"
        return cost
    return cost | describe_work(sums["work"].tolist())


def describe_work(sums: Sequence[float]) -> dict[str, float]:
    """Multiply-accumulates, in the order of `Work`, and their ratios, by the names that the section `cost` has."""
    executed, dense, adaptive, full = sums
    described = {f"{name}_macs": value for name, value in zip(Work._fields, sums, strict=True)}
    if dense > 0:
        described["executed_over_dense"] = executed / dense
    if full > 0:
        described |= {"executed_over_full": executed / full, "adaptive_over_full": adaptive / full}
    return described


def _describe_layers(sums: Sums, missing: dict[str, str]) -> dict[str, Any]:
    """The weights of layers: the same in every batch, so their mean is what they are."""
    if not sums["layers_n"].any():
        return {}
    weights = sums["layers"] / sums["layers_n"]
    if not np.isfinite(weights).all():
        missing["halting/layers"] = "not finite"
        return {}
    return {"layers": describe_layers(weights.tolist())}


def flatten(summary: Mapping[str, Any]) -> dict[str, float | list[Any]]:
    """The figures worth a curve, by flat name; what the summary does not have is not there.

    Names: `halting/<class>/mean` and so on, `halting/remainder`, `halting/ponder_cost`, `halting/entropy`,
    `halting/probability/<k>`, `halting/cosine/<k>` (of class all, running units),
    `halting/spearman_depth_loss`, `cost/executed_macs` and so on; where a difficulty k of units is known
    `halting/difficulty/<k>/mean`, `halting/difficulty/<k>/accuracy` and `halting/spearman_depth_difficulty`; of models
    that mix layers `halting/layers/weights` (a list), `halting/layers/weight/<n>`, `halting/layers/entropy` and so on,
    `cost/added_parameters`.
    """
    flat: dict[str, float | list[Any]] = {}
    for name, described in summary["classes"].items():
        flat |= {f"halting/{name}/{key}": described[key] for key in CLASS_SCALARS if key in described}
    everyone = summary["classes"]["all"]
    flat |= _flatten_adaptation(summary.get("adaptation", {}))
    flat |= {f"halting/{key}": everyone[key] for key in ("remainder", "ponder_cost", "entropy") if key in everyone}
    flat |= {
        f"halting/probability/{row['depth']}": row["probability"] for row in _with(summary["steps"], "probability")
    }
    cosines = summary["cosine"].get("all", [])
    flat |= {f"halting/cosine/{row['step']}": row["running"] for row in _with(cosines, "running")}
    if correlation := summary["spearman"].get("all"):
        flat["halting/spearman_depth_loss"] = correlation["value"]
    if "difficulty" in summary:
        flat |= _flatten_difficulties(summary["difficulty"])
    if "layers" in summary:
        flat |= _flatten_layers(summary["layers"])
    return flat | {f"cost/{key}": value for key, value in summary["cost"].items()}


def _flatten_adaptation(found: Mapping[str, Any]) -> dict[str, float]:
    flat = {f"halting/{key}": found[key] for key in ADAPTATION if key in found}
    return flat | {f"halting/between/{way}": told["share"] for way, told in found.get("between", {}).items()}


def _flatten_difficulties(found: Mapping[str, Any]) -> dict[str, float]:
    flat = {
        f"halting/difficulty/{row['difficulty']}/{key}": row[key]
        for row in found["rows"]
        for key in ("mean", "accuracy")
        if key in row
    }
    return flat | ({"halting/spearman_depth_difficulty": found["spearman"]["value"]} if "spearman" in found else {})


def _flatten_layers(layers: Mapping[str, Any]) -> dict[str, float | list[Any]]:
    flat: dict[str, float | list[Any]] = {WEIGHTS: layers["weights"]}
    flat |= {f"{WEIGHT}{state}": weight for state, weight in enumerate(layers["weights"])}
    flat |= {f"halting/layers/{key}": layers[key] for key in LAYER_SCALARS}
    if "added_parameters" in layers:
        flat["cost/added_parameters"] = layers["added_parameters"]
    return flat


def _with(rows: Sequence[Mapping[str, Any]], key: str) -> list[Mapping[str, Any]]:
    return [row for row in rows if key in row]
