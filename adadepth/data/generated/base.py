"""Common parts of generated tasks: examples drawn in blocks, a tokenizer for symbols, and tagged data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

from adadepth.data.labelled.collators import SequenceCollator
from adadepth.data.randomness import random_generator, split_item
from adadepth.data.run_data import Picture, RunData, count_set_examples, summarise_data
from adadepth.data.text.special_tokens import Layout
from adadepth.data.text.tokenizer import SPECIAL_TOKENS, wrap_texts, wrap_tokenizer
from adadepth.errors import ConfigError

if TYPE_CHECKING:
    from adadepth.config.data import GeneratedConfig

_BLOCK = 1024  # examples drawn at once


class DrawnExamples(Dataset[dict[str, Any]], ABC):
    """Base class of generated examples. Each example is a pure function of (seed, epoch, index).

    Examples are drawn in blocks, which is far faster than one by one. The blocks of one epoch stay in memory.
    """

    purpose: ClassVar[int]  # a `Purpose`

    def __init__(self, length: int, seed: int) -> None:
        self.length = length
        self.seed = seed
        self._epoch: int | None = None
        self._blocks: dict[int, dict[str, np.ndarray]] = {}

    @abstractmethod
    def draw(self, rows: int, epoch: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw the columns of ``rows`` examples, each column an array (rows, ...) of a small dtype."""

    @abstractmethod
    def example(self, columns: dict[str, np.ndarray]) -> dict[str, Any]:
        """Return one example, without its ``index``, from its row of the generated columns."""

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, item: int | tuple[int, int]) -> dict[str, Any]:
        epoch, index = split_item(item)
        number, row = divmod(index, _BLOCK)
        columns = {name: column[row] for name, column in self._get_block(epoch, number).items()}
        return {**self.example(columns), "index": index}

    def _get_block(self, epoch: int, number: int) -> dict[str, np.ndarray]:
        if epoch != self._epoch:
            self._epoch, self._blocks = epoch, {}
        if number not in self._blocks:
            generator = random_generator(self.seed, self.purpose, epoch, number)
            self._blocks[number] = self.draw(_BLOCK, epoch, generator)
        return self._blocks[number]


class DrawnTags(DrawnExamples):
    """Generated sequences with a label for each token, given by ``labels`` and ``difficulties``, each (S,) int64."""

    def gold(self, index: int) -> list[int]:
        """Return the labels of the labelled tokens of an example, in order."""
        labels = self[index]["labels"]
        tags: list[int] = labels[labels >= 0].tolist()
        return tags

    def row_number(self, index: int) -> int:
        """Return the number of an example in the data set, which is its index."""
        return index

    def find_first_pieces(self, index: int) -> np.ndarray:
        """Return the positions of the labelled tokens of an example, (labelled,)."""
        return np.flatnonzero(self[index]["labels"] >= 0)


def encode_symbols(numbers: np.ndarray) -> np.ndarray:
    """Return the token ids, int64, of symbols given by their numbers in `build_symbol_tokenizer`."""
    ids: np.ndarray = numbers.astype(np.int64) + len(SPECIAL_TOKENS)
    return ids


def build_symbol_example(symbols: np.ndarray, labels: np.ndarray, difficulties: np.ndarray) -> dict[str, Any]:
    """Return an example for `DrawnTags`: a sequence of symbols without special tokens and with one token type.

    Args:
        symbols: Number of each symbol, (S,).
        labels: Label of every token, (S,), or -100 for a token without a label.
        difficulties: Difficulty of every token, (S,), or -1 for a token without a difficulty.
    """
    return {
        "input_ids": encode_symbols(symbols),
        "token_type_ids": np.zeros(len(symbols), dtype=np.int64),
        "special_tokens_mask": np.zeros(len(symbols), dtype=np.uint8),
        "labels": labels.astype(np.int64),
        "difficulties": difficulties.astype(np.int64),
    }


def build_symbol_tokenizer(symbols: Sequence[str], is_wrapped: bool = True) -> PreTrainedTokenizerFast:
    """Return a tokenizer with ALBERT's special tokens and the symbols. Spaces separate symbols in text.

    Args:
        symbols: Symbols in order. Symbol n has the id that `encode_symbols` returns.
        is_wrapped: Whether texts are wrapped in [CLS] and [SEP].
    """
    words = [*SPECIAL_TOKENS.values(), *symbols]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL_TOKENS["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if is_wrapped:
        wrap_texts(tokenizer)
    return wrap_tokenizer(tokenizer)


def check_room(layout: Layout, tokens: int, what: str) -> None:
    """Raise a ``ConfigError`` if ``tokens`` tokens and the special tokens do not fit into a sequence."""
    length = layout.sequence_length
    if layout.room(1) < tokens:
        raise ConfigError(
            f"dataset.sequence_length={length}: {tokens} {what} and the special tokens need "
            f"{tokens + length - layout.room(1)}"
        )


def build_tagging_data(
    dataset: GeneratedConfig,
    train: DrawnTags,
    evaluation: Mapping[str, DrawnTags],
    symbols: Sequence[str],
    labels: tuple[str, ...],
    facts: Mapping[str, Any],
    *,
    picture: Picture | None = None,
    least_fields: Mapping[str, int] | None = None,
) -> RunData:
    """Build the data of a tagging run from generated sequences. Its data summary includes ``facts``."""
    words = build_symbol_tokenizer(symbols, is_wrapped=False)
    collate = SequenceCollator(words.pad_token_id, dataset.sequence_length, dataset.pad_to_length)
    return RunData(
        train=train,
        evaluation=evaluation,
        tokenizer=words,
        collate=collate,
        summary=summarise_data(dataset, count_set_examples(train, evaluation), facts=facts),
        problem="tagging",
        labels=labels,
        metrics=("token_accuracy",),
        has_difficulty=True,
        has_special_tokens=False,
        picture=picture,
        least_fields=least_fields or {},
    )


def get_evaluation_size(dataset: GeneratedConfig) -> int:
    """Return the number of examples of each evaluation set, by default the number of training examples per epoch."""
    return dataset.max_evaluation_examples or dataset.train_examples


def to_range(ends: Any) -> tuple[int, int]:
    """Convert a setting [lowest, highest] to a pair of numbers, and raise an error if they are in the wrong order."""
    low, high = ends
    return int(low), int(high)
