"""Support for tests of report pages: their text, their structure, and equal figures of cost in every sentence."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path

from adadepth.metrics.unit_costs import compute_share_with_predictions
from adadepth.report.pages import RunReport, build_report, write_report
from adadepth.report.run_files import read_run
from adadepth.report.section import SectionEntry, SectionOf
from adadepth.tasks.report import build_run_report

_TIMED = re.compile(r"Measured: |Measured times are listed")
_UNTIMED = re.compile(r"Wall-clock time was not measured")
_SHARE = re.compile(r"([\d.]+)\s?%\s+(?:of )?the multiply-accumulates of|Compute needed\s+([\d.]+)\s?%")


def read_report(directory: Path, extra: Iterable[SectionOf | SectionEntry] = ()) -> RunReport:
    """Return the report of a run without the sections of its family."""
    return build_report(read_run(directory), extra)


def extract_text(html: str) -> str:
    """Return the text of some HTML, with a space between elements."""
    return " ".join(re.sub(r"<(style|script|svg)\b.*?</\1>|<[^>]+>", " ", html, flags=re.DOTALL).split())


def extract_sections(page: str) -> dict[str, str]:
    """Return the text of every section by its anchor."""
    parts = re.split(r'<h2 id="([\w-]+)">', page)
    return dict(zip(parts[1::2], map(extract_text, parts[2::2]), strict=True))


def check_costs(directory: Path) -> list[float]:
    """Draw a run's report again, compare all its statements of cost, and return the shares of compute it names."""
    page = write_report(build_run_report(directory)).read_text(encoding="utf-8")
    halting = json.loads((directory / "halting.json").read_text(encoding="utf-8"))
    cost, share = halting["cost"], compute_share_with_predictions(halting)
    text, sections = extract_text(page), extract_sections(page)
    shares = [float(one or other) for one, other in _SHARE.findall(text)]
    assert shares, "the page says what the model needs"
    needed = 100 * cost["adaptive_over_full"]
    first = needed if share is None else 100 * share  # as tables of exits count it
    assert all(abs(share - first) <= 0.51 for share in shares), (first, shares)
    assert re.search(rf"\s{needed:.1f}%", sections["compute"]), "and so does the section about it"
    executed = 100 * cost["executed_over_full"]
    if abs(executed - needed) > 1:
        other_sections = " ".join(text for anchor, text in sections.items() if anchor in ("verdict", "quality"))
        assert f"{executed:.1f}%" not in other_sections
    assert "as it ran" in sections["compute"]
    assert not (_TIMED.search(text) and _UNTIMED.search(text)), "times were measured, or they were not"
    return shares


VOID = {"wbr", "meta", "br", "link", "img", "input", "hr"}


class Page(HTMLParser):
    """Parser that collects tags and text, and checks that every element is closed in order."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(self.source)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        self.text += " " if tag in ("td", "th", "dd") else ""

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self._open):
            self.text += re.sub(r"\s+", " ", data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def check_stands_alone(page: Page) -> None:
    """Check that a page loads nothing from elsewhere; a script, if any, is inline."""
    assert not {"link", "iframe", "object", "embed", "img"} & {tag for tag, _ in page.tags}
    assert not re.search(r"https?://|url\(|@import|\bsrc=|\bon[a-z]+=", page.source)


def check_accessible(page: Page) -> int:
    """Check that tables and drawings have headings that can be read out, and return the number of drawings."""
    assert all("scope" in attributes for attributes in page.of("th"))
    drawings = [svg for svg in page.of("svg") if svg.get("aria-hidden") != "true"]
    assert all(svg["role"] == "img" and svg["aria-label"] for svg in drawings)
    return len(drawings)
