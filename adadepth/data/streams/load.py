"""Loading of text streams for the training of language models."""

from __future__ import annotations

from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from adadepth.data.cache import digest, get_cache_root
from adadepth.data.held_out import HELD_OUT
from adadepth.data.run_data import RunData, describe_tokenizer, summarise_data
from adadepth.data.stores.documents import LineStore, build_line_encoding
from adadepth.data.stores.parallel_tokenisation import ensure_texts, prepare_workers
from adadepth.data.streams.contiguous import RowShare, StreamBatches, TokenStream, TwoPhase
from adadepth.data.streams.line_text import open_texts
from adadepth.data.streams.tokenizer import load_stream_tokenizer
from adadepth.data.text.text_source import TextSource
from adadepth.data.text.tokenizer import parallel_encoding
from adadepth.errors import DataError

if TYPE_CHECKING:
    from adadepth.config import StreamConfig, TokenizerConfig


def load_language_data(
    dataset: StreamConfig,
    tokenizer: TokenizerConfig,
    *,
    train_rows: int,
    slots: int = 1,
    evaluation_rows: int,
    process: int = 0,
    processes: int = 1,
    two_phase: TwoPhase | None = None,
) -> RunData:
    """Load a text for language modelling: read, tokenise and arrange it in streams, or load it from the cache.

    Several processes may call this function at once. One of them does the work, and the others wait.

    Args:
        dataset: Settings of the text and the length of a segment.
        tokenizer: Settings of an existing tokenizer or of one to be trained on the training text.
        train_rows: Number of rows of a micro-batch of one process in training.
        slots: Number of micro-batches per update.
        evaluation_rows: Number of rows of one process in evaluation.
        process: Number of this process.
        processes: World size.
        two_phase: Settings of an architecture search that uses separate tokens.

    Raises:
        DataError: If the text or the tokenizer lacks something, or if the text is shorter than a batch of streams. The
            message is one line.
    """
    texts, root = open_texts(dataset), get_cache_root(dataset.cache_dir)
    with parallel_encoding():
        words = load_text_tokenizer(texts["train"], tokenizer, root)
        stores = {name: open_line_store(root, name, text, words, dataset) for name, text in texts.items()}
    train = _build_train(dataset, words, stores["train"], RowShare(train_rows, slots, process, processes), two_phase)
    share = RowShare(evaluation_rows, 1, process, processes)
    held_out = {
        name: _build_evaluation(dataset, words, name, stores[name], share) for name in stores if name != "train"
    }
    return RunData(
        train=train,
        evaluation={HELD_OUT: held_out["evaluation"]},
        test={name: batches for name, batches in held_out.items() if name == "test"},
        tokenizer=words,
        collate=itemgetter(0),
        summary=summarise_data(
            dataset,
            {name: _describe(stores[name], batches) for name, batches in {"train": train, **held_out}.items()},
            facts={"sequence_length": dataset.sequence_length, "append_eos": dataset.append_eos},
            tokenizer=describe_tokenizer(tokenizer, words, has_kind=True),
            identity={
                "cache_key": digest_text(texts["train"], words, dataset),
                "sources": {name: text.key() for name, text in texts.items()},
            },
        ),
    )


def count_token_ids(data: RunData) -> np.ndarray:
    """Return the number of occurrences of each token id in the training text of streams, (V,) int64."""
    assert data.tokenizer is not None, "there are tokens"
    counts: np.ndarray = next(iter(data.train.streams.values())).store.word_counts(len(data.tokenizer))
    return counts


def digest_text(text: TextSource, tokenizer: PreTrainedTokenizerFast, dataset: StreamConfig) -> str:
    """Return a hash of a text and of the settings with which it is tokenised."""
    reads = [tokenizer.backend_tokenizer.to_str(), tokenizer.split_special_tokens, tokenizer.eos_token_id]
    return digest(text.key(), reads, dataset.append_eos)


def load_text_tokenizer(text: TextSource, config: TokenizerConfig, root: Path) -> PreTrainedTokenizerFast:
    """Return the configured tokenizer, or one trained on the training text."""
    return load_stream_tokenizer(config, root, text.key, lambda: text.lines(config.train_documents), text.sources)


def open_line_store(
    root: Path, name: str, text: TextSource, tokenizer: PreTrainedTokenizerFast, dataset: StreamConfig
) -> LineStore:
    """Return the tokens of the lines of a text; tokenise it first if the cache lacks them."""
    encoding, workers = build_line_encoding(tokenizer, dataset.append_eos), prepare_workers(dataset)
    key = f"{name}-lines-bytes-{digest_text(text, tokenizer, dataset)}"
    return LineStore.open(ensure_texts(root, key, text.lines, encoding, workers, text.characters, text.sources))


def _build_train(
    dataset: StreamConfig,
    tokenizer: PreTrainedTokenizerFast,
    store: LineStore,
    share: RowShare,
    two_phase: TwoPhase | None,
) -> StreamBatches:
    tokens = len(store.tokens)
    bounds, text = {"weights": (0, tokens)}, "training text"
    if two_phase is not None:
        cut_parts = tokens - round(two_phase.share * tokens)
        bounds, text = {"weights": (0, cut_parts), "architecture": (cut_parts, tokens)}, "training text for the {}"
    streams = {
        name: _build_stream(tokenizer, store, part, share.rows, dataset.sequence_length)
        for name, part in bounds.items()
    }
    for name, stream in streams.items():
        _check_length(dataset, text.format(name), stream, "dataset.sequence_length", "train")
    return StreamBatches(streams, share, store.counts(), two_phase)


def _build_evaluation(
    dataset: StreamConfig, tokenizer: PreTrainedTokenizerFast, name: str, store: LineStore, share: RowShare
) -> StreamBatches:
    counts = store.counts(dataset.max_evaluation_tokens)
    setting = "sequence_length" if dataset.evaluation_length is None else "evaluation_length"
    stream = _build_stream(tokenizer, store, (0, counts["tokens"]), share.rows, getattr(dataset, setting))
    _check_length(dataset, f"{name} text", stream, f"dataset.{setting}", "eval")
    return StreamBatches({"evaluation": stream}, share, counts)


def _build_stream(
    tokenizer: PreTrainedTokenizerFast, store: LineStore, part: tuple[int, int], rows: int, length: int
) -> TokenStream:
    start, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    return TokenStream(store, *part, rows, length, start, start if pad is None else pad)


def _check_length(dataset: StreamConfig, text: str, stream: TokenStream, setting: str, side: str) -> None:
    if stream.tokens < stream.rows * stream.length:
        raise DataError(
            f"dataset.name={dataset.name}: the {text} has {stream.tokens} tokens, too few for a batch of "
            f"{stream.rows} rows of {stream.length}; give more text, or lower {setting} or "
            f"trainer.per_device_{side}_batch_size"
        )


def _describe(store: LineStore, batches: StreamBatches) -> dict[str, Any]:
    """Return, for the data summary, the size of a whole text, and the tokens, rows and steps that the run reads."""
    counts = store.counts()
    return {
        **counts,
        "tokens_per_word": counts["tokens"] / max(counts["words"], 1),
        "tokens_used": batches.tokens,
        "rows": batches.share.rows,
        "steps": {name: stream.steps for name, stream in batches.streams.items()},
    }
