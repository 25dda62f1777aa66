"""Bigram shift, the probing task of Conneau et al. (2018): have adjacent words of a sentence been swapped?

The sentences come from the embedded corpus, so the task needs no file. The original task swaps one pair of words. Here
all, half or a quarter of the pairs are swapped, because a small model without pretraining learns nothing from single
swaps.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

from adadepth.config import CorpusConfig
from adadepth.data.cache import get_cache_root
from adadepth.data.labelled.collators import SequenceCollator
from adadepth.data.labelled.splits import spread_rows
from adadepth.data.pretraining.load import load_corpus_tokenizer
from adadepth.data.randomness import EVALUATION_SEED, Purpose, random_generator, split_item
from adadepth.data.run_data import RunData, describe_tokenizer, summarise_data
from adadepth.data.text.corpora import Split
from adadepth.data.text.passages import split_sentences
from adadepth.data.text.special_tokens import Layout
from adadepth.data.text.tokenizer import (
    add_word_spaces,
    encode_sentences,
    list_needed_tokens,
    parallel_encoding,
    with_data_layout,
)
from adadepth.errors import DataError

if TYPE_CHECKING:
    from adadepth.config import LabelledConfig, TokenizerConfig

LABELS = ("original", "shifted")
SHARES = (1.0, 0.5, 0.25)  # shares of the possible pairs, equally likely; the index is the difficulty
_SHORTEST, _LONGEST = 5, 28  # words of a sentence, as in the probing task
_EVALUATION_FRACTION = 0.15  # as in dataset=python_docs, so that a model pretrained there has not seen the sentences

_Sentence = list[np.ndarray]  # the token ids of each word


class BigramShiftExamples(Dataset[dict[str, Any]]):
    """Examples of bigram shift. Every sentence occurs twice: unchanged, and with words that each epoch swaps.

    An example has the sequence of tokens, ``index``, and ``label``, which is 1 for a shifted sentence. Its
    ``difficulty`` is 0 if all pairs are swapped, 1 for half of them, 2 for a quarter, and 3 for none.
    """

    def __init__(self, sentences: list[_Sentence], layout: Layout, seed: int, limit: int | None) -> None:
        self.sentences = sentences
        self.layout = layout
        self.seed = seed
        # Both versions of a sentence stay together, so that the classes stay balanced.
        self.rows = spread_rows(len(sentences), None if limit is None else max(1, limit // 2))
        self.owners = np.repeat(self.rows, 2)

    def __len__(self) -> int:
        return 2 * len(self.rows)

    def lengths(self) -> np.ndarray:
        """Return the number of tokens of each sequence, (examples,) int64."""
        tokens = [sum(map(len, self.sentences[row])) for row in self.rows]
        return self.layout.lengths(np.repeat(np.array(tokens, dtype=np.int64), 2), 1)

    def __getitem__(self, item: int | tuple[int, int]) -> dict[str, Any]:
        epoch, index = split_item(item)
        row, label = int(self.rows[index // 2]), index % 2
        words, difficulty = self.sentences[row], len(SHARES)
        if label:
            generator = random_generator(self.seed, Purpose.SHIFT, epoch, row)
            difficulty = int(generator.integers(len(SHARES)))
            pairs = max(1, round(SHARES[difficulty] * (len(words) // 2)))
            words = swap(words, draw_pairs(len(words), pairs, generator))
        fields = {"index": 2 * row + label, "label": label, "difficulty": difficulty}
        return {**self.layout.build([np.concatenate(words)]), **fields}


def draw_pairs(words: int, pairs: int, generator: np.random.Generator) -> list[int]:
    """Draw the positions of ``pairs`` pairs of adjacent words that do not overlap.

    All choices are equally likely. If each pair is counted as one position, ``words - pairs`` positions remain, and
    ``pairs`` of them are drawn.
    """
    positions = np.sort(generator.choice(words - pairs, pairs, replace=False))
    return [int(position) + before for before, position in enumerate(positions)]


def swap(words: _Sentence, firsts: list[int]) -> _Sentence:
    """Return the words of a sentence with the word at each position in ``firsts`` exchanged with the next word."""
    shifted = list(words)
    for first in firsts:
        shifted[first : first + 2] = shifted[first + 1], shifted[first]
    return shifted


def select_sentences(documents: Iterable[str]) -> list[str]:
    """Return the distinct sentences of a text that have 5 to 28 words."""
    sentences: dict[str, None] = {}
    for document in documents:
        for sentence in split_sentences(document):
            words = sentence.split()
            if _SHORTEST <= len(words) <= _LONGEST:
                sentences[" ".join(words)] = None
    return list(sentences)


def load_bigram_shift(dataset: LabelledConfig, tokenizer: TokenizerConfig, seed: int, cls_tokens: int = 1) -> RunData:
    """Return the data of bigram shift. Evaluation sentences come from held-out documents.

    Raises:
        DataError: If no sentence fits into ``dataset.sequence_length``.
    """
    split = Split(CorpusConfig(name=dataset.name, evaluation_fraction=_EVALUATION_FRACTION))
    held_out = select_sentences(split.evaluation())
    excluded = set(held_out)
    texts = [sentence for sentence in select_sentences(split.train()) if sentence not in excluded]
    with parallel_encoding():
        words = load_corpus_tokenizer(
            split, tokenizer, get_cache_root(dataset.cache_dir), list_needed_tokens(cls_tokens)
        )
        encoded = [_encode(words, sentences) for sentences in (texts, held_out)]
    layout = Layout.from_tokenizer(words, dataset.sequence_length, cls_tokens)
    # A truncated sentence could lose its swapped words.
    fitting = [[sentence for sentence in part if sum(map(len, sentence)) <= layout.room(1)] for part in encoded]
    train = BigramShiftExamples(fitting[0], layout, seed, dataset.max_train_examples)
    evaluation = BigramShiftExamples(fitting[1], layout, EVALUATION_SEED, dataset.max_evaluation_examples)
    if not len(train) or not len(evaluation):
        raise DataError(f"dataset.sequence_length={dataset.sequence_length}: all sentences are longer")
    counts = {
        "train": {"sentences": len(train.rows), "examples": len(train)},
        "evaluation": {"validation": {"sentences": len(evaluation.rows), "examples": len(evaluation)}},
    }
    return RunData(
        train=train,
        evaluation={"validation": evaluation},
        tokenizer=with_data_layout(words, layout, splits_words=True),
        collate=SequenceCollator(words.pad_token_id, dataset.sequence_length, dataset.pad_to_length),
        summary=summarise_data(
            dataset,
            counts,
            facts={"sequence_length": dataset.sequence_length},
            tokenizer=describe_tokenizer(tokenizer, words),
            identity={"sources": split.digest_sources()},
        ),
        problem="classification",
        labels=LABELS,
        metrics=tuple(dataset.metrics),
        has_difficulty=True,
    )


def _encode(tokenizer: PreTrainedTokenizerFast, sentences: list[str]) -> list[_Sentence]:
    """Return the token ids of each word of a sentence. Words are encoded one by one, so that a swap moves whole words.

    Sentences with the same word twice in a row are skipped, because a swap of these words would change nothing.
    """
    split = [sentence.split() for sentence in sentences]
    vocabulary = sorted({word for words in split for word in words})
    encoded = dict(zip(vocabulary, encode_sentences(tokenizer, add_word_spaces(tokenizer, vocabulary)), strict=True))
    ids = {word: np.array(tokens) for word, tokens in encoded.items()}
    return [
        [ids[word] for word in words]
        for words in split
        if not any(encoded[first] == encoded[second] for first, second in pairwise(words))
    ]
