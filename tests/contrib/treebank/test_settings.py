"""Checks of treebank settings before any file is read."""

from __future__ import annotations

import pytest

from adadepth.contrib.treebank.settings import TreebankConfig
from adadepth.errors import ConfigError
from tests.configs.support import configured
from tests.marks_support import keep_one_quick

EVALUATED = ("mode=evaluate", "checkpoint=latest", "dataset=treebank", "dataset.path=folder")


@pytest.mark.parametrize(
    "root", keep_one_quick(2, ["act_wikitext2", "act_tiny", "act_pos", "act_base", "act_cola", "act_squad"])
)
def test_a_model_of_any_task_reads_a_treebank(root: str) -> None:
    dataset = configured(root, *EVALUATED).dataset
    assert isinstance(dataset, TreebankConfig)
    assert (dataset.max_evaluation_examples, dataset.masking) == (None, configured().dataset.masking)


@pytest.mark.parametrize(("root", "overrides", "expected"), [
    ("act_tiny", ["dataset=treebank", "dataset.path=folder"],
     "dataset=treebank: read with mode=evaluate checkpoint=latest only; to train on CoNLL-U files, use "
     "--config-name act_pos dataset=ud_pos"),
    ("par_tiny", [*EVALUATED],
     "dataset=treebank: read by masked language models and taggers only, not with task=architecture_search"),
    ("act_tiny", [*EVALUATED, "dataset.path=null", "dataset.hub.path=null"],
     "dataset.path: needs a folder or files of CoNLL-U, or dataset.hub.path"),
    ("act_tiny", [*EVALUATED, "dataset.evaluation_splits=[]"],
     "dataset.evaluation_splits=[]: at least one is needed; null means validation and test"),
    ("act_pos", [*EVALUATED, "exit_rules=[all]"], "exit_rules=['all']: not read with dataset=treebank"),
    ("act_tiny", [*EVALUATED, "budget.targets=[3]"], "budget.targets=[3.0]: not read with dataset=treebank"),
])  # fmt: skip
def test_a_wrong_setting_is_a_one_line_error(root: str, overrides: list[str], expected: str) -> None:
    with pytest.raises(ConfigError) as raised:
        configured(root, *overrides)
    assert expected in str(raised.value).splitlines()
