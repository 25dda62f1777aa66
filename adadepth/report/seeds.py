"""Summary of runs that differ only in the seed: mean and standard deviation of metrics, as tables, text and section."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from adadepth.metrics.architectures import agreement_over_seeds, architectures_over_seeds
from adadepth.metrics.layer_weights import collect_seed_weights, compute_seed_distance
from adadepth.metrics.unit_costs import has_separate_predictions
from adadepth.report.architectures import build_third_table, letters
from adadepth.report.run_files import SEEDS, RunFiles, read_seed_runs
from adadepth.report.section import Section, SectionEntry, fill
from adadepth.report.table import Column, Table, is_number, make_number_format, text, to_text


def summarise_seeds(runs: Sequence[tuple[int, Mapping[str, Any]]]) -> dict[str, Any]:
    """Compute mean, sample standard deviation, count and values of every metric over runs with different seeds.

    Args:
        runs: Seed and final metrics of each run. Values that are not finite numbers are skipped.

    Returns:
        `seeds`, `n`, and `metrics`, for each name with `n`, `mean`, `std` (absent for a single value) and `values` by
        seed. A metric that some runs lack has a smaller n. `layer_distance` is present if the runs learned weights of
        layers; see `compute_seed_distance`. `architecture_agreement` is present if they searched architectures; see
        `agreement_over_seeds`.
    """
    names = dict.fromkeys(name for _, metrics in runs for name in metrics)
    described = {}
    for name in names:
        values = {
            str(seed): float(metrics[name])
            for seed, metrics in runs
            if is_number(metrics.get(name)) and abs(metrics[name]) < math.inf
        }
        if values:
            described[name] = describe_seeds(values)
    summary = {"seeds": [seed for seed, _ in runs], "n": len(runs), "metrics": described}
    over_seeds = {
        "layer_distance": compute_seed_distance(collect_seed_weights(described)),
        "architecture_agreement": agreement_over_seeds(architectures_over_seeds(described)),
    }
    return summary | {name: figures for name, figures in over_seeds.items() if figures is not None}


def describe_seeds(values: Mapping[str, float]) -> dict[str, Any]:
    """Return statistics of one metric over seeds: `n`, `mean`, values by seed and, for several values, `std`."""
    numbers = list(values.values())
    described: dict[str, Any] = {"n": len(numbers), "mean": fmean(numbers)}
    if len(numbers) > 1:
        described["std"] = stdev(numbers)
    return described | {"values": dict(values)}


def select_headline_metrics(summary: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the metrics for the table of seeds: quality and losses at the exit, mean depths, search results."""
    return {
        name: metric
        for name, metric in summary["metrics"].items()
        if (name.startswith(("eval", "search/compare/")) and "/step_" not in name) or name in _DEPTH_METRICS
    }


_LAYER_METRICS = ("layers/entropy", "layers/expected_depth", "layers/deepest")
_METRICS_BY_GROUP = {
    "halting": (
        "exit_step/mean",
        "all/mean",
        "expected_steps",
        "kl",
        "calibration/tv",
        "calibration/ece",
        *_LAYER_METRICS,
    ),
    "cost": ("layer_ratio", "adaptive_over_full", "macs_per_token", "macs_per_sequence", "ms_per_token"),
    "search": ("mean_entropy", "expected_blocks", "soft/perplexity", "argmax/perplexity", "sampled/perplexity"),
}
_DEPTH_METRICS = tuple(f"{group}/{name}" for group, names in _METRICS_BY_GROUP.items() for name in names)


def build_seed_table(summary: Mapping[str, Any]) -> Table:
    """Build the table of headline metrics: mean, sample standard deviation, and the values by seed."""
    return _build_table("seeds", "metric", select_headline_metrics(summary), summary)


def build_layer_seed_table(summary: Mapping[str, Any]) -> Table | None:
    """Build the table of learned layer weights over seeds, or return None if the runs learned none."""
    weights = collect_seed_weights(summary.get("metrics", {}))
    by_state = {str(state): metric for state, metric in weights.items()}
    return _build_table("layer_weights_over_seeds", "state n", by_state, summary) if by_state else None


def _build_table(name: str, key: str, metrics: Mapping[str, Mapping[str, Any]], summary: Mapping[str, Any]) -> Table:
    seeds = [str(seed) for seed in summary["seeds"]]
    columns = [
        Column("name", key, text, "text"),
        Column("mean", "mean", make_number_format(4)),
        Column("std", "sd", make_number_format(4)),
        Column("n"),
        *(Column(f"seed_{seed}", f"seed {seed}", make_number_format(4)) for seed in seeds),
    ]
    rows = [
        {"name": label, **metric, **{f"seed_{seed}": metric["values"].get(seed) for seed in seeds}}
        for label, metric in metrics.items()
    ]
    return Table(name, columns, rows)


def format_seeds(summary: Mapping[str, Any]) -> str:
    """Format the headline metrics of runs with several seeds as a text table of means and deviations.

    Args:
        summary: Result of `summarise_seeds`.
    """
    seeds = [str(seed) for seed in summary["seeds"]]
    lines = [f"{len(seeds)} seed{'s' * (len(seeds) != 1)}: {', '.join(seeds)}", "", to_text(build_seed_table(summary))]
    if distance := summary.get("layer_distance"):
        spread = f"mean {distance['mean']:.4f}, max {distance['max']:.4f}"
        lines.append(f"layer distributions of two seeds: total variation {spread}, {distance['pairs']} pairs")
    if agreement := summary.get("architecture_agreement"):
        lines += [f"architecture of seed {seed}: {string}" for seed, string in agreement["strings"].items()]
        spread = f"mean {agreement['mean']:.3f}, min {agreement['min']:.3f}"
        lines.append(f"blocks on which two seeds agree: {spread} of 1, {agreement['pairs']} pairs")
    return "\n".join(lines)


def seeds(files: RunFiles) -> Section | None:
    """Build the report section on metrics over seeds, with the agreement of learned layers and architectures."""
    if not files.of(SEEDS):
        return None
    halting = [run.halting for run in read_seed_runs(files)]
    return build_seeds_section(files.of(SEEDS), has_separate_predictions(halting))


def build_seeds_section(summary: Mapping[str, Any], predictions_apart: bool) -> Section:
    """Build the report section on seeds.

    Args:
        summary: Result of `summarise_seeds`.
        predictions_apart: Whether predictions are counted apart from the compute of the runs.
    """
    table, layer_table = build_seed_table(summary), build_layer_seed_table(summary)
    agreement = summary.get("architecture_agreement")
    strips = [(seed, letters(string)) for seed, string in agreement["strings"].items()] if agreement else []
    thirds = build_third_table(agreement["thirds"]) if agreement else None
    content = {"thirds": thirds, "n": summary["n"], "table": table, "layer_table": layer_table, "strips": strips}
    content |= {"distance": summary.get("layer_distance"), "agreement": agreement}
    html = fill("seeds", **content, predictions_apart=predictions_apart)
    title = f"Over {summary['n']} seed{'' if summary['n'] == 1 else 's'}"
    tables, sample = (
        [table, *([layer_table] if layer_table else [])],
        f"n = {summary['n']} run{'' if summary['n'] == 1 else 's'}",
    )
    return Section(title, "seeds", html, tables=tables, of=sample)


SECTIONS = (SectionEntry(200, seeds),)
