"""Report of a run: its page, its figures, and its sentences on missing or damaged files."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from adadepth.report.pages import write_report
from adadepth.report.run_files import HALTING, METRICS, RUN, SENTENCES, read_run
from adadepth.report.style import compute_contrast, get_depth_color, get_text_color
from adadepth.report.table import format_duration, number
from tests.marks_support import keep_one_quick
from tests.pages_support import Page, check_accessible, check_stands_alone, read_report
from tests.unit.report.synthetic import make_run

FILES = ("run.json", "config.yaml", "metrics.jsonl", "halting.json", "sentences.jsonl")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("run"), evaluations=5)


@pytest.fixture(scope="module")
def page(run: Path) -> Page:
    return Page(write_report(read_report(run)))


def copy_run(source: Path, target: Path, /, **replaced: str | None) -> Path:
    """Copy the run's files; a file given as None is left out, one given as text has that text."""
    for name in FILES:
        text = replaced.get(name.split(".")[0], (source / name).read_text(encoding="utf-8"))
        if text is not None:
            (target / name).write_text(text, encoding="utf-8")
    return target


def test_the_page_is_self_contained(page: Page) -> None:
    check_stands_alone(page)
    assert page.of("script") == [{}], "one, and in the page itself"
    assert len(page.source.encode()) < 500_000


def test_the_page_is_accessible(page: Page) -> None:
    assert page.of("html")[0]["lang"] == "en"
    assert page.source.count("<h1>") == 1
    assert check_accessible(page) > 10


def test_the_page_has_the_figures_of_the_files(run: Path, page: Page) -> None:
    halting = json.loads((run / HALTING).read_text(encoding="utf-8"))
    everyone = halting["classes"]["all"]
    for expected in (
        "act_small", "step 1,000", "30 min 43 s", "0.4123", f"{everyone['mean']:.2f}", f"{everyone['ponder_cost']:.2f}",
        f"{everyone['n']:,}", f"{halting['spearman']['all']['value']:+.3f}", f"{halting['cost']['layer_ratio']:.2f}",
        f"{100 * halting['cost']['adaptive_over_full']:.1f}%", f"{100 * halting['steps'][2]['share']:.1f}%",
        "act_penalty 0.0005",
    ):  # fmt: skip
        assert expected in page.text
    for name, figures in halting["classes"].items():
        assert re.search(
            rf"{re.escape(name)}.*?{figures['n']:,}\s+{figures['mean']:.2f}\s+{figures['std']:.2f}", page.text
        )


def test_executed_compute_is_compared_with_dense(run: Path, page: Page) -> None:
    cost = json.loads((run / HALTING).read_text(encoding="utf-8"))["cost"]
    shares = [f"{100 * cost['executed_macs'] / cost[whole]:.1f}%" for whole in ("dense_macs", "full_macs")]
    executed, dense = (re.escape(f"{cost[name]:.4g}") for name in ("executed_macs", "dense_macs"))
    assert re.search(
        rf"this evaluation as it ran, padding included\s+{executed}\s+{shares[0]}\s+{shares[1]}", page.text
    )
    assert re.search(rf"dense: every row runs until the deepest row has halted\s+{dense}\s+100.0%", page.text)
    last = json.loads((run / METRICS).read_text(encoding="utf-8").splitlines()[-1])
    assert f"The evaluation read {last['eval/tokens_per_second']:,.0f} real tokens per second" in page.text


def test_a_run_without_dense_compute_or_speed_has_a_page(run: Path, tmp_path: Path) -> None:
    halting = json.loads((run / HALTING).read_text(encoding="utf-8"))
    for name in ("dense_macs", "executed_over_dense"):
        del halting["cost"][name]
    page = Page(write_report(read_report(copy_run(run, tmp_path, halting=json.dumps(halting), metrics=""))))
    assert re.search(r"dense: every row runs until the deepest row has halted\s+–\s+–\s+–", page.text)
    assert "Wall-clock time was not measured" in page.text


def test_every_token_has_its_depth(run: Path, page: Page) -> None:
    sentences = [json.loads(line) for line in (run / SENTENCES).read_text(encoding="utf-8").splitlines()]
    expected = [(updates, f"d{updates}") for sentence in sentences for updates in sentence["updates"]]
    tokens = re.findall(r'<span class="t (d\d+)[^>]*>[^<]*<sub>(\d+)</sub>', page.source)
    assert [(int(printed), shade) for shade, printed in tokens] == expected


def test_halting_probabilities_can_be_read_without_a_script(run: Path, page: Page) -> None:
    (first, *_) = (json.loads(line) for line in (run / SENTENCES).read_text(encoding="utf-8").splitlines())
    assert [len(probabilities) for probabilities in first["probabilities"]] == first["updates"]
    spans = [span for span in page.of("span") if "data-notes" in span]
    for span, probabilities in zip(spans, first["probabilities"], strict=False):
        notes = json.loads(span["data-notes"])
        assert [note for note in notes if isinstance(note, float)] == probabilities
        assert span["title"].startswith(
            "; ".join(f"{step}: {value:.3f}" for step, value in enumerate(probabilities, start=1))
        )
        assert span["tabindex"] == "0"


def test_a_line_of_json_ends_only_at_a_line_feed(tmp_path: Path) -> None:
    sentences = [{"rule": "deepest", "tokens": ["two\u2028lines\x85"]}, {"rule": "deepest", "tokens": ["a"]}]
    lines = "".join(json.dumps(sentence, ensure_ascii=False) + "\n" for sentence in sentences)
    (tmp_path / SENTENCES).write_text(lines, encoding="utf-8")
    (tmp_path / RUN).write_text("{}")
    assert read_run(tmp_path).sentences == sentences


def test_text_is_escaped(run: Path, tmp_path: Path) -> None:
    evil = '<b>&"bold"</b><script>alert(1)</script>'
    sentence = json.loads((run / SENTENCES).read_text(encoding="utf-8").splitlines()[0])
    sentence["tokens"][1] = sentence["original"][1] = sentence["predicted"][1] = sentence["mask_kind"][1] = evil
    sentence["loss"][1], sentence["rule"] = 1.0, evil
    record = json.loads((run / RUN).read_text(encoding="utf-8")) | {"config_name": evil, "command": evil, "error": evil}
    halting = json.loads((run / HALTING).read_text(encoding="utf-8"))
    halting["classes"][evil] = halting["classes"]["all"]
    halting["cosine"][evil] = halting["cosine"]["all"]
    halting["unit"] = evil
    directory = copy_run(
        run, tmp_path, run=json.dumps(record), sentences=json.dumps(sentence) + "\n", halting=json.dumps(halting),
        config=f"name: '{evil}'\n",
    )  # fmt: skip
    page = Page(write_report(read_report(directory)))
    assert "b" not in {tag for tag, _ in page.tags}
    assert page.of("script") == [{}]
    assert page.text.count(evil) >= 8
    assert any(evil in str(svg.get("aria-label")) for svg in page.of("svg"))


@pytest.mark.parametrize(("name", "damage"), keep_one_quick(5, product(FILES, [None, "{ not json: [", ""])))
def test_a_missing_or_damaged_file_becomes_a_sentence(run: Path, tmp_path: Path, name: str, damage: str | None) -> None:
    page = Page(write_report(read_report(copy_run(run, tmp_path, **{name.split(".")[0]: damage}))))
    if damage is None:
        assert f"there is no {name}" in page.text
    assert "not available" in page.text or "has not ended" in page.text


def test_an_empty_directory_still_gives_a_report(tmp_path: Path) -> None:
    page = Page(write_report(read_report(tmp_path)))
    for name in FILES:
        assert f"there is no {name}" in page.text
    assert tmp_path.name in page.text
    assert not re.search(r"\b0\.0", page.text)


def test_truncated_lines_and_repeated_steps_are_tolerated(run: Path, tmp_path: Path) -> None:
    metrics = (run / METRICS).read_text(encoding="utf-8")
    again = json.dumps({"step": 1000, "eval/loss": "nan"}) + "\n" + '{"step": 1250, "eval/lo'
    assert (
        "Losses over training" in Page(write_report(read_report(copy_run(run, tmp_path, metrics=metrics + again)))).text
    )


def test_missing_figures_are_named_and_not_zero(run: Path, tmp_path: Path) -> None:
    halting = json.loads((run / HALTING).read_text(encoding="utf-8"))
    halting |= {"cosine": {}, "spearman": {}, "cost": {}, "missing": {"halting/cosine": "no hidden states were given"}}
    halting["classes"]["mask/random"] = {"n": 0}
    for described in halting["classes"].values():
        described.pop("ponder_cost", None)
        described.pop("loss", None)
    page = Page(write_report(read_report(copy_run(run, tmp_path, halting=json.dumps(halting)))))
    for sentence in (
        "no token of this class", "Cosine similarity between iterations not available: no hidden states were given",
        "correlation of depth with loss not available", "Compute is not available",
    ):  # fmt: skip
        assert sentence in page.text
    assert "Ponder cost N + R" not in page.text


@pytest.mark.parametrize(("top", "warned"), [(870, True), (850, False)])
def test_collapse_is_a_warning(run: Path, tmp_path: Path, top: int, warned: bool) -> None:
    lines = [{"step": step, "halting/all/histogram": [0, 1000 - top, top, 0]} for step in (10, 20)]
    metrics = "".join(json.dumps(line) + "\n" for line in lines)
    page = Page(write_report(read_report(copy_run(run, tmp_path, metrics=metrics))))
    assert ("collapsed" in page.text) is warned


@pytest.mark.parametrize(
    ("config", "warned"),
    [({"budget": {"target": 2, "hold": 0.5}}, False), ({"budget": {"target": 2, "hold": 0.4}}, True),
     ({"model": {"exit_rule": None}}, False)],
)  # fmt: skip
def test_one_depth_that_could_not_change_is_no_collapse(
    run: Path, tmp_path: Path, config: dict[str, Any], warned: bool
) -> None:
    lines = [{"step": step, "halting/all/histogram": [0, 0, 0, 1000]} for step in (10, 20)]
    metrics = "".join(json.dumps(line) + "\n" for line in lines)
    text = yaml.safe_dump(config | {"trainer": {"max_steps": 40}})
    page = Page(write_report(read_report(copy_run(run, tmp_path, metrics=metrics, config=text))))
    assert ("collapsed" in page.text) is warned


def test_an_evaluation_names_its_checkpoint_and_counts_no_steps(tmp_path: Path) -> None:
    run = make_run(tmp_path, max_updates=6, evaluations=1)
    record = json.loads((run / RUN).read_text()) | {"mode": "evaluate", "evaluated": "outputs/act_small/A/model"}
    (run / RUN).write_text(json.dumps(record))
    page = Page(write_report(read_report(run)))
    assert "evaluation of a trained model" in page.text
    assert "outputs/act_small/A/model" in page.text
    assert "step 0" not in page.text
    assert "over training" not in page.text


def test_existing_files_beside_a_page_are_named(page: Page, tmp_path: Path) -> None:
    assert "next to this page has PDF and PNG files" in page.text
    assert "PDF and PNG files" not in Page(write_report(read_report(tmp_path))).text


@pytest.mark.slow
def test_pages_of_long_runs_and_sentences_stay_small(run: Path, tmp_path: Path) -> None:
    sentence: dict[str, Any] = json.loads((run / SENTENCES).read_text(encoding="utf-8").splitlines()[0])
    long = {key: value * 40 if isinstance(value, list) else value for key, value in sentence.items()}
    deep = [
        {"step": step, "train/loss": 1 / (step + 1), "halting/all/histogram": [0, *range(1, 97)]}
        for step in range(3000)
    ]
    directory = copy_run(
        run, tmp_path, sentences="".join(json.dumps(long) + "\n" for _ in range(40)),
        metrics="".join(json.dumps(line) + "\n" for line in deep),
    )  # fmt: skip
    page = Page(write_report(read_report(directory)))
    assert len(page.source.encode()) < 540_000
    assert "more tokens" in page.text


def test_the_page_is_written_atomically(run: Path) -> None:
    write_report(read_report(run))
    assert not list(run.glob(".*"))


@pytest.mark.parametrize("max_updates", [1, 2, 6, 12, 24])
def test_token_text_is_readable_on_every_shade(max_updates: int) -> None:
    shades = [get_depth_color(depth, max_updates) for depth in range(max_updates + 1)]
    assert all(compute_contrast(shade, get_text_color(shade)) >= 4.5 for shade in shades)
    assert len(set(shades[1:])) == max_updates


def test_contrast_has_the_values_of_the_standard() -> None:
    assert compute_contrast("#000000", "#ffffff") == pytest.approx(21)
    assert compute_contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.005)


def test_numbers_and_durations_are_formatted() -> None:
    texts = [number(value) for value in (0.12345, 12, 1234567, 2.6e11, 0.0, 1e-5, None)]
    assert texts == ["0.123", "12", "1,234,567", "260,000,000,000", "0.000", "1e-05", "not available"]
    assert [format_duration(seconds) for seconds in (5.2, 65, 3661)] == ["5 s", "1 min 05 s", "1 h 01 min 01 s"]
