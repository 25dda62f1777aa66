"""Report section and sentences on a run's compute: multiply-accumulates, measured speed-ups and summary figures."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from adadepth.metrics.metric_names import SPEEDUPS, get_unit_wording
from adadepth.metrics.unit_costs import (
    TIME,
    UNIT_COST_TITLES,
    UNIT_MACS,
    compute_share_with_predictions,
    compute_unit_macs,
    format_count,
)
from adadepth.report.run_files import (
    ARCHITECTURES,
    EXIT_RULES,
    EXITS,
    RunFiles,
    get_exit_rule,
    get_run_unit,
    halts,
    series,
)
from adadepth.report.section import Section, SectionEntry, absent, fill
from adadepth.report.table import Column, Table, percent, text

_MOST_RULES = 3  # timed exit rules in the verdict


def measure_unit_costs(files: RunFiles) -> dict[str, float]:
    """Return compute and time of a run for each unit of data, which compare different models.

    Runs of older versions recorded neither, so they follow from the statistics of the evaluation and its speed.

    Returns:
        Those of `UNIT_COST_TITLES` that are known: multiply-accumulates at the decided depths without padding, and
        milliseconds of the last evaluation as it ran, loading included.
    """
    metrics, cost = files.run.get("final_metrics") or {}, files.halting.get("cost") or {}
    recorded = {name: cost[key] for name in UNIT_MACS if (key := name.removeprefix("cost/")) in cost}
    macs = recorded or {f"cost/{key}": value for key, value in compute_unit_macs(files.halting).items()}
    speed = metrics.get("eval/tokens_per_second")
    return macs | ({TIME: 1000 / speed} if speed else {})


def get_speedups(files: RunFiles) -> dict[str, float]:
    """Return the measured speed-ups of ragged over dense execution, for evaluation and for training."""
    metrics = files.run.get("final_metrics") or {}
    return {kind: metrics[name] for kind, name in SPEEDUPS.items() if name in metrics}


def get_speedup_range(files: RunFiles, kind: str) -> Sequence[float]:
    """Return the least and greatest measured speed-up over repetitions; empty if they were not recorded."""
    limits: Sequence[float] = (files.run.get("executions") or {}).get(kind, {}).get("speedup_range", ())
    return limits


def format_speed(ratio: float, limits: Sequence[float] = ()) -> str:
    """Format a measured ratio of times so that a slow-down does not read as a speed-up.

    Args:
        ratio: Time of the reference over the measured time.
        limits: Least and greatest ratio over repeated measurements; empty if they were not recorded.
    """
    if contains_one(limits):
        return f"no measurable difference in time ({limits[0]:.2f} to {limits[1]:.2f} times as fast)"
    if ratio < 1:
        span = f" ({1 / limits[1]:.2f} to {1 / limits[0]:.2f})" if limits else ""
        return f"slower, {1 / ratio:.2f} times the time{span}"
    return f"{ratio:.2f} times as fast" + (f" ({limits[0]:.2f} to {limits[1]:.2f})" if limits else "")


def contains_one(limits: Sequence[float]) -> bool:
    """Return whether a range of time ratios contains 1, so that no difference was measured; False if it is empty."""
    return bool(limits) and limits[0] <= 1 <= limits[1]


def describe_speeds(executions: Mapping[str, Any]) -> str:
    """Return a sentence on the measured times of ragged execution, relative to dense execution.

    Args:
        executions: The value of `executions` in run.json: `machine`, `width`, and for each timed task `speedup`,
            `speedup_range` (absent in older records), `allowed` and `sequences`.
    """
    parts = ", ".join(
        f"{kind} {format_speed(speed['speedup'], speed.get('speedup_range', ()))} (batches of {speed['sequences']}; "
        f"the saved compute allows {speed['allowed']:.2f})"
        for kind in SPEEDUPS
        if (speed := executions.get(kind))
    )
    width = executions.get("width")
    at_width = "" if width is None else f" at width {width}"
    return f"Measured: ragged against dense execution, on {executions['machine']}{at_width}: {parts}."


def describe_measured(files: RunFiles) -> str | None:
    """Return a sentence on a run's measured speed-ups, or None if it measured none.

    Older records have only the metrics, without the machine.
    """
    executions, measured = files.run.get("executions"), get_speedups(files)
    if executions and measured:
        return describe_speeds(executions)
    parts = ", ".join(f"{kind} {format_speed(value)}" for kind, value in measured.items())
    return f"Measured: ragged against dense execution: {parts}." if parts else None


def describe_wall_clock(files: RunFiles) -> Iterator[str]:
    """Yield sentences on measured times: of executions and rules, the sections with others, or that there are none."""
    measured, elsewhere = describe_measured(files), list(_list_timed_sections(files))
    if measured:
        yield measured
    yield from map(describe_rule_times, find_timed_rules(files)[:_MOST_RULES])
    if elsewhere:
        yield f"Measured times are listed with {' and with '.join(elsewhere)}."
    if not measured and not elsewhere:
        yield "Wall-clock time was not measured; a share of compute is not a speed-up."


def find_timed_rules(files: RunFiles) -> list[Mapping[str, Any]]:
    """Return the rows of the timed exit rules on the first set of the study: the model's own rule alone, if it is one.

    Fixed steps are left out.
    """
    study: Mapping[str, Any] = next(iter(files.of(EXIT_RULES).get("sets", {}).values()), {"rows": ()})
    timed = [row for row in study["rows"] if row.get("time_ratio") and not row["rule"].startswith("fixed")]
    model_rule = get_exit_rule(files)
    own_rows = [
        row for row in timed if model_rule is not None and normalise_rule(row["rule"]) == normalise_rule(model_rule)
    ]
    return own_rows or timed


def describe_rule_times(row: Mapping[str, Any]) -> str:
    """Return a sentence on the measured time of an exit rule, beside its compute, as shares of full depth."""
    times = ", ".join(_format_time_share(row, batch) for batch in row["time_ratio"])
    compute = f"{100 / row['macs_ratio']:.0f} % of its compute"
    return f"Measured: the exit rule {row['rule']} takes {times} of the time of full depth, with {compute}."


def _format_time_share(row: Mapping[str, Any], batch: str) -> str:
    """Format the time of an exit rule as a share of that of full depth, with its range over repetitions."""
    limits = row.get("time_ratio_range", {}).get(batch)
    share = f"{100 / row['time_ratio'][batch]:.0f} %"
    if limits is None:
        return f"{share} (batch size {batch})"
    no_difference = "no measurable difference, " if contains_one(limits) else ""
    return f"{share} ({100 / limits[1]:.0f} to {100 / limits[0]:.0f} %, {no_difference}batch size {batch})"


def format_rule_times(files: RunFiles) -> str:
    """Format the range of measured times of the exit rules, or return an empty text if none was timed.

    The range is over rules, batch sizes and repetitions, without measurements that show no difference.
    """
    rows = find_timed_rules(files)
    limits = [
        row.get("time_ratio_range", {}).get(batch, [ratio, ratio])
        for row in rows
        for batch, ratio in row["time_ratio"].items()
    ]
    if not limits:
        return ""
    rules = f"exit rule {rows[0]['rule']}" if len(rows) == 1 else f"{len(rows)} timed exit rules"
    different = [pair for pair in limits if not contains_one(pair)]
    least, most = 100 / max(high for _, high in different or limits), 100 / min(low for low, _ in different or limits)
    span = f"{least:.0f}" + ("" if least == most else f" to {most:.0f}")
    if not different:
        return f"{rules}: no measurable difference from the time of full depth ({span} %)"
    equal = len(limits) - len(different)
    rest = f" in {len(different)} of {len(limits)} measurements, no measurable difference in {equal}" if equal else ""
    return f"{rules}: measured {span} % of the time of full depth{rest}"


def normalise_rule(text: str) -> list[str | float]:
    """Return name and parameters of an exit rule, so that `quantile:0.50` equals `quantile:0.5`."""
    name, *parameters = text.split(":")
    return [name, *(float(value) if re.fullmatch(r"[\d.]+(e-?\d+)?", value) else value for value in parameters)]


def format_rule(text: str, digits: int = 6) -> str:
    """Format an exit rule with rounded parameters, because they may be fitted."""
    return ":".join(part if isinstance(part, str) else f"{part:.{digits}g}" for part in normalise_rule(text))


def _list_timed_sections(files: RunFiles) -> Iterator[str]:
    studies = files.of(EXIT_RULES).get("sets", {}).values()
    if any("seconds" in row for study in studies for row in study["rows"]):
        yield "the exit rules"
    if any(row.get("seconds") for row in files.of(ARCHITECTURES).get("rows", ())):
        yield "the architectures compared"


def build_compute_section(files: RunFiles) -> Section | None:
    """Build the report section on the compute of the model and of the evaluation that measured it, in MACs."""
    cost, unit = files.halting.get("cost", {}), get_run_unit(files)
    if not cost:
        is_told = unit == "architecture" and not files.halting  # a comparison alone measures no compute
        return None if is_told else Section("Compute", "compute", absent("Compute is", files, "halting.json"))
    table = build_compute_table(files.halting, unit, measure_unit_costs(files))
    speed = [value for _, value in series(files.metrics, "eval/tokens_per_second")]
    content = {"table": table, "unit": unit, "cost": cost, "evaluation_speed": speed[-1] if speed else None}
    reasons, times = list(_explain_execution(files)), list(describe_wall_clock(files))
    html = fill("compute:compute", **content, times=times, reasons=reasons)
    return Section("Compute", "compute", html, tables=[table])


def _explain_execution(files: RunFiles) -> Iterator[str]:
    """Yield reasons why the evaluation executed more or less compute than the depths require."""
    unit = get_run_unit(files)
    if files.halting.get("layers", {}).get("from_cache"):
        yield "The evaluation read the states of the base from a cache, so the blocks of the base did not run."
    if files.of(EXITS).get("sets"):
        yield (
            f"The evaluation ran every step for all {unit}s, to measure every step; in use, {unit}s leave the batch "
            "when they exit."
        )
    if "soft" in files.halting.get("evaluations", {}):
        yield "The evaluation mixed all operations of every block; in use, each block runs one of them."


def build_compute_table(halting: Mapping[str, Any], unit: str, unit_costs: Mapping[str, float]) -> Table:
    """Build the table of the MACs that the depths require, and of those that the evaluation executed.

    If predictions are counted apart, the first row includes them, as the tables of exits do.

    Args:
        halting: Content of halting.json.
        unit: Name of the unit that has a depth, such as `token`.
        unit_costs: Result of `measure_unit_costs`.
    """
    words, cost = get_unit_wording(unit), halting["cost"]
    share = compute_share_with_predictions(halting)
    left_out = "padding" if share is None else "padding or predictions"
    names = {
        "adaptive": f"{words.needed}, without {left_out}",
        "full": f"{words.full}, without {left_out}",
        "executed": "this evaluation as it ran, padding included",
        "dense": "dense: every row runs until the deepest row has halted",
    }
    if not words.halts:
        del names["dense"]
    names_per_unit = [] if unit == "architecture" else [name for name in UNIT_MACS if name in unit_costs]
    per_unit = {name: unit_costs[name] / cost["adaptive_macs"] for name in names_per_unit}
    columns = [
        Column("compute", "compute", text, "text"),
        Column("macs", words.macs, "{:.4g}".format),
        *([Column("of_dense", "of dense", percent)] if "dense" in names else []),
        Column("of_full", f"of {words.of_full}", percent),
        *(Column(name, UNIT_COST_TITLES[name], format_count) for name in per_unit),
    ]
    rows = [{"compute": name, **_compute_shares(cost, key)} for key, name in names.items()]
    if share is not None:
        macs = cost["adaptive_macs"] + halting["n"] * halting["predictions_per_unit"] * halting["prediction_macs"]
        name = f"{words.needed}, with predictions, without padding"
        rows.insert(0, {"compute": name, "macs": macs, "of_full": share})
    for row in rows:
        row |= {name: row["macs"] * share for name, share in per_unit.items() if "macs" in row}
    return Table("compute", columns, rows)


def _compute_shares(cost: Mapping[str, Any], key: str) -> dict[str, Any]:
    macs = cost.get(f"{key}_macs")
    if macs is None:
        return {}
    shares = {f"of_{whole}": macs / cost[f"{whole}_macs"] for whole in ("dense", "full") if cost.get(f"{whole}_macs")}
    return {"macs": macs, **shares}


def overview(files: RunFiles) -> Section | None:
    """Build the headline figures of a run whose tokens or sequences halt, such as mean depth."""
    if not halts(files):
        return None
    halting = files.halting
    everyone = halting.get("classes", {}).get("all", {})
    if "mean" not in everyone:
        return Section("", "overview", absent("Halting statistics are", files, "halting.json"))
    ratio = get_speedups(files).get("evaluation")
    speed = None if ratio is None else format_speed(ratio, get_speedup_range(files, "evaluation"))
    without = halting.get("cost", {}).get("adaptive_over_full")
    share = compute_share_with_predictions(halting)
    shares = {"share": without, "without": None} if share is None else {"share": share, "without": without}
    html = fill("compute:overview", halting=halting, everyone=everyone, speed=speed, **shares)
    return Section("", "overview", html)


SECTIONS = (SectionEntry(20, overview), SectionEntry(240, build_compute_section))
