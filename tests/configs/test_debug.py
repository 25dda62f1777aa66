"""The option `debug=default`: a run of seconds of every root, and its precedence against the command line."""

from __future__ import annotations

import pytest

from adadepth.cli.error_messages import _format_unknown_key
from tests.configs.support import GLUE, NEEDS, ROOTS, configured
from tests.marks_support import keep_one_quick, mark_mostly_slow

NEEDED = dict.fromkeys(("finetune", "adalayers"), NEEDS["dataset", "table"])


@pytest.mark.parametrize(
    "root",
    keep_one_quick(8, mark_mostly_slow(ROOTS, lambda root: root.partition("_")[2] not in GLUE or root == "act_cola")),
)
def test_every_root_has_a_short_debug_run(root: str) -> None:
    config = configured(root, "debug=default", *NEEDED.get(root, []))
    assert config.trainer.max_steps == 2
    assert getattr(config.dataset, "max_evaluation_examples", 8) == 8


def test_debug_sizes_are_the_declared_ones() -> None:
    config = configured("act_base", "debug=default")
    assert (config.model.hidden_size, config.model.num_attention_heads, config.model.num_hidden_layers) == (32, 2, 24)
    assert (config.dataset.max_documents, config.tokenizer.vocab_size) == (20, 300)


def test_smaller_sizes_are_unchanged() -> None:
    assert configured("act_tiny", "debug=default", "tokenizer.vocab_size=90").tokenizer.vocab_size == 90
    assert configured("par_tiny", "debug=default", "model.cutoffs=[]").model.cutoffs == []


def test_the_command_line_wins() -> None:
    config = configured("act_tiny", "debug=default", "model.hidden_size=48", "trainer.max_steps=5")
    assert (config.model.hidden_size, config.model.num_attention_heads, config.trainer.max_steps) == (48, 2, 5)


def test_a_pretrained_model_keeps_its_sizes() -> None:
    assert configured("act_cola", "debug=default").model.hidden_size is None
    assert configured("act_tiny", "debug=default", "model.pretrained=a").model.hidden_size == 128


def test_only_a_search_reads_the_short_search_settings() -> None:
    assert configured("par_tiny", "debug=default").search.sampled_paths == 2
    assert configured("par_network", "debug=default").search.sampled_paths == 4


@pytest.mark.parametrize("key", ["dataset.max_documents", "model.act_penalty", "model.cutoffs"])
def test_a_key_of_another_kind_is_not_proposed(key: str) -> None:
    message = _format_unknown_key(key)
    assert message == f"{key}: this {key.partition('.')[0]} has no such key; other options of the group have it"
