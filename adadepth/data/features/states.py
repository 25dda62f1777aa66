"""Hidden states of a frozen base model, computed once and read in every epoch, run and seed."""

from __future__ import annotations

import hashlib
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from filelock import FileLock
from torch import Tensor
from torch.utils.data import Dataset

from adadepth.data.batches import get_lengths
from adadepth.data.cache import digest, discard_damaged, find_damage, wrap_cache_errors, write_manifest
from adadepth.data.features.store import (
    DESCRIPTION,
    Description,
    FeatureStore,
    FeatureWriter,
    check_description,
    count_bytes,
    count_finished_tokens,
    create_store,
)
from adadepth.data.randomness import split_item
from adadepth.data.run_data import ExampleSet
from adadepth.data.stores.mmap_arrays import STORE_FORMAT
from adadepth.errors import DataError
from adadepth.runtime.console import progress

logger = logging.getLogger(__name__)

Collate = Callable[[Sequence[dict[str, Any]]], dict[str, Tensor]]
Compute = Callable[[dict[str, Tensor], tuple[int, ...]], Mapping[int, Tensor]]
_INPUTS = ("input_ids", "token_type_ids")  # of an example, on which its states depend


def ensure_features(
    root: Path,
    examples: ExampleSet,
    states: Sequence[int],
    width: int,
    precision: str,
    base_key: object,
    compute: Compute,
    collate: Collate,
    *,
    limit_gib: float = 100.0,
    batch_tokens: int = 8192,
    processes: tuple[int, int] = (0, 1),
    barrier: Callable[[], None] = lambda: None,
) -> FeatureStore:
    """Return the base model's hidden states of all examples; compute and cache those that the folder ``root`` lacks.

    The name of the folder is a digest of the base model, the tokens (and so of tokenizer, texts and maximum length),
    the states, the precision and the library versions. The ``features.json`` of the folder lists them. The folder is
    built under another name, so that it is never incomplete. A later run continues an interrupted one. If several runs
    need the same states, one computes them and the others wait.

    Args:
        root: Cache folder.
        examples: Set of items with ``input_ids`` and possibly ``token_type_ids``, the same in every call.
        states: Numbers of the states.
        width: Width of a state, K.
        precision: Precision on disk: ``fp32``, ``bf16`` or ``fp16``.
        base_key: JSON values that determine the states besides tokens and libraries, e.g. a hash of the weights.
        compute: Function from a batch and state numbers to their values (B, T, K), on any device.
        collate: Function from examples to a batch, padded on the right.
        limit_gib: Largest size allowed, in GiB.
        batch_tokens: Maximum number of tokens in a batch, padding included. A batch has at least one row.
        processes: Number of this process, and the number of processes that share the work and the disk.
        barrier: Function that waits for the other processes.

    Raises:
        DataError: If the states are too large, do not fit on the disk, are damaged, or cannot be represented in the
            precision. Finished states are kept.
    """
    tokens_digest, lengths = _digest_examples(examples)
    description: Description = {
        "format": STORE_FORMAT, "base": base_key, "examples": tokens_digest, "precision": str(precision),
        "rows": len(lengths), "tokens": int(lengths.sum()), "states": list(states), "width": width,
        "torch": torch.__version__, "transformers": transformers.__version__,
    }  # fmt: skip
    folder = root / f"features-{digest(description)}"
    partial = folder.with_name(f"{folder.name}.partial")
    is_main = processes[0] == 0
    with ExitStack() as stack, wrap_cache_errors(root, "finished states are kept; free more space and start again"):
        if is_main and not (folder.exists() and find_damage(folder) is None):
            root.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FileLock(f"{folder}.lock"))
            discard_damaged(folder)
            _discard_mismatched(partial, description)
        barrier()  # from here to the last barrier no other run touches the folder
        if not folder.exists():
            done = count_finished_tokens(partial) if (partial / DESCRIPTION).exists() else 0
            _check_size(description, done, root, limit_gib)  # in every process, so that all end on a refusal
            barrier()
            if is_main:
                logger.info("features: %s, %d tokens already computed, in %s", _describe(description), done, folder)
                if not (partial / DESCRIPTION).exists():
                    create_store(partial, description, lengths)
            barrier()
            started = time.perf_counter()
            _compute_share(partial, examples, tuple(states), compute, collate, batch_tokens, processes)
            barrier()
            if is_main:
                _complete_store(partial, folder)
                logger.info("features: computed in %.1f s", time.perf_counter() - started)
            barrier()
        check_description(folder, description)
        return FeatureStore.open(folder)


def _complete_store(partial: Path, folder: Path) -> None:
    """Write the manifest of a finished feature store, and rename its folder to the final name."""
    FeatureStore.open(partial)  # refuses if a process wrote to a disk of its own
    write_manifest(partial)
    partial.rename(folder)


@dataclass(frozen=True)
class RowNumbers(Dataset[dict[str, Any]]):
    """Data set that adds ``feature_row`` to each example: the row of its hidden states in the feature stores.

    Attributes:
        examples: Set of examples that was given to `ensure_features`.
        first: Number of rows in the stores that precede the rows of this set; see `FeatureReader`.
    """

    examples: ExampleSet
    first: int = 0

    def __len__(self) -> int:
        return len(self.examples)  # type: ignore[arg-type]

    def __getitem__(self, item: int | tuple[int, int]) -> dict[str, Any]:
        return {**self.examples[item], "feature_row": self.first + split_item(item)[1]}

    def lengths(self) -> np.ndarray | None:
        """Return the number of tokens of each example, (examples,) int64, or None if the set cannot compute it."""
        return get_lengths(self.examples)

    def gold(self, index: int) -> list[int]:
        """Return the tags of all words of an example of a tagging task."""
        return self.examples.gold(index)  # type: ignore[attr-defined, no-any-return]

    def row_number(self, index: int) -> int:
        """Return the row of a tagging example in the source data."""
        return self.examples.row_number(index)  # type: ignore[attr-defined, no-any-return]

    def find_first_pieces(self, index: int) -> np.ndarray:
        """Return the position of the first token of each word of an example of a tagging task, (words,)."""
        return self.examples.find_first_pieces(index)  # type: ignore[attr-defined, no-any-return]


@dataclass(frozen=True)
class FeatureReader:
    """Reader that adds the cached hidden states of the base model to batches.

    Attributes:
        stores: Stored states of several sets. Their rows are numbered consecutively. All examples of a batch come from
            one set.
    """

    stores: Sequence[FeatureStore]

    def __call__(self, batch: dict[str, Any], states: Sequence[int]) -> dict[str, Any]:
        """Return the batch with the additional entry ``states``: hidden states (B, T, K) float32 by number.

        A batch without feature rows is returned unchanged.
        """
        if "feature_row" not in batch:
            return batch
        rows = batch["feature_row"].cpu().numpy()
        bounds = np.cumsum([0, *map(len, self.stores)])
        numbers = np.searchsorted(bounds, rows, side="right") - 1
        assert (numbers == numbers[0]).all(), "a batch must come from one store"
        ids = batch["input_ids"]
        hidden_states = self.stores[numbers[0]].read(rows - bounds[numbers[0]], states, ids.shape[1])
        return batch | {"states": {state: values.to(ids.device).float() for state, values in hidden_states.items()}}


def _discard_mismatched(partial: Path, description: Description) -> None:
    """Delete an unfinished feature cache that belongs to another model or other texts, and log a warning."""
    try:
        if (partial / DESCRIPTION).exists():
            check_description(partial, description)
    except DataError as error:
        logger.warning("%s; rebuilding it", error)
        shutil.rmtree(partial)


def _digest_examples(examples: ExampleSet) -> tuple[str, np.ndarray]:
    """Return a digest of the base model's inputs for all examples, and the lengths of the examples, (rows,) int64."""
    content = hashlib.blake2b(digest_size=16)
    lengths = np.zeros(len(examples), dtype=np.int64)  # type: ignore[arg-type]
    for row in range(len(lengths)):
        example = examples[row]
        lengths[row] = len(example["input_ids"])
        for name in _INPUTS:
            if name in example:
                content.update(name.encode() + np.asarray(example[name], dtype="<i8").tobytes())
    return content.hexdigest(), lengths


def _check_size(description: Description, done: int, root: Path, limit_gib: float) -> None:
    """Raise an error if the hidden states would exceed the configured size limit or the free disk space.

    ``done`` is the number of finished tokens.
    """
    size = count_bytes(description)
    missing = size - count_bytes(description, done)
    free = shutil.disk_usage(root).free
    advice = "features.precision=fp16 or bf16, fewer examples, or features.cache=false"
    if size > limit_gib * 2**30:
        raise DataError(
            f"features.limit_gib={limit_gib:g}: the features would take {_describe(description)}; raise the limit, or "
            f"use {advice}"
        )
    if missing > free:
        raise DataError(
            f"dataset.cache_dir={root}: the features take {_describe(description)}, {_format_gib(missing)} of them "
            f"not yet written, but only {_format_gib(free)} is free; choose another folder, or use {advice}"
        )


def _describe(description: Description) -> str:
    return (
        f"{_format_gib(count_bytes(description))} ({description['tokens']} tokens, {len(description['states'])} "
        f"states of width {description['width']} in {description['precision']})"
    )


def _format_gib(size: int) -> str:
    return f"{size / 2**30:.3g} GiB"


def _compute_share(
    partial: Path,
    examples: ExampleSet,
    states: tuple[int, ...],
    compute: Compute,
    collate: Collate,
    batch_tokens: int,
    processes: tuple[int, int],
) -> None:
    """Compute and store the hidden states that this process is responsible for, the longest texts first."""
    rank, world = processes
    with FeatureWriter(partial) as writer:
        share = list(_split_batches(writer.lengths, batch_tokens))[rank::world]
        missing = [rows for rows in share if not writer.finished[rows].all()]
        tokens = sum(int(writer.lengths[rows].sum()) for rows in missing)
        with progress("features", tokens, shown=rank == 0) as advance:
            for rows in missing:
                batch = collate([examples[row] for row in writer.order[rows].tolist()])
                writer.write(rows, compute(batch, states))
                advance(int(writer.lengths[rows].sum()))


def _split_batches(lengths: np.ndarray, batch_tokens: int) -> Iterator[slice]:
    """Yield batches as slices of rows sorted by length, with at most ``batch_tokens`` tokens including padding."""
    first = 0
    while first < len(lengths):
        last = min(first + max(1, batch_tokens // int(lengths[first])), len(lengths))
        yield slice(first, last)
        first = last
