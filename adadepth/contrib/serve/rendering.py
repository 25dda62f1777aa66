"""HTML of the answers in the web demo: predictions, depth, compute and time, compared with full depth."""

from __future__ import annotations

import json
import re
import shlex
from base64 import b64encode
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple

from markupsafe import Markup

from adadepth.contrib.serve.answers import Answer, BoardCell, measure_quality
from adadepth.contrib.serve.checkpoint import InputExample, ServedCheckpoint
from adadepth.contrib.serve.generation import Continuation
from adadepth.contrib.serve.knobs import AS_TRAINED, FULL, Setting
from adadepth.data.text.passages import Text
from adadepth.report import svg
from adadepth.report.example_grids import draw_answer_boards, draw_depth_cells, draw_distance_cells
from adadepth.report.figure import Axis, Boards, Dot, Figure, Panel, Scatter, pad_range
from adadepth.report.page_writer import Link, depth_styles, sanitise_file_name
from adadepth.report.predictions import build_text_row, format_prediction, get_answers
from adadepth.report.section import load_templates
from adadepth.report.table import number, percent

_SIDE, _SMALL_SIDE, _MAX_LARGE_COLUMNS = (
    34,
    26,
    12,
)  # pixels of a cell, of a cell of a wide board, and columns of a narrow one
_CURVE_POINTS = 7  # points of a curve
_CURVE_SECONDS = 2.0  # limit for new points; later answers add the others
_MAX_LETTERS = 2  # letters of an answer in a cell


class Tile(NamedTuple):
    """Number shown in the web demo, such as compute, next to its value at full depth."""

    key: str
    name: str
    value: str
    detail: str


def render_template(template: str, **content: Any) -> Markup:
    """Render an HTML template of the web demo. Text is escaped."""
    return Markup(load_templates("adadepth.contrib.serve").get_template(f"{template}.html.j2").render(**content))


def render_error(checkpoint: ServedCheckpoint, error: Exception) -> Markup:
    """Render an error message as one line of HTML in place of an answer."""
    message = " ".join(str(error).split())
    return render_template("error", name=checkpoint.name, message=message)


def render_answer(
    checkpoint: ServedCheckpoint, model_input: Text | InputExample, answer: Answer, *, with_curve: bool = True
) -> Markup:
    """Render a model's answer as a section of HTML, which also works outside the page.

    Args:
        checkpoint: Checkpoint that answered.
        model_input: Input of the model.
        answer: Answer to render.
        with_curve: Whether to add the quality at this depth, which may need to be measured first.
    """
    max_updates = answer.result["max_depth"]
    figure, curve_of = build_compute_curve(checkpoint, answer) if with_curve else (None, "")
    boards = _build_boards(checkpoint, answer)
    command, remark = build_command(checkpoint, model_input, answer)
    source = "" if answer.source is None else f", example {answer.source}"
    return render_template(
        "answer",
        name=checkpoint.name,
        file=sanitise_file_name(checkpoint.name),
        about=f"{type(checkpoint.model).__name__}, {_format_setting(answer.setting)}{source}",
        tiles=_build_tiles(checkpoint, answer),
        styles=depth_styles(max_updates),
        max_updates=max_updates,
        row=build_text_row(_add_token_steps(answer), get_answers(answer.result)) if not boards else {},
        boards=boards,
        steps=_count_steps(answer),
        legend=_choose_legend(answer) if boards else "",
        curve=figure,
        curve_of=curve_of,
        links=_build_links(answer, figure),
        command=command,
        remark=remark,
    )


def render_continuations(checkpoint: ServedCheckpoint, prompt: str, parts: Sequence[Continuation]) -> Markup:
    """Render text generated at a depth setting next to the text generated at full depth."""
    sides = [_describe_side(checkpoint, prompt, part) for part in parts]
    side_count = 2 if checkpoint.knobs else 1  # a model of one depth writes once
    is_whole = len(parts) == side_count and all(part.result is not None for part in parts)
    is_same = parts[0].text == parts[-1].text
    comparison = "Both texts are the same." if is_same else "At full depth the text differs."
    remark = "" if side_count == 1 else f"Both use the same seed. {comparison if is_whole else ''}"
    max_updates = checkpoint.model.max_updates
    return render_template(
        "continuation", name=checkpoint.name, file=sanitise_file_name(checkpoint.name),
        max_updates=max_updates, prompt=prompt,
        sides=sides,
        styles=depth_styles(max_updates), is_whole=is_whole, remark=remark,
    )  # fmt: skip


def _describe_side(checkpoint: ServedCheckpoint, prompt: str, part: Continuation) -> dict[str, Any]:
    speed = number(part.tokens / part.seconds, 1) if part.tokens and part.seconds else "–"
    side = {"title": _format_setting(part.setting), "text": part.text, "tokens": part.tokens, "speed": speed}
    side |= {"seconds": number(part.seconds, 2), "whole": part.result is not None}
    if (result := part.result) is None:
        return side
    settings = [f"new_tokens={part.requested_tokens}", *_format_overrides(part.overrides or {})]
    return side | {
        "row": build_text_row(result["texts"][0], get_answers(result)),
        "depth": number(result["mean"], 2),
        "compute": percent(result["work_with_predictions"]),
        "command": _format_command(checkpoint, "predict", [f"text={_format_text_override(prompt)}", *settings]),
    }


def _format_overrides(changed: Mapping[str, Any]) -> list[str]:
    return [f"model.{name}={value}" for name, value in changed.items()]


def _format_setting(setting: Setting) -> str:
    return setting.knob if setting.knob in (AS_TRAINED, FULL) else f"{setting.knob} {setting.value:g}"


def _add_token_steps(answer: Answer) -> Mapping[str, Any]:
    """Return the data of a text's prediction, with the prediction after every step added to each token."""
    if not answer.steps:
        return answer.row
    tokens = [dict(token) for token in answer.row["tokens"]]
    for position, labels in answer.steps.items():
        token = tokens[position]
        steps = token["steps"] or [{"halting": None}] * len(labels)
        if token["label"] is not None:
            token["steps"] = [{**step, "label": label} for step, label in zip(steps, labels, strict=False)]
    return {**answer.row, "tokens": tokens}


# ---- figures


def _build_tiles(checkpoint: ServedCheckpoint, answer: Answer) -> list[Tile]:
    now, full = answer.result, answer.full_result
    steps, depth_name = now["max_depth"], "mean updates per token" if now["unit"] == "token" else "updates"
    milliseconds = [f"{1000 * seconds:.3g} ms" for seconds in answer.seconds]
    shares = [percent(result["work_with_predictions"]) for result in (now, full)]
    tiles = [
        Tile("depth", depth_name, number(now["mean"], 2), f"of {steps}; full depth {number(full['mean'], 2)}"),
        Tile("compute", "compute", shares[0], f"of full depth ({shares[1]})"),
        Tile("time", "time now", milliseconds[0], f"at full depth {milliseconds[1]}"),
    ]
    if (quality := _count_right(answer, now)) is not None:
        value, detail = quality
        return [Tile("right", "right", value, detail), *tiles]
    if not get_answers(now).solves_puzzles and (text := format_prediction(answer.row)):
        name = "next word" if get_answers(now).continues_texts else "prediction"
        return [
            Tile(
                "prediction",
                name,
                text,
                f"at full depth {format_prediction(full['texts'][0])}{_describe_truth(answer)}",
            ),
            *tiles,
        ]
    return tiles


def _describe_truth(answer: Answer) -> str:
    if answer.label is None:
        return ""
    hard = "" if answer.difficulty is None else f", difficulty {answer.difficulty}"
    return f"; the right answer is {answer.label}{hard}"


def _count_right(answer: Answer, result: Mapping[str, Any]) -> tuple[str, str] | None:
    """Count the correctly predicted cells; return a text and a remark, or None if no cell has a correct answer."""
    board_cells = [cell for row in answer.board or () for cell in row if cell.label is not None]
    targets = [cell for cell in board_cells if not get_answers(result).solves_puzzles or cell.label != cell.symbol]
    if not targets:
        return None
    right = sum(cell.label == cell.predicted for cell in targets)
    hardest = max((cell.difficulty for cell in targets if cell.difficulty is not None), default=None)
    if hardest is None and answer.difficulty is not None:
        hardest = answer.difficulty
    return f"{right} of {len(targets)}", "labelled cells" + ("" if hardest is None else f"; difficulty up to {hardest}")


def build_compute_curve(checkpoint: ServedCheckpoint, answer: Answer) -> tuple[Figure | None, str]:
    """Build a figure of quality against compute that marks the current depth setting, and its description."""
    points, name, examples = _collect_curve_points(checkpoint, answer.setting)
    if not points:
        return None, ""
    current = measure_quality(checkpoint, answer.setting)
    dots = [Dot(share, quality, f"compute {percent(share)}, {name} {number(quality, 3)}") for share, quality in points]
    groups: list[tuple[str, Sequence[Dot]]] = [
        (checkpoint.evaluator.description if current and checkpoint.evaluator else "measured", dots)
    ]
    if current is not None:
        figures = f"compute {percent(current.compute)}, {name} {number(current.quality, 3)}"
        description = f"here: {number(current.updates, 2)} updates, {figures}"
        groups.append(("current setting", [Dot(current.compute, current.quality, description, marked=True)]))
        examples = f"{description}, measured on {examples}"
    all_dots = [dot for _, group in groups for dot in group]
    x = Axis("compute, share of full depth", (0.0, max(1.0, *(dot.x for dot in all_dots)) * 1.02), percent=True)
    y = Axis(name, pad_range([dot.y for dot in all_dots]))
    panel = Panel("Quality against compute", Scatter(groups, [sorted((dot.x, dot.y) for dot in dots)]), x, y, examples)
    return Figure("quality_against_compute", [panel]), examples


def _collect_curve_points(checkpoint: ServedCheckpoint, setting: Setting) -> tuple[list[tuple[float, float]], str, str]:
    """Return (compute, quality) at several depth settings, the name of the metric, and a description.

    The points are measured now if evaluation data are available. Otherwise they are those that the run compared.
    """
    if checkpoint.evaluator is None:
        if checkpoint.curve is None:
            return [], "", ""
        name, points = checkpoint.curve
        return list(points), name, f"{len(points)} settings that the run compared"
    knob = next(
        (candidate for candidate in checkpoint.knobs if candidate.name == setting.knob),
        checkpoint.knobs[0] if checkpoint.knobs else None,
    )
    settings = [Setting(AS_TRAINED), Setting(FULL)]
    if knob is not None:
        values = (knob.low + (knob.high - knob.low) * index / (_CURVE_POINTS - 1) for index in range(_CURVE_POINTS))
        settings += [Setting(knob.name, round(value / knob.step) * knob.step) for value in values]
    start = perf_counter()
    measure_quality(checkpoint, setting)
    measurements = [
        measure_quality(checkpoint, candidate)
        for candidate in settings
        if candidate in checkpoint.measurements or perf_counter() - start < _CURVE_SECONDS
    ]
    return (
        [(candidate.compute, candidate.quality) for candidate in measurements if candidate is not None],
        checkpoint.evaluator.name,
        checkpoint.evaluator.description,
    )


# ---- boards


def _build_boards(checkpoint: ServedCheckpoint, answer: Answer) -> list[dict[str, Any]]:
    """Build the grids of an answer: one shows the difficulty of every cell, the other its depth and prediction."""
    if answer.board is None or (answer.result["unit"] != "token" and get_answers(answer.result).classifies_texts):
        return []  # rendered as a text: its cells have no depth or answer of their own
    board_cells = [cell for row in answer.board for cell in row]
    if get_answers(answer.result).solves_puzzles:
        puzzle = [_build_cell(cell.symbol, "given" if cell.label == cell.symbol else "") for cell in board_cells]
        titles = ("the puzzle", "its answer")
        return [
            _lay_out_board(answer, title, cells)
            for title, cells in zip(titles, (puzzle, list(map(_build_solution_cell, board_cells))), strict=True)
        ]
    shorten = _choose_abbreviation(checkpoint, answer)
    difficulties = [_build_difficulty_cell(cell) for cell in board_cells]
    depths = [_build_depth_cell(cell, shorten) for cell in board_cells]
    titles = ("difficulty", "depth and answer")
    has_truth = any(cell.difficulty is not None for cell in board_cells)
    pairs = list(zip(titles, (difficulties, depths), strict=True))
    return [_lay_out_board(answer, title, cells) for title, cells in (pairs if has_truth else pairs[1:])]


def _lay_out_board(answer: Answer, title: str, cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    assert answer.board is not None
    columns = len(answer.board[0])
    side = _SIDE if columns <= _MAX_LARGE_COLUMNS else _SMALL_SIDE
    return {"title": title, "columns": columns, "side": side, "lines": len(answer.board), "cells": cells}


def _build_cell(text: str, style: str = "", **fields: Any) -> dict[str, Any]:
    return {
        "text": text,
        "style": style,
        "small": "",
        "steps": "",
        "base": "",
        "right": "",
        "depth": "",
        "title": "",
    } | fields


def _build_difficulty_cell(cell: BoardCell) -> dict[str, Any]:
    """Build a grid cell that shows the difficulty of an input cell."""
    difficulty = "" if cell.difficulty is None else str(cell.difficulty)
    if cell.symbol in ".#":
        return _build_cell(difficulty or cell.symbol, "wall" if cell.symbol == "#" else "")
    return _build_cell(cell.symbol, small=difficulty)


def _build_depth_cell(cell: BoardCell, shorten: Any) -> dict[str, Any]:
    """Build a grid cell that shows the prediction, coloured by the number of updates."""
    depth = 0 if cell.updates is None else round(cell.updates)
    is_wrong = cell.label is not None and cell.predicted != cell.label
    style = f"d{depth}" + (" wrong" if is_wrong else "")
    has_answer = cell.predicted is not None
    title = f"{cell.symbol}: {number(cell.updates or 0, 2)} updates" + (f", {cell.predicted}" if has_answer else "")
    title += f", the right answer is {cell.label}" if is_wrong else ""
    steps = json.dumps([shorten(step) for step in cell.steps[: max(depth, 1)]]) if has_answer and cell.steps else ""
    text = shorten(cell.predicted) if cell.predicted is not None else cell.symbol
    right = "" if cell.label is None else shorten(cell.label)
    return _build_cell(
        text, style, small=str(depth), steps=steps, base=cell.symbol, right=right, depth=depth, title=title
    )


def _build_solution_cell(cell: BoardCell) -> dict[str, Any]:
    """Build a grid cell that shows the predicted solution of a puzzle cell after every step."""
    is_given = cell.label == cell.symbol
    is_wrong = cell.label is not None and cell.predicted != cell.label
    style = " ".join(["given"] * is_given + ["wrong"] * is_wrong)
    steps = json.dumps(list(cell.steps)) if cell.steps else ""
    return _build_cell(cell.predicted or "", style, steps=steps, base=cell.symbol, right=cell.label or "")


def _choose_abbreviation(checkpoint: ServedCheckpoint, answer: Answer) -> Any:
    """Return a function that shortens class names to the fewest letters that distinguish them.

    Answers on a board with a single row are not shortened.
    """
    assert answer.board is not None
    names = list(checkpoint.model.config.id2label.values())
    if len(answer.board) == 1:
        return str
    letters = next(
        (count for count in range(1, _MAX_LETTERS + 1) if len({name[:count] for name in names}) == len(names)),
        _MAX_LETTERS,
    )
    return lambda name: name[:letters]


def _count_steps(answer: Answer) -> int:
    """Return the number of positions of the slider that steps through intermediate predictions."""
    board_cells = [cell for row in answer.board or () for cell in row if cell.steps]
    if not board_cells:
        return 0
    if get_answers(answer.result).solves_puzzles:
        return max(len(cell.steps) for cell in board_cells)
    return max((round(cell.updates or 0) for cell in board_cells), default=0)


def _choose_legend(answer: Answer) -> str:
    if get_answers(answer.result).solves_puzzles:
        return "Grey: given. Blue: new in the selected step. Orange frame: wrong."
    max_updates = answer.result["max_depth"]
    return (
        f"Darker cells received more of the {max_updates} updates; each cell shows their number. Orange frame: "
        "wrong answer. Pale, with the step slider: not halted yet."
    )


def render_board(checkpoint: ServedCheckpoint, example: InputExample) -> Markup:
    """Render the input grid, whose cells a visitor can change."""
    synthetic = checkpoint.synthetic
    assert synthetic is not None
    is_edited = synthetic.board is not None
    symbols = list(synthetic.board.symbols(synthetic.dataset)) if synthetic.board is not None else []
    lines = example.board.splitlines()
    separator = "" if all(len(symbol) == 1 for symbol in symbols) else " "
    rows = [list(line) if separator == "" and is_edited else line.split(" ") for line in lines]
    columns = max(map(len, rows))
    return render_template(
        "board", lines=len(rows), columns=columns, side=_SIDE if columns <= _MAX_LARGE_COLUMNS else _SMALL_SIDE,
        symbols=symbols,
        between=separator, cells=[cell for row in rows for cell in row], tag="button" if is_edited else "span",
        editable=is_edited, label="Input: click a cell, or press a key, to change it",
    )  # fmt: skip


# ---- downloads and commands


def _build_links(answer: Answer, figure: Figure | None) -> list[dict[str, str]]:
    links = []
    for name, drawing in (("curve", figure), ("boards", _build_boards_figure(answer))):
        if drawing is not None:
            encoded = b64encode(svg.document(drawing).encode()).decode()
            link = Link("SVG", f"data:image/svg+xml;base64,{encoded}", f"{name}.svg")
            links.append(link._asdict() | {"what": name})
    return links


def _build_boards_figure(answer: Answer) -> Figure | None:
    """Draw the grids of an answer as a figure for download, in the style of the report."""
    if answer.board is None:
        return None
    rows, columns = len(answer.board), len(answer.board[0])

    def map_cells(read: Any) -> list[list[Any]]:
        return [[read(cell) for cell in row] for row in answer.board or ()]

    grid: dict[str, Any] = {
        "cells": map_cells(lambda cell: cell.symbol),
        "difficulty": map_cells(lambda cell: cell.difficulty),
        "updates": map_cells(lambda cell: 0 if cell.updates is None else round(cell.updates)),
        "label": map_cells(lambda cell: cell.label),
        "predicted": map_cells(lambda cell: cell.predicted if cell.label is not None else None),
    }
    if get_answers(answer.result).solves_puzzles:
        steps = max((len(cell.steps) for row in answer.board for cell in row), default=0)
        answers = [map_cells(lambda cell, step=step: cell.steps[step]) for step in range(steps)]
        boards = Boards(draw_answer_boards({**grid, "answers": answers}), rows, columns, 2) if steps else None
    else:
        pair = (
            ("difficulty", draw_distance_cells(grid)),
            ("depth", draw_depth_cells(grid, answer.result["max_depth"])),
        )
        boards = Boards(pair, rows, columns)
    return None if boards is None else Figure("boards", [Panel("", boards)])


def build_command(checkpoint: ServedCheckpoint, model_input: Text | InputExample, answer: Answer) -> tuple[str, str]:
    """Return the shell command that reproduces the answer, and a remark about its limits."""
    settings = _format_overrides(answer.overrides)
    remark = ""
    if answer.setting.knob == FULL and not answer.overrides:
        remark = "Full depth of this model cannot be set on the command line; the page sets it directly."
    if isinstance(model_input, InputExample) and not get_answers(answer.result).solves_puzzles:
        source_remark = (
            "" if answer.source else "mode=evaluate reads the examples of its sets, but this example is edited. "
        )
        return _format_command(checkpoint, "evaluate", ["predictions=true", *settings]), source_remark + remark
    text = answer.row["text"][0] if isinstance(model_input, InputExample) else model_input
    return _format_command(checkpoint, "predict", [f"text={_format_text_override(text)}", *settings]), remark


def _format_text_override(text: Text) -> str:
    """Format a text as a value for the setting `text`, quoted if Hydra would parse it as something else."""
    if isinstance(text, str) and not text.startswith(("[", "@")) and text != "null":
        return text
    parts = [_quote_text(part) for part in ([text] if isinstance(text, str) else text)]
    return f"[{parts[0]}]" if len(parts) == 1 else f"[[{', '.join(parts)}]]"


def _format_command(checkpoint: ServedCheckpoint, mode: str, overrides: Sequence[str]) -> str:
    return shlex.join([*checkpoint.command, f"mode={mode}", *overrides])


def _quote_text(text: str) -> str:
    """Put a text in quotes for Hydra's override syntax."""
    escaped = re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), text)
    return "'" + escaped.replace("${", "\\${") + "'"
