"""What question answering and multiple choice need of their settings."""

from collections.abc import Iterator

from adadepth.config import ChoiceConfig, ExperimentConfig, QuestionConfig, Source, TableConfig

_SPECIAL_TOKENS = 3  # at least, of a pair: [CLS] A [SEP] B [SEP]


def check_questions(config: ExperimentConfig) -> Iterator[str]:
    """How contexts are cut into windows."""
    dataset = config.dataset
    if not isinstance(dataset, QuestionConfig):
        return
    yield from _not_embedded(dataset)
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
    """Which columns are the choices."""
    dataset = config.dataset
    if not isinstance(dataset, ChoiceConfig):
        return
    yield from _not_embedded(dataset)
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


def _not_embedded(dataset: TableConfig) -> Iterator[str]:
    if dataset.source is Source.embedded:
        yield f"dataset.source=embedded: {dataset.name} is read from the hub or local files"
