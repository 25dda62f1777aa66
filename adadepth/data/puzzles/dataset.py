"""Data sets of puzzles, with the cells of a puzzle, the cells of its solution, and its difficulty."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

from adadepth.config.data import CellCount
from adadepth.data.batches import Examples
from adadepth.data.randomness import FIXED_EPOCH, Purpose, random_generator, split_item
from adadepth.data.run_data import RunData, count_set_examples, summarise_data
from adadepth.errors import ConfigError, DataError

if TYPE_CHECKING:
    from adadepth.config import DatasetConfig

PADDING = "[PAD]"  # token 0, as in the published files; as a label it is ignored
Symmetry = Callable[[np.ndarray, np.ndarray, np.random.Generator], tuple[np.ndarray, np.ndarray]]


class PuzzleExamples(Dataset[dict[str, Any]]):
    """Puzzles with their solutions, augmented in training by a symmetry that is drawn at random in every epoch.

    An example is a pure function of (seed, epoch, index).

    Args:
        puzzles: Tokens of the cells, (rows, L).
        solutions: Tokens of the solved cells, (rows, L), with 0 at cells without an answer.
        difficulty: Difficulty of each row, (rows,) int64.
        attributes: Mapping from names to whole numbers, (rows,), by which reports group puzzles.
        starts: First row of each example, followed by the number of rows, (examples + 1,) int64. The rows of one
            example are the same puzzle under symmetries, and training draws one of them in every epoch. None means one
            row per example.
        numbers: Number of each example's first row in the data, (examples,) int64, or None if the set holds all rows of
            the data.

    Attributes:
        symmetry: Function that applies a random symmetry to a puzzle and its solution, each (L,), or None for no
            symmetry.
        seed: Seed of the random symmetries.
    """

    def __init__(
        self,
        puzzles: np.ndarray,
        solutions: np.ndarray,
        difficulty: np.ndarray,
        attributes: Mapping[str, np.ndarray] | None = None,
        starts: np.ndarray | None = None,
        numbers: np.ndarray | None = None,
    ) -> None:
        self.puzzles, self.solutions, self.difficulty = puzzles, solutions, difficulty
        self.attributes = dict(attributes or {})
        self.starts = np.arange(len(puzzles) + 1) if starts is None else starts
        self.numbers = self.starts[:-1] if numbers is None else numbers
        self.symmetry: Symmetry | None = None
        self.seed = 0

    def select(self, examples: np.ndarray) -> PuzzleExamples:
        """Return a data set of only the puzzles with the given numbers."""
        first, size = self.starts[examples], self.starts[examples + 1] - self.starts[examples]
        starts = np.concatenate([[0], np.cumsum(size)])
        rows = np.repeat(first - starts[:-1], size) + np.arange(starts[-1])
        attributes = {name: values[rows] for name, values in self.attributes.items()}
        columns = (self.puzzles[rows], self.solutions[rows], self.difficulty[rows], attributes, starts)
        return PuzzleExamples(*columns, self.numbers[examples])

    def exclude(self, unwanted: np.ndarray) -> PuzzleExamples:
        """Return a data set without the puzzles that a mask selects, (examples,) bool."""
        return self.select(np.flatnonzero(~unwanted))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def lengths(self) -> np.ndarray:
        """Return the number of cells of each puzzle, (examples,) int64."""
        return np.full(len(self), self.puzzles.shape[1])

    def __getitem__(self, item: int | tuple[int, int]) -> dict[str, Any]:
        epoch, index = split_item(item)
        row, rows = self.starts[index], self.starts[index + 1] - self.starts[index]
        is_drawn = epoch != FIXED_EPOCH and (rows > 1 or self.symmetry is not None)
        generator = random_generator(self.seed, Purpose.SYMMETRY, epoch, index) if is_drawn else None
        if generator is not None and rows > 1:
            row += generator.integers(rows)
        puzzle, solution = self.puzzles[row], self.solutions[row]
        if generator is not None and self.symmetry is not None:
            puzzle, solution = self.symmetry(puzzle, solution, generator)
        return {"index": index, "input_ids": puzzle, "labels": solution, "difficulty": int(self.difficulty[row])}


def count_cells(
    puzzles: np.ndarray, solutions: np.ndarray, counted: CellCount
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the difficulty of each puzzle, (rows,) int64, and the number of given cells or the path length, by name.

    Both follow from the number of cells that the solution fills in.
    """
    filled = (puzzles != solutions).sum(axis=1)
    if counted is CellCount.path_length:
        return filled + 1, {"path length": filled + 1}
    return filled, {"givens": puzzles.shape[1] - filled}


def collate_puzzles(examples: Examples) -> dict[str, Tensor]:
    """Return a batch of puzzles, with all columns int64.

    The batch has ``input_ids``, ``attention_mask`` and ``labels`` (B, L), and ``index`` and ``difficulty`` (B,). Labels
    are -100 at cells without an answer.
    """
    cells, answers = (
        torch.from_numpy(np.stack([example[name] for example in examples]).astype(np.int64))
        for name in ("input_ids", "labels")
    )
    numbers = {name: torch.tensor([example[name] for example in examples]) for name in ("index", "difficulty")}
    return {
        "input_ids": cells,
        "attention_mask": torch.ones_like(cells),
        "labels": answers.masked_fill(answers == 0, -100),
        **numbers,
    }


def build_puzzle_tokenizer(symbols: Sequence[str]) -> PreTrainedTokenizerFast:
    """Return a tokenizer for puzzles in text form, with one character per cell. Symbol n is token n + 1."""
    words = [PADDING, *symbols]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=PADDING))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PADDING)


def build_puzzle_data(
    dataset: DatasetConfig,
    train: PuzzleExamples,
    evaluation: Mapping[str, PuzzleExamples],
    symbols: Sequence[str],
    facts: Mapping[str, Any],
) -> RunData:
    """Build the data of a run on puzzles from its examples.

    Args:
        dataset: Settings with the name of the data set and its metrics.
        train: Training puzzles.
        evaluation: Mapping from the names of evaluation sets to their puzzles.
        symbols: Symbols in order. Symbol n is token n + 1.
        facts: Additional entries of the summary, for reports.
    """
    settings: Any = dataset
    cells = train.puzzles.shape[1]
    if cells > dataset.sequence_length:
        raise ConfigError(f"dataset.sequence_length={dataset.sequence_length}: a puzzle has {cells} cells")
    if (train.puzzles == train.solutions).all():
        raise DataError(
            f"dataset={dataset.name}: nothing can be learned, because every training puzzle equals its answer"
        )
    return RunData(
        train=train,
        evaluation=evaluation,
        tokenizer=build_puzzle_tokenizer(symbols),
        collate=collate_puzzles,
        summary=summarise_data(dataset, count_set_examples(train, evaluation), facts={"cells": cells, **facts}),
        problem="puzzle",
        labels=(PADDING, *symbols),
        metrics=tuple(settings.metrics),
        has_difficulty=True,
        has_special_tokens=False,
        model_fields={"cells": cells},
    )
