"""Puzzles on disk: tables, and folders as the published builders write them."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adadepth.config.data import PuzzleTableConfig
from adadepth.data.labelled import bigram_shift
from adadepth.data.puzzles import generated

SUDOKU, MAZE = ".123456789", "# SGo"
Group = Sequence[tuple[np.ndarray, np.ndarray]]  # a puzzle and its augmentations: tokens of cells and of answers


_drawn = cache(
    generated.draw_sudoku
)  # drawing takes most of a run of seconds, and every run of a root draws the same puzzles
_usable = cache(bigram_shift.select_sentences)  # of the same embedded documents every time
_encode = bigram_shift._encode
_encoded: dict[Any, Any] = {}


@contextmanager
def cache_generated_data() -> Iterator[None]:
    """Draw each Sudoku setting, and read the sentences of bigram shift, once a process."""

    def copy_puzzles(*args: Any, **settings: Any) -> tuple[np.ndarray, np.ndarray]:
        puzzles, solutions = _drawn(*args, **settings)
        return puzzles.copy(), solutions.copy()

    def select_usable(documents: Iterable[str]) -> list[str]:
        return list(_usable(tuple(documents)))

    def encode_once(tokenizer: Any, sentences: list[str]) -> list[list[np.ndarray]]:
        key = (tokenizer.backend_tokenizer.to_str(), tuple(sentences))
        if key not in _encoded:
            _encoded[key] = _encode(tokenizer, sentences)
        return [list(sentence) for sentence in _encoded[key]]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generated, "draw_sudoku", copy_puzzles)
        patch.setattr(bigram_shift, "select_sentences", select_usable)
        patch.setattr(bigram_shift, "_encode", encode_once)
        yield


def write_puzzle_table(path: Path, groups: Sequence[Group], symbols: str) -> None:
    """Write the first puzzle of every group as text, with the columns of Sudoku-Extreme."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["source", "question", "answer", "rating"])
        for group in groups:
            texts = ["".join(symbols[token - 1] for token in cells) for cells in group[0]]
            writer.writerow(["drawn", *texts, 0])


def write_puzzle_arrays(folder: Path, splits: Mapping[str, Sequence[Group]], symbols: str) -> Path:
    """Write the files of `build_sudoku_dataset.py` and `build_maze_dataset.py`: every puzzle is one example."""
    for split, groups in splits.items():
        (folder / split).mkdir(parents=True)
        sizes = [len(group) for group in groups]
        rows = [row for group in groups for row in group]
        arrays = {
            "inputs": np.stack([cells for cells, _ in rows]).astype(np.int64),
            "labels": np.stack([answer for _, answer in rows]).astype(np.uint8),
            "puzzle_identifiers": np.zeros(len(rows), dtype=np.int32),
            "puzzle_indices": np.arange(len(rows) + 1, dtype=np.int32),
            "group_indices": np.cumsum([0, *sizes], dtype=np.int32),
        }
        for name, values in arrays.items():
            np.save(folder / split / f"all__{name}.npy", values)
        facts = {
            "seq_len": len(rows[0][0]), "vocab_size": len(symbols) + 1, "pad_id": 0, "ignore_label_id": 0,
            "blank_identifier_id": 0, "num_puzzle_identifiers": 1, "total_groups": len(groups),
            "mean_puzzle_examples": 1, "total_puzzles": len(groups), "sets": ["all"],
        }  # fmt: skip
        (folder / split / "dataset.json").write_text(json.dumps(facts))
    (folder / "identifiers.json").write_text(json.dumps(["<blank>"]))
    return folder


def make_sudoku_table(path: Path, **changes: Any) -> PuzzleTableConfig:
    """Return the settings of a local table with the columns of Sudoku-Extreme."""
    fields = {"name": "sudoku_extreme", "source": "local", "path": str(path), "evaluation_splits": ["test"]}
    return PuzzleTableConfig(**{**fields, **changes})
