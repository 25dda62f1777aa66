"""Page in a browser: navigation, probabilities of a token, downloads, light and dark, narrow and wide."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adadepth.report.pages import draw_figures, write_report
from adadepth.report.run_files import SENTENCES, write_grids
from tests.pages_support import read_report
from tests.unit.report.synthetic import make_run

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="there is no browser")]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = make_run(tmp_path_factory.mktemp("run"), max_updates=6, evaluations=3)
    pieces = {"rule": "first", "index": 9, "tokens": ["▁3", *["141"] * 60, "x" * 90], "updates": [2] * 62}
    with (directory / SENTENCES).open("a", encoding="utf-8") as file:  # nothing but pieces of one word
        file.write(json.dumps(pieces) + "\n")
    write_report(read_report(directory))
    draw_figures(read_report(directory))
    return directory


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def browser_page(browser: Any, run: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Yield the page in a window with the requested settings, and check its requests and messages."""
    context = browser.new_context(accept_downloads=True, **getattr(request, "param", {}))
    page = context.new_page()
    messages: list[str] = []
    urls: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda requested: urls.append(requested.url))
    page.goto((run / "report.html").as_uri())
    yield page
    assert messages == []
    assert [url for url in urls if not url.startswith(("data:", "file:"))] == []
    context.close()


def make_window_settings(width: int, **more: Any) -> dict[str, Any]:
    return {"viewport": {"width": width, "height": 900}, **more}


@pytest.mark.parametrize(
    "browser_page", [make_window_settings(390), make_window_settings(1440)], indirect=True, ids=["narrow", "wide"]
)
def test_navigation_leads_to_every_section_and_nothing_overflows(browser_page: Any) -> None:
    assert browser_page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    links = browser_page.locator("nav a")
    assert links.count() > 8
    for number in range(links.count()):
        links.nth(number).click()
        anchor = links.nth(number).get_attribute("href")
        assert browser_page.evaluate("location.hash") == anchor
        assert browser_page.locator(f"[id='{anchor[1:]}']").is_visible()
    assert browser_page.locator("nav").is_visible(), "it stays at hand"
    assert browser_page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize(
    "browser_page", [make_window_settings(390), make_window_settings(1440)], indirect=True, ids=["narrow", "wide"]
)
def test_cards_have_one_height_and_hold_their_texts(browser_page: Any, request: pytest.FixtureRequest) -> None:
    cards = browser_page.locator(".tiles .tile")
    boxes = [card.bounding_box() for card in cards.all()]
    assert len(boxes) > 3
    assert max(box["height"] for box in boxes) - min(box["height"] for box in boxes) < 1
    in_first_row = [box for box in boxes if abs(box["y"] - boxes[0]["y"]) < 1]
    assert len(in_first_row) == 2 if "narrow" in request.node.name else 3 <= len(in_first_row) <= 4
    assert cards.evaluate_all("cards => cards.every(card => card.scrollWidth <= card.clientWidth)")


@pytest.mark.parametrize(
    "browser_page",
    [make_window_settings(390, has_touch=True), make_window_settings(1440)],
    indirect=True,
    ids=["narrow", "wide"],
)
def test_a_token_shows_its_probabilities(browser_page: Any, request: pytest.FixtureRequest) -> None:
    token = browser_page.locator("span[data-notes]").nth(4)
    token.scroll_into_view_if_needed()
    notes = json.loads(token.get_attribute("data-notes"))
    expected = [note[1] if isinstance(note, list) else f"{note:.3f}" for note in notes]
    bars = browser_page.locator(".bars")
    assert not bars.is_visible()
    token.tap() if "narrow" in request.node.name else token.hover()
    assert bars.is_visible()
    assert bars.locator("div span:last-child").all_inner_texts() == expected
    box = bars.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= browser_page.viewport_size["width"]
    browser_page.keyboard.press("Escape")
    assert not bars.is_visible()


@pytest.mark.parametrize("browser_page", [make_window_settings(1440)], indirect=True)
def test_a_focused_token_shows_its_probabilities(browser_page: Any) -> None:
    browser_page.locator("span[data-notes]").nth(2).focus()
    assert browser_page.locator(".bars").is_visible()
    browser_page.keyboard.press("Tab")
    name = browser_page.evaluate("document.activeElement.firstChild.textContent")
    assert browser_page.locator(".bars b").inner_text() == name.strip()


@pytest.mark.parametrize("browser_page", [make_window_settings(1440, java_script_enabled=False)], indirect=True)
def test_titles_have_the_probabilities_without_a_script(browser_page: Any) -> None:
    assert "1: 0." in browser_page.locator("span[data-notes]").nth(4).get_attribute("title")


@pytest.mark.parametrize("browser_page", [make_window_settings(1440)], indirect=True)
def test_everything_can_be_downloaded(browser_page: Any, tmp_path: Path) -> None:
    begins = {".svg": b"<svg ", ".csv": b"", ".tex": rb"\begin{table}"}
    taken = set()
    for number in range(browser_page.locator("details.files").count()):
        tab = browser_page.context.new_page()  # a browser lets a tab have ten downloads in a row
        tab.goto(browser_page.url)
        box = tab.locator("details.files").nth(number)
        box.locator("summary").click()
        for link in box.locator("a[href^='data:']").all():
            with tab.expect_download() as event:
                link.click()
            name = event.value.suggested_filename
            event.value.save_as(tmp_path / name)
            content = (tmp_path / name).read_bytes()
            assert content
            assert content.startswith(begins[Path(name).suffix])
            taken.add(Path(name).suffix)
        tab.close()
    assert taken == set(begins)


def test_linked_files_exist_beside_the_page(browser_page: Any, run: Path) -> None:
    beside = [link.get_attribute("href") for link in browser_page.locator("a[download][href^='figures/']").all()]
    assert {Path(href).suffix for href in beside} == {".pdf", ".png"}
    assert all((run / href).is_file() for href in beside)


LUMINANCE = "getComputedStyle(document.body).backgroundColor"


@pytest.mark.parametrize("browser_page", [make_window_settings(1440, color_scheme="dark")], indirect=True)
def test_dark_mode_follows_the_system_and_the_choice_of_the_reader(browser_page: Any) -> None:
    dark = browser_page.evaluate(LUMINANCE)
    assert dark == "rgb(13, 17, 23)"
    browser_page.locator("label[for=theme-light]").click()
    assert browser_page.evaluate(LUMINANCE) == "rgb(255, 255, 255)"
    browser_page.locator("label[for=theme-dark]").click()
    assert browser_page.evaluate(LUMINANCE) == dark


def test_numbers_on_light_cells_stay_black_in_dark_mode(browser: Any, tmp_path: Path) -> None:
    """Keep the ink of cells, which keep the colours of their depths: it must not follow the page's."""
    chain = {
        "index": 0, "kind": "chains", "cells": [["red", ">0", ">1"]], "difficulty": [[0, 1, 2]],
        "updates": [[1, 2, 6]], "label": [["red"] * 3], "predicted": [["red"] * 3],
    }  # fmt: skip
    directory = make_run(tmp_path, max_updates=6, evaluations=3)
    write_grids(directory, {"inside": [chain]}, max_updates=6, step=3)
    page = browser.new_page(color_scheme="dark")
    page.goto(write_report(read_report(directory)).as_uri())
    black = "[...document.querySelectorAll('svg text[fill=\"#000000\"]')].map(text => getComputedStyle(text).fill)"
    assert set(page.evaluate(black)) == {"rgb(0, 0, 0)"}
    page.close()
