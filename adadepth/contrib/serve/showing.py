"""An answer as HTML: what was said, how deep, at what work and time, beside full depth; and as files to keep."""

from __future__ import annotations

import json
import re
import shlex
from base64 import b64encode
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple

from markupsafe import Markup

from adadepth.contrib.serve.asking import Reply, Square, standing
from adadepth.contrib.serve.knobs import AS_TRAINED, FULL, Setting
from adadepth.contrib.serve.served import GivenExample, Served
from adadepth.contrib.serve.writing import Continuation
from adadepth.data.text.passages import Text
from adadepth.report import svg
from adadepth.report.example_grids import draw_answer_boards, draw_depth_cells, draw_distance_cells
from adadepth.report.figure import Axis, Boards, Dot, Figure, Panel, Scatter, pad_range
from adadepth.report.page_writer import Link, depth_styles, sanitise_file_name
from adadepth.report.predictions import build_text_row, said
from adadepth.report.section import load_templates
from adadepth.report.table import number, percent

_SIDE, _SMALL_SIDE, _MANY = 34, 26, 12  # pixels of a cell, and of one of many
_POINTS = 7  # of a curve
_PATIENCE = 2.0  # seconds for points that nobody has measured; later answers add the others
_SHORT = 2  # letters of an answer in a small cell


class Tile(NamedTuple):
    """A figure with its name, and what it is at full depth."""

    key: str
    name: str
    value: str
    beside: str


def filled(template: str, **content: Any) -> Markup:
    """A template of this package, filled in; text is escaped."""
    return Markup(load_templates("adadepth.contrib.serve").get_template(f"{template}.html.j2").render(**content))


def error_html(served: Served, error: Exception) -> Markup:
    """What stands in place of an answer: the mistake, in one line."""
    message = " ".join(str(error).split())
    return filled("error", name=served.name, message=message)


def answer_html(served: Served, given: Text | GivenExample, answer: Reply, *, with_curve: bool = True) -> Markup:
    """An answer as a part of the page that can also stand alone.

    Args:
        served: Who answered.
        given: What was asked.
        answer: What came.
        with_curve: Whether to say how good the model is there, which may first have to be measured.
    """
    max_updates = answer.found["max_depth"]
    figure, curve_of = work_curve(served, answer) if with_curve else (None, "")
    boards = _boards(served, answer)
    command, remark = command_for(served, given, answer)
    return filled(
        "answer",
        name=served.name,
        file=sanitise_file_name(served.name),
        about=_about(served, answer),
        tiles=_tiles(served, answer),
        styles=depth_styles(max_updates),
        max_updates=max_updates,
        row=build_text_row(_with_steps(answer), answer.found["predicts"]) if not boards else {},
        boards=boards,
        steps=_steps(answer),
        legend=_legend(answer) if boards else "",
        curve=figure,
        curve_of=curve_of,
        links=_links(answer, figure),
        command=command,
        remark=remark,
    )


def written_html(served: Served, prompt: str, parts: Sequence[Continuation]) -> Markup:
    """What was written so far at a setting, and at full depth beside it."""
    sides = [_side(served, prompt, part) for part in parts]
    sides_wanted = 2 if served.knobs else 1  # a model of one depth writes once
    whole = len(parts) == sides_wanted and all(part.found is not None for part in parts)
    same = parts[0].text == parts[-1].text
    told = "Both wrote the same text." if same else "At full depth it wrote another text."
    remark = "" if sides_wanted == 1 else f"Both begin with the same seed. {told if whole else ''}"
    max_updates = served.model.max_updates
    return filled(
        "written", name=served.name, file=sanitise_file_name(served.name), max_updates=max_updates, prompt=prompt,
        sides=sides,
        styles=depth_styles(max_updates), is_whole=whole, remark=remark,
    )  # fmt: skip


def _side(served: Served, prompt: str, part: Continuation) -> dict[str, Any]:
    speed = number(part.tokens / part.seconds, 1) if part.tokens and part.seconds else "–"
    shown = {"title": _deep_in_words(part.setting), "text": part.text, "tokens": part.tokens, "speed": speed}
    shown |= {"seconds": number(part.seconds, 2), "whole": part.found is not None}
    if (found := part.found) is None:
        return shown
    settings = [f"new_tokens={part.asked}", *_overrides(part.changed or {})]
    return shown | {
        "row": build_text_row(found["texts"][0], found["predicts"]),
        "depth": number(found["mean"], 2),
        "work": percent(found["work"]),
        "command": _command(served, "predict", [f"text={_as_given(prompt)}", *settings]),
    }


def _overrides(changed: Mapping[str, Any]) -> list[str]:
    return [f"model.{name}={value}" for name, value in changed.items()]


def _deep_in_words(setting: Setting) -> str:
    return setting.knob if setting.knob in (AS_TRAINED, FULL) else f"{setting.knob} {setting.value:g}"


def _with_steps(answer: Reply) -> Mapping[str, Any]:
    """What was said of a text, and of every token what would have been said after each of its iterations."""
    if not answer.steps:
        return answer.row
    tokens = [dict(token) for token in answer.row["tokens"]]
    for position, labels in answer.steps.items():
        token = tokens[position]
        told = token["steps"] or [{"halting": None}] * len(labels)
        if token["label"] is not None:
            token["steps"] = [{**step, "label": label} for step, label in zip(told, labels, strict=False)]
    return {**answer.row, "tokens": tokens}


# ---- figures


def _about(served: Served, answer: Reply) -> str:
    source = "" if answer.source is None else f", example {answer.source}"
    return f"{type(served.model).__name__}, {_deep_in_words(answer.setting)}{source}"


def _tiles(served: Served, answer: Reply) -> list[Tile]:
    now, full = answer.found, answer.full
    steps, whose = now["max_depth"], "mean updates of a token" if now["unit"] == "token" else "updates"
    milliseconds = [f"{1000 * seconds:.3g} ms" for seconds in answer.seconds]
    found = [
        Tile("depth", whose, number(now["mean"], 2), f"of {steps}; full depth {number(full['mean'], 2)}"),
        Tile("work", "work", percent(now["work"]), f"of full depth's ({percent(full['work'])})"),
        Tile("time", "time now", milliseconds[0], f"at full depth {milliseconds[1]}"),
    ]
    if (quality := _right(answer, now)) is not None:
        value, beside = quality
        return [Tile("right", "right", value, beside), *found]
    if now["predicts"] != "cells" and (told := said(answer.row)):
        name = "next word" if now["predicts"] == "next" else "prediction"
        return [Tile("said", name, told, f"at full depth {said(full['texts'][0])}{_truth(answer)}"), *found]
    return found


def _truth(answer: Reply) -> str:
    if answer.label is None:
        return ""
    hard = "" if answer.difficulty is None else f", difficulty {answer.difficulty}"
    return f"; right is {answer.label}{hard}"


def _right(answer: Reply, found: Mapping[str, Any]) -> tuple[str, str] | None:
    """How many of the cells that were asked for are right; None: nothing is known."""
    squares = [square for row in answer.board or () for square in row if square.label is not None]
    asked = [each for each in squares if found["predicts"] != "cells" or each.label != each.symbol]
    if not asked:
        return None
    right = sum(square.label == square.predicted for square in asked)
    hardest = max((square.difficulty for square in asked if square.difficulty is not None), default=None)
    if hardest is None and answer.difficulty is not None:
        hardest = answer.difficulty
    return f"{right} of {len(asked)}", "cells asked for" + ("" if hardest is None else f"; difficulty up to {hardest}")


def work_curve(served: Served, answer: Reply) -> tuple[Figure | None, str]:
    """Quality against work, with the point where the slider stands, and in words what it is of."""
    points, name, of = _curve_points(served, answer.setting)
    if not points:
        return None, ""
    here = standing(served, answer.setting)
    dots = [Dot(work, quality, f"work {percent(work)}, {name} {number(quality, 3)}") for work, quality in points]
    groups: list[tuple[str, Sequence[Dot]]] = [(served.measured.of if here and served.measured else "measured", dots)]
    if here is not None:
        told = f"here: {number(here.updates, 2)} updates, work {percent(here.work)}, {name} {number(here.quality, 3)}"
        groups.append(("where the slider stands", [Dot(here.work, here.quality, told, marked=True)]))
        of = f"{told}, measured on {of}"
    everything = [dot for _, group in groups for dot in group]
    x = Axis("work, share of full depth", (0.0, max(1.0, *(dot.x for dot in everything)) * 1.02), percent=True)
    y = Axis(name, pad_range([dot.y for dot in everything]))
    panel = Panel("Quality against work", Scatter(groups, sorted((dot.x, dot.y) for dot in dots)), x, y, of)
    return Figure("quality_against_work", [panel]), of


def _curve_points(served: Served, setting: Setting) -> tuple[list[tuple[float, float]], str, str]:
    """(work, quality) of some settings of the knob, measured now where that can be, else as the run has measured."""
    if served.measured is None:
        if served.curve is None:
            return [], "", ""
        name, points = served.curve
        return list(points), name, f"{len(points)} settings that the run has compared"
    knob = next((each for each in served.knobs if each.name == setting.knob), served.knobs[0] if served.knobs else None)
    settings = [Setting(AS_TRAINED), Setting(FULL)]
    if knob is not None:
        values = (knob.low + (knob.high - knob.low) * place / (_POINTS - 1) for place in range(_POINTS))
        settings += [Setting(knob.name, round(value / knob.step) * knob.step) for value in values]
    begun = perf_counter()
    standing(served, setting)
    found = [
        standing(served, each) for each in settings if each in served.standings or perf_counter() - begun < _PATIENCE
    ]
    return [(each.work, each.quality) for each in found if each is not None], served.measured.name, served.measured.of


# ---- boards


def _boards(served: Served, answer: Reply) -> list[dict[str, Any]]:
    """The input with how hard every cell is, and what became of it."""
    if answer.board is None or (answer.found["unit"] != "token" and answer.found["predicts"] == "classes"):
        return []  # it is told as a text: none of its cells has a depth, or an answer, of its own
    squares = [square for row in answer.board for square in row]
    if answer.found["predicts"] == "cells":
        asked = [_cell(square.symbol, "given" if square.label == square.symbol else "") for square in squares]
        titles = ("the puzzle", "its answer")
        return [
            _laid_out(answer, title, cells)
            for title, cells in zip(titles, (asked, list(map(_solved, squares))), strict=True)
        ]
    shorten = _shortener(served, answer)
    hard = [_hard(square) for square in squares]
    deep = [_deep(square, shorten) for square in squares]
    titles = ("how hard it is", "how deep it was thought about, and the answer")
    has_truth = any(square.difficulty is not None for square in squares)
    pairs = list(zip(titles, (hard, deep), strict=True))
    return [_laid_out(answer, title, cells) for title, cells in (pairs if has_truth else pairs[1:])]


def _laid_out(answer: Reply, title: str, cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    assert answer.board is not None
    columns = len(answer.board[0])
    side = _SIDE if columns <= _MANY else _SMALL_SIDE
    return {"title": title, "columns": columns, "side": side, "lines": len(answer.board), "cells": cells}


def _cell(text: str, style: str = "", **more: Any) -> dict[str, Any]:
    return {
        "text": text,
        "style": style,
        "small": "",
        "steps": "",
        "base": "",
        "right": "",
        "depth": "",
        "title": "",
    } | more


def _hard(square: Square) -> dict[str, Any]:
    """A cell as it was given, under it how far away its answer is."""
    told = "" if square.difficulty is None else str(square.difficulty)
    if square.symbol in ".#":
        return _cell(told or square.symbol, "wall" if square.symbol == "#" else "")
    return _cell(square.symbol, small=told)


def _deep(square: Square, shorten: Any) -> dict[str, Any]:
    """A cell on the colour of its depth, with its answer."""
    depth = 0 if square.updates is None else round(square.updates)
    is_wrong = square.label is not None and square.predicted != square.label
    style = f"d{depth}" + (" wrong" if is_wrong else "")
    answer = square.predicted is not None
    title = f"{square.symbol}: {number(square.updates or 0, 2)} updates" + (f", {square.predicted}" if answer else "")
    title += f", right is {square.label}" if is_wrong else ""
    steps = json.dumps([shorten(step) for step in square.steps[: max(depth, 1)]]) if answer and square.steps else ""
    text = shorten(square.predicted) if square.predicted is not None else square.symbol
    right = "" if square.label is None else shorten(square.label)
    return _cell(text, style, small=str(depth), steps=steps, base=square.symbol, right=right, depth=depth, title=title)


def _solved(square: Square) -> dict[str, Any]:
    """A cell of a puzzle's answer."""
    is_given = square.label == square.symbol
    is_wrong = square.label is not None and square.predicted != square.label
    style = " ".join(["given"] * is_given + ["wrong"] * is_wrong)
    steps = json.dumps(list(square.steps)) if square.steps else ""
    return _cell(square.predicted or "", style, steps=steps, base=square.symbol, right=square.label or "")


def _shortener(served: Served, answer: Reply) -> Any:
    """How answers are written in a cell: whole on one line, else by as few letters as tell them apart."""
    assert answer.board is not None
    names = list(served.model.config.id2label.values())
    if len(answer.board) == 1:
        return str
    letters = next(
        (count for count in range(1, _SHORT + 1) if len({name[:count] for name in names}) == len(names)), _SHORT
    )
    return lambda name: name[:letters]


def _steps(answer: Reply) -> int:
    """How many steps there are to walk through."""
    squares = [square for row in answer.board or () for square in row if square.steps]
    if not squares:
        return 0
    if answer.found["predicts"] == "cells":
        return max(len(square.steps) for square in squares)
    return max((round(square.updates or 0) for square in squares), default=0)


def _legend(answer: Reply) -> str:
    if answer.found["predicts"] == "cells":
        return "Grey: given. Blue: new in the chosen step. In an orange frame: wrong."
    most = answer.found["max_depth"]
    return (
        f"The darker a cell, the more of the {most} updates it received; their number stands in it. In an orange "
        "frame: answered wrongly. Pale, while one walks through the steps: still being thought about."
    )


def board_html(served: Served, example: GivenExample) -> Markup:
    """The input as cells that can be changed."""
    drawn = served.drawn
    assert drawn is not None
    is_edited = drawn.board is not None
    symbols = list(drawn.board.symbols(drawn.dataset)) if drawn.board is not None else []
    lines = example.board.splitlines()
    between = "" if all(len(symbol) == 1 for symbol in symbols) else " "
    rows = [list(line) if between == "" and is_edited else line.split(" ") for line in lines]
    columns = max(map(len, rows))
    return filled(
        "board", lines=len(rows), columns=columns, side=_SIDE if columns <= _MANY else _SMALL_SIDE, symbols=symbols,
        between=between, cells=[cell for row in rows for cell in row], tag="button" if is_edited else "span",
        editable=is_edited, label="The input: a click, or a key, changes a cell",
    )  # fmt: skip


# ---- to keep


def _links(answer: Reply, figure: Figure | None) -> list[dict[str, str]]:
    figures = [("curve", figure), ("boards", _boards_figure(answer))]
    return [_svg_link(what, each)._asdict() | {"what": what} for what, each in figures if each is not None]


def _svg_link(what: str, figure: Figure) -> Link:
    drawn = b64encode(svg.document(figure).encode()).decode()
    return Link("SVG", f"data:image/svg+xml;base64,{drawn}", f"{what}.svg")


def _boards_figure(answer: Reply) -> Figure | None:
    """The boards as the report draws them."""
    if answer.board is None:
        return None
    rows, columns = len(answer.board), len(answer.board[0])

    def each(read: Any) -> list[list[Any]]:
        return [[read(square) for square in row] for row in answer.board or ()]

    grid: dict[str, Any] = {
        "cells": each(lambda square: square.symbol),
        "difficulty": each(lambda square: square.difficulty),
        "updates": each(lambda square: 0 if square.updates is None else round(square.updates)),
        "label": each(lambda square: square.label),
        "predicted": each(lambda square: square.predicted if square.label is not None else None),
    }
    if answer.found["predicts"] == "cells":
        steps = max((len(square.steps) for row in answer.board for square in row), default=0)
        answers = [each(lambda square, step=step: square.steps[step]) for step in range(steps)]
        drawn = Boards(draw_answer_boards({**grid, "answers": answers}), rows, columns, 2) if steps else None
    else:
        pair = (("difficulty", draw_distance_cells(grid)), ("depth", draw_depth_cells(grid, answer.found["max_depth"])))
        drawn = Boards(pair, rows, columns)
    return None if drawn is None else Figure("boards", [Panel("", drawn)])


def command_for(served: Served, given: Text | GivenExample, answer: Reply) -> tuple[str, str]:
    """The command line that says the same, and what there is to say about it."""
    settings = _overrides(answer.changed)
    remark = _remark(served, answer)
    if isinstance(given, GivenExample) and answer.found["predicts"] != "cells":
        own = "" if answer.source else "mode=evaluate reads the examples of its sets; this one is of nobody's. "
        return _command(served, "evaluate", ["predictions=true", *settings]), own + remark
    text = answer.row["text"][0] if isinstance(given, GivenExample) else given
    return _command(served, "predict", [f"text={_as_given(text)}", *settings]), remark


def _as_given(text: Text) -> str:
    """A text as `text=` takes it: as it stands, but for one that would be a file, a list or nothing, and pairs."""
    if isinstance(text, str) and not text.startswith(("[", "@")) and text != "null":
        return text
    parts = [_quoted(part) for part in ([text] if isinstance(text, str) else text)]
    return f"[{parts[0]}]" if len(parts) == 1 else f"[[{', '.join(parts)}]]"


def _remark(served: Served, answer: Reply) -> str:
    if answer.setting.knob == FULL and not answer.changed:
        return "Full depth for everybody is said to this model here, and is no setting of a terminal."
    return ""


def _command(served: Served, mode: str, further: Sequence[str]) -> str:
    return shlex.join([*served.command, f"mode={mode}", *further])


def _quoted(text: str) -> str:
    """A text in Hydra's quotes."""
    escaped = re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), text)
    return "'" + escaped.replace("${", "\\${") + "'"
