"""Answers of the page, which equal those of `mode=predict` and `mode=evaluate` for the same input and depth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adadepth import AlbertActForMaskedLM, AlbertActForSequenceClassification, AlbertActForTokenClassification, tasks
from adadepth.contrib.serve.answers import compute_answer, measure_quality
from adadepth.contrib.serve.checkpoint import (
    MAX_CHARACTERS,
    ServedCheckpoint,
    get_synthetic_example,
    parse_edited_example,
)
from adadepth.contrib.serve.knobs import AS_TRAINED, BUDGET, FULL, Setting, apply_setting, list_knobs, restore_depth
from adadepth.contrib.serve.rendering import render_answer
from adadepth.errors import ConfigError, DataError
from adadepth.metrics.unit_costs import compute_share_with_predictions
from adadepth.prediction import models
from tests.configs.support import configured
from tests.contrib.serve.support import FEW, serve_text_model, serve_untrained
from tests.marks_support import mark_mostly_slow
from tests.models_support import SMALL as SMALL_ALBERT
from tests.models_support import make_small_act, make_small_multi_exit, make_small_ponder
from tests.toy_support import install_toy_family
from tests.unit.data.tokenizers_support import tokenizer
from tests.unit.models.looped.looped_support import OURO, build_looped

WORDS, PIECES = tokenizer("bert"), tokenizer("roberta")
TEXT = "a cat, they said: stop!"
SMALL = ("model.num_hidden_layers=4", "budget=none", "model.readout_weight=0.1")


def predict_texts(folder: Path, root: str, served: ServedCheckpoint, *overrides: str) -> dict[str, Any]:
    """Return texts.json of `mode=predict` with the same model."""
    served.model.save_pretrained(folder / "model")
    served.pipeline.tokenizer.save_pretrained(folder / "model")
    config = configured(root, "mode=predict", f"checkpoint={folder}/model", f"output_dir={folder}/out", "text=x")
    config.text = TEXT
    with pytest.MonkeyPatch.context() as patch:
        keys = [override.partition("=")[0].removeprefix("model.") for override in overrides]
        patch.setattr("adadepth.tasks.predict.list_overridden_model_settings", lambda: keys)
        for key, override in zip(keys, overrides, strict=True):
            value: Any = override.partition("=")[2]
            setattr(config.model, key, type(getattr(config.model, key))(value))
        tasks.run(config)
    (path,) = folder.glob("out/*/*/texts.json")
    return json.loads(path.read_text(encoding="utf-8"))


def check_same_inputs(one: Any, other: Any) -> None:
    """Check equality up to the rounding of a model that was written and read."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
    if isinstance(one, dict | list):
        assert len(one) == len(other)
        for key in one if isinstance(one, dict) else range(len(one)):
            check_same_inputs(one[key], other[key])
    else:
        assert one == (pytest.approx(other, abs=1e-6) if isinstance(other, float) else other)


@pytest.mark.parametrize(
    ("root", "make"),
    [
        ("act_cola", lambda: make_small_act(AlbertActForSequenceClassification)),
        ("ponder_tiny", lambda: make_small_ponder()),
    ],
)
def test_a_text_has_the_answer_of_mode_predict_at_every_depth(tmp_path: Path, root: str, make: Any) -> None:
    one = serve_text_model(make(), WORDS)
    for number, value in enumerate((0.05, 0.6)):
        answer = compute_answer(one, TEXT, Setting(one.knobs[0].name, value))
        expected = predict_texts(
            tmp_path / str(number), root, one, *(f"model.{k}={v}" for k, v in answer.overrides.items())
        )
        check_same_inputs(json.loads(json.dumps(answer.result)), expected)
    with apply_setting(one.model, one.knobs, Setting()) as changed:
        assert changed == {}, "what a visitor turned is turned back"


@pytest.fixture(scope="module")
def hops(tmp_path_factory: pytest.TempPathFactory) -> ServedCheckpoint:
    return serve_untrained(tmp_path_factory.mktemp("hops"), "act_hops", *SMALL, spreads=True)


@pytest.mark.slow
def test_drawn_examples_have_the_figures_of_mode_evaluate(hops: ServedCheckpoint, tmp_path: Path) -> None:
    setting = Setting(hops.knobs[0].name, 0.7)
    answers = [compute_answer(hops, get_synthetic_example(hops, "inside", number), setting) for number in range(8)]
    assert len({square.updates for answer in answers for row in answer.board or [] for square in row}) > 1
    hops.model.save_pretrained(tmp_path / "model")
    hops.pipeline.tokenizer.save_pretrained(tmp_path / "model")
    config = configured(
        "act_hops", *FEW, *SMALL, "mode=evaluate", f"checkpoint={tmp_path}/model", f"output_dir={tmp_path}/out",
        "predictions=true", "logger=none", "trainer.disable_tqdm=true",
    )  # fmt: skip
    config.model.act_epsilon = answers[0].overrides["act_epsilon"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("adadepth.tasks.finetune.list_overridden_model_settings", lambda: ["act_epsilon"])
        tasks.run(config)
    (file,) = tmp_path.glob("out/*/*/predictions/inside.jsonl")
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    for answer, row in zip(answers, rows, strict=True):
        squares = [square for line in answer.board or [] for square in line if square.label is not None]
        assert [square.label for square in squares] == row["label"]
        assert [square.predicted for square in squares] == row["prediction"]
        assert [square.updates for square in squares] == row["updates"]
    (path,) = tmp_path.glob("out/*/*/run.json")
    record = json.loads(path.read_text(encoding="utf-8"))["final_metrics"]
    halting = json.loads((path.parent / "halting.json").read_text(encoding="utf-8"))
    here = measure_quality(hops, setting)
    assert here is not None
    assert here.quality == pytest.approx(record["eval/score"])
    assert here.updates == pytest.approx(record["halting/all/mean"])
    assert here.compute == pytest.approx(compute_share_with_predictions(halting), rel=1e-6)


@pytest.mark.slow
def test_a_budget_fits_the_knob_of_the_model_to_a_mean(hops: ServedCheckpoint) -> None:
    levels = [Setting(hops.knobs[0].name, level / 20) for level in range(1, 20)]
    nearby = [quality.updates for quality in (measure_quality(hops, level) for level in levels) if quality]
    depths = []
    for target in (1.5, 2.5):
        setting = Setting(BUDGET, target)
        answer, here = (
            compute_answer(hops, get_synthetic_example(hops, "inside", 0), setting),
            measure_quality(hops, setting),
        )
        assert set(answer.overrides) == {"act_epsilon"}
        assert here is not None
        depths.append(here.updates)
        assert abs(here.updates - target) <= min(abs(updates - target) for updates in nearby) + 0.01 * target
    assert depths == sorted(depths)


def test_the_last_step_is_the_answer_and_full_depth_is_the_maximum(hops: ServedCheckpoint) -> None:
    example = get_synthetic_example(hops, "inside", 3)
    answer = compute_answer(hops, example, Setting(FULL))
    squares = [square for row in answer.board or [] for square in row]
    assert answer.result["mean"] == hops.model.max_updates
    assert all(len(square.steps) == hops.model.max_updates for square in squares)
    assert [square.steps[-1] for square in squares] == [square.predicted for square in squares]


@pytest.mark.slow
def test_words_of_every_step_are_those_of_a_model_of_that_depth() -> None:
    masked = make_small_act(AlbertActForMaskedLM, state_rule="single")
    looped = build_looped(**OURO | {"vocab_size": len(PIECES)})
    fixed = {masked: lambda depth: ("fixed_depth", depth), looped: lambda depth: ("exit_rule", f"fixed:{depth}")}
    for model, words, text in ((masked, WORDS, "a [MASK] cat [MASK]"), (looped, PIECES, "a cat")):
        one = serve_text_model(model, words)
        answer = compute_answer(one, text, Setting(FULL))
        assert len(answer.steps) == 2 if model is masked else len(answer.row["tokens"])
        labels = []
        for depth in range(1, model.max_updates + 1):
            with restore_depth(model):
                setattr(model.config, *fixed[model](depth))
                tokens = compute_answer(one, text, Setting()).row["tokens"]
            labels.append([tokens[position]["label"] for position in answer.steps])
        assert [list(step) for step in zip(*answer.steps.values(), strict=True)] == labels
        assert len(set(map(tuple, labels))) > 1
        page = str(render_answer(one, text, answer))
        assert all(word in page for word in labels[0])


def test_a_masked_language_model_of_another_package_is_served_without_steps(tmp_path: Path) -> None:
    with install_toy_family(tmp_path):
        models._load_heads.cache_clear()
        from adadepth_router.configuration import RouterConfig
        from adadepth_router.modeling import RouterForPreTraining

        sizes = {**SMALL_ALBERT, "vocab_size": len(WORDS)}
        answer = compute_answer(
            serve_text_model(RouterForPreTraining(RouterConfig(**sizes)).eval(), WORDS), "a [MASK] cat", Setting(FULL)
        )
        assert answer.steps == {}
        assert [token["label"] is None for token in answer.row["tokens"]].count(False) == 1
    models._load_heads.cache_clear()


LEVELLED: dict[str, Any] = {
    "ponder": make_small_ponder,
    "tokens": lambda: make_small_act(AlbertActForTokenClassification, num_labels=3),
    "multi-exit": make_small_multi_exit,
}


@pytest.mark.parametrize("name", mark_mostly_slow(LEVELLED, ("tokens",).__contains__))
def test_a_higher_level_is_never_shallower(name: str) -> None:
    model = LEVELLED[name]()
    one = serve_text_model(model, WORDS)
    for knob in list_knobs(model):
        levels = (knob.low, knob.start, knob.high)
        depths = [compute_answer(one, TEXT, Setting(knob.name, level)).result["mean"] for level in levels]
        assert depths == sorted(depths), knob.name
    assert compute_answer(one, TEXT, Setting(FULL)).result["mean"] == model.max_updates
    assert compute_answer(one, TEXT, Setting()).overrides == {}


@pytest.mark.parametrize(
    ("rule", "start"),
    [("margin:0.99", 0.99), ("margin:0.3", 0.3), ("entropy:0.25", 0.8), ("fixed:3", 3), ("confidence:0.9999", 0.99)],
)
def test_a_slider_starts_at_the_trained_value(rule: str, start: float) -> None:
    """Check start values; entropy has the threshold (1 - l) / l at level l."""
    first, *other_knobs = list_knobs(make_small_multi_exit(exit_rule=rule))
    assert first.start == pytest.approx(start)
    assert {other.start for other in other_knobs if other.name.startswith("exit rule")} == {0.5}, "not trained with"


def test_the_slider_of_a_halting_sum_starts_at_its_threshold() -> None:
    (knob,) = list_knobs(make_small_act(AlbertActForMaskedLM, act_epsilon=0.1))
    assert knob.start == pytest.approx(0.9)


def test_an_edited_example_is_predicted_as_edited(hops: ServedCheckpoint) -> None:
    before = get_synthetic_example(hops, "inside", 0)
    cells = before.board.split()
    root = next(number for number, cell in enumerate(cells) if not cell.startswith(">"))
    changed = [f">{root}" if number == (root + 1) % 16 else cell for number, cell in enumerate(cells)]
    edited = parse_edited_example(hops, before, " ".join(changed))
    board = compute_answer(hops, edited, Setting()).board
    assert board is not None
    square = board[0][(root + 1) % 16]
    assert (square.symbol, square.difficulty, square.label) == (f">{root}", 1, cells[root])
    assert compute_answer(hops, edited, Setting()).source is None


@pytest.mark.parametrize(
    ("text", "setting", "problem"),
    [
        ("", Setting(), "no text: enter a text"),
        (" \n\t", Setting(), "no text: enter a text"),
        ("x" * (MAX_CHARACTERS + 1), Setting(), "has 5,001 characters; the limit is 5,000"),
        (TEXT, Setting("no such knob", 0.5), "unknown depth control"),
        (TEXT, Setting("exit rule quantile", 1.5), "must be from 0.01 to 0.99"),
        (TEXT, Setting("exit rule quantile", float("nan")), "must be from 0.01 to 0.99"),
        ("\ud800", Setting(AS_TRAINED), "an unpaired surrogate"),
    ],
)
def test_invalid_requests_are_one_line_errors(text: str, setting: Setting, problem: str) -> None:
    with pytest.raises((DataError, ConfigError), match=problem):
        compute_answer(serve_text_model(make_small_ponder(), WORDS), text, setting)
