"""Registries of dataset types, prediction types and training tasks.

Each type is declared once, here or in an installed package. Other packages find their part of a built-in type by its
settings or its problem: checks in `adadepth.cli.checks.data`, loaders and editors in `adadepth.data.registry`, and
scorers in `adadepth.evaluation.scorers`. The `Kind` of an installed package holds importers of them; see
`adadepth.config.plugins`. Functions are called with the values that their arguments name. This module does not import
torch or transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, cast

from adadepth.config import (
    ChoiceConfig,
    CorpusConfig,
    DatasetConfig,
    ExperimentConfig,
    LabelledConfig,
    QuestionConfig,
    Source,
    StreamConfig,
    TaggingConfig,
    Task,
)
from adadepth.config.data import (
    AdditionConfig,
    AgreementConfig,
    CausalConfig,
    ChatConfig,
    HopsConfig,
    LabelledUnit,
    LengthsConfig,
    ManoConfig,
    MazeConfig,
    MazePathConfig,
    ParityConfig,
    PuzzleTableConfig,
    Representation,
    SentEvalConfig,
    SequenceProblem,
    SudokuConfig,
    TraceConfig,
)
from adadepth.config.plugins import Importer, find_wrong_path, load_plugins, replace_paths

if TYPE_CHECKING:  # what descriptors import later
    from adadepth.data.editable_grid import EditableGrid
    from adadepth.data.text.table import DataTable
    from adadepth.evaluation.scorer import Scorer
    from adadepth.report.section import SectionEntry, SectionOf
    from adadepth.training.extension import Extension

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
    """Registry entry of a dataset type: its settings, its loader, its checks, and the task that trains on it.

    A descriptor in an installed package inherits missing fields from the type that it extends.

    Attributes:
        settings: Schema that `dataset=NAME` fills; its field `name` is the name of the data set.
        problem: Problem type, or a function of the settings that returns it, or None for data without labels.
        loader: Importer of the function of the settings that returns the data of a run, `adadepth.data.RunData`. The
            function may also take `tokenizer` and `seed`, and for labelled data `cls_tokens`, `double_cls_pairs` and
            `classes`. None: that of the built-in type that the settings extend.
        columns: Name of the setting that lists the input columns of a model, or the name of the single column.
        tables: Importer of a reader of tables that are neither on the hub nor stored as one file per split. The reader
            is a function of the settings that returns an `adadepth.data.text.table.DataTable` for every split, by name.
            Tokens, labels, the cache, held-out rows and batches are then made as from any other table.
        checks: Functions of the settings that yield one line per mistake. If a function has the argument `config`, it
            also gets the whole configuration. The checks of the built-in type that the settings extend come first.
        scorer: Importer of the class of an evaluation set's `Scorer`, if it differs from that of the problem. The class
            may take `model`, `data`, `examples`, `groups` (the classes of the set), `dataset` (its settings) and
            `wants_rows`.
        metrics: Metrics of an evaluation besides the losses of the model family. With None they are `score` and
            `dataset.metrics`.
        reading: Form in which a language model reads the text; the model family must support it, see `Family.text`.
            With `streams`, the model carries states from one segment to the next. With `blocks`, it reads packed
            documents, which the argument `documents` of its forward pass separates. None means that the data are not
            running text for a language model.
        tasks: Allowed values of `task`.
        evaluate: Importer of a function of the configuration that returns metrics. The function replaces the evaluation
            of the task, for data that are used for evaluation only.
        positions: Name of the setting with the number of positions that a model must have.
        vectors: Function of the settings that returns whether an example is a vector instead of a sequence of tokens.
        own_symbols: Whether tokens are special symbols that no pretrained tokenizer has.
        extensions: Importers of training extensions for such data; see `Family.extensions`.
        sections: Importers of additional sections in the report of a run; see `Family.sections`.
        board: Importer of the editor of an example, an `adadepth.data.editable_grid.EditableGrid`. None: that of the
            built-in type that the settings extend, if it has one.
    """

    settings: type[DatasetConfig]
    problem: Problem | Callable[[Any], Problem] | None = None
    loader: Importer[Callable[..., Any]] | None = None
    columns: str = "text"
    tables: Importer[Callable[[Any], dict[str, DataTable]]] | None = None
    checks: tuple[Callable[..., Iterator[str]], ...] = ()
    scorer: Importer[Callable[..., Scorer]] | None = None
    metrics: tuple[str, ...] | None = None
    tasks: tuple[Task, ...] = (Task.finetune,)
    reading: str | None = None
    evaluate: Importer[Callable[[ExperimentConfig], Any]] | None = None
    positions: str = "sequence_length"
    vectors: Callable[[Any], bool] = lambda dataset: False
    own_symbols: bool = False
    extensions: tuple[Importer[Callable[..., Extension | None]], ...] = ()
    sections: tuple[Importer[SectionOf | SectionEntry], ...] = ()
    board: Importer[EditableGrid] | None = None


_IMPORTED = ("loader", "tables", "scorer", "evaluate", "extensions", "sections", "board")  # see `replace_paths`


@dataclass(frozen=True)
class TaskSpec:
    """Registry entry of a training task, which the module of the same name in `adadepth.tasks` implements.

    Attributes:
        reads: Description of the data that the task reads, for messages.
        examples: Example options of the group `dataset` by `Family.text`. The first one is used for all other model
            families.
        head: Head of the model family that the task trains, or None for the head of the prediction type.
    """

    reads: str
    examples: Mapping[str, str]
    head: str | None = None

    def describe_data(self, text: str) -> str:
        """Describe in words what data the task needs, with an example for the model family."""
        example = self.examples.get(text, next(iter(self.examples.values())))
        return f"{self.reads}, e.g. dataset={example}"


TASKS: dict[Task, TaskSpec] = {
    Task.pretrain: TaskSpec("a corpus", {"": "python_docs"}, "pretraining"),
    Task.finetune: TaskSpec("labelled data", {"": "cola"}),
    Task.language_model: TaskSpec(
        "running text", {"streams": "stream_python_docs", "blocks": "causal_python_docs"}, "language_model"
    ),
    Task.architecture_search: TaskSpec("streams of text", {"streams": "stream_python_docs"}, "search"),
}


@dataclass(frozen=True)
class PredictionSpec:
    """Registry entry of a prediction type, such as classification, regression or tagging.

    Attributes:
        head: Head of a model family that makes the prediction.
        what: Phrase about such data for messages, such as "has classes".
        has_classes: Whether the head has one class per label of the data; evaluation then groups units by class.
        studies_exits: Whether `exit_rules` can compare exit rules on such predictions.
    """

    head: str
    what: str
    has_classes: bool = True
    studies_exits: bool = True


PREDICTED: dict[Problem, PredictionSpec] = {
    "classification": PredictionSpec("classification", "has classes"),
    "multi_label": PredictionSpec("classification", "has several labels per text", studies_exits=False),
    "regression": PredictionSpec("classification", "has values"),
    "tagging": PredictionSpec("tagging", "tags words"),
    "question_answering": PredictionSpec(
        "question_answering", "answers questions", has_classes=False, studies_exits=False
    ),
    "multiple_choice": PredictionSpec(
        "multiple_choice", "chooses among endings", has_classes=False, studies_exits=False
    ),
    "puzzle": PredictionSpec("puzzle", "has puzzles"),
}


def _get_labelled_problem(dataset: LabelledConfig) -> Problem:
    return cast(Problem, str(dataset.problem))


def _get_hops_problem(dataset: HopsConfig) -> Problem:
    return "tagging" if dataset.unit is LabelledUnit.token else "classification"


def _has_vectors(dataset: ParityConfig) -> bool:
    return dataset.representation is Representation.vectors


# Metrics of an evaluation, so that a wrong name fails before the training, not after it.
PRETRAINING_METRICS = ("loss", "mlm_loss", "mlm_accuracy", "sop_loss", "sop_accuracy")
LANGUAGE_METRICS = ("loss", "lm_loss", "perplexity", "word_perplexity", "bits_per_character", "bits_per_byte")

KINDS: dict[str, Kind] = {
    "addition_task": Kind(AdditionConfig, "tagging", positions="field", own_symbols=True),
    "agreement_task": Kind(AgreementConfig, _get_labelled_problem, columns="text_columns"),
    "corpus": Kind(
        CorpusConfig, columns="text_column", metrics=PRETRAINING_METRICS, tasks=(Task.pretrain,)
    ),
    "hops_task": Kind(HopsConfig, _get_hops_problem, own_symbols=True),
    "labelled": Kind(LabelledConfig, _get_labelled_problem, columns="text_columns"),
    "lengths_task": Kind(LengthsConfig, "tagging", own_symbols=True),
    "mano_task": Kind(ManoConfig, "tagging", own_symbols=True),
    "maze_path_task": Kind(MazePathConfig, "puzzle", columns="question"),
    "maze_task": Kind(MazeConfig, "tagging", positions="field", own_symbols=True),
    "multiple_choice": Kind(ChoiceConfig, "multiple_choice"),
    "parity_task": Kind(ParityConfig, "classification", vectors=_has_vectors),
    "puzzles": Kind(PuzzleTableConfig, "puzzle", columns="question_column"),
    "question_answering": Kind(QuestionConfig, "question_answering"),
    "senteval_task": Kind(SentEvalConfig, _get_labelled_problem, columns="text_columns"),
    "causal": Kind(
        CausalConfig, columns="text_column", metrics=LANGUAGE_METRICS, tasks=(Task.language_model,), reading="blocks"
    ),
    "chat": Kind(
        ChatConfig, columns="messages", metrics=LANGUAGE_METRICS, tasks=(Task.language_model,), reading="blocks"
    ),
    "stream": Kind(
        StreamConfig, columns="text_column", metrics=LANGUAGE_METRICS,
        tasks=(Task.language_model, Task.architecture_search), reading="streams",
    ),
    "sudoku_task": Kind(SudokuConfig, "puzzle", columns="question"),
    "tagging": Kind(TaggingConfig, "tagging", columns="token_column"),
    "trace_task": Kind(TraceConfig, "tagging", own_symbols=True),
}  # fmt: skip


@cache
def kinds() -> Mapping[str, Kind]:
    """Return every dataset type by name, built-in types first, then those of plug-ins.

    Raises:
        ConfigError: If a dataset type of an installed package is broken, or its name is taken.
    """
    plugins = load_plugins(GROUP, "data set", KINDS, _find_problem)
    return KINDS | {name: _inherit_fields(replace_paths(kind, _IMPORTED, ["checks"])) for name, kind in plugins.items()}


def get_kind(dataset: DatasetConfig) -> Kind:
    """Return the dataset type for a settings class or, for a subclass, that of its nearest base class."""
    kind = _find_kind(type(dataset), kinds())
    assert kind is not None, "only known kinds of data can be composed"
    return kind


def _find_kind(settings: type, kinds_by_name: Mapping[str, Kind]) -> Kind | None:
    """Return the dataset type of a settings class or its nearest base class, or None."""
    by_class = {kind.settings: kind for kind in kinds_by_name.values()}
    return next((by_class[base] for base in settings.__mro__ if base in by_class), None)


def _inherit_fields(kind: Kind) -> Kind:
    """Fill in missing fields of a plug-in's dataset type from the type that it extends."""
    base = _find_kind(kind.settings, KINDS)
    if base is None:
        return kind
    values = {field.name: value for field in fields(Kind) if (value := getattr(kind, field.name)) != field.default}
    return replace(base, **values)


def get_problem(dataset: DatasetConfig) -> Problem | None:
    """Return what kind of prediction a data set has, e.g. classification, or None if it is not labelled."""
    problem = get_kind(dataset).problem
    return problem(dataset) if callable(problem) else problem


def classifies_sequences(config: ExperimentConfig) -> bool:
    """Return whether a run predicts classes or values of whole sequences."""
    return config.task is Task.finetune and get_problem(config.dataset) in list(SequenceProblem)


def get_trained_head(task: Task, dataset: DatasetConfig) -> str:
    """Return the name of the prediction head that a task trains on a data set."""
    if (head := TASKS[task].head) is not None:
        return head
    problem = get_problem(dataset)
    assert problem is not None, "validated"
    return PREDICTED[problem].head


def list_input_columns(dataset: DatasetConfig) -> list[str] | None:
    """Return the table columns that the model reads, or None if they are still to be detected."""
    name = get_kind(dataset).columns
    columns = getattr(dataset, name, name)
    return [columns] if isinstance(columns, str) else None if columns is None else list(columns)


def get_positions_setting(dataset: DatasetConfig) -> tuple[str, int]:
    """Return key and value of the data setting for how many positions the model needs; 0 if the setting is None."""
    name = get_kind(dataset).positions
    return f"dataset.{name}", getattr(dataset, name) or 0


GROUP = "adadepth.datasets"


def list_dataset_schemas() -> dict[str, type[DatasetConfig]]:
    """Return the settings class of every dataset type by the name that YAML files extend."""
    return {name: kind.settings for name, kind in kinds().items()}


def _find_problem(descriptor: object, name: str) -> str | None:
    """Return what is wrong with a plug-in's dataset type, or None if it is valid."""
    if not isinstance(descriptor, Kind):
        return f"must be an adadepth.config.kinds.Kind, not {type(descriptor).__name__}"
    settings = descriptor.settings
    if not issubclass(settings, DatasetConfig):
        return f"its settings must be a DatasetConfig, not {settings.__name__}"
    is_read = descriptor.loader is not None and (descriptor.problem is not None or descriptor.evaluate is not None)
    if _find_kind(settings, KINDS) is None and not is_read:
        bases = ", ".join(kind.settings.__name__ for kind in KINDS.values())
        needed = "a loader and a problem, or a loader and evaluate"
        return f"it needs {needed}, or settings that extend one of {bases}, not {settings.__name__}"
    if isinstance(descriptor.problem, str) and descriptor.problem not in PREDICTED:
        return f"its problem {descriptor.problem!r} must be one of {', '.join(PREDICTED)}"
    if settings.name != name:
        return f"its settings name it {settings.name!r}"
    if descriptor.tables is not None and getattr(settings, "source", None) is not Source.local:
        return f"its settings must have source=local, not {getattr(settings, 'source', None)}"
    wrong = find_wrong_path(tuple(getattr(descriptor, name) for name in (*_IMPORTED, "checks")))
    return None if wrong is None else f"{wrong!r} must be 'module:name'"
