"""The page in a real browser: typing, sliders, steps, harder examples, generated text, several visitors."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from adadepth import AdaLayersForSequenceClassification, AlbertActForPreTraining, ParXLConfig, ParXLForCausalLM
from adadepth.prediction import models
from tests.contrib.serve.support import save_untrained, serve_text_model, serve_untrained
from tests.models_support import make_small_act, make_small_ponder
from tests.toy_support import DATA, install_toy_family
from tests.unit.data.tokenizers_support import tokenizer
from tests.unit.models.adalayers_support import HEAD, save_base
from tests.unit.models.looped.looped_support import OURO, build_looped
from tests.unit.models.par_xl_support import SMALL as PAR

playwright = pytest.importorskip("playwright.sync_api")
gradio = pytest.importorskip("gradio")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SWITCHES = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="there is no browser")]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Yield the address of a page for every family, and of one with two checkpoints."""
    from adadepth.contrib.serve.page import build_page, launch_page

    words, pieces = tokenizer("bert"), tokenizer("roberta")

    def make_folder(name: str) -> Path:
        return tmp_path_factory.mktemp(name)

    of_layers = ("budget=none", "model.num_hidden_layers=4")
    hops = serve_untrained(make_folder("hops"), "act_hops", *of_layers, "model.readout_weight=0.1", spreads=True)
    sizes = ("model.hidden_size=32", "model.num_attention_heads=2", "model.num_steps=4")
    checkpoints = {
        "hops": [hops],
        "maze": [serve_untrained(make_folder("maze"), "act_maze", *of_layers, spreads=True)],
        "sudoku": [serve_untrained(make_folder("sudoku"), "trm_tiny", "dataset.size=4", *sizes)],
        "ponder": [serve_text_model(make_small_ponder(), words, initial_text="a cat, they said: stop!")],
        "masks": [serve_text_model(make_small_act(AlbertActForPreTraining), words, initial_text="a [MASK] cat")],
        "loops": [serve_text_model(build_looped(**OURO | {"vocab_size": len(pieces)}), pieces, initial_text="a cat")],
        "layers": [serve_text_model(from_layers(make_folder("base")), words, initial_text="a cat")],
        "supernet": [serve_text_model(from_supernet(len(pieces)), pieces, initial_text="a cat")],
        "two": [hops, serve_untrained(make_folder("other"), "act_hops", *of_layers, "model.readout_weight=0.1")],
    }
    built_pages = {name: build_page(served_checkpoints) for name, served_checkpoints in checkpoints.items()}
    yield {name: launch_page(page, "127.0.0.1", 0) for name, page in built_pages.items()}
    for page in built_pages.values():
        page.close(verbose=False)


def from_layers(folder: Path) -> Any:
    """Return Adalayers over a small frozen model."""
    torch.manual_seed(0)
    return AdaLayersForSequenceClassification.from_base(save_base("bert", folder / "base"), **HEAD, num_labels=3)


def from_supernet(pieces: int) -> Any:
    """Return a derived architecture of PAR-XL."""
    torch.manual_seed(0)
    return ParXLForCausalLM(ParXLConfig(**PAR | {"vocab_size": pieces}, architecture="sfsf"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=list(SWITCHES))
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Any]:
    """Return a function that opens a page as a new visitor; requests to elsewhere and failing scripts are errors."""
    contexts, urls, failed = [], [], []

    def open_page(address: str, width: int = 1440, **more: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, accept_downloads=True, **more)
        context.set_default_timeout(120_000)  # milliseconds, for what hangs: on a busy machine an answer takes long
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: urls.append(request.url))
        page.on("pageerror", lambda error: failed.append(str(error)))
        page.on("dialog", lambda dialog: failed.append("a dialog"))
        page.goto(address)
        page.wait_for_selector(".ada dl")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [url for url in urls if not url.startswith(("http://127.0.0.1", "data:", "blob:"))] == []
    assert failed == []


def read_tile(page: Any, name: str) -> float:
    text = page.locator(f"#ada-answers [data-tile={name}]").first.inner_text()
    return float(text.rstrip("%"))


def choose(page: Any, knob: str) -> None:
    page.locator("#ada-knob input").click()
    page.get_by_role("option", name=knob).click()
    page.wait_for_function(f"document.querySelector('.ada .note').textContent.includes({json.dumps(knob)})")


def slide(page: Any, value: float) -> None:
    """Move the slider as the keyboard and the mouse do, and wait for the answer."""
    page.locator("#ada-depth input[type=range]").evaluate(
        "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input', { bubbles: true })) }",
        value,
    )
    page.wait_for_function(f"document.querySelector('.ada .note').textContent.includes(' {value:g}')")


@pytest.mark.parametrize("name", ["hops", "maze", "ponder", "masks", "loops"])
def test_the_slider_lowers_the_mean_depth(name: str, pages: dict[str, str], visit: Any) -> None:
    page = visit(pages[name])
    slide(page, 0.9)
    deep, compute = read_tile(page, "depth"), read_tile(page, "compute")
    slide(page, 0.02)
    assert read_tile(page, "depth") < deep
    assert read_tile(page, "compute") < compute


def move_slider(page: Any, value: float) -> None:
    """Move the slider without waiting."""
    page.locator("#ada-depth input[type=range]").evaluate(
        "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input', { bubbles: true })) }",
        value,
    )


def settle(page: Any, *parts: str) -> None:
    """Wait until an answer has some parts, and still has them when nothing is computed any more."""
    says = f"{json.dumps(parts)}.every(part => document.querySelector('#ada-answers').textContent.includes(part))"
    quiet = "!document.querySelector('#ada-answers .generating, #ada-answers .pending')"
    page.wait_for_function(f"{says} && {quiet}")
    page.wait_for_timeout(2_500)  # an answer that was asked for before would have come
    assert page.evaluate(says), page.locator("#ada-answers").inner_text()


@pytest.mark.parametrize("name", ["maze", "ponder"])
def test_the_last_move_of_the_slider_wins(name: str, pages: dict[str, str], visit: Any) -> None:
    page = visit(pages[name])
    for pause in (0, 30, 100, 300, 700):
        for value in (0.9, 0.5, 0.7, 0.02):
            move_slider(page, value)
            page.wait_for_timeout(pause)
        settle(page, " 0.02")
        slide(page, 0.9)  # and as soon as it is answered, while its curve is made
        move_slider(page, 0.03)
        settle(page, " 0.03")


def test_the_last_of_all_controls_wins(pages: dict[str, str], visit: Any) -> None:
    page = visit(pages["sudoku"])
    knobs = ["exit rule entropy", "exit rule margin", "steps of every token (fixed)"]
    for pause in (0, 60, 250):
        for number, knob in enumerate(knobs):
            page.locator("#ada-knob input").click()
            page.get_by_role("option", name=knob).click()
            page.click("#ada-draw")
            page.fill("#ada-number input", str(10 * number))
            page.fill("#ada-number input", str(10 * number + 3))
            page.wait_for_timeout(pause)
        move_slider(page, 2)
        settle(page, "steps of every token (fixed) 2", "validation 7")  # of eight
        ends = page.locator("#ada-depth input[type=range]")
        assert (ends.get_attribute("min"), ends.get_attribute("max")) == ("1", "4")
        cells = "[...document.querySelectorAll('#ada-cells .cell')].map(each => each.textContent).join('')"
        assert page.evaluate(cells) == page.locator("#ada-board textarea").input_value().replace("\n", "")


def test_a_text_and_its_continuation_take_turns(pages: dict[str, str], visit: Any) -> None:
    page = visit(pages["loops"])
    for text in ("a cat", "the naive cat"):
        page.fill("#ada-text textarea", text)
        page.click("#ada-ask")
        move_slider(page, 0.9)
        move_slider(page, 0.3)
        page.click("#ada-write")  # the last, though the slider was not answered yet
        settle(page, "mean over the text")
        assert page.locator("[data-side='2'] [data-tile=compute]").count() == 1
        page.click("#ada-write")
        move_slider(page, 0.4)
        settle(page, " 0.4")
        assert page.locator("[data-side]").count() == 0
    page.click("#ada-write")
    move_slider(page, 0.5)
    page.click("#ada-stop")
    settle(page, " 0.5")


def test_after_a_mistake_the_next_move_is_answered(pages: dict[str, str], visit: Any) -> None:
    page = visit(pages["ponder"])
    page.fill("#ada-text textarea", " ")
    page.click("#ada-ask")
    page.wait_for_selector(".ada .error:has-text('no text: enter a text')")
    move_slider(page, 0.4)
    page.fill("#ada-text textarea", "the naive cat")
    page.click("#ada-ask")
    settle(page, " 0.4", "naive")
    maze = visit(pages["maze"])
    maze.fill("#ada-board textarea", "x")
    maze.wait_for_selector(".ada .error")
    maze.click("#ada-draw")
    number = maze.locator("#ada-number input").input_value()
    maze.wait_for_selector("#ada-answers .note")
    maze.fill("#ada-number input", "")
    maze.fill("#ada-number input", "2")
    move_slider(maze, 0.2)
    settle(maze, " 0.2", "inside 2")
    assert number != "2"


def test_a_full_queue_is_reported_instead_of_the_answer(pages: dict[str, str], visit: Any) -> None:
    page = visit(pages["ponder"])
    page.route("**/queue/join*", lambda route: route.fulfill(status=503, json={"detail": "Queue is full."}))
    move_slider(page, 0.4)
    page.wait_for_selector(".ada .error:has-text('no answer')")
    page.unroute("**/queue/join*")
    move_slider(page, 0.6)
    settle(page, " 0.6")


def test_blocks_of_a_frozen_model_are_left_out(pages: dict[str, str], visit: Any) -> None:
    page = visit(pages["layers"])
    page.fill("#ada-text textarea", "the naive cat")
    page.click("#ada-ask")
    page.wait_for_selector(".ada .note")
    deep, compute = read_tile(page, "depth"), read_tile(page, "compute")
    slide(page, 1)
    page.wait_for_selector(".ada .sentence:has-text('the naive cat')")
    assert page.locator("#ada-knob input").input_value() == "number of blocks"
    assert read_tile(page, "depth") == 1 < deep
    assert read_tile(page, "compute") < compute


def test_a_model_of_one_depth_has_no_slider_and_generates_once(pages: dict[str, str], visit: Any) -> None:
    page = visit(pages["supernet"])
    assert page.locator("#ada-depth input[type=range]").count() == 0 or page.locator("#ada-depth").is_hidden()
    page.fill("#ada-text textarea", "the naive cat")
    page.click("#ada-ask")
    words = "document.querySelector('.ada .sentence').textContent.replace(/[^a-z]/g, '')"  # without its pieces' depths
    page.wait_for_function(f"{words} === 'thenaivecat'")
    assert read_tile(page, "compute") == 100
    page.click("#ada-write")
    page.wait_for_selector("[data-side='1'] [data-tile=compute]")
    assert page.locator("[data-side]").count() == 1


@pytest.mark.parametrize(("name", "step"), [("masks", "[MASK]"), ("loops", "cat")])
def test_a_token_shows_the_prediction_of_every_step(name: str, step: str, pages: dict[str, str], visit: Any) -> None:
    page = visit(pages[name])
    page.locator("#ada-answers .sentence [data-notes]", has_text=step).first.focus()
    bars = [row.inner_text().split("\n") for row in page.locator(".bars > div").all()]
    assert re.search(r"[^\d. ]", {row[0]: row[-1] for row in bars}["1"]), bars


def test_a_typed_text_is_answered(pages: dict[str, str], visit: Any) -> None:
    page = visit(pages["ponder"])
    page.fill("#ada-text textarea", "the naive cat")
    page.click("#ada-ask")
    page.wait_for_selector(".ada .sentence:has-text('the naive cat')")
    page.fill("#ada-text textarea", " ")
    page.click("#ada-ask")
    page.wait_for_selector(".ada .error:has-text('no text: enter a text')")


def test_a_sudoku_is_scrubbed_and_edited(pages: dict[str, str], visit: Any) -> None:
    page = visit(pages["sudoku"])
    answer = page.locator("#ada-answers .board").nth(1)
    last = answer.inner_text()
    scrub = page.locator(".scrub input")
    scrub.focus()
    for _ in range(4):
        page.keyboard.press("ArrowLeft")
    assert page.locator(".scrub output").inner_text() == "0 of 4"
    assert answer.inner_text().split() == page.locator("#ada-answers .board").first.inner_text().split()
    page.keyboard.press("End")
    assert answer.inner_text() == last
    cell = page.locator("#ada-cells button.cell").first
    before = page.locator("#ada-board textarea").input_value()
    cell.focus()
    page.keyboard.press("2" if before[0] != "2" else ".")
    assert page.locator("#ada-board textarea").input_value()[1:] == before[1:]
    page.wait_for_function("!document.querySelector('#ada-answers').textContent.includes('example validation')")


def test_a_harder_maze_is_drawn(pages: dict[str, str], visit: Any) -> None:
    page = visit(pages["maze"])
    assert page.locator("#ada-cells .cell").count() == 64
    page.locator("#ada-set input").click()
    page.get_by_role("option").last.click()
    page.wait_for_function("document.querySelectorAll('#ada-cells .cell').length > 64")
    page.wait_for_selector("#ada-answers .note:has-text('beyond')")
    number = page.locator("#ada-number input").input_value()
    page.click("#ada-draw")
    page.wait_for_function(f"document.querySelector('#ada-number input').value !== {json.dumps(number)}")


def test_text_is_generated_at_both_depths_and_can_be_stopped(pages: dict[str, str], visit: Any) -> None:
    page = visit(pages["loops"])
    slide(page, 0.02)
    page.click("#ada-write")
    page.wait_for_selector("[data-side='2'] [data-tile=compute]", timeout=120_000)
    sides = page.locator("[data-side]")
    assert float(sides.first.locator("[data-tile=depth]").inner_text()) < float(
        sides.last.locator("[data-tile=depth]").inner_text()
    )
    assert "new_tokens=32" in str(page.locator("[data-command]").first.text_content())
    page.click("#ada-write")
    page.click("#ada-stop")
    page.click("#ada-ask")  # the waiting request runs when no text is generated any more
    page.wait_for_selector("#ada-answers [data-tile=time]", timeout=30_000)


def test_two_checkpoints_answer_side_by_side(pages: dict[str, str], visit: Any) -> None:
    page = visit(pages["two"])
    page.wait_for_function("document.querySelectorAll('#ada-answers .ada dl').length === 2")
    boards = page.locator("#ada-answers .ada")
    assert boards.first.locator(".board").first.inner_text() == boards.last.locator(".board").first.inner_text()


def test_a_saved_answer_needs_no_server(pages: dict[str, str], visit: Any, browser: Any, tmp_path: Path) -> None:
    page = visit(pages["hops"])
    page.locator("details.keep summary").click()
    with page.expect_download() as event:
        page.click("[data-save]")
    event.value.save_as(tmp_path / "kept.html")
    summary = page.locator("#ada-answers .ada dl").inner_text()
    alone = browser.new_page()
    urls: list[str] = []
    alone.on("request", lambda request: urls.append(request.url))
    alone.goto((tmp_path / "kept.html").as_uri())
    assert alone.locator(".ada dl").inner_text() == summary
    alone.locator(".scrub input").focus()
    alone.keyboard.press("Home")
    assert alone.locator(".scrub output").inner_text().startswith("0 of")
    assert [url for url in urls if not url.startswith(("file:", "data:", "blob:"))] == []
    alone.close()
    with page.expect_download() as event:
        page.locator(".save a").first.click()
    event.value.save_as(tmp_path / "kept.svg")
    assert (tmp_path / "kept.svg").read_text(encoding="utf-8").startswith("<svg ")


HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(2)>",
    "</textarea></style><svg onload=alert(3)>",
    "${alert(4)} {{value}} {% raw %}",
    "' autofocus onfocus='alert(5)",
    "/etc/passwd file:/etc/passwd http://127.0.0.1:1/",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_markup_of_a_visitor_is_shown_as_text(text: str, pages: dict[str, str], visit: Any) -> None:
    page = visit(pages["ponder"])
    page.fill("#ada-text textarea", text)
    page.click("#ada-ask")
    page.wait_for_function(
        "text => (document.querySelector('#ada-answers .sentence') || {}).textContent?.includes(text)", arg=text
    )
    page.wait_for_timeout(200)  # what would run has run


def test_visitors_do_not_see_texts_of_others(pages: dict[str, str], visit: Any) -> None:
    one, other = visit(pages["ponder"]), visit(pages["ponder"])
    for number in range(3):
        for page, text in ((one, f"first visitor {number}"), (other, f"second visitor {number}")):
            page.fill("#ada-text textarea", text)
            page.click("#ada-ask")
        for page, text in ((one, f"first visitor {number}"), (other, f"second visitor {number}")):
            page.wait_for_selector(f"#ada-answers .sentence:has-text('{text}')")
    assert "second visitor" not in one.content()
    assert "first visitor" not in other.content()
    assert " visitor 0" not in visit(pages["ponder"]).content()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["hops", "maze", "sudoku", "ponder", "masks", "loops", "layers", "supernet", "two"])
def test_nothing_overflows_a_telephone(name: str, scheme: str, pages: dict[str, str], visit: Any) -> None:
    page = visit(pages[name], 390, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    ink, paper = (
        page.locator("#ada-answers .ada").first.evaluate(f"each => getComputedStyle(each).{what}")
        for what in ("color", "backgroundColor")
    )
    light, dark = (
        sum(map(int, color[4:-1].split(", "))) for color in ((paper, ink) if scheme == "light" else (ink, paper))
    )
    assert light - dark > 500


def test_the_page_works_by_keyboard(pages: dict[str, str], visit: Any) -> None:
    page = visit(pages["hops"])
    before = read_tile(page, "depth")
    page.locator("#ada-depth input[type=range]").focus()
    for _ in range(45):
        page.keyboard.press("ArrowLeft")
    page.wait_for_function("document.querySelector('.ada .note').textContent.includes('0.05')")
    assert read_tile(page, "depth") < before


def test_a_family_of_another_package_is_served(tmp_path: Path, visit: Any) -> None:
    from adadepth.contrib.serve.page import build_page, launch_page

    with install_toy_family(tmp_path):
        models._load_heads.cache_clear()
        toy = serve_untrained(tmp_path, "router_hops", *DATA, "budget=none", "model.num_hidden_layers=3")
        page = build_page([toy])
        opened = visit(launch_page(page, "127.0.0.1", 0))
        slide(opened, 0.05)
        assert read_tile(opened, "depth") < 3
        page.close(verbose=False)
    models._load_heads.cache_clear()


def test_ctrl_c_closes_the_server(tmp_path: Path) -> None:
    save_untrained(tmp_path, "act_hops", "budget=none")
    command = [
        sys.executable, "-m", "adadepth", "--config-name", "act_hops", "mode=serve", f"checkpoint={tmp_path}/model",
        "serve.port=0", "dataset.train_examples=64",
    ]  # fmt: skip
    where = os.environ | {"HF_HUB_OFFLINE": "1"}
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=where)
    assert running.stdout is not None
    lines = []
    for line in running.stdout:
        lines.append(line)
        if "Ctrl-C stops the server" in line:
            break
    running.send_signal(signal.SIGINT)
    rest, _ = running.communicate(timeout=60)
    assert running.returncode == 0, "".join([*lines, rest])
    assert "accessible from this machine only" in lines[-1]
    assert "Traceback" not in rest
    assert rest.strip().endswith("server closed")
