"""Console summary at the end of a run: verdict, depth table and next commands, in 24 lines of 80 columns.

The report has all sentences of the verdict, with intervals and n, and all rows of the table.
"""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adadepth.metrics.architectures import is_fixed
from adadepth.metrics.metric_names import WORK
from adadepth.metrics.unit_costs import compute_share_with_predictions, format_compute_shares
from adadepth.report.architectures import build_evaluation_table, build_gate_table
from adadepth.report.baseline_comparison import ANSWERS, QUESTIONS, Verdict
from adadepth.report.depth_by_class import build_class_table
from adadepth.report.exits import build_exit_quality_table
from adadepth.report.layers import format_weight_lines
from adadepth.report.lengths import build_length_table, list_length_rows
from adadepth.report.run_files import (
    EXITS,
    SEEDS,
    RunFiles,
    get_early_stop_reason,
    get_evaluation_step,
    halts,
    is_interrupted,
)
from adadepth.report.table import (
    Column,
    Table,
    has_values,
    make_number_format,
    plain,
    split_equal_columns,
    to_text,
)

_WIDTH, _HEIGHT = 80, 24
MOST_ROWS = 10
_FEWEST_ROWS = 3
_REMARK_LINES = 2
_LONGEST_NAME = 30
_SPREADS = ("std", "p10", "p90", "at_cap")  # which the drawn distributions show, too
# Columns of the table of classes that give way, in this order, where it is wider than the screen.
_OPTIONAL = ("p10", "p90", "std", "at_cap", "loss", "accuracy", "shape")

_MEAN = "halting/all/mean"


@dataclass(frozen=True)
class ReferenceDepth:
    """Mean number of updates per token class that a paper reports, for comparison with a run.

    Attributes:
        means: Mean updates by class name.
        remark: One sentence with the source, and with differences to the run.
    """

    means: Mapping[str, float]
    remark: str


def format_screen(
    files: RunFiles,
    verdict: Verdict,
    *,
    report: Path,
    commands: Sequence[Sequence[str]] = (),
    reference: ReferenceDepth | None = None,
) -> str:
    """Format the summary of a finished run for the console, as lines.

    Args:
        files: Files of the run.
        verdict: Verdict from the same files.
        report: Path of the report page.
        commands: Commands to run next, each as a list of words.
        reference: Published depths, for a column next to the depths of the run.
    """
    interruption, answers = _format_interruption(files), format_verdict_lines(verdict)
    remark = [] if reference is None else _wrap(reference.remark, _REMARK_LINES)
    end: list[str] = []
    room = 0
    for count in range(len(commands), -1, -1):  # the last commands give way to long answers
        lines = [line for words in commands[:count] for line in format_command_lines(words)]
        end = [*_format_selection(files), f"report: {report}", *(["next:"] if lines else []), *lines]
        room = _HEIGHT - len(interruption) - len(answers) - len(remark) - len(end) - 3  # two blank lines, the heading
        if room >= _FEWEST_ROWS:
            break
    table = format_table_lines(files, max(_FEWEST_ROWS, min(MOST_ROWS, room)), reference)
    blocks = [answers, [*table, *remark] if table else [], end]
    if _find_exits(files) is not None or list_length_rows(files):  # there, the table is the result
        blocks[:2] = blocks[1::-1]
    blocks[0] = [*interruption, *blocks[0]]
    return "\n\n".join(plain("\n".join(block)) for block in blocks if block)


def format_result(files: RunFiles, report: Path) -> str:
    """Format the result of a run in two lines: metric, depth and compute of the saved model, and the report's path.

    The first line says at which step training ended early, if it did. The metrics of a summary over seeds are means.

    Args:
        files: Files of the run.
        report: Path of the report page.
    """
    metrics = files.run.get("final_metrics") or {}
    optimised = str(files.config.get("optimise"))
    styles = {optimised: (optimised, ".4f"), _MEAN: ("mean depth", ".2f")}
    parts = [f"{title} {metrics[name]:{style}}" for name, (title, style) in styles.items() if name in metrics]
    if WORK in metrics:
        share = compute_share_with_predictions(files.halting)
        parts.append(f"compute {format_compute_shares(metrics[WORK], share, '{:.0%}'.format, 'full depth')}")
    if reason := get_early_stop_reason(files):
        parts.append(f"ended early: {reason}")
    count = files.of(SEEDS).get("n")
    seeds = f"seed {files.run.get('seed')}" if count is None else f"{count} seed{'s' * (count > 1)} (mean)"
    label = f"{files.run.get('config_name')}, {seeds}"
    lines = [*_format_interruption(files), f"{label}: {', '.join(parts) or 'finished'}", f"report: {report}"]
    return "\n".join(map(plain, lines))


def _format_interruption(files: RunFiles) -> list[str]:
    """Return a line with the step at which training was interrupted, or an empty list if it was not."""
    step = get_evaluation_step(files)
    if not is_interrupted(files) or step is None:
        return []
    return [f"Interrupted: these are the figures of the evaluation at step {step:,}."]


def _format_selection(files: RunFiles) -> list[str]:
    """Return a line with the step of the saved model and why it was kept, or an empty list for older or other runs."""
    steps, selected = files.run.get("steps"), files.run.get("selected")
    if not steps:
        return []
    if not selected:
        return [f"model: the last step, {steps['done']:,}"]
    reason = f"the {selected['extreme']} {selected['metric']}, {selected['value']:.4f}"
    return [f"model: step {selected['step']:,} of {steps['done']:,}, which has {reason}"]


# ---- the verdict


def format_verdict_lines(verdict: Verdict) -> list[str]:
    """Format the verdict as one whole sentence per question, with answer and decisive numbers."""
    lines = []
    for name, finding in verdict.items():
        parts = [] if finding.answer is None else [ANSWERS[finding.answer]]
        answer = ": ".join(filter(None, [*parts, finding.brief]))
        lines += _wrap(f"{QUESTIONS[name]} {answer[:1].upper()}{answer[1:]}.")
    return lines


def _wrap(text: str, max_lines: int | None = None) -> list[str]:
    return textwrap.wrap(plain(text), _WIDTH, subsequent_indent="  ", max_lines=max_lines, placeholder=" ...")


# ---- the table


def format_table_lines(files: RunFiles, max_rows: int, reference: ReferenceDepth | None = None) -> list[str]:
    """Format the most important rows of the depth table with a heading; return no lines for a run without depths."""
    halting = files.halting
    if "layers" in halting:
        weights = halting["layers"]["weights"]
        return _select(format_weight_lines(weights), [(weight,) for weight in weights], max_rows)
    if "architecture" in halting:
        return _format_architecture_lines(halting, max_rows)
    if not halts(files) or "mean" not in halting.get("classes", {}).get("all", {}):
        return []
    if rows := list_length_rows(files):
        return _select(to_text(build_length_table(rows)).splitlines(), [(row["loops"],) for row in rows], max_rows)
    if (summary := _find_exits(files)) is not None:
        table = build_exit_quality_table(summary)
        # Exits at multiples of a large power of two, and the last one, have the highest priorities.
        priorities = [(row is table.rows[-1], row["step"] & -row["step"]) for row in table.rows]
        fitted, equal = split_equal_columns(_drop_empty_columns(table), ("share",))
        lines = _select(to_text(fitted).splitlines(), priorities, max_rows - bool(equal))
        return [*lines, *([f"every row: {equal}"] if equal else [])]
    return _format_class_lines(halting, max_rows, reference)


def _find_exits(files: RunFiles) -> Mapping[str, Any] | None:
    """Return the steps of the first evaluated set if every exit has a quality, but depth by class says nothing.

    That is if all units have one depth, or there are no classes, as in running text. The exits then show what another
    depth would cost.
    """
    classes = files.halting.get("classes", {})
    if not halts(files) or (classes.get("all", {}).get("std") != 0 and set(classes) != {"all"}):
        return None
    summary = next(iter(files.of(EXITS).get("sets", {}).values()), None)
    has_quality = summary is not None and sum("loss" in row for row in summary["steps"]) > 1
    return summary if has_quality else None


def _drop_empty_columns(table: Table) -> Table:
    """Remove the columns of a table that have no value in any row."""
    return replace(table, columns=[column for column in table.columns if has_values(column, table.rows)])


def _format_architecture_lines(halting: Mapping[str, Any], max_rows: int) -> list[str]:
    described = halting["architecture"]
    if not is_fixed(described):
        # Without the bars of `format_gate_lines`, which are wider than the screen.
        lines = to_text(build_gate_table(described)).splitlines()
        return _select(lines, [(entropy,) for entropy in described["entropy"]], max_rows)
    evaluations = halting.get("evaluations")
    if not evaluations:
        return []
    table = build_evaluation_table(evaluations)
    while max(map(len, to_text(table).splitlines())) > _WIDTH:  # the first columns matter most
        table = replace(table, columns=table.columns[:-1])
    lines = to_text(table).splitlines()
    return _select(lines, [(0.0,)] * len(evaluations), max_rows)


def _select(lines: Sequence[str], priorities: Sequence[tuple[float, ...]], max_rows: int) -> list[str]:
    """Select the table rows with the highest priorities, in their original order, and return heading and rows.

    Lines are cut at the width of the screen.
    """
    head, _, *texts = lines
    selected = sorted(range(len(texts)), key=lambda row: priorities[row], reverse=True)[:max_rows]
    screen_lines = [head, *(texts[row] for row in sorted(selected))]
    return [line[:_WIDTH].rstrip() for line in screen_lines]


def _format_class_lines(halting: Mapping[str, Any], max_rows: int, reference: ReferenceDepth | None) -> list[str]:
    """Format a heading and at most `max_rows` lines, with those on left-out difficulties and equal columns."""
    table = build_class_table(halting)
    means = {} if reference is None else reference.means
    names = [row["class"] for row in table.rows]
    difficulties = [index for index, name in enumerate(names) if name.startswith("difficulty")]
    # Of many difficulties, both ends come first.
    from_end = {index: min(rank, len(difficulties) - 1 - rank) for rank, index in enumerate(difficulties)}
    # All units come first, then published classes and difficulties, then the largest classes.
    priorities = [
        (name == "all", name in means, index in from_end, -from_end.get(index, 0), table.rows[index]["n"])
        for index, name in enumerate(names)
    ]
    ranked = sorted(range(len(names)), key=priorities.__getitem__, reverse=True)
    name, *rest = table.columns
    columns = list(rest)
    if reference is not None:
        after = next(index for index, column in enumerate(columns) if column.key == "mean") + 1
        columns.insert(after, Column("paper", "paper", make_number_format(1)))
    lines: list[str] = []
    for count in range(min(max_rows, len(names)), 0, -1):
        indices = sorted(ranked[:count])
        title = name.title if count == len(names) else f"{name.title} ({count} of {len(names)})"
        rows = [
            {**table.rows[index], "class": _shorten_name(names[index]), "paper": means.get(names[index])}
            for index in indices
        ]
        selected = _drop_empty_columns(Table(table.name, [replace(name, title=title), *columns], rows))
        fitted, equal = split_equal_columns(split_equal_columns(selected, _SPREADS)[0], ("loss", "accuracy"))
        head, _, *lines = to_text(_drop_optional_columns(fitted)).splitlines()
        hidden = [index for index in difficulties if index not in indices]
        if hidden and hidden[0] > indices[0]:
            position = sum(index < hidden[0] for index in indices)
            lines.insert(position, f"... {len(hidden)} more difficulties, in the report")
        lines = [line[:_WIDTH].rstrip() for line in (head, *lines, *([f"every row: {equal}"] if equal else []))]
        if len(lines) <= max_rows + 1:
            break
    return lines


def _shorten_name(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 3]}..."


def _drop_optional_columns(table: Table) -> Table:
    """Remove optional columns from a table until the table fits the width of the screen."""
    for key in _OPTIONAL:
        if max(map(len, to_text(table).splitlines())) <= _WIDTH:
            break
        table = replace(table, columns=[column for column in table.columns if column.key != key])
    return table


# ---- what to do next


def format_command_lines(words: Sequence[str]) -> list[str]:
    """Wrap a shell command over several lines, each except the last ending with a backslash."""
    lines, line = [], " "
    for word in map(shlex.quote, words):
        if line.strip() and len(line) + 1 + len(word) + 2 > _WIDTH:
            lines.append(f"{line} \\")
            line = "   "
        line = f"{line} {word}"
    return [*lines, line]
