"""Settings of data: models that read them, metrics, and values that a run takes from its files."""

from __future__ import annotations

import pytest

from adadepth.cli.validation import list_evaluation_metrics
from adadepth.config.fingerprint import hash_result_settings
from adadepth.config.kinds import get_problem
from tests.configs.support import configured
from tests.marks_support import keep_one_quick


def test_default_columns_equal_those_that_older_runs_wrote() -> None:
    """Check that a run resumes, and is the same run of a grid, whether its file names the columns or not."""
    overrides = ("ponder_tiny", "dataset=table", "dataset.path=x")
    by_name = configured(*overrides)
    written = configured(*overrides, "dataset.text_columns=[sentence]", "dataset.label_column=label")
    other = configured(*overrides, "dataset.text_columns=[text]")
    assert (by_name.dataset.text_columns, by_name.dataset.label_column) == (None, None)
    assert hash_result_settings(by_name) == hash_result_settings(written) != hash_result_settings(other)


@pytest.mark.parametrize("root", ["act_maze", "act_hops", "act_addition", "act_pos"])
def test_token_tasks_select_on_their_accuracy(root: str) -> None:
    config = configured(root)
    assert get_problem(config.dataset) == "tagging"
    assert {"score", "token_accuracy"} <= set(list_evaluation_metrics(config))


@pytest.mark.parametrize("dataset", keep_one_quick(4, ["ud_pos", "wikiann", "conll2003", "tagging_table"]))
@pytest.mark.parametrize("model", ["albert_act_mini", "albert_act_pretrained"])
def test_act_takes_every_tagging_data_set(dataset: str, model: str) -> None:
    overrides = ["dataset.path=folder"] if dataset == "tagging_table" else []
    assert configured("act_pos", f"dataset={dataset}", f"model={model}", *overrides).model.name == "albert_act"


def test_every_family_takes_pointers_as_sequences() -> None:
    for model in ("ponder_albert_mini", "pabee_mini", "albert_mini"):
        config = configured("ponder_tiny", "dataset=hops_sequence", f"model={model}")
        assert get_problem(config.dataset) == "classification"
        assert "accuracy" in list_evaluation_metrics(config)


def test_an_evaluation_has_the_named_metrics() -> None:
    assert list_evaluation_metrics(configured("act_squad")) == (
        "loss", "task_loss", "ponder_loss", "score", "exact_match", "f1",
    )  # fmt: skip
    assert list_evaluation_metrics(configured("act_swag"))[-2:] == ("score", "accuracy")
