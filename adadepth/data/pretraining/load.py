"""Loading of the data of a pretraining run, and a unigram baseline for masked tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from adadepth.data.batches import IGNORE, PretrainingCollator
from adadepth.data.cache import digest, get_cache_root
from adadepth.data.held_out import HELD_OUT
from adadepth.data.pretraining.examples import PretrainingExamples, ensure_spans
from adadepth.data.pretraining.masking import Vocabulary
from adadepth.data.pretraining.streaming import StreamedExamples, take_documents
from adadepth.data.randomness import EVALUATION_SEED
from adadepth.data.run_data import RunData, describe_tokenizer, summarise_data
from adadepth.data.stores.documents import TokenStore, build_document_encoding
from adadepth.data.stores.parallel_tokenisation import ensure_texts, prepare_workers
from adadepth.data.text.corpora import Split
from adadepth.data.text.passages import split_sentences
from adadepth.data.text.special_tokens import Layout
from adadepth.data.text.tokenizer import PRETRAINING_TOKENS, load_or_train, parallel_encoding, with_data_layout
from adadepth.errors import DataError

if TYPE_CHECKING:
    from adadepth.config import CorpusConfig, TokenizerConfig


def load_pretraining_data(dataset: CorpusConfig, tokenizer: TokenizerConfig, seed: int) -> RunData:
    """Read, split, tokenise and pack a corpus, or load it from the cache.

    Several processes may call this function at once. One of them does the work, and the others wait.

    Raises:
        DataError: If the corpus or the tokenizer lacks something. The message is one line.
    """
    split = Split(dataset)
    root = get_cache_root(dataset.cache_dir)
    with parallel_encoding():
        words = load_corpus_tokenizer(split, tokenizer, root)
        vocabulary = Vocabulary.from_tokenizer(words)
        # The key omits the default value, because runs of earlier versions recorded it so.
        options = [True] if words.split_special_tokens else []
        key = digest(split.key, words.backend_tokenizer.to_str(), *options)
        train: PretrainingExamples | StreamedExamples
        if dataset.streaming:
            train = StreamedExamples(split.train, words, vocabulary, dataset, seed, split.sources)
            held_out = take_documents(split.evaluation(), words, dataset)
        else:
            stored = _open_store(split, root, f"train-{key}", split.train, words, split.characters)
            spans = ensure_spans(root, stored, dataset, seed)
            train = PretrainingExamples(stored, spans, vocabulary, dataset, seed)
            held_out = _open_store(split, root, f"evaluation-{key}", split.evaluation, words, None)
        held_out_spans = ensure_spans(root, held_out, dataset, EVALUATION_SEED)
        evaluation = PretrainingExamples(held_out, held_out_spans, vocabulary, dataset, EVALUATION_SEED)
    counts: dict[str, dict[str, int]] = {
        "train": {"streamed": True}
        if isinstance(train, StreamedExamples)
        else _count_examples(dataset, "training", train),
        "evaluation": _count_examples(dataset, "held-out", evaluation),
    }
    evaluation.keep(dataset.max_evaluation_examples)
    counts["evaluation"]["examples_used"] = len(evaluation)
    return RunData(
        train=train,
        evaluation={HELD_OUT: evaluation},
        tokenizer=with_data_layout(words, Layout.bert(words, dataset.sequence_length)),
        collate=PretrainingCollator(vocabulary.pad, dataset.sequence_length, dataset.pad_to_length),
        summary=summarise_data(
            dataset,
            counts,
            facts={"sequence_length": dataset.sequence_length},
            tokenizer=describe_tokenizer(tokenizer, words),
            identity={"cache_key": key, "sources": split.digest_sources()},
        ),
    )


def load_corpus_tokenizer(
    split: Split, config: TokenizerConfig, root: Path, needed: Sequence[str] = PRETRAINING_TOKENS
) -> PreTrainedTokenizerFast:
    """Return the configured tokenizer, or one trained on the training documents of the corpus."""

    def sentences() -> Iterator[str]:
        for document in islice(split.train(), config.train_documents):
            yield from split_sentences(document)

    return load_or_train(config, root, lambda: split.key, sentences, needed, split.sources)


def _open_store(
    split: Split,
    root: Path,
    name: str,
    texts: Callable[[], Iterator[str]],
    tokenizer: PreTrainedTokenizerFast,
    characters: int | None,
) -> TokenStore:
    workers, encoding = prepare_workers(split.dataset), build_document_encoding(tokenizer)
    return TokenStore.open(ensure_texts(root, name, texts, encoding, workers, characters, split.sources))


def _count_examples(dataset: CorpusConfig, side: str, examples: PretrainingExamples) -> dict[str, int]:
    if not len(examples):
        raise DataError(f"dataset.name={dataset.name}: the {side} documents contain no text for an example")
    return {**examples.store.counts(), "examples": len(examples)}


_TOKENS_AT_ONCE = 2**24


def unigram_baseline(data: RunData) -> dict[str, Any]:
    """Return the metrics of a baseline that predicts masked tokens from token frequencies of the training text.

    Frequencies use add-one smoothing, and special tokens are excluded.

    Returns:
        ``accuracy`` of always predicting the most frequent token, ``cross_entropy`` in nats per masked token, ``token``
        (that most frequent token) and ``positions`` (the number of masked tokens).

    Raises:
        DataError: If the training data are streamed, so that no frequencies are known.
    """
    if not isinstance(data.train, PretrainingExamples):
        raise DataError("dataset.streaming=true: the unigram baseline needs prepared training data")
    assert data.tokenizer is not None, "there are tokens"
    evaluation, tokens, ordinary = data.evaluation[HELD_OUT], data.train.store.tokens, data.train.vocabulary.ordinary
    counts = np.zeros(len(data.tokenizer), dtype=np.int64)
    for start in range(0, len(tokens), _TOKENS_AT_ONCE):
        counts += np.bincount(tokens[start : start + _TOKENS_AT_ONCE], minlength=len(counts))
    frequencies = counts[ordinary] + 1
    log_probabilities = np.full(len(counts), -np.inf)
    log_probabilities[ordinary] = np.log(frequencies / frequencies.sum())
    labels = np.concatenate([evaluation[index]["labels"] for index in range(len(evaluation))])
    labels = labels[labels != IGNORE]
    answer = int(log_probabilities.argmax())
    return {
        "accuracy": float((labels == answer).mean()),
        "cross_entropy": float(-log_probabilities[labels].mean()),
        "token": str(data.tokenizer.convert_ids_to_tokens(answer)),
        "positions": len(labels),
    }
