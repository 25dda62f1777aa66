"""Identity of training data: how a model stores it, and which stored values are damaged."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerFast

from adadepth.data.text.special_tokens import Layout
from adadepth.data.text.tokenizer import with_data_layout
from adadepth.errors import CheckpointError
from adadepth.models.shared.published_files import TRAINING_DATA
from adadepth.runs.data_identity import DataIdentity, digest_tokenizer, expected_tokenizer, get_text_length
from tests.configs.support import configured
from tests.unit.data.tokenizers_support import tokenizer

WHOLE = DataIdentity("mine", "classification", {"train": "ab"}, "cd", 32, ["text"], True)


def test_a_stored_identity_is_read_back() -> None:
    for identity in (WHOLE, DataIdentity("generated")):
        config = PreTrainedConfig()
        identity.write_to(config)
        read = DataIdentity.from_config("checkpoint", "there", PreTrainedConfig(**config.to_dict()))
        assert read is not None
        assert (list(read.columns), dict(read.sources)) == (list(identity.columns), dict(identity.sources))
        assert (read.dataset, read.problem, read.tokenizer) == (identity.dataset, identity.problem, identity.tokenizer)
        assert (read.sequence_length, read.keep_newlines) == (identity.sequence_length, identity.keep_newlines)


def test_a_model_without_an_identity_and_fields_of_newer_versions_are_accepted() -> None:
    assert DataIdentity.from_config("checkpoint", "there", PreTrainedConfig()) is None
    newer = PreTrainedConfig(**{TRAINING_DATA: {"dataset": "mine", "licence": "open"}})
    assert DataIdentity.from_config("checkpoint", "there", newer) == DataIdentity("mine")


@pytest.mark.parametrize(("stored", "fault"), [
    ([1], " must be an object, not list"),
    ({}, ".dataset must be a text"),
    ({"problem": 3}, ".problem must be a text or null"),
    ({"tokenizer": ["a"]}, ".tokenizer must be a text or null"),
    ({"sequence_length": True}, ".sequence_length must be a whole number above 0 or null"),
    ({"sequence_length": 0}, ".sequence_length must be a whole number above 0 or null"),
    ({"keep_newlines": "yes"}, ".keep_newlines must be true, false or null"),
    ({"columns": "text"}, ".columns must be a list of texts"),
    ({"columns": [3]}, ".columns must be a list of texts"),
    ({"sources": ["a"]}, ".sources must be an object of texts"),
    ({"sources": {"train": 3}}, ".sources must be an object of texts"),
])  # fmt: skip
def test_a_stored_value_of_a_wrong_type_is_a_one_line_error(stored: Any, fault: str) -> None:
    if isinstance(stored, dict) and stored:
        stored = {"dataset": "mine"} | stored
    config = PreTrainedConfig(**{TRAINING_DATA: stored})
    with pytest.raises(CheckpointError) as raised:
        DataIdentity.from_config("checkpoint", "there", config)
    assert str(raised.value) == f"checkpoint=there: its config.json: {TRAINING_DATA}{fault}"


@pytest.mark.parametrize(("root", "length"), [
    ("act_tiny", 64), ("act_cola", 128), ("act_hops", None), ("act_maze", None), ("trm_tiny", None),
])  # fmt: skip
def test_only_texts_have_a_length(root: str, length: int | None) -> None:
    assert get_text_length(configured(root).dataset) == length


def test_the_identity_of_loaded_data_names_their_sources_and_columns() -> None:
    summary = {"sources": {"train": "ab"}, "text_columns": ["sentence"]}
    data: Any = SimpleNamespace(summary=summary, tokenizer=None)
    identity = DataIdentity.from_data(configured("act_cola").dataset, data)
    assert identity == DataIdentity("cola", "classification", {"train": "ab"}, None, 128, ["sentence"])


def test_the_digest_of_a_tokenizer_depends_on_vocabulary_and_cuts(tmp_path: Path) -> None:
    words = tokenizer("bert")
    words.save_pretrained(tmp_path)
    digests = {digest_tokenizer(tokenizer(kind)) for kind in ("bert", "roberta", "t5")}
    assert len(digests) == 3
    assert expected_tokenizer("checkpoint", str(tmp_path), PreTrainedConfig()) == digest_tokenizer(words)


def test_the_digest_of_the_folder_is_read_only_without_a_stored_one(tmp_path: Path) -> None:
    tokenizer("bert").save_pretrained(tmp_path)
    config = PreTrainedConfig()
    WHOLE.write_to(config)
    assert expected_tokenizer("checkpoint", str(tmp_path), config) == "cd"
    (tmp_path / "tokenizer.json").write_text("{")
    assert expected_tokenizer("checkpoint", str(tmp_path / "none"), PreTrainedConfig()) is None


@pytest.mark.parametrize("kind", ["bert", "roberta", "t5"])
def test_the_digest_of_a_tokenizer_survives_use_and_saving(kind: str, tmp_path: Path) -> None:
    words = tokenizer(kind)
    digests = {digest_tokenizer(words)}
    for splits_words in (False, True):
        fed = with_data_layout(words, Layout.from_tokenizer(words, 16, 0), splits_words=splits_words)
        folder = tmp_path / str(splits_words)
        fed.save_pretrained(folder)
        digests |= {digest_tokenizer(fed), digest_tokenizer(AutoTokenizer.from_pretrained(folder))}
    assert len(digests) == 1


def test_tokenizers_with_other_pieces_have_other_digests() -> None:
    cased, uncased = (build_word_tokenizer(lowercase) for lowercase in (False, True))
    assert digest_tokenizer(cased) != digest_tokenizer(uncased)
    more = build_word_tokenizer(True)
    more.add_tokens(["zebra"])
    assert digest_tokenizer(more) != digest_tokenizer(uncased)


def build_word_tokenizer(lowercase: bool) -> PreTrainedTokenizerFast:
    """Return a tokenizer of three pieces, with or without lowercasing of texts."""
    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "the": 1, "a": 2}, unk_token="[UNK]"))
    backend.normalizer = normalizers.Lowercase() if lowercase else normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")
