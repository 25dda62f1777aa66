"""Kinds of data, and of what is predicted of labelled ones: all that the rest of the package knows of each.

Code is named as `"module:name"`, imported when needed, and told those things that its arguments name, so that a new
kind is its settings, its module and an entry here. Imports neither torch nor transformers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, cast

from adadepth.settings import (
    ChoiceConfig,
    CorpusConfig,
    DatasetConfig,
    LabelledConfig,
    QuestionConfig,
    Source,
    StreamConfig,
    TableConfig,
    TaggingConfig,
)
from adadepth.settings.data import (
    AdditionConfig,
    AgreementConfig,
    HopsConfig,
    LabelledUnit,
    MazeConfig,
    MazePathConfig,
    ParityConfig,
    PuzzleTableConfig,
    SentEvalConfig,
    SudokuConfig,
    TreebankConfig,
)
from adadepth.settings.plugins import installed, load

Problem = Literal[
    "classification", "multi_label", "regression", "tagging", "question_answering", "multiple_choice", "puzzle"
]


@dataclass(frozen=True)
class Kind:
    """What is known of a kind of data.

    Attributes:
        settings: What `dataset=NAME` fills.
        problem: What is predicted of them, or a function of the settings that says so; None: not labelled.
        loader: From the settings to `LabelledData`; is told `tokenizer`, `seed`, `cls_tokens` and `double_cls_pairs`.
        columns: What a model reads of a row: the setting that names the column, or the columns, else the column itself.
    """

    settings: type[DatasetConfig]
    problem: Problem | Callable[[Any], Problem] | None = None
    loader: str | None = None
    columns: str = "text"


@dataclass(frozen=True)
class Predicted:
    """What is known of a kind of prediction.

    Attributes:
        scorer: Makes the `Scorer` of an evaluation set; is told `model`, `data`, `examples`, `groups` (the classes of
            the set), `dataset` (its settings) and `wants_rows`.
        head: Which of a family's heads predicts it.
        what: What such data do, for messages.
        has_classes: Whether the head has a class for every label of the data, into which evaluation sorts units.
        studies_exits: Whether `exit_rules` compares rules on such predictions.
    """

    scorer: str
    head: str
    what: str
    has_classes: bool = True
    studies_exits: bool = True


PREDICTED: dict[Problem, Predicted] = {
    "classification": Predicted("adadepth.evaluation.sequences:SequenceScorer", "classification", "has classes"),
    "multi_label": Predicted(
        "adadepth.evaluation.sequences:SequenceScorer",
        "classification",
        "has several labels a text",
        studies_exits=False,
    ),
    "regression": Predicted("adadepth.evaluation.sequences:SequenceScorer", "classification", "has values"),
    "tagging": Predicted("adadepth.evaluation.tagging:TaggingScorer", "tagging", "tags words"),
    "question_answering": Predicted(
        "adadepth.evaluation.questions:QuestionScorer",
        "question_answering",
        "answers questions",
        has_classes=False,
        studies_exits=False,
    ),
    "multiple_choice": Predicted(
        "adadepth.evaluation.choices:ChoiceScorer",
        "multiple_choice",
        "chooses among endings",
        has_classes=False,
        studies_exits=False,
    ),
    "puzzle": Predicted("adadepth.evaluation.puzzles:PuzzleScorer", "puzzle", "has puzzles"),
}


def _of_sentences(dataset: LabelledConfig) -> Problem:
    return cast(Problem, str(dataset.problem))


def _of_hops(dataset: HopsConfig) -> Problem:
    return "tagging" if dataset.unit is LabelledUnit.token else "classification"


_SENTENCES = "adadepth.data.labelled.sentences:load_sentences"

KINDS: dict[str, Kind] = {
    "addition_task": Kind(AdditionConfig, "tagging", "adadepth.data.generated.addition:load_addition"),
    "agreement_task": Kind(AgreementConfig, _of_sentences, _SENTENCES, "text_columns"),
    "corpus": Kind(CorpusConfig, columns="text_column"),
    "hops_task": Kind(HopsConfig, _of_hops, "adadepth.data.generated.hops:load_hops"),
    "labelled": Kind(LabelledConfig, _of_sentences, _SENTENCES, "text_columns"),
    "maze_path_task": Kind(MazePathConfig, "puzzle", "adadepth.data.puzzles.generated:load_maze_path", "question"),
    "maze_task": Kind(MazeConfig, "tagging", "adadepth.data.generated.maze:load_maze"),
    "multiple_choice": Kind(ChoiceConfig, "multiple_choice", "adadepth.data.labelled.multiple_choice:load_choices"),
    "parity_task": Kind(ParityConfig, "classification", "adadepth.data.generated.parity:load_parity"),
    "puzzles": Kind(PuzzleTableConfig, "puzzle", "adadepth.data.puzzles.table:load_puzzle_table", "question_column"),
    "question_answering": Kind(
        QuestionConfig, "question_answering", "adadepth.data.labelled.question_answering:load_questions"
    ),
    "senteval_task": Kind(SentEvalConfig, _of_sentences, _SENTENCES, "text_columns"),
    "stream": Kind(StreamConfig, columns="text_column"),
    "sudoku_task": Kind(SudokuConfig, "puzzle", "adadepth.data.puzzles.generated:load_sudoku", "question"),
    "tagging": Kind(TaggingConfig, "tagging", "adadepth.data.labelled.tagging:load_tagging", "token_column"),
    "trees": Kind(TreebankConfig),
}


def kind_of(dataset: DatasetConfig) -> Kind:
    """The kind that settings are of, or that those of an installed package extend."""
    known = {kind.settings: kind for kind in KINDS.values()}
    return next(known[each] for each in type(dataset).__mro__ if each in known)


def problem_of(dataset: DatasetConfig) -> Problem | None:
    """What is predicted of a data set; None: it is not labelled."""
    problem = kind_of(dataset).problem
    return problem(dataset) if callable(problem) else problem


def columns_of(dataset: DatasetConfig) -> list[str]:
    """The columns of a table that a model reads which was trained on such data."""
    about = kind_of(dataset).columns
    named = getattr(dataset, about, about)
    return [named] if isinstance(named, str) else list(named)


def called(place: str, *values: Any, **known: Any) -> Any:
    """What `"module:name"` returns for some values, and for those of the known things that its arguments name."""
    function = load(place)
    wanted = inspect.signature(function).parameters
    return function(*values, **{name: value for name, value in known.items() if name in wanted})


GROUP = "adadepth.datasets"

# What is predicted follows from which of these a data set's settings extend.
_TABLES = (LabelledConfig, TaggingConfig, QuestionConfig, ChoiceConfig)


@dataclass(frozen=True)
class DataSet:
    """All that is known of a data set of an installed package, which reads its tables itself.

    Attributes:
        settings: A subclass of `LabelledConfig` (classes or values of texts), `TaggingConfig`, `QuestionConfig` or
            `ChoiceConfig`, whose `name` is the data set's and whose `source` is `local`: what `dataset=NAME` fills.
        tables: `"module:function"`: from these settings to an `adadepth.data.text.tables.Table` for every split, by
            its name. Tokens, labels, the cache, held-out rows and batches are made of them as of any other table.
    """

    settings: type[TableConfig]
    tables: str


@cache
def installed_data_sets() -> Mapping[str, DataSet]:
    """The data sets of installed packages by name.

    Raises:
        ConfigError: If one is broken, or has a name that is taken.
    """
    return installed(GROUP, "data set", KINDS, _wrong)


def dataset_schemas() -> dict[str, type[DatasetConfig]]:
    """The settings of every kind of data by the name that YAML files extend."""
    own = {name: kind.settings for name, kind in KINDS.items()}
    return own | {name: each.settings for name, each in installed_data_sets().items()}


def installed_data_set(dataset: DatasetConfig) -> DataSet | None:
    """The data set of an installed package that these settings are of; None: of this package's own kinds."""
    return next((each for each in installed_data_sets().values() if type(dataset) is each.settings), None)


def _wrong(descriptor: object, name: str) -> str | None:
    """What keeps an object from being the descriptor of the data set of that name."""
    if not isinstance(descriptor, DataSet):
        return f"must be an adadepth.settings.kinds.DataSet, not {type(descriptor).__name__}"
    settings = descriptor.settings
    if not issubclass(settings, _TABLES):
        known = ", ".join(kind.__name__ for kind in _TABLES)
        return f"its settings must extend one of {known}, not {settings.__name__}"
    if settings.name != name:
        return f"its settings call it {settings.name!r}"
    if settings.source is not Source.local:
        return f"its settings must have source=local, not {settings.source}"
    if descriptor.tables.count(":") != 1:
        return f"{descriptor.tables!r} must be 'module:function'"
    return None
