"""Kinds of data, of what is predicted of labelled ones, and of training: all that the core knows of each.

A kind is declared once, here or in an installed package. Code is named as `"module:name"`, imported when needed, and
told those things that its arguments name, so that a new kind is its settings, its module and a `Kind`. Imports neither
torch nor transformers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
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
    TaggingConfig,
    Task,
)
from adadepth.settings.data import (
    AdditionConfig,
    AgreementConfig,
    CausalConfig,
    HopsConfig,
    LabelledUnit,
    ManoConfig,
    MazeConfig,
    MazePathConfig,
    ParityConfig,
    PuzzleTableConfig,
    Representation,
    SentEvalConfig,
    SudokuConfig,
    TraceConfig,
)
from adadepth.settings.plugins import installed, load

Problem = Literal[
    "classification",
    "multi_label",
    "regression",
    "tagging",
    "question_answering",
    "multiple_choice",
    "puzzle",
    "language_model",
]


@dataclass(frozen=True)
class Kind:
    """All that is known of a kind of data. Of an installed package: what its settings extend says what it leaves out.

    Attributes:
        settings: What `dataset=NAME` fills; `name` is the data set's.
        problem: What is predicted of them, or a function of the settings that says so; None: not labelled.
        loader: From the settings to the data of a run, `LabelledData` where they are labelled, else what the task
            reads; is told `tokenizer` and `seed`, and of labelled data `cls_tokens`, `double_cls_pairs` and `classes`.
        columns: What a model reads of a row: the setting that names the column, or the columns, else the column itself.
        tables: Reads a table that is neither of the hub nor a file a split: from the settings to a
            `adadepth.data.text.data_table.DataTable` a split, by its name. Tokens, labels, the cache, held-out rows and
            batches are made of them as of any other table.
        checks: What the settings need of each other and of the configuration: from the settings, and `config` where an
            argument has that name, to a line for every mistake.
        scorer: The `Scorer` of an evaluation set, where it is not that of what is predicted; see `Predicted`.
        metrics: What an evaluation measures besides the losses of the family's own; None: the losses, `score`, and what
            `dataset.metrics` names.
        reading: How a language model reads it, which its family has to say, too: `streams`, by a model that carries
            states from one segment to the next, or `blocks`, packed documents, told apart by `documents` of its
            forward; see `Family.text`. None: it is not running text for one.
        tasks: What `task` may be.
        evaluate: What mode=evaluate does in place of the task's evaluation, from the configuration to metrics; such
            data are measured on and nothing else.
        positions: The setting that says how many positions a model must have.
        vectors: Whether an example is a vector, and no sequence of tokens.
        own_symbols: Whether tokens are symbols that no pretrained tokenizer has.
        is_probed: Whether mode=probe reads them.
        extensions: What training on them needs beside the loop; see `Family.extensions`.
        sections: Further sections of the report of such a run; see `Family.sections`.
        board: How an example is edited, an `adadepth.data.board.Board`; None: it is shown, and not edited.
    """

    settings: type[DatasetConfig]
    problem: Problem | Callable[[Any], Problem] | None = None
    loader: str | None = None
    columns: str = "text"
    tables: str | None = None
    checks: tuple[str, ...] = ()
    scorer: str | None = None
    metrics: tuple[str, ...] | None = None
    tasks: tuple[Task, ...] = (Task.finetune,)
    reading: str | None = None
    evaluate: str | None = None
    positions: str = "sequence_length"
    vectors: Callable[[Any], bool] = lambda dataset: False
    own_symbols: bool = False
    is_probed: bool = False
    extensions: tuple[str, ...] = ()
    sections: tuple[str, ...] = ()
    board: str | None = None

    @property
    def places(self) -> tuple[str, ...]:
        """What it names of code."""
        single = (self.loader, self.tables, self.scorer, self.evaluate, self.board)
        return (*filter(None, single), *self.checks, *self.extensions, *self.sections)


@dataclass(frozen=True)
class Regime:
    """What is known of a task, whose module of `adadepth.tasks` is called like it.

    Attributes:
        reads: The data it takes, for messages.
        example: An option of the group `dataset` with such data; by how a family reads text where that decides it.
        head: Which of a family's heads it trains; None: that of what is predicted of the data.
    """

    reads: str
    example: str | Mapping[str, str]
    head: str | None = None

    def describe_data(self, text: str) -> str:
        """Say what data it takes, with an example for a family that reads text in this way."""
        example = (
            self.example if isinstance(self.example, str) else self.example.get(text, next(iter(self.example.values())))
        )
        return f"{self.reads}, e.g. dataset={example}"


REGIMES: dict[Task, Regime] = {
    Task.pretrain: Regime("a corpus", "python_docs", "pretraining"),
    Task.finetune: Regime("labelled data", "cola"),
    Task.language_model: Regime(
        "running text", {"streams": "stream_python_docs", "blocks": "causal_python_docs"}, "language_model"
    ),
    Task.architecture_search: Regime("streams of text", "stream_python_docs", "search"),
}


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
        "adadepth.evaluation.multiple_choice:ChoiceScorer",
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


def _of_vectors(dataset: ParityConfig) -> bool:
    return dataset.representation is Representation.vectors


def _checks(*names: str) -> tuple[str, ...]:
    return tuple(f"adadepth.cli.checks.data:check_{name}" for name in names)


_DATA = "adadepth.data"
_SENTENCES = f"{_DATA}.labelled.sentences:load_sentences"
_TABLE = ("table", "class_weights")
_LABELLED = (*_TABLE, "labelled")

# What an evaluation measures, so that a wrong name fails before the training, not after it.
PRETRAINING_METRICS = ("loss", "mlm_loss", "mlm_accuracy", "sop_loss", "sop_accuracy")
LANGUAGE_METRICS = ("loss", "lm_loss", "perplexity", "word_perplexity", "bits_per_character")

KINDS: dict[str, Kind] = {
    "addition_task": Kind(
        AdditionConfig, "tagging", f"{_DATA}.generated.addition:load_addition", checks=_checks("addition"),
        positions="field", own_symbols=True, board=f"{_DATA}.generated.addition:ADDITION_BOARD",
    ),
    "agreement_task": Kind(
        AgreementConfig, _of_sentences, _SENTENCES, "text_columns", f"{_DATA}.labelled.splits:read_agreement",
        _checks(*_LABELLED, "local"), is_probed=True,
    ),
    "corpus": Kind(
        CorpusConfig, None, f"{_DATA}.pretraining.load:load_pretraining_data", "text_column",
        checks=_checks("text", "corpus"), metrics=PRETRAINING_METRICS, tasks=(Task.pretrain,),
    ),
    "hops_task": Kind(
        HopsConfig, _of_hops, f"{_DATA}.generated.hops:load_hops", checks=_checks("hops"), own_symbols=True,
        board=f"{_DATA}.generated.hops:HOPS_BOARD",
    ),
    "labelled": Kind(
        LabelledConfig, _of_sentences, _SENTENCES, "text_columns", checks=_checks(*_LABELLED), is_probed=True
    ),
    "mano_task": Kind(
        ManoConfig, "tagging", f"{_DATA}.generated.mano:load_mano", checks=_checks("mano"), own_symbols=True
    ),
    "maze_path_task": Kind(
        MazePathConfig, "puzzle", f"{_DATA}.puzzles.generated:load_maze_path", "question",
        board=f"{_DATA}.puzzles.generated:MAZE_PATH_BOARD",
    ),
    "maze_task": Kind(
        MazeConfig, "tagging", f"{_DATA}.generated.maze:load_maze", checks=_checks("maze"),
        positions="field", own_symbols=True, board=f"{_DATA}.generated.maze:MAZE_BOARD",
    ),
    "multiple_choice": Kind(
        ChoiceConfig, "multiple_choice", f"{_DATA}.labelled.multiple_choice:load_choices",
        checks=_checks(*_TABLE, "choices"),
    ),
    "parity_task": Kind(
        ParityConfig, "classification", f"{_DATA}.generated.parity:load_parity", checks=_checks("parity"),
        vectors=_of_vectors,
    ),
    "puzzles": Kind(
        PuzzleTableConfig, "puzzle", f"{_DATA}.puzzles.folders:load_puzzle_table", "question_column",
        checks=_checks(*_TABLE),
    ),
    "question_answering": Kind(
        QuestionConfig, "question_answering", f"{_DATA}.labelled.question_answering:load_questions",
        checks=_checks(*_TABLE, "questions"),
    ),
    "senteval_task": Kind(
        SentEvalConfig, _of_sentences, _SENTENCES, "text_columns", f"{_DATA}.labelled.probing:senteval_tables",
        _checks(*_LABELLED, "local", "senteval"), is_probed=True,
    ),
    "causal": Kind(
        CausalConfig, None, f"{_DATA}.streams.blocks:load_text_blocks", "text_column",
        checks=_checks("text", "stream", "causal"), metrics=LANGUAGE_METRICS, tasks=(Task.language_model,),
        scorer="adadepth.evaluation.blocks:BlockScorer", reading="blocks",
    ),
    "stream": Kind(
        StreamConfig, None, f"{_DATA}.streams.load:load_language_data", "text_column",
        checks=_checks("text", "stream"), metrics=LANGUAGE_METRICS,
        tasks=(Task.language_model, Task.architecture_search),
        extensions=("adadepth.training.extension:RecurrentMemory",), reading="streams",
    ),
    "sudoku_task": Kind(
        SudokuConfig, "puzzle", f"{_DATA}.puzzles.generated:load_sudoku", "question",
        board=f"{_DATA}.puzzles.generated:SUDOKU_BOARD",
    ),
    "tagging": Kind(
        TaggingConfig, "tagging", f"{_DATA}.labelled.tagging:load_tagging", "token_column",
        checks=_checks(*_TABLE, "tagging"),
    ),
    "trace_task": Kind(
        TraceConfig, "tagging", f"{_DATA}.generated.trace:load_trace", checks=_checks("trace"), own_symbols=True
    ),
}  # fmt: skip


@cache
def kinds() -> Mapping[str, Kind]:
    """Every kind of data by the name that YAML files extend, those of installed packages last.

    Raises:
        ConfigError: If a package's is broken, or has a name that is taken.
    """
    found = installed(GROUP, "data set", KINDS, _wrong)
    return KINDS | {name: _completed(each) for name, each in found.items()}


def kind_of(dataset: DatasetConfig) -> Kind:
    """The kind that settings are of, or that their class extends."""
    found = _extended(type(dataset), kinds())
    assert found is not None, "only what is known can be composed"
    return found


def _extended(settings: type, among: Mapping[str, Kind]) -> Kind | None:
    """The kind that a class of settings extends most closely, or is of."""
    known = {kind.settings: kind for kind in among.values()}
    return next((known[each] for each in settings.__mro__ if each in known), None)


def _completed(own: Kind) -> Kind:
    """A package's kind with what the one that it extends says of all that it leaves out; checks of both are made."""
    base = _extended(own.settings, KINDS)
    if base is None:
        return own
    said = {each.name: value for each in fields(Kind) if (value := getattr(own, each.name)) != each.default}
    return replace(base, **{**said, "checks": base.checks + own.checks})


def problem_of(dataset: DatasetConfig) -> Problem | None:
    """What is predicted of a data set; None: it is not labelled."""
    problem = kind_of(dataset).problem
    return problem(dataset) if callable(problem) else problem


def trained_head(task: Task, dataset: DatasetConfig) -> str:
    """Which of a family's heads a task trains on a data set that it reads."""
    if (head := REGIMES[task].head) is not None:
        return head
    problem = problem_of(dataset)
    assert problem is not None, "validated"
    return PREDICTED[problem].head


def columns_of(dataset: DatasetConfig) -> list[str] | None:
    """The columns of a table that a model reads which was trained on such data; None: the table's names say which."""
    about = kind_of(dataset).columns
    named = getattr(dataset, about, about)
    return [named] if isinstance(named, str) else None if named is None else list(named)


def positions_read(dataset: DatasetConfig) -> tuple[str, int]:
    """The setting that says how many positions a model must know, and its value."""
    name = kind_of(dataset).positions
    return f"dataset.{name}", getattr(dataset, name)


def called(place: str, *values: Any, **known: Any) -> Any:
    """What `"module:name"` returns for some values, and for those of the known things that its arguments name."""
    function = load(place)
    wanted = inspect.signature(function).parameters
    return function(*values, **{name: value for name, value in known.items() if name in wanted})


def loaded_data(dataset: DatasetConfig, **known: Any) -> Any:
    """What the loader of such data reads, told what it asks for; see `Kind`."""
    loader = kind_of(dataset).loader
    assert loader is not None, "validated"
    return called(loader, dataset, **known)


GROUP = "adadepth.datasets"


def dataset_schemas() -> dict[str, type[DatasetConfig]]:
    """The settings of every kind of data by the name that YAML files extend."""
    return {name: kind.settings for name, kind in kinds().items()}


def _wrong(descriptor: object, name: str) -> str | None:
    """What keeps an object from being the descriptor of the data of that name."""
    if not isinstance(descriptor, Kind):
        return f"must be an adadepth.settings.kinds.Kind, not {type(descriptor).__name__}"
    settings = descriptor.settings
    if not issubclass(settings, DatasetConfig):
        return f"its settings must be a DatasetConfig, not {settings.__name__}"
    is_read = descriptor.loader is not None and (descriptor.problem is not None or descriptor.evaluate is not None)
    if _extended(settings, KINDS) is None and not is_read:
        known = ", ".join(kind.settings.__name__ for kind in KINDS.values())
        needed = "a loader and a problem, or a loader and evaluate"
        return f"it needs {needed}, or settings that extend one of {known}, not {settings.__name__}"
    if isinstance(descriptor.problem, str) and descriptor.problem not in PREDICTED:
        return f"its problem {descriptor.problem!r} must be one of {', '.join(PREDICTED)}"
    if settings.name != name:
        return f"its settings call it {settings.name!r}"
    if descriptor.tables is not None and getattr(settings, "source", None) is not Source.local:
        return f"its settings must have source=local, not {getattr(settings, 'source', None)}"
    if wrong := [place for place in descriptor.places if place.count(":") != 1]:
        return f"{wrong[0]!r} must be 'module:name'"
    return None
