"""Loaders and editors of the built-in dataset types, and the loading of a run's data with them.

The settings of a data set select both by the nearest class among their bases. A `Kind` of an installed package may have
its own; see `adadepth.config.kinds`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from adadepth.config import (
    ChoiceConfig,
    CorpusConfig,
    DatasetConfig,
    LabelledConfig,
    QuestionConfig,
    StreamConfig,
    TaggingConfig,
    TokenizerConfig,
)
from adadepth.config.class_names import number_classes, shorten
from adadepth.config.data import (
    AdditionConfig,
    CausalConfig,
    ChatConfig,
    HopsConfig,
    LengthsConfig,
    ManoConfig,
    MazeConfig,
    MazePathConfig,
    ParityConfig,
    PuzzleTableConfig,
    SudokuConfig,
    TraceConfig,
)
from adadepth.config.kinds import PREDICTED, get_kind
from adadepth.config.plugins import call_accepting
from adadepth.data.editable_grid import EditableGrid
from adadepth.data.generated.addition import ADDITION_GRID, load_addition
from adadepth.data.generated.hops import HOPS_GRID, load_hops
from adadepth.data.generated.lengths import load_lengths
from adadepth.data.generated.mano import load_mano
from adadepth.data.generated.maze import MAZE_GRID, load_maze
from adadepth.data.generated.parity import load_parity
from adadepth.data.generated.variable_assignment import load_trace
from adadepth.data.labelled.multiple_choice import load_choices
from adadepth.data.labelled.question_answering import load_questions
from adadepth.data.labelled.sequence_classification import load_sentences
from adadepth.data.labelled.token_classification import load_tagging
from adadepth.data.pretraining.load import load_pretraining_data
from adadepth.data.puzzles.folders import load_puzzle_table
from adadepth.data.puzzles.generated import MAZE_PATH_GRID, SUDOKU_GRID, load_maze_path, load_sudoku
from adadepth.data.run_data import RunData
from adadepth.data.streams.blocks import load_text_blocks
from adadepth.data.streams.conversations import load_conversations
from adadepth.data.streams.load import load_language_data
from adadepth.errors import DataError

if TYPE_CHECKING:
    from adadepth.data.text.special_tokens import DoubleCls

_Entry = TypeVar("_Entry")

LOADERS: Mapping[type[DatasetConfig], Callable[..., Any]] = {
    AdditionConfig: load_addition,
    CausalConfig: load_text_blocks,
    ChatConfig: load_conversations,
    ChoiceConfig: load_choices,
    CorpusConfig: load_pretraining_data,
    HopsConfig: load_hops,
    LabelledConfig: load_sentences,
    LengthsConfig: load_lengths,
    ManoConfig: load_mano,
    MazeConfig: load_maze,
    MazePathConfig: load_maze_path,
    ParityConfig: load_parity,
    PuzzleTableConfig: load_puzzle_table,
    QuestionConfig: load_questions,
    StreamConfig: load_language_data,
    SudokuConfig: load_sudoku,
    TaggingConfig: load_tagging,
    TraceConfig: load_trace,
}
_GRIDS: Mapping[type[DatasetConfig], EditableGrid] = {
    AdditionConfig: ADDITION_GRID,
    HopsConfig: HOPS_GRID,
    MazeConfig: MAZE_GRID,
    MazePathConfig: MAZE_PATH_GRID,
    SudokuConfig: SUDOKU_GRID,
}


def load_run_data(dataset: DatasetConfig, **options: Any) -> Any:
    """Load the data set of a run, with those of the options that its loader accepts."""
    importer = get_kind(dataset).loader
    loader = _find_nearest(LOADERS, dataset) if importer is None else importer()
    assert loader is not None, "validated"
    return call_accepting(loader, dataset, **options)


def find_editable_grid(dataset: DatasetConfig) -> EditableGrid | None:
    """Return the editor of a data set's examples, or None if they can only be shown."""
    importer = get_kind(dataset).board
    return _find_nearest(_GRIDS, dataset) if importer is None else importer()


def load_labelled_data(
    dataset: DatasetConfig,
    tokenizer: TokenizerConfig,
    seed: int,
    *,
    cls_tokens: int = 1,
    double_cls_pairs: DoubleCls = "first",
    classes: Sequence[str] | None = None,
) -> RunData:
    """Load labelled data for fine-tuning: read and tokenise them, or load them from the cache.

    Several processes may call this function at once. One of them does the work, and the others wait.

    Args:
        dataset: Settings of a labelled data set.
        tokenizer: Settings of an existing tokenizer or of one to be trained. Data with symbols of their own do not use
            it.
        seed: Seed of the random parts, such as shifted words and generated examples.
        cls_tokens: Number of leading [CLS] tokens, which count towards ``dataset.sequence_length``. With 0 the model
            needs none. Any tokenizer with a padding token can then be used, with its own special tokens.
        double_cls_pairs: Setting for pairs. With ``both``, the second text of a pair also gets the additional [CLS].
        classes: Classes of a model, in its order, or None for the order of the data. Labels are matched by name and
            numbered as in the model.

    Raises:
        DataError: If the data or the tokenizer lack something, or if the model lacks a class. The message is one line.
    """
    data: RunData = load_run_data(
        dataset,
        tokenizer=tokenizer,
        seed=seed,
        cls_tokens=cls_tokens,
        double_cls_pairs=double_cls_pairs,
        classes=classes,
    )
    if classes is not None and PREDICTED[data.problem].has_classes and data.labels:
        numbers = number_classes(data.labels, classes, f"dataset.name={dataset.name}")
        if numbers != list(range(len(classes))):  # drawn data, whose classes have fixed numbers
            raise DataError(
                f"dataset.name={dataset.name}: its classes are {shorten(data.labels)}; the model predicts "
                f"{shorten(classes)}"
            )
    return data


def _find_nearest(entries: Mapping[type[DatasetConfig], _Entry], dataset: DatasetConfig) -> _Entry | None:
    """Return the entry of a settings class or of its nearest base class that has one, or None."""
    return next((entries[base] for base in type(dataset).__mro__ if base in entries), None)
