"""Tables about exits: steps of an evaluation, and exit rules against compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adadepth.analysis.exits.costs import X_AXES, batches, in_pareto_sets, score_title, warnings
from adadepth.analysis.measure.class_definitions import definition
from adadepth.analysis.measure.class_table import not_available
from adadepth.analysis.render.formats import number, percent, plain, rounded, spread
from adadepth.analysis.render.table import Column, Table, Where, as_text, text

NOT_MEASURED = "not measured"


def exit_facts(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The figures of a set that are one number, with their names, as far as there are any."""
    at_exit, halting, calibration = summary["exit"], summary["halting"], summary["calibration"]
    found = [(f"{name} at exit", f"{value:.4f}") for name, value in at_exit.get("quality", {}).items()]
    if "loss" in at_exit:
        found.append(("loss at exit", f"{at_exit['loss']:.4f}"))
    found.append(("updates", f"{spread(at_exit)}, median {at_exit['median']:g} of at most {summary['max_steps']}"))
    if halting:
        found.append((f"expected steps ({halting['truncation']})", spread(halting["expected_steps"])))
        found.append(("entropy of the halting distribution", f"{spread(halting['entropy'])} nats"))
    if "kl" in halting:
        direction = "KL(posterior, prior)" if halting["kl_direction"] == "posterior_prior" else "KL(prior, posterior)"
        expected = f"the prior expects {halting['prior_expected_steps']:.2f} steps"
        found.append((direction, f"{spread(halting['kl'])} nats; {expected}"))
    if confidence := calibration.get("confidence"):
        found.append(("expected calibration error of the confidence at exit", f"{confidence['ece']:.3f}"))
    if of_halting := calibration.get("halting"):
        found.append(
            ("halting distribution against first right step", f"{of_halting['total_variation']:.3f} (total variation)")
        )
        found.append(("never right at any step", percent(of_halting["never_correct"])))
    return found


def step_table(name: str, summary: Mapping[str, Any]) -> Table:
    """What every step of a set is worth."""
    columns = [
        Column("step", "step k"), Column("n", "exit here"), Column("share", "share", percent),
        Column("posterior", "halting distribution", rounded(3)), Column("prior", "prior", rounded(3)),
        Column("halting_probability", "halting probability", rounded(3)),
        *(Column(metric, metric, rounded(4)) for metric in summary["exit"].get("quality", {})),
        Column("loss", "loss", rounded(4)),
    ]  # fmt: skip
    return Table(f"steps_{name}", columns, [{**row.get("quality", {}), **row} for row in summary["steps"]])


def exit_class_table(name: str, summary: Mapping[str, Any]) -> Table:
    """Exit steps by class."""
    columns = [
        Column("class", "class", text, "text", remark="definition"), Column("n"),
        Column("mean", "exit step", rounded(2)), Column("std", "sd", rounded(2)),
        Column("expected_steps", "expected steps", rounded(2)),
    ]  # fmt: skip
    rows = [{"class": of, "definition": definition(of), **found} for of, found in summary["classes"].items()]
    return Table(f"exit_classes_{name}", columns, rows)


def exits_text(summary: Mapping[str, Any]) -> str:
    """The step summary of an evaluated set as text: its facts, a line per step, and what is missing with the reason.

    Args:
        summary: From `step_summary`.
    """
    facts = [plain(f"{name}: {value}") for name, value in exit_facts(summary)]
    lines = [f"exits: {summary['n']:,} examples", *facts, "", as_text(step_table("", summary))]
    lines.append("quality and loss as if every example exited at that step")
    return "\n".join([*lines, *not_available(summary)])


# ---- exit rules


def study_table(studies: Mapping[str, Mapping[str, Any]]) -> Table:
    """The studied exit rules of some sets: quality beside the ratios of layers, work and time."""
    rows = [(name, row) for name, study in studies.items() for row in study["rows"]]
    metrics = list(dict.fromkeys(metric for _, row in rows for metric in row["quality"]))
    timed = sorted({batch for study in studies.values() for batch in batches(study)}, key=int)
    online: Where = "everywhere" if any("online" in row for _, row in rows) else "file"
    is_mean = len(metrics) > 2  # `score` is the mean of the others
    columns = [
        Column("rule", "rule", text, "text"), Column("set", where="file"),
        Column("kind", where="file"), Column("draws", where="file"),
        *(Column(metric, metric, rounded(4), where="file" if metric == "score" and not is_mean else "everywhere")
          for metric in metrics),
        Column("score_std", "sd over draws", rounded(4)), Column("permuted_score", "permuted exits", rounded(4)),
        Column("online_score", "run for real", rounded(4), where=online),
        Column("online_updates", "its updates", rounded(2), where=online),
        Column("mean_updates", "updates", rounded(2)), Column("layer_ratio", "full / mean updates", rounded(2)),
        Column("macs", where="file"), Column("macs_ratio", "MACs ratio", rounded(2)),
        *_time_columns(timed), Column("pareto", "Pareto set", text, "text", where="view"),
        *(Column(f"pareto/{axis}", where="file") for axis in (*X_AXES, *(f"seconds/{batch}" for batch in timed))),
    ]  # fmt: skip
    return Table("exit_rules", columns, [_study_row(name, row, timed) for name, row in rows])


def _time_columns(timed: Sequence[str]) -> list[Column]:
    if not timed:
        return [Column("time_ratio", "time ratio", where="view", absent=NOT_MEASURED)]
    found = []
    for batch in timed:
        found.append(Column(f"seconds/{batch}", f"ms, batch {batch}", _milliseconds, absent=NOT_MEASURED))
        found.append(Column(f"time_ratio/{batch}", "time ratio", rounded(2), absent=NOT_MEASURED))
    return found


def _milliseconds(seconds: float) -> str:
    return number(1000 * seconds, 3)


def _study_row(name: str, row: Mapping[str, Any], timed: Sequence[str]) -> dict[str, Any]:
    axes = (*X_AXES, *(f"seconds/{batch}" for batch in timed))
    times = {f"{key}/{batch}": row.get(key, {}).get(batch) for key in ("seconds", "time_ratio") for batch in timed}
    flat = {key: value for key, value in row.items() if key not in ("time_ratio", "pareto")}
    return {
        **row["quality"], **flat, **times, "set": name, "pareto": in_pareto_sets(row),
        "score_std": row.get("quality_std", {}).get("score"),
        "permuted_score": row.get("permuted", {}).get("quality", {}).get("score"),
        "online_score": row.get("online", {}).get("quality", {}).get("score"),
        "online_updates": row.get("online", {}).get("mean_updates"),
        **{f"pareto/{axis}": int(axis in row["pareto"]) for axis in axes},
    }  # fmt: skip


def study_text(study: Mapping[str, Any]) -> str:
    """Exit rules on one set as text, Pareto sets marked.

    Args:
        study: From `study`, or `add_timings`.
    """
    lines = [f"{score_title(study)}; {study['n']:,} examples, {study['max_steps']} steps", "",
             as_text(study_table({"": study})),
             "ratios: full depth over the rule; permuted: the same exits dealt to the examples at random"]  # fmt: skip
    if any("online" in row for row in study["rows"]):
        lines.append("run for real: the rule really ran, so that exits change what others see")
    timing = ", ".join(f"{key} {value}" for key, value in study.get("timing", {}).items())
    return "\n".join([*lines, f"time: {timing or NOT_MEASURED}", *(f"warning: {line}" for line in warnings(study))])
