"""What question answering and multiple choice need of their settings, and of the model."""

from collections.abc import Iterator

from adadepth.analysis.measure.quality import Problem, check_metrics
from adadepth.config import ChoiceConfig, ExperimentConfig, QuestionConfig, Source, TableConfig, Task
from adadepth.errors import ConfigError
from adadepth.families.registry import family, one_of, with_head

_SPECIAL_TOKENS = 3  # at least, of a pair: [CLS] A [SEP] B [SEP]


def check_questions(config: ExperimentConfig) -> Iterator[str]:
    """How contexts are cut into windows, and which model finds answers in them."""
    dataset = config.dataset
    if not isinstance(dataset, QuestionConfig):
        return
    yield from _common(config, dataset, "question_answering", "answers questions")
    room = dataset.sequence_length - dataset.max_question_length - _SPECIAL_TOKENS
    if dataset.stride > room:
        yield (
            f"dataset.stride={dataset.stride}: must be at most {room}, what dataset.sequence_length="
            f"{dataset.sequence_length} leaves after dataset.max_question_length={dataset.max_question_length} and "
            f"{_SPECIAL_TOKENS} special tokens; else text between two windows is lost"
        )
    if dataset.labels is not None:
        yield f"dataset.labels={dataset.labels}: questions are answered with text, not with a class"
    if dataset.null_score_threshold and not dataset.unanswerable:
        yield (
            f"dataset.null_score_threshold={dataset.null_score_threshold}: read only with dataset.unanswerable=true, "
            "e.g. dataset=squad_v2"
        )


def check_choices(config: ExperimentConfig) -> Iterator[str]:
    """Which columns are the choices, and which model chooses."""
    dataset = config.dataset
    if not isinstance(dataset, ChoiceConfig):
        return
    yield from _common(config, dataset, "multiple_choice", "chooses among endings")
    contexts, endings, labels = dataset.context_columns, dataset.ending_columns, dataset.labels
    if len(contexts) not in (1, 2):
        yield f"dataset.context_columns={contexts}: must name one column, or two; the second begins every ending"
    if len(endings) < 2:
        yield f"dataset.ending_columns={endings}: must name two columns at least"
    columns = [*contexts, *endings, dataset.label_column]
    if repeated := sorted({name for name in columns if columns.count(name) > 1}):
        yield f"dataset.ending_columns={endings}: the column {repeated[0]} is named twice in this data set"
    if labels is not None and len(labels) != len(endings):
        yield f"dataset.labels={labels}: must name each of the {len(endings)} dataset.ending_columns, in order"


def _common(config: ExperimentConfig, dataset: TableConfig, problem: Problem, what: str) -> Iterator[str]:
    """Source, metrics and family, and that the exits are those of the model."""
    if dataset.source is Source.embedded:
        yield f"dataset.source=embedded: {dataset.name} is read from the hub or local files"
    if config.task is Task.finetune and problem not in family(config.model.name).heads:
        yield f"model={config.model.name}: dataset={dataset.name} {what}, for {one_of(with_head(problem))} only"
    if config.exit_rules:
        yield (
            f"exit_rules={config.exit_rules}: dataset={dataset.name} {what}; read only with classes, values and tags"
        )
    try:
        check_metrics(dataset.metrics, problem)
    except ConfigError as error:
        yield str(error)
