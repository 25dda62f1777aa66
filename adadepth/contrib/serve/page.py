"""The page itself. The only module that imports gradio, which must not call home, load fonts, or keep what is asked."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from importlib.resources import files
from threading import Event
from typing import Any, NamedTuple

from adadepth.contrib.serve.asking import ask
from adadepth.contrib.serve.gate import Gate, Names, is_loopback, space_names
from adadepth.contrib.serve.knobs import AS_TRAINED, FULL, Setting
from adadepth.contrib.serve.ports import free_port
from adadepth.contrib.serve.served import (
    LONGEST_TEXT,
    MOST_NEW_TOKENS,
    GivenExample,
    Served,
    drawn_example,
    edited_example,
)
from adadepth.contrib.serve.showing import answer_html, board_html, error_html, written_html
from adadepth.contrib.serve.writing import Continuation, write_on
from adadepth.data.text.passages import Text
from adadepth.errors import ConfigError, UserError, format_error, is_exit
from adadepth.report.section import load_templates
from adadepth.system.console import say

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before it is imported

import gradio as gr

_MOST_WAITING = 64  # visitors whose question waits for its turn
_BETWEEN = 0.15  # seconds between two looks at a text that is being written
_MANY_EXAMPLES = 10_000  # numbers that are drawn from; a set begins anew at its end
_ANSWER, _TEXT = "answer", "text"  # what a visitor wants
# Scripts of the page: which change of its controls is the last, which was asked, and whether that was stopped.
_CHANGE_WANTED = "() => `${window.adadepthWanted} ${window.adadepthChanges = (window.adadepthChanges ?? 0) + 1}`"
_BEGIN = (
    "(...values) => { window.adadepthAsked = window.adadepthChanges; window.adadepthStopped = false; return values }"
)
_STOP = "() => { window.adadepthStopped = true; return [] }"
_FONT = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "Arial", "sans-serif")
_FONT_OF_CODE = ("ui-monospace", "Menlo", "Consolas", "monospace")


def open_page(served: Sequence[Served], host: str, port: int, names: Sequence[str] = ()) -> None:
    """Open the page, say where it is and whom it is open to, and wait for Ctrl-C.

    Args:
        served: The checkpoints.
        host: Address to listen at.
        port: And port; 0: any that is free.
        names: Names of the page beside those of the address, such as a proxy's.

    Raises:
        ConfigError: The port is taken.
    """
    page = build_page(served)
    address = launch(page, host, port, names)
    exposed = "this machine alone can ask" if is_loopback(host) else "whoever reaches it can ask: there is no password"
    try:
        say(f"open {address} in a browser ({exposed}); Ctrl-C closes it")
        Event().wait()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # who presses it twice means it once
        say("closed")
    finally:
        page.close(verbose=False)


def launch(page: gr.Blocks, host: str, port: int, names: Sequence[str] = ()) -> str:
    """Start to serve, without waiting; returns the address."""
    known = Names(host, [*names, *space_names()])

    @asynccontextmanager
    async def gated(app: Any) -> AsyncIterator[None]:
        """Put the gate around all that gradio has, before the first request."""
        app.middleware_stack = Gate(app.middleware_stack, known)
        yield

    _shorten_tracebacks()
    kept = (_template("tokens.js", "adadepth.report"), _template("page.js"))
    scripts = "\n".join(f"<script data-kept>{each}</script>" for each in kept)
    style = f"<style>{_template('frame.css')}</style>"  # gradio would rewrite what it is given as css
    page.queue(default_concurrency_limit=1, max_size=_MOST_WAITING, api_open=False)
    port = free_port(host, port)
    try:
        with _without_proxy():
            _, address, _ = page.launch(
                server_name=f"[{host}]" if ":" in host else host, server_port=port, quiet=True, share=False,
                prevent_thread_lock=True, inbrowser=False, show_error=False, footer_links=[], run_history=False,
                ssr_mode=False, pwa=False, mcp_server=False, enable_monitoring=False, max_file_size=1, theme=_theme(),
                head=style + scripts, app_kwargs={"lifespan": gated},
            )  # fmt: skip
    except OSError as error:
        raise ConfigError(f"serve.host={host} serve.port={port}: cannot be listened at (taken meanwhile)") from error
    return str(address)


@contextmanager
def _without_proxy() -> Iterator[None]:
    """Within, nothing is asked of a proxy: gradio asks its own server whether it is there."""
    names = ("no_proxy", "NO_PROXY")
    before = {name: os.environ[name] for name in names if name in os.environ}
    os.environ.update(dict.fromkeys(names, "*"))
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]
        os.environ.update(before)


class _OneLine:
    """In the place of the module `traceback`: whatever visitors send, the console has one line of it."""

    @staticmethod
    def print_exc(*_: Any, **__: Any) -> None:
        """Print the error that is being handled."""
        error = sys.exc_info()[1]
        say(f"refused: {'' if error is None else format_error(error)}")

    def __getattr__(self, name: str) -> Any:
        return getattr(traceback, name)


def _shorten_tracebacks() -> None:
    """Let gradio print a line where it prints tracebacks; it has no setting for that."""
    for module in (gr.queueing, gr.routes, gr.utils):
        vars(module)["traceback"] = _OneLine()


def _theme() -> Any:
    return gr.themes.Base(font=_FONT, font_mono=_FONT_OF_CODE, primary_hue="blue", neutral_hue="slate")


def _template(name: str, package: str = "adadepth.contrib.serve") -> str:
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
        _wire(served, given, depth, outputs, page.load)
    return page


def _heading(served: Sequence[Served]) -> str:
    names = " and ".join(each.name for each in served)
    return str(load_templates("adadepth.contrib.serve").get_template("heading.html.j2").render(names=names))


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
        label=_slider_label("" if first is None else first.name), elem_id="ada-depth",
        visible=first is not None, buttons=[],
    )  # fmt: skip
    return _Depth(knob, value)


def _slider_label(knob: str) -> str:
    return f"{knob}: shallow to deep" if knob else "shallow to deep"


# ---- what happens


def _wire(served: Sequence[Served], given: _Inputs, depth: _Depth, outputs: list[Any], load: Any) -> None:
    """Connect the controls with the answers.

    Every control notes what is wanted, in the browser, and changes a hidden text, whose change alone is answered. A
    change that comes meanwhile is answered afterwards, by what the controls say then: however quickly they are changed,
    their last state is what is shown. (gradio repeats the whole event that it was still busy with, so were the controls
    themselves answered, it would also repeat what the first of them did to others.)
    """
    wanted = gr.Textbox(_ANSWER, visible="hidden", container=False, elem_id="ada-wanted")
    changes = [load, given.ask.click, depth.knob.input, depth.value.input]
    if given.draw is None:
        changes += [box.submit for box in given.values]
    else:
        changes.append(given.values[-1].change)  # of the text, by whatever: a visitor, a cell, or what was drawn
    gr.on(changes, None, None, None, js=_note(_ANSWER), show_progress="hidden")
    _wire_depth(served[0], depth)
    inputs = [wanted, *given.values, depth.knob, depth.value]
    if given.write is not None:
        write, _, count = given.write
        write.click(None, None, None, js=_note(_TEXT), show_progress="hidden")
        inputs.append(count)
        changes.append(write.click)
    gr.on(changes, None, None, wanted, js=_CHANGE_WANTED, show_progress="hidden")
    respond = partial(_respond, served, len(given.values))
    answering = wanted.change(
        respond, inputs, outputs, js=_BEGIN, show_progress="minimal", concurrency_id="model",
        trigger_mode="always_last",
        preprocess=False,  # by which gradio would hold the slider to the ends of the first knob
    )  # fmt: skip
    answering.failure(None, None, [wanted, *outputs], js=_end_without_answer(served), show_progress="hidden")
    if given.write is not None:
        _, stop, _ = given.write
        stop.click(None, None, None, js=_STOP, show_progress="hidden")
        stop.click(None, None, None, cancels=[answering], queue=False)
    if given.draw is not None:
        _wire_drawing(served[0], given)


def _note(what: str) -> str:
    """Return a script that notes what a visitor wants."""
    return f"() => {{ window.adadepthWanted = {json.dumps(what)}; return [] }}"


def _wire_depth(served: Served, depth: _Depth) -> None:
    """Give the slider the ends of the knob, and the knob to who moves the slider; in the browser, so at once."""
    ends = {
        knob.name: {
            "__type__": "update", "minimum": knob.low, "maximum": knob.high, "step": knob.step, "value": knob.start,
            "label": _slider_label(knob.name),
        }
        for knob in served.knobs
    }  # fmt: skip
    names = json.dumps(list(ends))
    choose_knob = f"knob => {names}.includes(knob) ? knob : ({names}[0] ?? knob)"
    set_ends = f"(knob, value) => ({json.dumps(ends)})[knob] ?? value"
    depth.value.input(None, depth.knob, depth.knob, js=choose_knob, show_progress="hidden")
    depth.knob.input(None, [depth.knob, depth.value], depth.value, js=set_ends, show_progress="hidden")


def _wire_drawing(served: Served, given: _Inputs) -> None:
    """Show the example of a set and a number as cells and as text, and the cells of a text that was changed."""
    name, number, text = given.values
    shown = gr.State((name.value, number.value))

    def show(name: str, number: float | None, text: str, shown: tuple[str, float | None]) -> tuple[Any, Any, Any]:
        example = drawn_example(served, str(name), int(number or 0))
        if (name, number) != tuple(shown):
            return str(board_html(served, example)), example.board, (name, number)
        try:
            return str(board_html(served, edited_example(served, example, str(text or "")))), gr.skip(), gr.skip()
        except UserError:
            return gr.skip(), gr.skip(), gr.skip()

    another = f"() => Math.floor(Math.random() * {_MANY_EXAMPLES})"
    given.draw.click(None, None, number, js=another, show_progress="hidden")
    gr.on([name.change, number.change, text.blur], show, [name, number, text, shown], [given.board, text, shown],
          queue=False, show_progress="hidden", trigger_mode="always_last")  # fmt: skip


def _respond(served: Sequence[Served], count: int, *values: Any) -> Iterator[Any]:
    """Yield what the page shows for the state of its controls, of every checkpoint in turn.

    Args:
        served: The checkpoints.
        count: How many of the values say what is asked.
        values: What is wanted, those, the knob, its value, and how many tokens where text can be written.
    """
    (wanted, *inputs), (knob, value, *tokens) = values[: count + 1], values[count + 1 :]
    shown: list[Any] = [gr.skip()] * len(served)
    for position, checkpoint in enumerate(served):
        for html in _parts(checkpoint, inputs, str(knob), value, tokens if str(wanted).startswith(_TEXT) else []):
            shown[position] = html
            yield shown if len(shown) > 1 else shown[0]


def _parts(served: Served, inputs: Sequence[Any], knob: str, value: Any, tokens: Sequence[Any]) -> Iterator[str]:
    """Yield an answer, then with its place on the curve, or text as it is written; or the mistake in one line."""
    try:
        setting = Setting(knob, float(value or 0))
        if tokens and served.writes:
            yield from _written(served, str(inputs[0] or ""), int(tokens[0] or 0), setting)
            return
        example = _read(served, inputs)
        answer = ask(served, example, setting)
        yield str(answer_html(served, example, answer, with_curve=False))
        yield str(answer_html(served, example, answer))
    except BaseException as error:
        if is_exit(error):
            raise
        yield _refusal(served, error)


def _read(served: Served, inputs: Sequence[Any]) -> Text | GivenExample:
    """Return what the controls ask about."""
    if served.drawn is not None:
        name, number, text = inputs
        return edited_example(served, drawn_example(served, str(name), int(number or 0)), str(text or ""))
    texts = [str(value or "") for value in inputs]
    return (texts[0], texts[1]) if served.pairs and len(texts) > 1 else texts[0]


def _written(served: Served, text: str, count: int, setting: Setting) -> Iterator[str]:
    """Yield what is written at the setting, then at full depth, now and then."""
    parts: list[Continuation] = []
    for depth in (setting, Setting(FULL)) if served.knobs else (setting,):
        seconds = 0.0
        for part in write_on(served, text, count, depth):
            if part.found is not None or part.seconds - seconds > _BETWEEN:
                seconds = part.seconds
                yield str(written_html(served, text, [*parts, part]))
        parts.append(part)


def _end_without_answer(served: Sequence[Served]) -> str:
    """Return a script for what was not answered, because it was stopped or the queue is full.

    It asks once more where the controls were changed meanwhile; else a line stands in the place of the answer.
    """
    line = UserError("nobody has answered this: too many wait for their turn, or the page has failed; ask again")
    lines = json.dumps([str(error_html(checkpoint, line)) for checkpoint in served])
    change = f"window.adadepthChanges > window.adadepthAsked ? [({_CHANGE_WANTED})()]"
    return f"() => {change} : window.adadepthStopped ? [] : [undefined, ...{lines}]"


def _refusal(served: Served, error: BaseException) -> str:
    """Return a mistake in a line; of what nobody foresaw the console alone says more."""
    if isinstance(error, UserError):
        return str(error_html(served, error))
    say(f"{served.name}: {format_error(error)}")
    return str(error_html(served, UserError("the model could not be asked that; its console says why")))
