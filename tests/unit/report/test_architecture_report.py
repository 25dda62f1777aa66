"""Report, figures and console of an architecture: searched, fixed, and compared with others."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from adadepth.metrics.architectures import block_metrics
from adadepth.report import svg
from adadepth.report.architectures import (
    build_frame_panel,
    build_heat_panels,
    format_architecture,
    format_architecture_comparison,
)
from adadepth.report.export import save_panel
from adadepth.report.pages import draw_figures, write_report
from adadepth.report.run_files import ARCHITECTURES, HALTING, METRICS, SEEDS, read_run, write_json
from adadepth.report.seeds import format_seeds, summarise_seeds
from adadepth.report.verdict import verdict
from tests.figures_support import find_inked_pixels
from tests.pages_support import Page, check_accessible, check_stands_alone, read_report
from tests.unit.report.synthetic_architectures import (
    SHAPES,
    make_comparison,
    make_fixed_run,
    make_search_evaluation,
    make_search_run,
)

BLOCKS = 6


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = make_search_run(tmp_path_factory.mktemp("run"), BLOCKS)
    make_comparison(directory)
    return directory


@pytest.fixture(scope="module")
def page(run: Path) -> Page:
    return Page(write_report(read_report(run)))


def test_the_page_is_self_contained_and_accessible(page: Page) -> None:
    check_stands_alone(page)
    assert not page.of("script")
    drawings = 1 + 4 + 1 + 6 + len(SHAPES) + 1  # now, heat maps, perplexities, frames, scatters, loss
    assert check_accessible(page) == drawings


def test_the_page_has_the_figures_of_the_search(run: Path, page: Page) -> None:
    halting = json.loads((run / HALTING).read_text(encoding="utf-8"))
    architecture = halting["architecture"]
    for expected in (
        architecture["string"], f"{architecture['mean_entropy']:.3f}", "200.0%",
        f"expected number {architecture['expected_blocks']:.2f}",
        "Architecture report", "per token of the tokenizer (unigram, 1,987 entries, lower-cased)", "method two_phase",
    ):  # fmt: skip
        assert expected in page.text
    for block, (row, entropy) in enumerate(
        zip(architecture["probabilities"], architecture["entropy"], strict=True), start=1
    ):
        shares = " ".join(rf"{100 * share:.2f}%" for share in row)
        assert re.search(rf"\b{block} [sf-] {re.escape(shares)} {entropy:.3f} ", page.text)
    for name, quality in halting["evaluations"].items():
        assert re.search(rf"Perplexity, {name}\s*{quality['perplexity']:.2f} ", page.text)
    for line in map(json.loads, (run / METRICS).read_text(encoding="utf-8").splitlines()):
        assert re.search(rf"\b{line['step']} {line['search/architecture']} ", page.text)


def test_the_page_has_the_comparison(page: Page) -> None:
    for expected in ("49.200", "412,416", "51.5%", "46.2%", "time: device cpu, dtype float32", "1 seed"):
        assert expected in page.text
    near = page.text.split(f"Compute and time at {SHAPES[0]['name']}")[1].split("Compute and time at")[0]
    assert re.search(r"paper_rule 2\.50 100\.0% not measured", near)
    assert "Not shown, because not retrained: derived (not retrained)" in page.text


def test_the_page_has_nothing_about_halting(page: Page) -> None:
    for title in ("Depth by", "Halting distribution", "Survival", "Remainder", "Spearman", "Sentences", "Layer ratio"):
        assert title not in page.text


def test_a_fixed_network_has_no_search(tmp_path: Path) -> None:
    page = Page(write_report(read_report(make_fixed_run(tmp_path))))
    assert "sf-fsf" in page.text
    assert "5 of 6" in page.text
    for title in (
        "Search over training",
        "Probability of",
        "nats per block",
        "method two_phase",
        "Architectures compared",
    ):
        assert title not in page.text


def test_missing_figures_become_a_sentence(tmp_path: Path) -> None:
    make_search_run(tmp_path)
    (tmp_path / METRICS).unlink()
    (tmp_path / ARCHITECTURES).write_text("{", encoding="utf-8")
    page = Page(write_report(read_report(tmp_path)))
    assert "The search over training not available: there is no metrics.jsonl" in page.text
    assert "The comparison is not available: architectures.json is damaged" in page.text
    halting = json.loads((tmp_path / HALTING).read_text(encoding="utf-8"))
    del halting["architecture"]
    halting["evaluations"] = {}
    (tmp_path / HALTING).write_text(json.dumps(halting), encoding="utf-8")
    assert "The architecture is not available" in Page(write_report(read_report(tmp_path))).text


def test_a_comparison_alone_is_a_page(tmp_path: Path) -> None:
    comparison = make_comparison()
    for row in comparison["rows"]:
        row["quality"], row["seconds"] = None, None
    (tmp_path / ARCHITECTURES).write_text(json.dumps(comparison), encoding="utf-8")
    page = Page(write_report(read_report(tmp_path)))
    assert "Architectures compared" in page.text
    assert "time: not measured" in page.text
    assert "Quality against" not in page.text
    assert draw_figures(read_report(tmp_path)) == []


@pytest.mark.slow
def test_pages_of_long_searches_of_deep_networks_stay_small(tmp_path: Path) -> None:
    make_comparison(make_search_run(tmp_path, blocks=32, evaluations=60))
    assert write_report(read_report(tmp_path)).stat().st_size < 500_000


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_figures_and_animation_are_drawn(run: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    paths = draw_figures(read_report(run))
    assert [path.name for path in paths if path.suffix != ".pdf"] == [
        "architectures.png", "gates.png", "losses.png", "gates.gif",
    ]  # fmt: skip
    assert sorted(path for path in (run / "figures").iterdir() if path.suffix != ".svg") == sorted(paths)
    for half in np.array_split(find_inked_pixels(run / "figures" / "gates.png"), 2):
        assert all(0.1 < part.mean() < 0.9 for part in np.array_split(half, 2, axis=1)), "no panel stayed empty"
    with image.open(paths[-1]) as film:
        assert (film.format, film.n_frames) == ("GIF", 9)
        first = np.asarray(film.convert("RGB"))
        film.seek(8)
        assert (np.asarray(film.convert("RGB")) != first).any()


@pytest.mark.filterwarnings("error")
def test_figures_of_one_evaluation_a_fixed_network_and_a_frame(tmp_path: Path) -> None:
    (tmp_path / "fixed").mkdir()
    assert draw_figures(read_report(make_fixed_run(tmp_path / "fixed"))) == []
    make_search_run(tmp_path, blocks=1, evaluations=1)
    assert [path.name for path in draw_figures(read_report(tmp_path))][::2] == ["gates.png"]
    save_panel(build_frame_panel(7, make_search_evaluation(4, 0.5)["architecture"]), tmp_path / "frames" / "step_7.png")
    assert [path.name for path in (tmp_path / "frames").iterdir()] == ["step_7.png"]
    assert 0.2 < find_inked_pixels(tmp_path / "frames" / "step_7.png").mean() < 0.9


def test_the_console_table_of_a_search() -> None:
    halting = make_search_evaluation(BLOCKS, 0.7)
    architecture, text = halting["architecture"], format_architecture(halting, step=1250)
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= 160
    lines = text.splitlines()
    assert lines[0].startswith(f"architecture at step 1,250: {architecture['string']}; 5 of 6 blocks kept")
    assert f"temperature {architecture['temperature']:.3f}" in lines[0]
    start = next(number for number, line in enumerate(lines) if line.startswith("block")) + 2
    for block, (line, row) in enumerate(
        zip(lines[start : start + BLOCKS], architecture["probabilities"], strict=True), 1
    ):
        shares = [f"{100 * share:.2f}%" for share in row]
        assert line.split()[:5] == [str(block), architecture["string"][block - 1], *shares]
    sampled = next(line for line in lines if line.startswith("sampled")).split()
    assert sampled[2] == f"{halting['evaluations']['sampled']['perplexity']:.4f}"
    assert next(line for line in lines if line.startswith("soft")).split()[-1] == "-"


def test_the_console_table_of_a_fixed_network(tmp_path: Path) -> None:
    halting = json.loads((make_fixed_run(tmp_path) / HALTING).read_text(encoding="utf-8"))
    text = format_architecture(halting)
    assert text.startswith("architecture: sf-fsf; 5 of 6 blocks kept\n")
    assert "network" in text
    assert "temperature" not in text


def test_the_console_table_of_a_comparison() -> None:
    text = format_architecture_comparison(make_comparison())
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= 160
    quality = next(line for line in text.splitlines() if line.startswith("paper_rule")).split()
    assert quality[3:6] == ["412,416", "3.9665", "52.8000"]
    costs = [line.split() for line in text.splitlines() if line.startswith("random")][2]
    assert [costs[column] for column in (1, 2, 3, 6)] == ["6.00", "60.6%", "5.00", "54.9%"]
    assert "time: device cpu" in text


def test_the_page_of_seeds_has_the_agreement_of_searches(tmp_path: Path) -> None:
    runs = [(seed, block_metrics(make_search_evaluation(12, 0.4, seed)["architecture"])) for seed in range(3)]
    summary = summarise_seeds(runs)
    write_json(tmp_path / SEEDS, summary)
    page, agreement = Page(write_report(read_report(tmp_path))), summary["architecture_agreement"]
    assert 0 < agreement["min"] < agreement["mean"] < 1
    assert f"for {100 * agreement['mean']:.1f}% of the blocks on average" in page.text
    assert f"mean {agreement['mean']:.3f}, min {agreement['min']:.3f} of 1, 3 pairs" in format_seeds(summary)
    for seed, string in agreement["strings"].items():
        assert f"seed {seed}: {string}" in page.text
        assert f"architecture of seed {seed}: {string}" in format_seeds(summary)


def test_the_cells_of_gates_have_their_shares_as_numbers() -> None:
    """Print numbers in the cells, as in the picture of the original search, if they are large enough."""
    described = [(step, {"probabilities": [[0.62, 0.3, 0.08]] * 6, "entropy": [0.8] * 6}) for step in range(8)]
    for history, has_numbers in ((described, True), ([(step, described[0][1]) for step in range(40)], False)):
        panel = build_heat_panels(history)[0]
        assert (">62</text>" in svg.render_chart(panel)) == has_numbers


def test_a_fixed_network_names_its_reference_and_its_comparison(tmp_path: Path) -> None:
    files = read_run(make_fixed_run(tmp_path))
    findings, blocks = verdict(files), files.halting["max_depth"]
    assert f"of the compute of {blocks} alternating blocks" in findings["cost"].brief
    assert f"of the multiply-accumulates of {blocks} alternating blocks." in " ".join(findings["cost"].sentences)
    assert "which the report of its search compares with others" in findings["worth"].brief
