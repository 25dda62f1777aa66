"""Console output and report section for predictions on a user's texts (texts.json)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from adadepth.config.answers import ANSWER_KINDS, AnswerSpec
from adadepth.metrics.unit_costs import format_compute_shares
from adadepth.report.page_writer import depth_styles
from adadepth.report.run_files import TEXTS_FILE, RunFiles
from adadepth.report.section import Note, Section, SectionEntry, Token, fill, steps
from adadepth.report.style import get_depth_color, get_share_color, get_text_color
from adadepth.runtime.console import visible


class RenderedToken(NamedTuple):
    """Token for display: its text, whether a space precedes it, its depth, and its record in texts.json."""

    text: str
    starts: bool
    depth: int
    record: Mapping[str, Any]


def render_tokens(row: Mapping[str, Any]) -> list[RenderedToken]:
    """Return the tokens of a text in the spelling of the user; special tokens in that of the vocabulary."""
    rendered, end = [], None
    for token in row.get("tokens") or []:
        if token["span"] is None:
            rendered.append(RenderedToken(token["piece"], True, round(token["updates"]), token))
            end = None
            continue
        start, stop = token["span"]
        text = row["text"][token["part"]][start:stop]
        visible = text.strip() or _format_bytes(token["piece"])
        rendered.append(RenderedToken(visible, start != end or text != text.lstrip(), round(token["updates"]), token))
        end = stop
    return rendered


def _format_bytes(piece: str) -> str:
    r"""Format a piece of white space, or of a part of a character, whose letters stand for bytes in the vocabulary.

    `Ċ` becomes `\n`, `Ġ` becomes `␣`, and the first byte of `ü`, `Ã`, becomes `<0xC3>`. Other pieces are unchanged.
    """
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    byte_values = {letter: value for value, letter in bytes_to_unicode().items()}
    if not all(letter in byte_values for letter in piece):
        return piece
    data = bytes(byte_values[letter] for letter in piece)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "".join(f"<0x{value:02X}>" for value in data)
    return text.encode("unicode_escape").decode().replace(" ", "␣") if text.isascii() else text


def format_prediction(record: Mapping[str, Any]) -> str:
    """Format the prediction for a text, a token or one step: a class with its probability, or a value."""
    if record.get("value") is not None:
        return f"{record['value']:.3f}"
    if record.get("label") is None:
        return ""
    return record["label"] if record.get("score") is None else f"{record['label']} {record['score']:.2f}"


def arrange_cells(cells: str) -> list[str]:
    """Arrange the cells of a puzzle as a square, or as one row if their number is not a square."""
    size = math.isqrt(len(cells))
    return [cells[start : start + size] for start in range(0, len(cells), size)] if size**2 == len(cells) else [cells]


def count_changed_cells(cells: str, before: str) -> int:
    """Count the cells in which an answer to a puzzle differs from the previous step's answer, or from the puzzle."""
    return sum(cell != other for cell, other in zip(cells, before, strict=True))


def get_puzzle_steps(row: Mapping[str, Any]) -> list[tuple[int, Mapping[str, Any], int]]:
    """Return number, record and count of changed cells of each step of a puzzle, up to its exit step."""
    steps = (row.get("steps") or [])[: round(row["updates"])]
    answers = [row["text"][0], *(step["label"] for step in steps)]
    return [
        (number, step, count_changed_cells(step["label"], before))
        for number, (step, before) in enumerate(zip(steps, answers, strict=False), start=1)
    ]


def print_texts(predictions: Mapping[str, Any], *, color: bool | None = None) -> None:
    """Print the predictions in texts.json on the console.

    Args:
        predictions: Contents of texts.json; see `adadepth.tasks.predict`.
        color: Whether to use colours, or None to use them on a terminal that supports them.
    """
    from rich.console import Console
    from rich.text import Text

    console = Console(force_terminal=color, soft_wrap=True, highlight=False)
    is_colored = console.is_terminal and not console.no_color
    max_updates = predictions["max_depth"]

    def shade(text: str, depth: int) -> Text:
        if not is_colored:
            return Text(f"{visible(text)}({depth})")
        background = get_depth_color(depth, max_updates)
        return Text(visible(text), style=f"{get_text_color(background)} on {background}")

    if is_colored:
        levels = Text(" ").join(shade(f" {depth} ", depth) for depth in range(1, max_updates + 1))
        console.print(Text("updates: "), levels, sep="")
    answers = get_answers(predictions)
    for row in predictions["texts"]:
        console.print(Text(visible(_format_heading(row, answers))))
        if answers.solves_puzzles:
            for detail in format_puzzle(row):
                console.print(Text(visible(f"  {detail}")))
            continue
        tokens = render_tokens(row)
        line = Text("  ")
        for number, token in enumerate(tokens):
            label = "" if answers.continues_texts or token.record.get("label") is None else f"[{token.record['label']}]"
            line.append(" " if number and token.starts else "").append_text(shade(token.text + label, token.depth))
        if not tokens:
            line.append_text(shade(" | ".join(row["text"]), round(row["updates"])))
        console.print(line)
        for detail in _format_details(row):
            console.print(Text(visible(f"  {detail}")))
    share = format_compute_share(predictions["work"], predictions.get("work_with_predictions"))
    console.print(Text(f"mean updates {predictions['mean']:.2f} of at most {max_updates}; {share}"))


def format_compute_share(share: float, share_with_predictions: float | None) -> str:
    """Format compute as a share of full depth, with predictions at exits and, if that differs, without them."""
    return format_compute_shares(share, share_with_predictions, "{:.0%}".format, "the compute of full depth")


def format_puzzle(row: Mapping[str, Any]) -> list[str]:
    """Format a puzzle and its answer side by side, and the number of cells that every step changed."""
    boards = zip(arrange_cells(row["text"][0]), arrange_cells(row["label"]), strict=True)
    steps = [
        f"{number}: {cells} cells" + ("" if step.get("halting") is None else f" (right {step['halting']:.2f})")
        for number, step, cells in get_puzzle_steps(row)
    ]
    return [*("   ".join(pair) for pair in boards), *([f"changed in step {'; '.join(steps)}"] if steps else [])]


def _format_heading(row: Mapping[str, Any], answers: AnswerSpec) -> str:
    if answers.solves_puzzles:
        right = "" if row.get("score") is None else f"right with probability {row['score']:.2f}, "
        return f"{right}{row['updates']:.0f} updates"
    prediction = format_prediction(row)
    lead = f"next: {prediction}, " if answers.continues_texts else f"{prediction}, " if prediction else ""
    return f"{lead}{row['updates']:.2f} updates"


def _format_details(row: Mapping[str, Any]) -> list[str]:
    """Format the details of a text's prediction: mask candidates, steps, and layer weights."""
    lines = [
        f"{token['piece']}: {', '.join(f'{word} {score:.2f}' for word, score in token['candidates'].items())}"
        for token in row.get("tokens") or []
        if token.get("candidates") and token.get("own_score") is None
    ]
    steps = [
        f"{number}: {format_prediction(step)}"
        + ("" if step.get("halting") is None else f" (halts {step['halting']:.2f})")
        for number, step in enumerate(row.get("steps") or [], start=1)
    ]
    layers = [f"{layer}: {weight:.2f}" for layer, weight in enumerate(row.get("layers") or [])]
    lines += [f"after step {'; '.join(steps)}"] if steps else []
    return lines + ([f"weights of layers {', '.join(layers)}"] if layers else [])


def texts(files: RunFiles) -> Section | None:
    """Build the report section with every text, its prediction and the depth of its tokens."""
    if not files.of(TEXTS_FILE):
        return None
    predictions = files.of(TEXTS_FILE)
    rows = [build_text_row(row, get_answers(predictions)) for row in predictions["texts"]]
    tokens = [token for row in rows for token in row["tokens"]]
    styles = depth_styles(predictions["max_depth"])[0 if any(token.depth == 0 for token in tokens) else 1 :]
    has_notes = any(token.notes for token in tokens)
    share = format_compute_share(predictions["work"], predictions.get("work_with_predictions"))
    html = fill("texts", summary=predictions, share=share, rows=rows, styles=styles, has_notes=has_notes)
    counted = sum(len(row.get("tokens") or []) for row in predictions["texts"])
    sample = f"n = {len(rows)} text{'s' * (len(rows) != 1)}" + (f", {counted:,} tokens" if counted else "")
    return Section("Texts", "texts", html, of=sample)


def get_answers(predictions: Mapping[str, Any]) -> AnswerSpec:
    """Return the kind of answers in the content of texts.json, which has no facts if its name is unknown here."""
    return ANSWER_KINDS.get(str(predictions["predicts"]), AnswerSpec())


def build_text_row(row: Mapping[str, Any], answers: AnswerSpec) -> dict[str, Any]:
    """Return the template values with which the page shows one text of texts.json."""
    depth = round(row["updates"])
    if answers.solves_puzzles:
        return _build_puzzle(row, depth)
    whole = [Token(" | ".join(row["text"]), depth, starts=True)]  # a text that halts as a whole
    return {
        "prediction": format_prediction(row),
        "updates": row["updates"],
        "depth": depth,
        "scores": row.get("scores") or {},
        "boards": {},
        "tokens": [_build_token(token, answers) for token in render_tokens(row)] or whole,
        "steps": [
            {"number": number, "halting": step.get("halting"), "prediction": format_prediction(step)}
            for number, step in enumerate(row.get("steps") or [], start=1)
        ],
        "layers": [
            {
                "layer": layer,
                "weight": weight,
                "color": get_share_color(weight),
                "ink": get_text_color(get_share_color(weight)),
            }
            for layer, weight in enumerate(row.get("layers") or [])
        ],
    }


def _build_puzzle(row: Mapping[str, Any], depth: int) -> dict[str, Any]:
    right = row.get("score")
    return {
        "prediction": "" if right is None else f"right with probability {right:.2f}",
        "updates": row["updates"],
        "depth": depth,
        "scores": {},
        "tokens": [],
        "layers": [],
        "boards": {"puzzle": arrange_cells(row["text"][0]), "answer": arrange_cells(row["label"])},
        "steps": [
            {"number": number, "halting": step.get("halting"), "prediction": f"{cells} cells changed"}
            for number, step, cells in get_puzzle_steps(row)
        ],
    }


def _build_token(token: RenderedToken, answers: AnswerSpec) -> Token:
    label = None if answers.continues_texts else token.record.get("label")
    return Token(token.text, token.depth, token.starts, label, notes=_build_notes(token.record, answers))


def _build_notes(record: Mapping[str, Any], answers: AnswerSpec) -> list[Note]:
    """Return the annotations of a token on the page: prediction, probability, iterations and mask candidates."""
    notes = [Note(format_prediction(record))] if not answers.continues_texts and format_prediction(record) else []
    if record.get("own_score") is not None:
        notes.append(Note("its probability", share=record["own_score"]))
    done = record.get("steps") or []
    notes += steps([step.get("halting") for step in done], [format_prediction(step) for step in done])
    return notes + [Note(word, share=score) for word, score in (record.get("candidates") or {}).items()]


SECTIONS = (SectionEntry(10, texts, alone=TEXTS_FILE, subtitle="Predictions"),)
