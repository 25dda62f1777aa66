"""Web demo, built with gradio: its controls, events and server.

No other module imports gradio. Analytics, external fonts and storage of inputs are disabled.
"""

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

from adadepth.contrib.serve.answers import compute_answer
from adadepth.contrib.serve.checkpoint import (
    MAX_CHARACTERS,
    MAX_NEW_TOKENS,
    InputExample,
    ServedCheckpoint,
    get_synthetic_example,
    parse_edited_example,
)
from adadepth.contrib.serve.generation import Continuation, stream_continuation
from adadepth.contrib.serve.knobs import AS_TRAINED, FULL, Setting
from adadepth.contrib.serve.ports import find_free_port
from adadepth.contrib.serve.rendering import render_answer, render_board, render_continuations, render_error
from adadepth.contrib.serve.request_filter import AllowedHosts, RequestFilter, is_loopback, list_space_hosts
from adadepth.data.text.passages import Text
from adadepth.errors import ConfigError, UserError, format_error, is_exit
from adadepth.report.section import load_templates
from adadepth.runtime.console import RESULT, say

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before it is imported

import gradio as gr

_MAX_QUEUE_SIZE = 64  # waiting requests
_REFRESH_SECONDS = 0.15  # between two updates of a text in progress
_EXAMPLE_NUMBERS = 10_000  # random numbers of examples; a set repeats after its end
_ANSWER, _TEXT = "answer", "text"  # kinds of request
# Scripts of the page: number of the last change of the controls, number of the requested one, whether it was stopped.
_CHANGE_SCRIPT = "() => `${window.adadepthWanted} ${window.adadepthChanges = (window.adadepthChanges ?? 0) + 1}`"
_BEGIN_SCRIPT = (
    "(...values) => { window.adadepthAsked = window.adadepthChanges; window.adadepthStopped = false; return values }"
)
_STOP_SCRIPT = "() => { window.adadepthStopped = true; return [] }"
_FONT = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "Arial", "sans-serif")
_CODE_FONT = ("ui-monospace", "Menlo", "Consolas", "monospace")


def open_page(checkpoints: Sequence[ServedCheckpoint], host: str, port: int, names: Sequence[str] = ()) -> None:
    """Start the web demo, print its address, and wait for Ctrl-C.

    Args:
        checkpoints: Checkpoints to serve.
        host: Address to listen on.
        port: Port to listen on, or 0 for any free port.
        names: Additional host names of the page, such as the name of a proxy.

    Raises:
        ConfigError: If the port is taken.
    """
    page = build_page(checkpoints)
    address = launch_page(page, host, port, names)
    access = (
        "accessible from this machine only"
        if is_loopback(host)
        else "accessible to everyone who can reach it, without a password"
    )
    try:
        say(f"open {address} in a browser ({access}); Ctrl-C stops the server", RESULT)
        Event().wait()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not interrupt the shutdown
        say("server closed")
    finally:
        page.close(verbose=False)


def launch_page(page: gr.Blocks, host: str, port: int, names: Sequence[str] = ()) -> str:
    """Start the web server of the demo in the background, and return its address."""
    hosts = AllowedHosts(host, [*names, *list_space_hosts()])

    @asynccontextmanager
    async def add_filter(app: Any) -> AsyncIterator[None]:
        """Put the request filter around the web application before it receives any request."""
        app.middleware_stack = RequestFilter(app.middleware_stack, hosts)
        yield

    for module in (gr.queueing, gr.routes, gr.utils):
        vars(module)["traceback"] = _OneLineTraceback()
    sources = (_read_template("tokens.js", "adadepth.report"), _read_template("page.js"))
    scripts = "\n".join(f"<script data-kept>{source}</script>" for source in sources)
    style = f"<style>{_read_template('frame.css')}</style>"  # gradio would rewrite a css argument
    theme = gr.themes.Base(font=_FONT, font_mono=_CODE_FONT, primary_hue="blue", neutral_hue="slate")
    page.queue(default_concurrency_limit=1, max_size=_MAX_QUEUE_SIZE, api_open=False)
    port = find_free_port(host, port)
    try:
        with _bypass_proxy():
            _, address, _ = page.launch(
                server_name=f"[{host}]" if ":" in host else host, server_port=port, quiet=True, share=False,
                prevent_thread_lock=True, inbrowser=False, show_error=False, footer_links=[], run_history=False,
                ssr_mode=False, pwa=False, mcp_server=False, enable_monitoring=False, max_file_size=1,
                theme=theme, head=style + scripts, app_kwargs={"lifespan": add_filter},
            )  # fmt: skip
    except OSError as error:
        raise ConfigError(
            f"serve.host={host} serve.port={port}: cannot be opened (another program now uses this port)"
        ) from error
    return str(address)


@contextmanager
def _bypass_proxy() -> Iterator[None]:
    """Bypass HTTP proxies within the `with` block, because gradio sends a request to its own server."""
    names = ("no_proxy", "NO_PROXY")
    before = {name: os.environ[name] for name in names if name in os.environ}
    os.environ.update(dict.fromkeys(names, "*"))
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]
        os.environ.update(before)


class _OneLineTraceback:
    """Replacement for the module `traceback` that prints each error as one line."""

    @staticmethod
    def print_exc(*_: Any, **__: Any) -> None:
        """Print the current exception as one line."""
        error = sys.exc_info()[1]
        say(f"request failed: {'' if error is None else format_error(error)}")

    def __getattr__(self, name: str) -> Any:
        return getattr(traceback, name)


def _read_template(name: str, package: str = "adadepth.contrib.serve") -> str:
    return (files(package) / "templates" / name).read_text(encoding="utf-8")


def build_page(checkpoints: Sequence[ServedCheckpoint]) -> gr.Blocks:
    """Build the web page for one checkpoint, or for several checkpoints with the same type of input.

    The page opens with the answers to its first input, which are computed here, once for all visitors.
    """
    first = checkpoints[0]
    names = " and ".join(checkpoint.name for checkpoint in checkpoints)
    heading = load_templates("adadepth.contrib.serve").get_template("heading.html.j2").render(names=names)
    with gr.Blocks(title="adadepth: interactive demo", analytics_enabled=False) as page:
        gr.HTML(heading, elem_id="ada-head", js_on_load=None, apply_default_css=False)
        with gr.Row(elem_id="ada-inputs"):
            with gr.Column(scale=3, min_width=300):
                controls = (
                    _build_example_controls(first) if first.synthetic is not None else _build_text_controls(first)
                )
            with gr.Column(scale=2, min_width=280):
                depth = _build_depth_controls(first)
        outputs = []
        with gr.Row(elem_id="ada-answers"):
            for checkpoint in checkpoints:
                answer = _render_first_answer(checkpoint, controls)
                with gr.Column(min_width=300):
                    outputs.append(gr.HTML(answer, js_on_load=None, apply_default_css=False, elem_classes="ada-answer"))
        _connect_controls(checkpoints, controls, depth, outputs)
    return page


def _render_first_answer(checkpoint: ServedCheckpoint, controls: _InputControls) -> str:
    """Render the answer to the first input of the page, at the depth as trained, with its quality curve."""
    inputs = [component.value for component in controls.values]
    *_, html = _render_parts(checkpoint, inputs, AS_TRAINED, 0.0, [])
    return html


# ---- controls


class _InputControls(NamedTuple):
    """Controls of the web page for the model's input: text boxes, or an example that can be edited.

    Attributes:
        values: Components with the values that form the input.
        ask_button: Button that requests an answer.
        draw: Button that draws another synthetic example.
        board: Cells of a synthetic example.
        write: Buttons that start and stop generation, and the number of tokens, for a language model.
    """

    values: list[Any]
    ask_button: Any
    draw: Any = None
    board: Any = None
    write: tuple[Any, Any, Any] | None = None


def _build_text_controls(checkpoint: ServedCheckpoint) -> _InputControls:
    label = "Text with [MASK] for every word to predict" if checkpoint.pipeline.answers.fills_masks else "Text"
    box = gr.Textbox(
        checkpoint.initial_text, lines=4, max_lines=10, label=label, elem_id="ada-text", max_length=MAX_CHARACTERS
    )
    values: list[Any] = [box]
    if checkpoint.reads_pairs:
        values.append(gr.Textbox("", lines=2, label="Second text", elem_id="ada-second", max_length=MAX_CHARACTERS))
    if not checkpoint.generates_text:
        return _InputControls(values, gr.Button("Ask", variant="primary", elem_id="ada-ask"))
    count = gr.Slider(1, MAX_NEW_TOKENS, value=32, step=1, label="New tokens", elem_id="ada-count", buttons=[])
    with gr.Row():
        button = gr.Button("Ask", elem_id="ada-ask", min_width=80)
        write = gr.Button("Write on", variant="primary", elem_id="ada-write", min_width=110)
        stop = gr.Button("Stop", elem_id="ada-stop", min_width=80)
    return _InputControls(values, button, write=(write, stop, count))


def _build_example_controls(checkpoint: ServedCheckpoint) -> _InputControls:
    assert checkpoint.synthetic is not None
    names = list(checkpoint.synthetic.sets)
    example = get_synthetic_example(checkpoint, names[0], 0)
    with gr.Row():
        name = gr.Dropdown(names, value=names[0], label="Evaluation set", elem_id="ada-set", filterable=False)
        number = gr.Number(0, precision=0, minimum=0, label="Example", elem_id="ada-number", min_width=90)
    board = gr.HTML(
        str(render_board(checkpoint, example)), js_on_load=None, apply_default_css=False, elem_id="ada-cells"
    )
    lines = max(1, example.board.count("\n") + 1)
    text = gr.Textbox(example.board, lines=min(lines, 9), max_lines=24, label="The example as editable text",
                      elem_id="ada-board", max_length=MAX_CHARACTERS)  # fmt: skip
    with gr.Row():
        draw = gr.Button("Draw another", elem_id="ada-draw")
        button = gr.Button("Ask", variant="primary", elem_id="ada-ask")
    return _InputControls([name, number, text], button, draw, board)


class _DepthControls(NamedTuple):
    """Controls of the web page for the model's depth: a choice of the control and its slider."""

    knob: Any
    value: Any


def _build_depth_controls(checkpoint: ServedCheckpoint) -> _DepthControls:
    names = [knob.name for knob in checkpoint.knobs]
    choices = [AS_TRAINED, *names, FULL] if names else [AS_TRAINED]
    knob = gr.Dropdown(choices, value=AS_TRAINED, label="Depth setting", elem_id="ada-knob", filterable=False)
    first = checkpoint.knobs[0] if checkpoint.knobs else None
    value = gr.Slider(
        0 if first is None else first.low, 1 if first is None else first.high,
        value=0 if first is None else first.start, step=0.01 if first is None else first.step,
        label=_format_slider_label("" if first is None else first.name), elem_id="ada-depth",
        visible=first is not None, buttons=[],
    )  # fmt: skip
    return _DepthControls(knob, value)


def _format_slider_label(knob: str) -> str:
    return f"{knob}: shallow to deep" if knob else "shallow to deep"


# ---- events


def _connect_controls(
    checkpoints: Sequence[ServedCheckpoint],
    controls: _InputControls,
    depth: _DepthControls,
    outputs: list[Any],
) -> None:
    """Make the web page recompute the answer whenever a control changes.

    In the browser, every control records the request and changes a hidden text. Only that change triggers an answer. A
    change during an answer triggers another answer afterwards, with the current values of the controls. The page
    therefore always shows their last state. The controls cannot trigger answers themselves, because gradio would repeat
    a whole event, including the effects of the first control on others.
    """
    request = gr.Textbox(_ANSWER, visible="hidden", container=False, elem_id="ada-wanted")
    changes = [controls.ask_button.click, depth.knob.input, depth.value.input]
    if controls.draw is None:
        changes += [box.submit for box in controls.values]
    else:
        changes.append(controls.values[-1].change)  # the text changes by typing, by a cell, or by a new example
    gr.on(changes, None, None, None, js=_build_note_script(_ANSWER), show_progress="hidden")
    _connect_depth_controls(checkpoints[0], depth)
    inputs = [request, *controls.values, depth.knob, depth.value]
    if controls.write is not None:
        write, _, count = controls.write
        write.click(None, None, None, js=_build_note_script(_TEXT), show_progress="hidden")
        inputs.append(count)
        changes.append(write.click)
    gr.on(changes, None, None, request, js=_CHANGE_SCRIPT, show_progress="hidden")
    respond = partial(_respond, checkpoints, len(controls.values))
    answer_event = request.change(
        respond, inputs, outputs, js=_BEGIN_SCRIPT, show_progress="minimal", concurrency_id="model",
        trigger_mode="always_last",
        preprocess=False,  # gradio would clip the slider to the range of the first knob
    )  # fmt: skip
    answer_event.failure(None, None, [request, *outputs], js=_build_failure_script(checkpoints), show_progress="hidden")
    if controls.write is not None:
        _, stop, _ = controls.write
        stop.click(None, None, None, js=_STOP_SCRIPT, show_progress="hidden")
        stop.click(None, None, None, cancels=[answer_event], queue=False)
    if controls.draw is not None:
        _connect_example_controls(checkpoints[0], controls)


def _build_note_script(request: str) -> str:
    """Return a JavaScript function that records in the browser which request the visitor has made."""
    return f"() => {{ window.adadepthWanted = {json.dumps(request)}; return [] }}"


def _connect_depth_controls(checkpoint: ServedCheckpoint, depth: _DepthControls) -> None:
    """Connect the choice of the depth control to its slider: the choice sets the range, and moving it selects one.

    Both happen in the browser, without delay.
    """
    ranges = {
        knob.name: {
            "__type__": "update", "minimum": knob.low, "maximum": knob.high, "step": knob.step, "value": knob.start,
            "label": _format_slider_label(knob.name),
        }
        for knob in checkpoint.knobs
    }  # fmt: skip
    names = json.dumps(list(ranges))
    choose_knob = f"knob => {names}.includes(knob) ? knob : ({names}[0] ?? knob)"
    set_range = f"(knob, value) => ({json.dumps(ranges)})[knob] ?? value"
    depth.value.input(None, depth.knob, depth.knob, js=choose_knob, show_progress="hidden")
    depth.knob.input(None, [depth.knob, depth.value], depth.value, js=set_range, show_progress="hidden")


def _connect_example_controls(checkpoint: ServedCheckpoint, controls: _InputControls) -> None:
    """Connect the controls of a generated example, which a visitor can edit as a grid or as text."""
    name, number, text = controls.values
    current = gr.State((name.value, number.value))

    def show(name: str, number: float | None, text: str, current: tuple[str, float | None]) -> tuple[Any, Any, Any]:
        example = get_synthetic_example(checkpoint, str(name), int(number or 0))
        if (name, number) != tuple(current):
            return str(render_board(checkpoint, example)), example.board, (name, number)
        try:
            edited = parse_edited_example(checkpoint, example, str(text or ""))
            return str(render_board(checkpoint, edited)), gr.skip(), gr.skip()
        except UserError:
            return gr.skip(), gr.skip(), gr.skip()

    choose_number = f"() => Math.floor(Math.random() * {_EXAMPLE_NUMBERS})"
    controls.draw.click(None, None, number, js=choose_number, show_progress="hidden")
    gr.on([name.change, number.change, text.blur], show, [name, number, text, current], [controls.board, text, current],
          queue=False, show_progress="hidden", trigger_mode="always_last")  # fmt: skip


def _respond(checkpoints: Sequence[ServedCheckpoint], count: int, *values: Any) -> Iterator[Any]:
    """Compute the answers for the current values of the controls, and yield updated HTML for each checkpoint.

    Args:
        checkpoints: Checkpoints to query.
        count: Number of values that form the input.
        values: Request, input values, knob, value of the knob, and the number of tokens if the model generates text.
    """
    (request, *inputs), (knob, value, *tokens) = values[: count + 1], values[count + 1 :]
    contents: list[Any] = [gr.skip()] * len(checkpoints)
    for position, checkpoint in enumerate(checkpoints):
        new_tokens = tokens if str(request).startswith(_TEXT) else []
        for html in _render_parts(checkpoint, inputs, str(knob), value, new_tokens):
            contents[position] = html
            yield contents if len(contents) > 1 else contents[0]


def _render_parts(
    checkpoint: ServedCheckpoint, inputs: Sequence[Any], knob: str, value: Any, tokens: Sequence[Any]
) -> Iterator[str]:
    """Yield the HTML of one answer: first without and then with its quality curve, or generated text, or an error."""
    try:
        setting = Setting(knob, float(value or 0))
        if tokens and checkpoint.generates_text:
            yield from _render_continuations(checkpoint, str(inputs[0] or ""), int(tokens[0] or 0), setting)
            return
        example = _read_input(checkpoint, inputs)
        answer = compute_answer(checkpoint, example, setting)
        yield str(render_answer(checkpoint, example, answer, with_curve=False))
        yield str(render_answer(checkpoint, example, answer))
    except BaseException as error:
        if is_exit(error):
            raise
        yield _render_failure(checkpoint, error)


def _read_input(checkpoint: ServedCheckpoint, inputs: Sequence[Any]) -> Text | InputExample:
    """Return the model input, a text or an example, from the values of the controls."""
    if checkpoint.synthetic is not None:
        name, number, text = inputs
        original = get_synthetic_example(checkpoint, str(name), int(number or 0))
        return parse_edited_example(checkpoint, original, str(text or ""))
    texts = [str(value or "") for value in inputs]
    return (texts[0], texts[1]) if checkpoint.reads_pairs and len(texts) > 1 else texts[0]


def _render_continuations(checkpoint: ServedCheckpoint, text: str, count: int, setting: Setting) -> Iterator[str]:
    """Yield the HTML of generated text at regular intervals, first at the depth setting, then at full depth."""
    parts: list[Continuation] = []
    for depth in (setting, Setting(FULL)) if checkpoint.knobs else (setting,):
        seconds = 0.0
        for part in stream_continuation(checkpoint, text, count, depth):
            if part.result is not None or part.seconds - seconds > _REFRESH_SECONDS:
                seconds = part.seconds
                yield str(render_continuations(checkpoint, text, [*parts, part]))
        parts.append(part)


def _build_failure_script(checkpoints: Sequence[ServedCheckpoint]) -> str:
    """Return a JavaScript function for a request that got no answer because it was stopped or the queue was full.

    The script requests an answer again if the controls have changed meanwhile. Otherwise it shows an error line.
    """
    line = UserError("no answer: too many requests are waiting, or the page has failed; try again")
    lines = json.dumps([str(render_error(checkpoint, line)) for checkpoint in checkpoints])
    change = f"window.adadepthChanges > window.adadepthAsked ? [({_CHANGE_SCRIPT})()]"
    return f"() => {change} : window.adadepthStopped ? [] : [undefined, ...{lines}]"


def _render_failure(checkpoint: ServedCheckpoint, error: BaseException) -> str:
    """Render an error as one line of HTML, and print the details of unexpected errors to the console."""
    if isinstance(error, UserError):
        return str(render_error(checkpoint, error))
    say(f"{checkpoint.name}: {format_error(error)}")
    return str(
        render_error(checkpoint, UserError("the model failed on this input; the server console shows the error"))
    )
