"""Files for a paper from a comparison of runs: table as LaTeX and CSV, figure of quality against compute, commands."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from adadepth.metrics.significance import (
    LEVEL,
    SeedMean,
    average_over_seeds,
    compare_means,
    correct_p_values,
    subtract_means,
)
from adadepth.metrics.task_metrics import get_metric_key
from adadepth.metrics.unit_costs import (
    TIME,
    UNIT_COST_TITLES,
    UNIT_MACS_WITH_PREDICTIONS,
    WITHOUT_PREDICTIONS,
    choose_scale,
    format_count,
    has_separate_predictions,
)
from adadepth.report import export
from adadepth.report.figure import Axis, Dot, Figure, Panel, Scatter, pad_range
from adadepth.report.matched_networks import describe_unequal_steps
from adadepth.report.quality_pairs import find_error, get_relevant_difference
from adadepth.report.resources import SIZE_FIELDS, average_sizes
from adadepth.report.run_files import EXITS, RunFiles, get_run_unit
from adadepth.report.run_groups import (
    DEPTH,
    Comparison,
    Group,
    Quality,
    Settings,
    choose_unit_macs,
    distinguish_names,
    final,
    format_setting,
    get_compared_quality,
    get_differing_keys,
    seed,
    shorten_key,
)
from adadepth.report.svg import document
from adadepth.report.table import Column, Table, escape_latex, is_number, to_csv
from adadepth.runtime.files import write_atomic

PAPER = "paper"
_LONGEST_NAME = 45  # characters of a method's name with its settings, which fit under a figure of one column
_PRETRAINED = "model.pretrained"
_TIME_REMARK = f"{TIME}/remark"
_WIDE = 0.75  # the figure is 3.85 inches wide; at 3.3 inches, its letters have 7.7 points


@dataclass(frozen=True)
class Method:
    """Row of the table: runs that differ only in the seed.

    Attributes:
        name: Printed name: the family, and the settings in which methods of this family differ.
        group: The runs.
        score: Quality over seeds. Its error is None for one seed, which says nothing about other seeds.
        p: Largest p-value against the other methods on the same data, corrected for all comparisons of the table, or
            None without another method.
        freedom: Degrees of freedom of the t-test with this p-value, or None without another method with an error.
        is_best: Whether it is significantly better than all other methods on the same data.
    """

    name: str
    group: Group
    score: SeedMean
    p: float | None = None
    freedom: float | None = None
    is_best: bool = False

    @property
    def parameters(self) -> int | None:
        """Number of parameters of the model, or None if it was not recorded."""
        count: int | None = self.group.runs[0].run.get("parameters")
        return count


@dataclass(frozen=True)
class MethodTable:
    """Methods on one data set, with the quality metric in which they are compared.

    Attributes:
        data: Name of the data set, with the settings of data in which the tables differ.
        quality: Quality metric.
        metric: Printed name of the metric.
        methods: Rows, in the order of their first runs.
    """

    data: str
    quality: Quality
    metric: str
    methods: Sequence[Method] = field(default_factory=list)

    @property
    def title(self) -> str:
        """Printed name of the metric, with an arrow in the better direction."""
        return f"{self.metric} {'↓' if self.quality.less_is_better else '↑'}"

    @property
    def groups(self) -> list[Group]:
        """Groups of runs of all methods."""
        return [method.group for method in self.methods]


def write_paper(folder: Path, comparison: Comparison, titles: Mapping[str, str]) -> list[Path]:
    """Write table.csv, table.tex, figure.pdf, figure.svg, figure.png and commands.txt, and return their paths.

    Without a quality metric that the runs share, nothing is written. Without compute per token or sequence in all runs,
    there is no figure.

    Args:
        folder: Folder of the files.
        comparison: Compared runs.
        titles: Printed name of each model family, by its name in the settings.
    """
    tables = build_method_tables(comparison, titles)
    if not tables:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "table.csv": to_csv(build_csv_table(tables)),
        "table.tex": format_latex_table(tables),
        "commands.txt": format_commands(tables),
    }
    for name, content in texts.items():
        write_atomic(folder / name, content)
    paths = [folder / name for name in texts]
    if (figure := draw_tradeoff(tables)) is not None:
        write_atomic(folder / f"{figure.name}.svg", document(figure))
        paths += [folder / f"{figure.name}.svg", *export.save_figure(figure, folder)]
    return paths


# ---- methods and their test


def build_method_tables(comparison: Comparison, titles: Mapping[str, str]) -> list[MethodTable]:
    """Build the tables of methods, one for each data set on which runs have a common quality metric."""
    by_name: dict[Any, list[Group]] = {}
    for group in comparison.groups:
        by_name.setdefault(group.settings["dataset.name"], []).append(group)
    by_data: dict[tuple[tuple[str, str], ...], list[Group]] = {}
    for groups in by_name.values():
        keys = dict.fromkeys(["dataset.name", *Comparison(groups, []).other_data])
        for group in groups:
            data = tuple((key, format_setting(group.settings.get(key))) for key in keys)
            by_data.setdefault(data, []).append(group)
    tables = []
    for data, groups in by_data.items():
        if (quality := get_compared_quality(Comparison(groups, []))) is not None:
            scored = [group for group in groups if group.figure(quality.name)]
            methods = [
                Method(name, group, _average_scores(group, quality.name))
                for name, group in zip(name_methods(scored, titles), scored, strict=True)
            ]
            metric = name_metric(quality.name, scored[0].runs[0].config)
            tables.append(MethodTable(_name_data(dict(data)), quality, metric, methods))
    return mark_best_methods(tables)


def _name_data(values: Mapping[str, str]) -> str:
    """Return the printed name of a data set from its differing settings: `hops, one.txt` or `hops (nodes 16)`."""
    names = [Path(value).name for key, value in values.items() if key in ("dataset.name", "dataset.path")]
    settings = [
        f"{shorten_key(key, list(values)).replace('_', ' ')} {Path(value).name}"
        for key, value in values.items()
        if key not in ("dataset.name", "dataset.path")
    ]
    return ", ".join(names) + (f" ({', '.join(settings)})" if settings else "")


def name_methods(groups: Sequence[Group], titles: Mapping[str, str]) -> list[str]:
    """Return the printed name of each method, without folders: a letter stands for runs that differ only in one.

    A pretrained network is named by the last part of its folder or hub id. Matched baselines of `rival_of` are named by
    their depth, because they differ from the adaptive run by definition.
    """

    def write(name: str, values: Mapping[str, str]) -> str:
        details = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in values.items())
        return f"{name} ({details})" if details else name

    names: list[str] = []
    settings: list[Settings] = []
    for group in groups:
        family = str(group.settings.get("model.name"))
        name, depth = titles.get(family, family), group.figure(DEPTH)
        if depth is not None and group.runs[0].config.get("rival_of"):
            names.append(f"{name}, fixed depth {depth['mean']:g}")
            settings.append({})
        else:
            names.append(name)
            pretrained = group.settings.get(_PRETRAINED)
            network = {_PRETRAINED: Path(pretrained).name} if isinstance(pretrained, str) else {}
            settings.append(
                {key: value for key, value in group.settings.items() if not _is_folder(key, value)} | network
            )
    return distinguish_names(names, settings, write, _LONGEST_NAME)


def _is_folder(key: str, value: Any) -> bool:
    """Return whether a setting names a folder on a machine, rather than a model of the hub."""
    if not isinstance(value, str):
        return False
    return key == "checkpoint" or os.path.isabs(value) or value.count("/") > 1 or os.path.isdir(value)


def name_metric(name: str, config: Mapping[str, Any]) -> str:
    """Return the printed name of a quality metric; a score is named by the metrics that it averages."""
    metrics = (config.get("dataset") or {}).get("metrics")
    if name == "eval/score" and metrics:
        return " and ".join(get_metric_key(metric).replace("_", " ") for metric in metrics)
    return name.rpartition("/")[2].replace("_", " ")


def _average_scores(group: Group, metric: str) -> SeedMean:
    """Return the mean of a metric over the seeds of a group, with its standard error."""
    runs = _select_scored_runs(group, metric)
    values = [float(final(run)[metric]) for run in runs]
    errors = [find_error(run.halting, value) for run, value in zip(runs, values, strict=True)]
    score = average_over_seeds(values, errors)
    return score if score.seeds > 1 else score._replace(error=None)


def _select_scored_runs(group: Group, metric: str) -> list[RunFiles]:
    """Return the runs of a group that ended with a value of a metric."""
    return [run for run in group.runs if is_number(final(run).get(metric))]


def mark_best_methods(tables: Sequence[MethodTable]) -> list[MethodTable]:
    """Mark on each data set the method that is significantly better than all others there, if there is one.

    The rule is that of `adadepth.metrics.significance`: Welch's t over seeds, with p-values that are corrected for all
    pairs of methods of all tables, because the same figures select the best method. A difference below the least
    relevant one never counts.
    """
    pairs = [pair for table in tables for pair in combinations(table.methods, 2)]
    p_values = correct_p_values([compare_means(first.score, second.score) for first, second in pairs])
    differences = [subtract_means(first.score, second.score) for first, second in pairs]
    tests = {
        frozenset(map(id, pair)): (p, None if difference.error is None else difference.freedom)
        for pair, p, difference in zip(pairs, p_values, differences, strict=True)
    }

    def mark(table: MethodTable, method: Method) -> Method:
        competitors = [other for other in table.methods if other is not method]
        if not competitors:
            return method
        p, freedom = max((tests[frozenset((id(method), id(other)))] for other in competitors), key=itemgetter(0))
        sign = -1 if table.quality.less_is_better else 1
        least = min(sign * (method.score.mean - other.score.mean) for other in competitors)
        is_best = p < LEVEL and least >= get_relevant_difference(table.quality.name)
        return replace(method, p=p, freedom=freedom, is_best=is_best)

    return [replace(table, methods=[mark(table, method) for method in table.methods]) for table in tables]


# ---- table


class EvaluationSet(NamedTuple):
    """First evaluated set of a run, whose metrics the table shows.

    Attributes:
        name: Name of the set, which is that of its split if the data have splits, or empty if it is unknown.
        sequences: Number of sequences, such as texts or puzzles, or None if it is unknown.
        tokens: Number of tokens with a depth of their own, or None if it is unknown or tokens have none.
    """

    name: str
    sequences: int | None
    tokens: int | None

    def __str__(self) -> str:
        """Describe the set with its size, such as `validation, 512 sequences, 8,192 tokens`; empty if unknown."""
        sizes = {"sequences": self.sequences, "tokens": self.tokens}
        return ", ".join([*filter(None, [self.name]), *(f"{count:,} {unit}" for unit, count in sizes.items() if count)])


def find_evaluation_set(run: RunFiles) -> EvaluationSet:
    """Return name and size of the first evaluated set of a run from its files, with None for what they lack."""
    counts: Mapping[str, Any] = (run.run.get("data") or {}).get("evaluation") or {}
    sets = [name for name, entry in counts.items() if isinstance(entry, Mapping)]
    name, n, unit = run.halting.get("set", next(iter(sets), "")), run.halting.get("n"), get_run_unit(run)
    counts = counts.get(name, {}) if sets else counts
    recorded = next((counts[key] for key in ("examples_used", "examples", "blocks") if key in counts), None)
    sequences = n if recorded is None and unit in ("sequence", "task") else recorded
    return EvaluationSet(name, sequences, n if unit == "token" else None)


@dataclass(frozen=True)
class _Quantity:
    """Column of the table: metric, printed heading, factor of its values, and their number of decimals."""

    name: str
    heading: str
    factor: float
    digits: int

    def format(self, group: Group) -> str:
        """Format mean and sample standard deviation over seeds, or `–` without a value."""
        figure = group.figure(self.name)
        if figure is None:
            return "–"
        return " ± ".join(f"{figure[key] * self.factor:.{self.digits}f}" for key in ("mean", "std") if key in figure)


def _list_costs(tables: Sequence[MethodTable]) -> list[_Quantity]:
    """Return the columns of depth and compute that any method has, in readable units.

    Compute has the predictions at exits if it is known with them for all methods.

    Times of separate runs are measured at different moments and loads of a machine, so they are no column.
    """
    groups = [group for table in tables for group in table.groups]
    macs = choose_unit_macs(groups)
    quantities = [_Quantity(DEPTH, "Depth", 1.0, 2)]
    if macs is not None:
        name, title = UNIT_MACS_WITH_PREDICTIONS[macs], UNIT_COST_TITLES[macs]
        if not all(group.figure(name) for group in groups) or not _separates_predictions(tables):
            name = macs
        values = _list_means(groups, name)
        letter, scale = choose_scale(max(values))
        heading = title + (f" ({letter})" if letter else "")
        quantities.append(_Quantity(name, heading, 1 / scale, _choose_digits(min(values) / scale)))
    return [quantity for quantity in quantities if any(group.figure(quantity.name) for group in groups)]


def _separates_predictions(tables: Sequence[MethodTable]) -> bool:
    return has_separate_predictions(run.halting for table in tables for group in table.groups for run in group.runs)


def _list_means(groups: Sequence[Group], name: str) -> list[float]:
    return [figure["mean"] for group in groups if (figure := group.figure(name))]


def _choose_digits(value: float) -> int:
    """Return the number of decimals, at most 3, with which a value has three significant digits."""
    return min(max(0, 2 - math.floor(math.log10(value))), 3) if value > 0 else 2


def build_csv_table(tables: Sequence[MethodTable]) -> Table:
    """Build the table of all methods with unformatted values: mean, sample standard deviation and n of every figure.

    Parameters and cache bytes per token follow, which are the same for all seeds.

    A column beside the times says what they measure.
    """
    names = [quantity.name for quantity in _list_costs(tables)]
    names += [key for key, name in UNIT_MACS_WITH_PREDICTIONS.items() if name in names]
    has_times = bool(_list_means([group for table in tables for group in table.groups], TIME))
    names += [TIME] * has_times
    spreads = [f"{name}/{part}" for name in ("score", *names) for part in ("mean", "std", "n")]
    rows = []
    for table in tables:
        for method in table.methods:
            figures = {"score": method.group.figure(table.quality.name)}
            figures |= {name: method.group.figure(name) for name in names}
            cells = {
                f"{name}/{part}": (figures[name] or {}).get(part) for name in figures for part in ("mean", "std", "n")
            }
            if has_times:
                cells[_TIME_REMARK] = _describe_time(method.group)
            cells |= average_sizes([run.run for run in method.group.runs])
            evaluation = find_evaluation_set(method.group.runs[0])
            labels = {"data": table.data, "method": method.name, "metric": table.quality.name}
            sizes = {"evaluation_set": evaluation.name, "sequences": evaluation.sequences, "tokens": evaluation.tokens}
            sizes |= {"parameters": method.parameters}
            test = {"corrected_p": method.p, "degrees_of_freedom": method.freedom, "best": method.is_best}
            rows.append({**labels, **cells, **sizes, **test})
    columns = [
        *("data", "method", "metric", "evaluation_set", "sequences", "tokens", "parameters"),
        *(name for name in SIZE_FIELDS if name != "parameters"),
        *spreads,
        *[_TIME_REMARK] * has_times,
        *("corrected_p", "degrees_of_freedom", "best"),
    ]
    return Table("table", [Column(name) for name in columns], rows)


def format_latex_table(tables: Sequence[MethodTable]) -> str:
    """Format the table of all methods in LaTeX for booktabs: caption, label, and a part for each data set."""
    costs, is_single = _list_costs(tables), len(tables) == 1
    quality_heading = _capitalise(tables[0].title) if is_single else "Quality"
    headings = ["Method", quality_heading, *(cost.heading for cost in costs), "Params"]
    lines = [_join_cells([*map(escape_latex, headings), "$n$"]), r"\midrule"]
    for number, table in enumerate(tables):
        if not is_single:
            lines += [r"\addlinespace"] if number else []
            title = escape_latex(f"{table.data}: {table.title}")
            lines.append(rf"\multicolumn{{{len(headings) + 1}}}{{l}}{{\emph{{{title}}}}} \\")
        quality = _choose_quality_format(table)
        for method in table.methods:
            cells = [escape_latex(quantity.format(method.group)) for quantity in (quality, *costs)]
            cells[0] = rf"\textbf{{{cells[0]}}}" if method.is_best else cells[0]
            cells.append(format_count(method.parameters) if method.parameters else "–")
            lines.append(_join_cells([escape_latex(method.name), *cells, str(method.score.seeds)]))
    table_lines = [
        "% needs \\usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        r"\footnotesize",
        r"\setlength{\tabcolsep}{3pt}",
        rf"\caption{{{escape_latex(_write_caption(tables))}}}",
        r"\label{tab:methods}",
        rf"\begin{{tabular}}{{l{'r' * len(headings)}}}",
        r"\toprule",
        *lines,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(table_lines) + "\n"


def _choose_quality_format(table: MethodTable) -> _Quantity:
    digits = 3 if max(map(abs, _list_means(table.groups, table.quality.name))) < 10 else 2
    return _Quantity(table.quality.name, table.title, 1.0, digits)


def _join_cells(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _capitalise(text: str) -> str:
    return text[:1].upper() + text[1:]


def _write_caption(tables: Sequence[MethodTable]) -> str:
    """Write the caption, which says all that the numbers need: data, spread, n, rule of significance, units."""
    runs = [run for table in tables for group in table.groups for run in group.runs]
    costs = {cost.name for cost in _list_costs(tables)}
    pairs = sum(len(table.methods) * (len(table.methods) - 1) // 2 for table in tables)
    sentences = [
        f"Quality, depth and compute on {' and '.join(dict.fromkeys(map(_describe_data, tables)))}.",
        "Mean ± standard deviation over n seeds.",
    ]
    if pairs:
        least = " or ".join(dict.fromkeys(f"{get_relevant_difference(table.quality.name):g}" for table in tables))
        sentences.append(
            f"Bold: significantly better than all other methods (Welch's t-test{_describe_freedom(tables)}, "
            f"p < {LEVEL:g} after Holm's correction for {pairs} comparison{'s' * (pairs != 1)}, difference of at least "
            f"{least}). Its standard errors also hold the error over the evaluated sequences, so they exceed those of "
            "the deviation over seeds."
        )
    steps = {
        f"{method.name}{f' on {table.data}' if len(tables) > 1 else ''}": [
            (run.run.get("steps") or {}).get("done") for run in _select_scored_runs(method.group, table.quality.name)
        ]
        for table in tables
        for method in table.methods
    }
    sentences += filter(None, [describe_unequal_steps("The methods", steps)])
    if DEPTH in costs:
        families = {run.config.get("model", {}).get("name") for run in runs}
        sizes = ", which differ in size between models" if len(families) > 1 else ""
        sentences.append(f"Depth: mean number of updates{sizes}.")
    for name, with_predictions in UNIT_MACS_WITH_PREDICTIONS.items():
        macs = f"MACs: multiply-accumulates of a {name.rpartition('_')[2]} at the decided depths, without padding"
        if with_predictions in costs:
            counted = "one after every update if the exit rule reads predictions, and otherwise one"
            sentences.append(f"{macs}, with predictions: {counted}.")
        elif name in costs:
            sentences.append(f"{macs}{' or predictions' * _separates_predictions(tables)}.")
    return " ".join(sentences)


def _describe_data(table: MethodTable) -> str:
    """Name a data set with the evaluated set and its size, such as `hops (inside, 512 sequences, 8,192 tokens)`."""
    sets = dict.fromkeys(str(find_evaluation_set(run)) for group in table.groups for run in group.runs)
    described = " or ".join(filter(None, sets))
    return f"{table.data} ({described})" if described else table.data


def _describe_freedom(tables: Sequence[MethodTable]) -> str:
    """Describe the degrees of freedom of the tests of all methods; empty if no error was measured."""
    values = [method.freedom for table in tables for method in table.methods if method.freedom is not None]
    if not values:
        return ""
    span = " to ".join(dict.fromkeys(f"{value:.1f}" for value in (min(values), max(values))))
    return f" with {span} degrees of freedom of Welch and Satterthwaite"


def _describe_time(group: Group) -> str:
    """Describe what the time of a token of a method measures."""
    runs_all_steps = any(run.of(EXITS).get("sets") for run in group.runs)
    limit = "; it ran all steps to measure each, so this is the time of full depth" if runs_all_steps else ""
    return f"of its own evaluation, loading included, at another moment than other methods{limit}"


# ---- figure


def draw_tradeoff(tables: Sequence[MethodTable]) -> Figure | None:
    """Draw quality against compute of a token or sequence, with 95 % intervals; None without common compute.

    A line joins methods of one model, such as one network at several depths.
    """
    costs = [cost for cost in _list_costs(tables) if cost.name != DEPTH]
    if not costs:
        return None
    panels = [_build_tradeoff_panel(table, costs[0]) for table in tables]
    has_intervals = any(method.score.error for table in tables for method in table.methods)
    notes = ["bars: 95 % intervals over seeds and sequences"] * has_intervals
    if _separates_predictions(tables):
        is_with = costs[0].name in UNIT_MACS_WITH_PREDICTIONS.values()
        notes.append("compute with predictions" if is_with else f"compute {WITHOUT_PREDICTIONS}")
    return Figure("figure", panels, columns=1, of="; ".join(notes))


def _build_tradeoff_panel(table: MethodTable, cost: _Quantity) -> Panel:
    dots = {method.name: _build_dot(method, cost) for method in table.methods}
    curves: dict[tuple[Any, ...], list[tuple[float, float]]] = {}
    for method in table.methods:
        curves.setdefault(method.group.model, []).append(dots[method.name][:2])
    lines = [sorted(curve) for curve in curves.values() if len(curve) > 1]
    x = [dot.x + sign * dot.spread_x for dot in dots.values() for sign in (-1, 1)]
    y = [dot.y + sign * dot.spread_y for dot in dots.values() for sign in (-1, 1)]
    return Panel(
        table.data,
        Scatter([(name, [dot]) for name, dot in dots.items()], lines),
        Axis(cost.heading, pad_range(x, 0.0)),
        Axis(f"{table.metric} ({'lower' if table.quality.less_is_better else 'higher'} is better)", pad_range(y)),
        f"{table.metric} against {cost.heading}",
        wide=_WIDE,
    )


def _build_dot(method: Method, cost: _Quantity) -> Dot:
    figure = method.group.figure(cost.name)
    assert figure is not None, "all methods have this compute"
    macs = average_over_seeds([value * cost.factor for value in figure["values"].values()])
    return Dot(macs.mean, method.score.mean, method.name, False, macs.half_width or 0.0, method.score.half_width or 0.0)


# ---- commands


def format_commands(tables: Sequence[MethodTable]) -> str:
    """Format every command with its data set, method, seeds and git commit.

    `rival_of` trains several methods by one command. Each of them also has the settings in which it differs from the
    other ones.
    """
    seeds: dict[tuple[str, str, str, str], list[str]] = {}
    settings: dict[str, dict[str, Settings]] = {}
    for table in tables:
        for method in table.methods:
            for run in _select_scored_runs(method.group, table.quality.name):
                commit = run.run.get("git_commit") or "not recorded"
                command = run.run.get("command") or "# command not recorded"
                seeds.setdefault((table.data, method.name, commit, command), []).append(str(seed(run)))
                if run.config.get("rival_of"):
                    settings.setdefault(command, {})[method.name] = method.group.settings
    entries = []
    for (data, name, commit, command), numbers in seeds.items():
        methods = settings.get(command, {})
        keys = get_differing_keys(list(methods.values()))
        values = " ".join(f"{key}={format_setting(methods[name][key])}" for key in keys)
        details = f"# the network with {values}, of {len(methods)} that this command trains\n" if values else ""
        seed_words = f"seed{'s' * (len(numbers) > 1)} {', '.join(numbers)}"
        entries.append(f"# {data}, {name}, {seed_words}, git commit {commit}\n{details}{command}\n")
    return "\n".join(entries)
