"""Report, figures and console of a task that learned one distribution over the layers of its base."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adadepth.metrics.depth_statistics import flatten
from adadepth.report.figure import compute_depth_ticks
from adadepth.report.layers import describe_needed_blocks, format_layers
from adadepth.report.pages import draw_figures, write_report
from adadepth.report.run_files import HALTING, METRICS, SEEDS, write_json
from adadepth.report.seeds import format_seeds, summarise_seeds
from tests.figures_support import find_inked_pixels
from tests.pages_support import Page, check_accessible, check_stands_alone, read_report
from tests.unit.report.synthetic_layers import FACTS, evaluate, make_layer_run, make_learned_weights

BLOCKS = 12


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_layer_run(tmp_path_factory.mktemp("run"), BLOCKS)


@pytest.fixture(scope="module")
def page(run: Path) -> Page:
    return Page(write_report(read_report(run)))


def read_summary(run: Path) -> dict[str, Any]:
    return json.loads((run / HALTING).read_text(encoding="utf-8"))


def test_the_page_is_self_contained_and_accessible(page: Page) -> None:
    check_stands_alone(page)
    assert not page.of("script")
    assert check_accessible(page) == 5  # weights, their history, entropy, depth, loss


def test_the_page_has_the_figures_of_the_file(run: Path, page: Page) -> None:
    layers, cost = (read_summary(run)[key] for key in ("layers", "cost"))
    for expected in (
        f"{layers['deepest']} of {BLOCKS}", f"{layers['entropy']:.3f}", f"{layers['expected_depth']:.2f}",
        f"{layers['effective_layers']:.2f} "
        f"effective layers of {BLOCKS + 1}", f"{FACTS['added_parameters']:,}", "3.3% of",
        f"{cost['executed_macs']:.4g}", f"{100 * cost['adaptive_over_full']:.1f}%", f"{cost['layer_ratio']:.2f}",
        "Wall-clock time was not measured", "alpha_distribution 10.0",
        describe_needed_blocks(layers["deepest"], BLOCKS),
    ):  # fmt: skip
        assert expected in page.text
    for state, weight in enumerate(layers["weights"]):
        share = f"{100 * weight:.2f}%" if weight else "0"
        assert re.search(rf"\b{state}\s+{re.escape(share)}\s", page.text), state
    history = [json.loads(line) for line in (run / METRICS).read_text(encoding="utf-8").splitlines()]
    for line in history:
        assert re.search(rf"\b{line['step']} +{line['halting/layers/entropy']:.3f} ", page.text)


def test_the_page_has_nothing_about_halting(page: Page) -> None:
    for title in (
        "Depth by", "Depth over training Halting", "Halting distribution", "Survival", "Remainder", "Spearman",
        "Sentences", "State between iterations", "collapsed", "Ponder", "Not computed", "not available",
    ):  # fmt: skip
        assert title not in page.text


@pytest.mark.parametrize(
    ("deepest", "blocks", "phrase"), [(6, 6, "all 6 blocks"), (4, 6, "4 of the 6 blocks"), (0, 6, "0 of the 6 blocks")]
)
def test_needed_blocks_are_described(deepest: int, blocks: int, phrase: str) -> None:
    assert phrase in describe_needed_blocks(deepest, blocks)


def test_compute_without_the_base_has_a_remark(tmp_path: Path) -> None:
    sentence = "The evaluation read the states of the base from a cache, so the blocks of the base did not run."
    assert sentence not in Page(write_report(read_report(make_layer_run(tmp_path)))).text
    assert sentence in Page(write_report(read_report(make_layer_run(tmp_path, from_cache=True)))).text


def test_a_missing_history_or_distribution_becomes_a_sentence(tmp_path: Path) -> None:
    make_layer_run(tmp_path)
    (tmp_path / METRICS).unlink()
    page = Page(write_report(read_report(tmp_path)))
    assert "distribution over training not available: there is no metrics.jsonl" in page.text
    assert "Weight of each state" in page.text
    summary = read_summary(tmp_path)
    del summary["layers"]
    summary["missing"]["halting/layers"] = "not finite"
    (tmp_path / HALTING).write_text(json.dumps(summary), encoding="utf-8")
    assert "distribution over layers not available: not finite" in Page(write_report(read_report(tmp_path))).text


@pytest.mark.slow
def test_pages_of_long_runs_of_deep_bases_stay_small(tmp_path: Path) -> None:
    assert write_report(read_report(make_layer_run(tmp_path, blocks=48, evaluations=60))).stat().st_size < 500_000


@pytest.mark.filterwarnings("error")
def test_figures_show_the_layers_and_no_halting(run: Path) -> None:
    layers, _, losses, _ = draw_figures(read_report(run))
    assert (layers.name, losses.name) == ("layers.png", "losses.png")
    pixels = find_inked_pixels(layers)
    assert 0.01 < pixels.mean() < 0.7
    for half in np.array_split(pixels, 2, axis=1):
        assert half.mean() > 0.02, "no panel stayed empty"


@pytest.mark.filterwarnings("error")
def test_figures_of_one_evaluation_or_without_history(tmp_path: Path) -> None:
    make_layer_run(tmp_path, blocks=1, evaluations=1)
    assert [path.name for path in draw_figures(read_report(tmp_path))] == ["layers.png", "layers.pdf"]
    (tmp_path / METRICS).unlink()
    assert [path.name for path in draw_figures(read_report(tmp_path))] == ["layers.png", "layers.pdf"]


def test_ticks_begin_at_state_zero() -> None:
    assert compute_depth_ticks(6, first=0) == [0, 1, 2, 3, 4, 5, 6]
    assert compute_depth_ticks(24, first=0) == [0, 3, 6, 9, 12, 15, 18, 21, 24]


def test_the_console_table_has_the_distribution() -> None:
    summary = evaluate(make_learned_weights(BLOCKS))
    layers, text = summary["layers"], format_layers(summary, step=1250)
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= 160
    for part in (
        "layers at step 1,250", f"entropy {layers['entropy']:.3f} nats "
                                f"({layers['effective_layers']:.2f} effective layers)",
        f"expected depth {layers['expected_depth']:.2f}", f"run {layers['deepest']} of {BLOCKS}", "parameters 345,098",
    ):  # fmt: skip
        assert part in text
    rows = [line.split() for line in text.splitlines()[-(BLOCKS + 1) :]]
    assert [row[:2] for row in rows] == [
        [str(state), f"{100 * weight:.2f}%" if weight else "0"] for state, weight in enumerate(layers["weights"])
    ]
    assert all((len(row) == 3) == (weight > 0) for row, weight in zip(rows, layers["weights"], strict=True))


def test_the_page_of_seeds_has_the_distance_of_distributions(tmp_path: Path) -> None:
    runs = [(seed, flatten(evaluate(make_learned_weights(6, 1 - 0.2 * seed)))) for seed in range(3)]
    summary = summarise_seeds(runs)
    write_json(tmp_path / SEEDS, summary)
    page, distance = Page(write_report(read_report(tmp_path))), summary["layer_distance"]
    assert f"mean {distance['mean']:.3f}, at most {distance['max']:.3f}, over 3 pairs" in page.text
    for state in range(7):
        figures = summary["metrics"][f"halting/layers/weight/{state}"]
        assert re.search(rf"\b{state} +{figures['mean']:.4f} +{figures['std']:.4f} +3 ", page.text)
    assert f"total variation mean {distance['mean']:.4f}, max {distance['max']:.4f}, 3 pairs" in format_seeds(summary)
