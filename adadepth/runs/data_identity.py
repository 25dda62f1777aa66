"""Identity of a model's training data, stored in the model's configuration and compared with the data of later runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerFast

from adadepth.config import DatasetConfig
from adadepth.config.kinds import get_kind, get_problem, list_input_columns
from adadepth.data.cache import digest
from adadepth.data.run_data import RunData
from adadepth.data.text.tokenizer import TOKENIZER_FILE
from adadepth.errors import CheckpointError
from adadepth.models.shared.published_files import TRAINING_DATA

OVERRIDE = "allow_changed_data=true"
# Texts that tokenizers of equal vocabularies cut differently: case, accents, spaces, digits, punctuation, scripts,
# symbols. All begin with a space, which some tokenizers add before single words and not before texts.
_SAMPLE = (
    " The Cafe\u0301 naïve STRASSE straße ﬁne",
    " two  spaces,\ta tab\nand a line\u00a0break\u2028here ",
    " 1234567 3.14159 -1,5 10% $9.99 a_b snake_case camelCase don't e-mail@x.org",
    " 漢字かな 한국어 العربية हिन्दी ไทย 😀👩‍🚀 \u200b\ufeff x²",
)


@dataclass(frozen=True)
class DataIdentity:
    """Identity of the data on which a model was trained, such as the data set's name and a hash of the tokenizer.

    Attributes:
        dataset: Name of the data set.
        problem: Problem type, or None if the data are not labelled.
        sources: Digest of the data by split name; empty for data that are generated from settings.
        tokenizer: `digest_tokenizer` of the model's tokenizer, or None if the model reads no tokens.
        sequence_length: Maximum number of tokens of a sequence in training, or None if the task determines it.
        columns: Columns of a table that the model reads, in their order.
        keep_newlines: Whether text in blocks kept its newlines, or None for other data.
    """

    dataset: str
    problem: str | None = None
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tokenizer: str | None = None
    sequence_length: int | None = None
    columns: Sequence[str] = ()
    keep_newlines: bool | None = None

    @classmethod
    def from_data(cls, dataset: DatasetConfig, data: RunData) -> DataIdentity:
        """Return the identity of data that have been loaded.

        Args:
            dataset: Settings of the data.
            data: Loaded data.
        """
        return cls(
            dataset=dataset.name,
            problem=get_problem(dataset),
            sources=data.summary.get("sources", {}),
            tokenizer=None if data.tokenizer is None else digest_tokenizer(data.tokenizer),
            sequence_length=get_text_length(dataset),
            columns=data.summary.get("text_columns") or list_input_columns(dataset) or (),
            keep_newlines=data.summary.get("keep_newlines"),
        )

    @classmethod
    def from_config(cls, key: str, path: str, config: PreTrainedConfig) -> DataIdentity | None:
        """Read the identity of the training data from a model's configuration, or return None if it has none.

        Args:
            key: Setting that names the model, for messages.
            path: Folder or hub id of the model, for messages.
            config: Configuration of the model.

        Raises:
            CheckpointError: If a field has a value of a wrong type.
        """
        stored = getattr(config, TRAINING_DATA, None)
        if stored is None:
            return None
        prefix = f"{key}={path}: its config.json: {TRAINING_DATA}"
        if not isinstance(stored, Mapping):
            raise CheckpointError(f"{prefix} must be an object, not {type(stored).__name__}")
        if (fault := _find_fault(stored)) is not None:
            raise CheckpointError(f"{prefix}.{fault}")
        fields = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in stored.items() if name in fields})

    def write_to(self, config: PreTrainedConfig) -> None:
        """Store this identity in a model's configuration, so that it is saved with the model."""
        stored = {**dataclasses.asdict(self), "columns": list(self.columns)}
        if self.keep_newlines is None:
            del stored["keep_newlines"]
        setattr(config, TRAINING_DATA, stored)


def _find_fault(stored: Mapping[str, Any]) -> str | None:
    """Return which field of a stored data identity has a value of a wrong type, or None."""
    texts, digests = stored.get("columns", ()), stored.get("sources", {})
    length = stored.get("sequence_length")
    is_length = length is None or (isinstance(length, int) and not isinstance(length, bool) and length > 0)
    checks = {
        "dataset must be a text": isinstance(stored.get("dataset"), str),
        "problem must be a text or null": isinstance(stored.get("problem"), str | None),
        "tokenizer must be a text or null": isinstance(stored.get("tokenizer"), str | None),
        "sequence_length must be a whole number above 0 or null": is_length,
        "keep_newlines must be true, false or null": isinstance(stored.get("keep_newlines"), bool | None),
        "columns must be a list of texts": isinstance(texts, list | tuple)
        and all(isinstance(text, str) for text in texts),
        "sources must be an object of texts": isinstance(digests, Mapping)
        and all(isinstance(text, str) for text in digests.values()),
    }
    return next((fault for fault, is_right in checks.items() if not is_right), None)


def get_text_length(dataset: DatasetConfig) -> int | None:
    """Return the maximum number of tokens per text of a data set.

    The result is None for generated tasks and puzzles, because the task determines their size.
    """
    kind = get_kind(dataset)
    is_text = not kind.own_symbols and kind.positions == "sequence_length" and get_problem(dataset) != "puzzle"
    return dataset.sequence_length if is_text else None


def digest_tokenizer(tokenizer: PreTrainedTokenizerFast) -> str:
    """Return a hash of a tokenizer: its vocabulary, its special tokens, and how it splits a sample text.

    Equal tokenizers have equal digests, even if their classes or files differ. Padding, truncation and the special
    tokens that are added around texts are not part of the digest.
    """
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    try:
        cuts = [tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] for text in _SAMPLE]
    except Exception:  # a tokenizer of symbols alone: any other character is an error of the library
        cuts = []
    return digest(sorted(tokenizer.get_vocab().items()), sorted(special.items()), cuts)


@cache
def _digest_in_folder(folder: Path) -> str | None:
    """Return the hash of the tokenizer in a folder, or None if there is no readable tokenizer."""
    if not (folder / TOKENIZER_FILE).is_file():
        return None
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        return digest_tokenizer(tokenizer)
    except Exception:  # its loader reports the error
        return None


def expected_tokenizer(key: str, path: str, config: PreTrainedConfig) -> str | None:
    """Return the hash of the tokenizer with which a model was trained, or None if it is unknown.

    If the configuration of the model stores no digest, the tokenizer in the folder of the weights is used.
    """
    stored = DataIdentity.from_config(key, path, config)
    return stored.tokenizer if stored is not None else _digest_in_folder(Path(path))
