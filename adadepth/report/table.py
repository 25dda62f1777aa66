"""Tables that are defined once and rendered as HTML, text, CSV and LaTeX, with formats for their numbers."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from markupsafe import Markup, escape

from adadepth.report import svg
from adadepth.report.figure import Bars, Ranges, Span


def number(value: Any, digits: int = 3) -> str:
    """Format a number with thousands separators and `digits` decimals.

    Very large and very small numbers are written with powers of ten.
    """
    if not is_number(value):
        return "not available" if value is None else str(value)
    if isinstance(value, int) or (float(value).is_integer() and abs(value) >= 1000):
        return f"{value:,.0f}" if abs(value) < 1e12 else f"{value:.3e}"
    return f"{value:.{digits}f}" if 1e-3 <= abs(value) < 1e6 or value == 0 else f"{value:.3g}"


def make_number_format(digits: int) -> Callable[[Any], str]:
    """Return a function that formats numbers with `number` and a fixed number of decimals."""
    return lambda value: number(value, digits)


def percent(share: float) -> str:
    """Format a share in percent, with one decimal."""
    return f"{100 * share:.1f}%"


def signed(value: float) -> str:
    """Format a correlation with its sign and three decimals."""
    return f"{value:+.3f}"


def interval(ends: tuple[float, float]) -> str:
    """Format the two bounds of an interval with their signs."""
    return f"{ends[0]:+.3f} to {ends[1]:+.3f}"


def format_p_value(p: float) -> str:
    """Format a p-value with three digits after the point."""
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


def spread(statistics: dict[str, float]) -> str:
    """Format a mean and its standard deviation."""
    return f"{statistics['mean']:.2f} ± {statistics['std']:.2f}"


def format_duration(seconds: float) -> str:
    """Format seconds as hours, minutes and seconds, such as `1 h 02 min 03 s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min {rest:02d} s"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def is_number(value: Any) -> bool:
    """Return whether a value read from a file is a number. A boolean is not one."""
    return isinstance(value, int | float) and not isinstance(value, bool)


_ASCII = str.maketrans({"–": "-", "±": "+-", "…": "...", "×": "x", "≈": "~", "†": "*"})


def plain(text: str) -> str:
    """Replace special characters of this package's texts by ASCII, for terminals and log files."""
    return text.translate(_ASCII)


_LEVELS = " .:-=+*#%@"
ABSENT = "–"
Where = Literal["everywhere", "view", "file", "page"]


@dataclass(frozen=True)
class Column:
    """Column of a table: its key, heading and number format.

    Attributes:
        key: Key of the value in a row, and heading in CSV.
        title: Heading for readers. If it is empty, the key is used.
        write: Function that formats the value for readers.
        kind: Type of the values. `number` and `text` differ in their alignment. `code` is text in a fixed-width font.
            The value of a `range` is (low, middle, high), and the value of a `shape` is the shares of the depths from
            0. Both are drawn.
        axis: First and last depth of a drawing.
        where: Output of the column: `view` for readers only, `file` for programs only, `page` for the report only.
        remark: Key of a text that explains the value in the report.
        absent: Text for a missing value.
    """

    key: str
    title: str = ""
    write: Callable[[Any], str] = number
    kind: Literal["number", "text", "code", "range", "shape"] = "number"
    axis: tuple[int, int] = (1, 1)
    where: Where = "everywhere"
    remark: str = ""
    absent: str = ABSENT

    @property
    def heading(self) -> str:
        """Heading of the column."""
        return self.title or self.key


@dataclass(frozen=True)
class Table:
    """Table for reports: columns, and rows of values by key. An absent value or None is shown as missing.

    The first column names the row.
    """

    name: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]]

    def of(self, *where: str) -> list[Column]:
        """Return the columns that belong to the given kinds of output, with those that belong to every output."""
        return [column for column in self.columns if column.where in ("everywhere", *where)]


def has_values(column: Column, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a column has a value in any row."""
    return any(row.get(column.key) is not None for row in rows)


def split_equal_columns(table: Table, keys: Sequence[str]) -> tuple[Table, str]:
    """Remove the columns with the same text in all of at least two rows, and return the table and these texts.

    Args:
        table: The table.
        keys: Keys of the columns that may be removed.
    """
    equal = {
        column.key: f"{column.heading} {_format_value(column, table.rows[0])}"
        for column in table.of("view")
        if column.key in keys and len({_format_value(column, row) for row in table.rows}) == 1 < len(table.rows)
    }
    columns = [column for column in table.columns if column.key not in equal]
    return replace(table, columns=columns), ", ".join(equal.values())


def text(value: Any) -> str:
    """Format the text of a table cell that is not a number."""
    return str(value)


# ---- HTML


def to_html(table: Table, wide: bool = False) -> Markup:
    """Render a table as HTML that scrolls sideways on narrow pages."""
    columns = table.of("view", "page")
    head = Markup("").join(
        Markup('<th scope="col"{}>{}</th>').format(
            _LEFT_ALIGNED if index and column.kind != "number" else "", column.heading
        )
        for index, column in enumerate(columns)
    )
    body = Markup("").join(
        Markup("<tr>{}</tr>\n").format(Markup("").join(_render_row(columns, row))) for row in table.rows
    )
    return Markup(
        '<div class="scroll" tabindex="0" role="region" aria-label="{}"><table{}><thead><tr>{}</tr></thead><tbody>\n{}'
        "</tbody></table></div>\n"
    ).format(table.name, Markup(' class="wide"') if wide else "", head, body)


_LEFT_ALIGNED = Markup(' class="left"')
_CLASSES = {"number": "", "text": _LEFT_ALIGNED, "code": Markup(' class="string"')}
_MISSING = Markup(f'<span title="not available">{ABSENT}</span>')


def _render_row(columns: Sequence[Column], row: Mapping[str, Any]) -> list[Markup]:
    first, *rest = columns
    remark = Markup("<small>{}</small>").format(row[first.remark]) if row.get(first.remark) else ""
    return [
        Markup('<th scope="row">{}{}</th>').format(_render_value(first, row), remark),
        *(_render_cell(column, row) for column in rest),
    ]


def _render_cell(column: Column, row: Mapping[str, Any]) -> Markup:
    kind = _CLASSES.get(column.kind, Markup(f' class="drawing {column.kind}"'))
    return Markup("<td{}>{}</td>").format(kind, _render_value(column, row))


def _render_value(column: Column, row: Mapping[str, Any]) -> Markup:
    value = row.get(column.key)
    if value is None:
        return _MISSING if column.absent == ABSENT else escape(column.absent)
    if column.kind == "range":
        return _draw_range(value, column.axis)
    if column.kind == "shape":
        return _draw_shape(value[column.axis[0] :], column.axis)
    return escape(column.write(value))


def _draw_range(value: tuple[float, float, float], axis: tuple[int, int]) -> Markup:
    low, middle, high = value
    span: Span = (axis[0], axis[1]) if axis[1] > axis[0] else (axis[0] - 1, axis[1])
    description = f"mean {middle:.2f}, p10 {low:g}, p90 {high:g} on the axis {axis[0]} to {axis[1]}"
    return svg.render_sparkline(Ranges([value]), span, (-1, 1), description, 180)


def _draw_shape(shares: Sequence[float], axis: tuple[int, int]) -> Markup:
    values = ", ".join(f"{100 * share:.0f}" for share in shares)
    description = f"share of each depth from {axis[0]} in %: {values}"
    bars = Bars(list(enumerate(shares, start=axis[0])))
    return svg.render_sparkline(bars, (axis[0] - 0.5, axis[1] + 0.5), (0, max(shares) or 1), description, 120)


# ---- text


def to_text(table: Table) -> str:
    """Render a table as lines of plain text: headings, rule and rows."""
    columns = [column for column in table.of("view") if column.kind != "range"]
    head = [column.heading for column in columns]
    rows = [[_format_value(column, row) for column in columns] for row in table.rows]
    widths = [max(map(len, cells)) for cells in zip(head, *rows, strict=True)]

    def format_line(cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if index and column.kind == "number" else cell.ljust(width)
            for index, (cell, width, column) in enumerate(zip(cells, widths, columns, strict=True))
        )
        return "  ".join(padded).rstrip()

    return "\n".join(
        map(plain, [format_line(head), "-" * (sum(widths) + 2 * len(widths) - 2), *map(format_line, rows)])
    )


def _format_value(column: Column, row: Mapping[str, Any]) -> str:
    value = row.get(column.key)
    if value is None:
        return column.absent
    return format_sparkline(value[column.axis[0] :]) if column.kind == "shape" else column.write(value)


def format_sparkline(shares: Sequence[float]) -> str:
    """Format a distribution over depths as one character per depth, scaled to the highest share.

    Every positive share is visible.
    """
    highest, darkest = max(shares, default=0) or 1, len(_LEVELS) - 1
    return f"|{''.join(_LEVELS[math.ceil(darkest * (share / highest))] for share in shares)}|"


SPARKLINES = f"shapes from none to the highest of a row: '{_LEVELS}'"


# ---- CSV

# What begins a formula at the start of a cell, where some spreadsheets pass over tabs and line ends; no sign alone.
_FORMULA = re.compile(r"[\t\r\n]*[=+\-@＝＋－＠].", re.DOTALL)

# Digits with a decimal point or comma, and points or commas between thousands: `-1.234,5`, `+5%`.
_NUMBER = re.compile(r"[+-]?[.,]?\d[\d.,]*(e[+-]?\d+)?%?", re.ASCII | re.IGNORECASE)


def to_records(table: Table) -> tuple[list[str], list[list[Any]]]:
    """Convert a table to its column keys and rows of unformatted values, with None for missing ones."""
    keys = [column.key for column in table.of("file")]
    return keys, [[row.get(key) for key in keys] for row in table.rows]


def to_csv(table: Table) -> str:
    """Render a table as CSV with unformatted values. A missing value is empty."""
    keys, rows = to_records(table)
    return format_csv([keys, *rows])


def format_csv(rows: Iterable[Sequence[Any]], delimiter: str = ",") -> str:
    """Format rows as CSV. A cell that a spreadsheet would read as a formula is prefixed with an apostrophe."""
    # The writer quotes carriage returns only where they end its lines, so line feeds take their place afterwards.
    writer = csv.writer(_LineReturner(), delimiter=delimiter, lineterminator=_RETURN)
    lines: list[str] = [writer.writerow(map(escape_csv_formula, row)) for row in rows]
    return "".join(f"{line.removesuffix(_RETURN)}\n" for line in lines)


_RETURN = "\r\n"


class _LineReturner:
    """File-like object that returns each line the CSV writer passes to it instead of storing it."""

    def write(self, line: str) -> str:
        """Return the line instead of storing it."""
        return line


def escape_csv_formula(value: Any) -> Any:
    """Add an apostrophe before a string that a spreadsheet would read as a formula.

    Signed numbers are not formulas.
    """
    is_formula = isinstance(value, str) and _FORMULA.match(value) and not _NUMBER.fullmatch(value)
    return f"'{value}" if is_formula else value


# ---- LaTeX

_LATEX_COMMANDS = {"\\": "backslash", "~": "asciitilde", "^": "asciicircum", "<": "less", ">": "greater"}
_SIGNS = {
    "–": "--",
    "±": r"$\pm$",
    "→": r"$\to$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "µ": r"$\mu$",
    "≈": r"$\approx$",
    "†": r"$\dagger$",
    **{sign: rf"\{sign}" for sign in "&%$#_{}"},
}
_LATEX = str.maketrans(_SIGNS | {sign: rf"\text{name}{{}}" for sign, name in _LATEX_COMMANDS.items()})


def to_latex(table: Table, sample: str = "") -> str:
    """Render a table in LaTeX for the package booktabs, with the sample size in the caption and without drawings."""
    columns = [column for column in table.of("view") if column.kind in ("number", "text", "code")]
    form = "".join("r" if index and column.kind == "number" else "l" for index, column in enumerate(columns))
    head = _format_latex_row([column.heading for column in columns])
    rows = [_format_latex_row([_format_value(column, row) for column in columns]) for row in table.rows]
    caption = escape_latex(". ".join(filter(None, [table.name.replace("_", " ").capitalize(), sample])))
    body = [rf"\begin{{tabular}}{{{form}}}", r"\toprule", head, r"\midrule", *rows, r"\bottomrule", r"\end{tabular}"]
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{caption}.}}", *body, r"\end{table}"]
    return "\n".join(lines) + "\n"


def _format_latex_row(cells: Sequence[str]) -> str:
    return " & ".join(map(escape_latex, cells)) + r" \\"


def escape_latex(text: str) -> str:
    """Replace the characters that have a meaning in LaTeX, and the signs of this package's texts."""
    return text.translate(_LATEX)
