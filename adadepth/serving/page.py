"""The page itself. The only module that imports gradio, which must not call home, load fonts, or keep what is asked."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator, Sequence
from importlib.resources import files
from threading import Event
from typing import Any, NamedTuple

from adadepth.data.text.passages import Text
from adadepth.errors import UserError
from adadepth.report.section import templates
from adadepth.serving.asking import ask
from adadepth.serving.gate import Gate
from adadepth.serving.knobs import AS_TRAINED, FULL, Setting
from adadepth.serving.ports import free_port
from adadepth.serving.served import (
    LONGEST_TEXT,
    MOST_NEW_TOKENS,
    GivenExample,
    Served,
    drawn_example,
    edited_example,
)
from adadepth.serving.showing import answer_html, board_html, error_html, written_html
from adadepth.serving.writing import Continuation, write_on
from adadepth.system.console import say

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before it is imported

import gradio as gr

_MOST_WAITING = 64  # visitors whose question waits for its turn
_BETWEEN = 0.15  # seconds between two looks at a text that is being written
_LOCAL = ("127.0.0.1", "localhost", "::1")
_FONT = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "Arial", "sans-serif")
_FONT_OF_CODE = ("ui-monospace", "Menlo", "Consolas", "monospace")


def open_page(served: Sequence[Served], host: str, port: int) -> None:
    """Open the page, say where it is and whom it is open to, and wait for Ctrl-C.

    Raises:
        ConfigError: The port is taken.
    """
    page = build_page(served)
    address = launch(page, host, port)
    exposed = "this machine alone can ask" if host in _LOCAL else "whoever reaches it can ask: there is no password"
    try:
        say(f"open {address} in a browser ({exposed}); Ctrl-C closes it")
        Event().wait()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # who presses it twice means it once
        say("closed")
    finally:
        page.close(verbose=False)


def launch(page: gr.Blocks, host: str, port: int) -> str:
    """Start to serve, without waiting; returns the address."""
    kept = (_template("tokens.js", "adadepth.report"), _template("page.js"))
    scripts = "\n".join(f"<script data-kept>{each}</script>" for each in kept)
    style = f"<style>{_template('frame.css')}</style>"  # gradio would rewrite what it is given as css
    page.queue(default_concurrency_limit=1, max_size=_MOST_WAITING, api_open=False)
    _, address, _ = page.launch(
        server_name=host, server_port=free_port(host, port), quiet=True, prevent_thread_lock=True, share=False,
        inbrowser=False, show_error=False, footer_links=[], run_history=False, ssr_mode=False, pwa=False,
        mcp_server=False, enable_monitoring=False, max_file_size=1, theme=_theme(),
        head=style + scripts, app_kwargs={"middleware": [(Gate, (), {})]},
    )  # fmt: skip
    return str(address)


def _theme() -> Any:
    return gr.themes.Base(font=_FONT, font_mono=_FONT_OF_CODE, primary_hue="blue", neutral_hue="slate")


def _template(name: str, package: str = "adadepth.serving") -> str:
    return (files(package) / "templates" / name).read_text(encoding="utf-8")


def build_page(served: Sequence[Served]) -> gr.Blocks:
    """The page for one checkpoint, or several that read the same."""
    first = served[0]
    with gr.Blocks(title="adadepth: move the depth", analytics_enabled=False) as page:
        gr.HTML(_heading(served), elem_id="ada-head", js_on_load=None, apply_default_css=False)
        with gr.Row(elem_id="ada-inputs"):
            with gr.Column(scale=3, min_width=300):
                given = _drawn_inputs(first) if first.drawn is not None else _text_inputs(first)
            with gr.Column(scale=2, min_width=280):
                depth = _depth_inputs(first)
        outputs = []
        with gr.Row(elem_id="ada-answers"):
            for _ in served:
                with gr.Column(min_width=300):
                    outputs.append(gr.HTML("", js_on_load=None, apply_default_css=False, elem_classes="ada-answer"))
        _wire(page, served, given, depth, outputs)
    return page


def _heading(served: Sequence[Served]) -> str:
    names = " and ".join(each.name for each in served)
    return str(templates("adadepth.serving").get_template("heading.html.j2").render(names=names))


# ---- inputs


class _Inputs(NamedTuple):
    """The components that say what is asked.

    Attributes:
        values: Are read.
        ask: The button.
        draw: Of drawn examples: the button for another one.
        board: And the cells.
        write: Of a language model: the button to write on, the one to stop, and how many tokens.
    """

    values: list[Any]
    ask: Any
    draw: Any = None
    board: Any = None
    write: tuple[Any, Any, Any] | None = None


def _text_inputs(served: Served) -> _Inputs:
    label = "Text, with [MASK] where a word is to be filled in" if served.pipeline.predicts == "masks" else "Text"
    box = gr.Textbox(served.beginning, lines=4, max_lines=10, label=label, elem_id="ada-text", max_length=LONGEST_TEXT)
    values: list[Any] = [box]
    if served.pairs:
        values.append(gr.Textbox("", lines=2, label="Second text", elem_id="ada-second", max_length=LONGEST_TEXT))
    if not served.writes:
        return _Inputs(values, gr.Button("Ask", variant="primary", elem_id="ada-ask"))
    count = gr.Slider(1, MOST_NEW_TOKENS, value=32, step=1, label="New tokens", elem_id="ada-count", buttons=[])
    with gr.Row():
        button = gr.Button("Ask", elem_id="ada-ask", min_width=80)
        write = gr.Button("Write on", variant="primary", elem_id="ada-write", min_width=110)
        stop = gr.Button("Stop", elem_id="ada-stop", min_width=80)
    return _Inputs(values, button, write=(write, stop, count))


def _drawn_inputs(served: Served) -> _Inputs:
    assert served.drawn is not None
    names = list(served.drawn.sets)
    begin = drawn_example(served, names[0], 0)
    with gr.Row():
        name = gr.Dropdown(names, value=names[0], label="Drawn from", elem_id="ada-set", filterable=False)
        number = gr.Number(0, precision=0, minimum=0, label="Example", elem_id="ada-number", min_width=90)
    board = gr.HTML(str(board_html(served, begin)), js_on_load=None, apply_default_css=False, elem_id="ada-cells")
    lines = max(1, begin.board.count("\n") + 1)
    text = gr.Textbox(begin.board, lines=min(lines, 9), max_lines=24, label="The same as text: change it as you like",
                      elem_id="ada-board", max_length=LONGEST_TEXT)  # fmt: skip
    with gr.Row():
        draw = gr.Button("Draw another", elem_id="ada-draw")
        button = gr.Button("Ask", variant="primary", elem_id="ada-ask")
    return _Inputs([name, number, text], button, draw, board)


class _Depth(NamedTuple):
    """The components that say how deep."""

    knob: Any
    value: Any


def _depth_inputs(served: Served) -> _Depth:
    names = [knob.name for knob in served.knobs]
    choices = [AS_TRAINED, *names, FULL] if names else [AS_TRAINED]
    knob = gr.Dropdown(choices, value=AS_TRAINED, label="What decides the depth", elem_id="ada-knob", filterable=False)
    first = served.knobs[0] if served.knobs else None
    value = gr.Slider(
        0 if first is None else first.low, 1 if first is None else first.high,
        value=0 if first is None else first.start, step=0.01 if first is None else first.step,
        label="shallow to deep" if first is None else f"{first.name}: shallow to deep", elem_id="ada-depth",
        visible=first is not None, buttons=[],
    )  # fmt: skip
    return _Depth(knob, value)


# ---- what happens


def _wire(page: gr.Blocks, served: Sequence[Served], given: _Inputs, depth: _Depth, outputs: list[Any]) -> None:
    first = served[0]

    def read(each: Served, values: Sequence[Any]) -> Text | GivenExample:
        if each.drawn is not None:
            name, number, text = values
            return edited_example(each, drawn_example(each, str(name), int(number or 0)), str(text or ""))
        texts = [str(value or "") for value in values]
        return (texts[0], texts[1]) if each.pairs and len(texts) > 1 else texts[0]

    def answer(*values: Any) -> Iterator[Any]:
        *inputs, knob, value = values
        found: list[Any] = [gr.skip()] * len(served)
        for place, each in enumerate(served):
            setting = Setting(str(knob), float(value or 0))
            for html in _answers(each, lambda each=each: read(each, inputs), setting):
                found[place] = html
                yield found if len(found) > 1 else found[0]

    inputs = [*given.values, depth.knob, depth.value]
    gr.on([given.ask.click, page.load], answer, inputs, outputs, show_progress="minimal", trigger_mode="always_last",
          concurrency_id="model")  # fmt: skip

    def turned(knob: str, *_: Any) -> Any:
        """Who moves the slider means the knob."""
        names = [each.name for each in first.knobs]
        return names[0] if knob not in names and names else knob

    def chosen(knob: str) -> Any:
        """A knob has its own ends."""
        found = next((each for each in first.knobs if each.name == knob), None)
        if found is None:
            return gr.skip()
        return gr.update(minimum=found.low, maximum=found.high, step=found.step, value=found.start,
                         label=f"{found.name}: shallow to deep")  # fmt: skip

    again = {"fn": answer, "inputs": inputs, "outputs": outputs, "show_progress": "minimal", "concurrency_id": "model"}
    depth.knob.input(chosen, depth.knob, depth.value, queue=False, show_progress="hidden").then(**again)
    depth.value.input(
        turned, [depth.knob], depth.knob, queue=False, show_progress="hidden", trigger_mode="always_last"
    ).then(**again)
    if given.write is not None:
        _wire_writing(served, given, depth, outputs)
    if given.draw is None:
        for box in given.values:
            box.submit(**again)
        return
    name, number, text = given.values

    def show(name: str, number: float | None) -> tuple[str, str]:
        example = drawn_example(first, str(name), int(number or 0))
        return str(board_html(first, example)), example.board

    def another() -> int:
        return random.randrange(10_000)

    def cells(name: str, number: float | None, text: str) -> Any:
        try:
            before = drawn_example(first, str(name), int(number or 0))
            return str(board_html(first, edited_example(first, before, str(text or ""))))
        except UserError:
            return gr.skip()

    shown = {"outputs": [given.board, text], "queue": False, "show_progress": "hidden"}
    given.draw.click(another, None, number, queue=False, show_progress="hidden").then(show, [name, number], **shown)
    for component in (name, number):
        component.input(show, [name, number], **shown)
    text.blur(cells, [name, number, text], given.board, queue=False, show_progress="hidden")
    text.change(**again, trigger_mode="always_last")  # whoever changed it: a visitor, a cell, or what was drawn


def _wire_writing(served: Sequence[Served], given: _Inputs, depth: _Depth, outputs: list[Any]) -> None:
    """Text as it comes, of every checkpoint in turn."""
    assert given.write is not None
    write, stop, count = given.write

    def written(*values: Any) -> Iterator[Any]:
        text, knob, value, tokens = values
        found: list[Any] = [gr.skip()] * len(served)
        for place, each in enumerate(served):
            for html in _written(each, str(text or ""), int(tokens or 0), Setting(str(knob), float(value or 0))):
                found[place] = html
                yield found if len(found) > 1 else found[0]

    inputs = [given.values[0], depth.knob, depth.value, count]
    running = write.click(written, inputs, outputs, show_progress="minimal", concurrency_id="model")
    stop.click(None, None, None, cancels=[running], queue=False)


def _written(served: Served, text: str, count: int, setting: Setting) -> Iterator[str]:
    """At the setting, then at full depth; now and then what there is."""
    done: list[Continuation] = []
    try:
        for each in (setting, Setting(FULL)) if served.knobs else (setting,):
            shown = 0.0
            for part in write_on(served, text, count, each):
                if part.found is not None or part.seconds - shown > _BETWEEN:
                    shown = part.seconds
                    yield str(written_html(served, text, [*done, part]))
            done.append(part)
    except Exception as error:
        yield _told(served, error)


def _answers(served: Served, read: Any, setting: Setting) -> Iterator[str]:
    """An answer, then with its place on the curve; or the mistake in one line."""
    try:
        given = read()
        answer = ask(served, given, setting)
        yield str(answer_html(served, given, answer, with_curve=False))
        yield str(answer_html(served, given, answer))
    except Exception as error:
        yield _told(served, error)


def _told(served: Served, error: Exception) -> str:
    """A mistake in a line; of what nobody foresaw the console alone is told."""
    if isinstance(error, UserError):
        return str(error_html(served, error))
    say(f"{served.name}: {type(error).__name__}: {' '.join(str(error).split()):.300}")
    return str(error_html(served, UserError("the model could not be asked that; its console says why")))
