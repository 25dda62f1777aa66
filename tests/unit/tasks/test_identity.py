"""Data of a run against those of its model: differences that are refused, allowed on request, or only told."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from adadepth import AlbertActConfig, AlbertActForMaskedLM, AlbertActForSequenceClassification
from adadepth.data.run_data import RunData
from adadepth.errors import CheckpointError
from adadepth.runs.data_identity import OVERRIDE, DataIdentity
from adadepth.tasks import identity
from tests.configs.support import configured
from tests.models_support import make_small_act, make_small_config

CLASSES = {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}}
STORED = DataIdentity("cola", "classification", {"train": "ab"}, None, 128, ["sentence"])


@dataclasses.dataclass
class Data:
    """Stand-in for loaded data: a summary, and no tokenizer."""

    summary: dict[str, Any] = dataclasses.field(default_factory=dict)
    tokenizer: Any = None


def make_data(**changes: Any) -> Any:
    return Data({"sources": {"train": "ab"}, "text_columns": ["sentence"]} | changes)


def make_config(*overrides: str) -> Any:
    return configured("act_cola", "mode=evaluate", "checkpoint=some/model", *overrides)


def make_model(stored: DataIdentity | None, **changes: Any) -> Any:
    model = make_small_act(AlbertActForSequenceClassification, **CLASSES | changes)
    if stored is not None:
        stored.write_to(model.config)
    return model


@pytest.mark.parametrize(("stored", "changes", "overrides", "expected"), [
    (STORED, {}, (), None),
    (None, {"sources": {"train": "cd"}}, (), None),
    (STORED, {"sources": {"train": "cd", "test": "e"}}, (), "the data have changed (train, test)"),
    (dataclasses.replace(STORED, dataset="sst2"), {"sources": {}}, (), "trained on sst2, evaluated on cola"),
    (STORED, {"text_columns": ["text"]}, (),
     "the model was trained on the columns sentence, and now reads text"),
    (STORED, {}, ("dataset.sequence_length=64",),
     "trained with dataset.sequence_length=128, evaluated with 64"),
    (dataclasses.replace(STORED, keep_newlines=True), {"keep_newlines": False}, (),
     "trained on text with newlines, evaluated on text without newlines"),
])  # fmt: skip
def test_a_difference_of_evaluated_data_is_told_and_recorded(
    stored: DataIdentity | None, changes: dict[str, Any], overrides: tuple[str, ...], expected: str | None,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    checked: RunData = identity.check_evaluated_data(make_config(*overrides), make_data(**changes), make_model(stored))
    assert checked.summary.get("changed", []) == ([] if expected is None else [expected])
    out = capsys.readouterr().out
    assert out == "" if expected is None else f"checkpoint=some/model: {expected}" in " ".join(out.split())


def test_data_of_another_problem_need_a_permission() -> None:
    model, data = make_model(dataclasses.replace(STORED, problem="regression")), make_data()
    problem = "the model was trained for regression, but the data are for classification"
    with pytest.raises(CheckpointError) as raised:
        identity.check_evaluated_data(make_config(), data, model)
    assert str(raised.value) == f"checkpoint=some/model: {problem}; to allow this, add {OVERRIDE}"
    allowed = identity.check_evaluated_data(make_config(OVERRIDE), data, model)
    assert allowed.summary["changed"] == [problem]


def save_checkpoint(folder: Path, stored: DataIdentity | None, **changes: Any) -> Path:
    make_model(stored, **changes).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("stored", "classes", "problem"), [
    (STORED, {}, None),
    (None, {}, None),
    (dataclasses.replace(STORED, sources={"train": "cd"}), {}, "the data have changed (train)"),
    (STORED, {"id2label": {0: "yes", 1: "no"}, "label2id": {"yes": 0, "no": 1}},
     "the classes were yes, no and now are no, yes"),
])  # fmt: skip
def test_a_run_resumes_on_the_data_of_its_checkpoint(
    stored: DataIdentity | None, classes: dict[str, Any], problem: str | None, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    checkpoint, model = save_checkpoint(tmp_path, stored, **classes), make_model(None)
    config = configured("act_cola")
    if problem is not None:
        with pytest.raises(CheckpointError) as raised:
            identity.store_identity(config, make_data(), model, checkpoint)
        assert str(raised.value) == f"resume={checkpoint}: {problem}; to allow this, add {OVERRIDE}"
        return
    identity.store_identity(config, make_data(), model, checkpoint)
    assert DataIdentity.from_config("checkpoint", "", model.config) == STORED
    is_unknown = "do not record their training data, so the data are not compared" in capsys.readouterr().out
    assert is_unknown is (stored is None)


def test_a_checkpoint_of_shards_is_not_compared(tmp_path: Path) -> None:
    model = make_model(None)
    assert identity.check_resumed_data(configured("act_cola"), make_data(), model, tmp_path).summary.keys() == {
        "sources", "text_columns",
    }  # fmt: skip


def test_a_matched_baseline_trains_on_the_data_of_its_run(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "model", dataclasses.replace(STORED, sources={"train": "cd"}))
    config = configured("act_cola")
    identity.check_rival_data(config, make_data(), make_model(None))
    config.rival_of = str(tmp_path)
    identity.check_rival_data(config, make_data(sources={"train": "cd"}), make_model(None))
    with pytest.raises(CheckpointError, match=rf"^rival_of={tmp_path}: the data have changed \(train\); to allow"):
        identity.check_rival_data(config, make_data(), make_model(None))


@pytest.mark.parametrize(("names", "expected"), [
    ({0: "no", 1: "yes"}, ["no", "yes"]), ({}, None), (None, None), ({0: "LABEL_0", 1: "LABEL_1"}, None),
    ({1: "no", 2: "yes"}, None),
])  # fmt: skip
def test_only_names_of_classes_count(names: dict[int, str] | None, expected: list[str] | None) -> None:
    config = AlbertActConfig()
    object.__setattr__(config, "id2label", names)
    assert identity.get_class_names(config) == expected


@pytest.mark.parametrize(("labels", "expected", "is_told"), [
    (["no", "yes"], None, False), (["yes", "no"], ["no", "yes"], False), ([], None, False),
    (["bad", "good"], None, True), (["a", "b", "c"], None, False),
])  # fmt: skip
def test_a_pretrained_head_may_order_the_classes(
    labels: list[str], expected: list[str] | None, is_told: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_checkpoint(tmp_path, None)
    config = configured("act_cola", f"model.pretrained={tmp_path}")
    assert identity.find_reordered_classes(config, labels) == expected
    assert ("its head was trained to predict no, yes" in capsys.readouterr().out) is is_told


def test_missing_special_tokens_are_those_of_the_tokenizer() -> None:
    from tests.unit.data.tokenizers_support import tokenizer

    model = AlbertActForMaskedLM(make_small_config(pad_token_id=None, bos_token_id=7, eos_token_id=None))
    words = tokenizer("roberta")
    identity.store_special_tokens(model, words)
    config = model.config
    assert (config.pad_token_id, config.bos_token_id, config.eos_token_id) == (
        words.pad_token_id, 7, words.eos_token_id,
    )  # fmt: skip
