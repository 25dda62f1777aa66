"""Checks of the settings of data set and tokenizer, before any data are read."""

from collections.abc import Iterator
from functools import singledispatch
from typing import Any

from adadepth.config import (
    ChoiceConfig,
    CorpusConfig,
    DatasetConfig,
    ExperimentConfig,
    LabelledConfig,
    QuestionConfig,
    Source,
    StreamConfig,
    TableConfig,
    TaggingConfig,
    Task,
)
from adadepth.config.data import (
    AdditionConfig,
    AgreementConfig,
    ChatConfig,
    GeneratedConfig,
    HopsConfig,
    HopsDrawing,
    LabelledUnit,
    LengthsConfig,
    ManoConfig,
    MazeConfig,
    ParityConfig,
    PuzzleTableConfig,
    SentEvalConfig,
    SequenceProblem,
    TextConfig,
    TraceConfig,
)
from adadepth.config.experiment import TokenizerKind
from adadepth.config.kinds import get_kind, get_problem
from adadepth.config.plugins import call_accepting
from adadepth.errors import ConfigError, nearest
from adadepth.metrics.task_metrics import check_tags, is_hub_metric

_HUB_KEYS = {"path": str, "name": str, "split": str, "rows_per_document": int, "streamed": bool}
_OWN_ROWS = "only used with your own rows, dataset.source=local dataset.path=PATH, or with those of the hub"
_KINDS = {str: "a text", int: "a whole number", bool: "true or false"}


def check_data(config: ExperimentConfig) -> Iterator[str]:
    """Check the settings of the data set, as its type requires, and those of the tokenizer."""
    yield from check_dataset(config.dataset, config)
    for check in get_kind(config.dataset).checks:
        yield from call_accepting(check, config.dataset, config=config)
    yield from check_tokenizer(config)


@singledispatch
def check_dataset(dataset: DatasetConfig, config: ExperimentConfig) -> Iterator[str]:
    """Check the settings of a data set by the function for its class or the nearest base class that has one."""
    return iter(())


def _check_text(dataset: TextConfig) -> Iterator[str]:
    """Check that the settings name a valid source of running text: local files, the hub or the package."""
    yield from _check_path(dataset, "a file, a folder or a list of them")
    if dataset.source is Source.hub and not dataset.hub:
        yield "dataset.hub: dataset.source=hub needs a list of {path, name, split} entries"
    yield from _check_local_path(dataset, "evaluation_path")
    yield from _check_extra_hub(dataset, "evaluation_hub")
    for key in ("hub", "evaluation_hub", "test_hub"):
        yield from _check_hub_entries(f"dataset.{key}", getattr(dataset, key, []))


def _check_path(dataset: TextConfig | TableConfig, needed: str) -> Iterator[str]:
    """Check that `dataset.path` is set if, and only if, the data are local files."""
    if dataset.source is Source.local and not dataset.path:
        yield f"dataset.path: dataset.source=local needs {needed}"
    if dataset.source is not Source.local and dataset.path is not None:
        yield f"dataset.path={dataset.path}: only used with dataset.source=local or auto"


def _check_local_path(dataset: TextConfig, key: str) -> Iterator[str]:
    """Check that the path of an additional text, such as a test text, is set only for local data."""
    if getattr(dataset, key) and dataset.source is not Source.local:
        path = "" if dataset.path else " dataset.path=PATH"
        yield f"dataset.{key}={getattr(dataset, key)}: only used with dataset.source=local{path}"


def _check_extra_hub(dataset: TextConfig, key: str) -> Iterator[str]:
    """Check that no hub data set is set if the text comes from the package.

    Local files may have them, because they may replace the hub entries of a configuration.
    """
    if getattr(dataset, key) and dataset.source is Source.embedded:
        entries = "" if dataset.hub else " 'dataset.hub=[{path: NAME}]'"
        yield f"dataset.{key}={getattr(dataset, key)}: only used with dataset.source=hub{entries}"


def _check_hub_entries(name: str, entries: list[dict[str, Any]]) -> Iterator[str]:
    for number, entry in enumerate(entries):
        for key in sorted(entry.keys() - set(_HUB_KEYS)):
            yield f"{name}[{number}].{key}: unknown key{nearest(key, _HUB_KEYS)}; known: {', '.join(_HUB_KEYS)}"
        for key, value in entry.items():
            kind = _HUB_KEYS.get(key)
            if kind is not None and value is not None and type(value) is not kind:
                yield f"{name}[{number}].{key}={value}: must be {_KINDS[kind]}"
        if not entry.get("path"):
            yield f"{name}[{number}].path: missing, the data set's name on the hub"


@check_dataset.register
def check_corpus(dataset: CorpusConfig, config: ExperimentConfig) -> Iterator[str]:
    """Check the source of a text corpus, and the settings that divide it into training examples."""
    yield from _check_text(dataset)
    shares = dataset.masking.mask_share + dataset.masking.random_share
    if shares > 1 + 1e-9:
        yield f"dataset.masking: mask_share + random_share = {shares:g}, must be at most 1"
    if dataset.streaming and dataset.source is Source.embedded:
        yield "dataset.streaming=true: the embedded corpus is not streamed"
    if dataset.streaming and config.trainer.max_steps == -1:
        yield "trainer.max_steps=-1: the length of data with dataset.streaming=true is unknown; set a number of steps"


@check_dataset.register
def check_stream(dataset: StreamConfig, config: ExperimentConfig) -> Iterator[str]:
    """Check the sources of continuous text and of its test text."""
    yield from _check_text(dataset)
    yield from _check_local_path(dataset, "test_path")
    yield from _check_extra_hub(dataset, "test_hub")


@check_dataset.register
def check_chat(dataset: ChatConfig, config: ExperimentConfig) -> Iterator[str]:
    """Check that conversations have a file, and a tokenizer whose chat template writes them as text."""
    if dataset.path is None:
        yield "dataset.path: required by a data set of conversations"
    if config.tokenizer.path is None:
        yield "tokenizer.path: required by a data set of conversations, whose tokenizer has a chat template"


def check_tokenizer(config: ExperimentConfig) -> Iterator[str]:
    """Check the settings for training a new tokenizer; the allowed settings depend on the tokenizer's type."""
    tokenizer = config.tokenizer
    kind, is_stream = tokenizer.kind, Task.language_model in get_kind(config.dataset).tasks
    if tokenizer.path is not None:
        return
    if kind is not TokenizerKind.unigram and not is_stream:
        yield f"tokenizer.kind={kind}: only used with streams of text, e.g. --config-name par_tiny"
    if tokenizer.symbols and kind is not TokenizerKind.unigram:
        size = "" if tokenizer.vocab_size else " tokenizer.vocab_size=8000"
        yield f"tokenizer.symbols={tokenizer.symbols}: only used with tokenizer.kind=unigram{size}"
    if kind is TokenizerKind.unigram and tokenizer.vocab_size is None:
        yield "tokenizer.vocab_size: required by tokenizer.kind=unigram"
    if kind is TokenizerKind.byte and tokenizer.vocab_size is not None:
        yield f"tokenizer.vocab_size={tokenizer.vocab_size}: tokenizer.kind=byte has 256; set it to null"


def _check_table(dataset: TableConfig, config: ExperimentConfig) -> Iterator[str]:
    """Check the source of a table, the share of its rows to hold out, and the weights of its classes."""
    yield from _check_table_source(dataset)
    yield from _check_splits(dataset)
    yield from _check_class_weights(dataset, config)


def _check_table_source(dataset: TableConfig) -> Iterator[str]:
    if get_kind(dataset).tables is not None:
        yield from _require_local_files(dataset)
        return
    yield from _check_path(dataset, "a folder, or a mapping of splits to files")
    if dataset.source is Source.hub and not dataset.hub.path:
        yield "dataset.hub.path: required by dataset.source=hub"


def _require_local_files(dataset: TableConfig) -> Iterator[str]:
    if dataset.source is not Source.local:
        yield f"dataset.source={dataset.source}: dataset={dataset.name} is read from local files; leave it at local"


def _check_splits(dataset: TableConfig) -> Iterator[str]:
    if not dataset.evaluation_splits:
        yield "dataset.evaluation_splits=[]: at least one is needed, to select the model on"
    if dataset.held_out is None and "held_out" in dataset.evaluation_splits:
        yield "dataset.evaluation_splits=held_out: needs dataset.held_out, the share of the training rows to hold out"
    if dataset.held_out is not None and "held_out" not in dataset.evaluation_splits:
        yield f"dataset.held_out={dataset.held_out}: add held_out to dataset.evaluation_splits to evaluate on them"
    if dataset.held_out is not None and dataset.source is Source.embedded:
        yield f"dataset.held_out={dataset.held_out}: {_OWN_ROWS}"


@check_dataset.register
def check_labelled(dataset: LabelledConfig, config: ExperimentConfig) -> Iterator[str]:
    """Check the settings of a labelled data set of sentences or pairs."""
    yield from _check_table(dataset, config)
    yield from _check_sentences(dataset, config)


def _check_sentences(dataset: LabelledConfig, config: ExperimentConfig) -> Iterator[str]:
    """Check columns, labels, metrics and test splits of sentences or pairs."""
    if dataset.text_columns is not None and len(dataset.text_columns) not in (1, 2):
        yield f"dataset.text_columns={dataset.text_columns}: must name one column, or two for pairs"
    if dataset.problem is SequenceProblem.multi_label and not dataset.label_separator:
        yield "dataset.label_separator: must not be empty"
    if dataset.problem is SequenceProblem.multi_label and dataset.source is Source.embedded:
        yield f"dataset.problem=multi_label: {_OWN_ROWS}"
    if not config.runtime.trust_remote_code:
        for name in filter(is_hub_metric, dataset.metrics):
            yield f"dataset.metrics={name}: runs external code; to allow it, set runtime.trust_remote_code=true"
    if dataset.difficulty_column is not None and dataset.source is Source.embedded:
        yield f"dataset.difficulty_column={dataset.difficulty_column}: {_OWN_ROWS}"
    if dataset.submission and len(dataset.submission) != len(dataset.test_splits):
        yield f"dataset.submission={dataset.submission}: needs a name for each of {dataset.test_splits}"
    for split, entry in dataset.test_hub.items():
        if split not in dataset.test_splits:
            yield f"dataset.test_hub.{split}: not in dataset.test_splits={dataset.test_splits}"
        if not isinstance(entry, dict) or set(entry) != {"path", "name", "split"}:
            has = ", ".join(entry) if isinstance(entry, dict) else entry
            yield f"dataset.test_hub.{split}: needs path, name and split, but has {has}"


@check_dataset.register
def check_agreement(dataset: AgreementConfig, config: ExperimentConfig) -> Iterator[str]:
    """Check the settings of the subject-verb agreement data, which are local files."""
    yield from _check_local_sentences(dataset, config)


@check_dataset.register
def check_senteval(dataset: SentEvalConfig, config: ExperimentConfig) -> Iterator[str]:
    """Check that the settings name a probing task of SentEval in local files."""
    yield from _check_local_sentences(dataset, config)
    if not dataset.task:
        yield "dataset.task: required by dataset=senteval, e.g. past_present for past_present.txt in dataset.path"


def _check_local_sentences(dataset: LabelledConfig, config: ExperimentConfig) -> Iterator[str]:
    """Check the settings of labelled sentences that only local files can have."""
    yield from _require_local_files(dataset)
    yield from _check_splits(dataset)
    yield from _check_class_weights(dataset, config)
    yield from _check_sentences(dataset, config)
    yield from _check_path(dataset, "a folder or a file")


@check_dataset.register
def check_puzzles(dataset: PuzzleTableConfig, config: ExperimentConfig) -> Iterator[str]:
    """Check the settings for the source of a table of puzzles."""
    yield from _check_table(dataset, config)


def _check_class_weights(dataset: TableConfig, config: ExperimentConfig) -> Iterator[str]:
    """Check the settings for weights of classes in the loss."""
    weights = getattr(dataset, "class_weights", None)
    if weights is None:
        return
    prefix = f"dataset.class_weights={weights}"
    values = list(weights.values()) if isinstance(weights, dict) else []
    if weights != "balanced" and not (values and all(isinstance(value, int | float) and value > 0 for value in values)):
        yield f"{prefix}: must be balanced, or a mapping from class names to weights above 0"
    if (problem := get_problem(dataset)) in ("regression", "multi_label"):
        yield f"{prefix}: dataset.problem={problem} does not assign one class per text"
    if dataset.source is Source.embedded:
        yield f"{prefix}: {_OWN_ROWS}"
    if getattr(config.model, "classes_weights", None) is not None:
        yield f"{prefix}: the model has its own class weights; set model.classes_weights=null"


@check_dataset.register
def check_tagging(dataset: TaggingConfig, config: ExperimentConfig) -> Iterator[str]:
    """Check the settings for the source and the metrics of tagged sentences."""
    yield from _check_table(dataset, config)
    if dataset.source is Source.embedded:
        yield "dataset.source=embedded: tagged sentences are read from the hub or local files"
    try:
        check_tags(dataset.metrics, dataset.labels or [])
    except ConfigError as error:
        yield str(error)


@check_dataset.register
def check_parity(dataset: ParityConfig, config: ExperimentConfig) -> Iterator[str]:
    """Check the settings for the lowest and highest number of ones in examples of the parity task."""
    if (dataset.easy_epochs > 0) != (dataset.easy_ones is not None):
        yield "dataset.easy_epochs and dataset.easy_ones: must be set together"
    low, high = dataset.train_ones if len(dataset.train_ones) == 2 else (0, dataset.size)  # which is refused below
    if dataset.easy_ones is not None and not low <= dataset.easy_ones <= high:
        yield f"dataset.easy_ones={dataset.easy_ones}: must lie within dataset.train_ones={dataset.train_ones}"
    for key in ("train_ones", "extrapolation_ones"):
        ones = getattr(dataset, key)
        if ones is None:
            continue
        if len(ones) != 2 or not 1 <= ones[0] <= ones[1] <= dataset.size:
            yield f"dataset.{key}={ones}: must be [lowest, highest] within 1 and dataset.size={dataset.size}"


@check_dataset.register
def check_maze(dataset: MazeConfig, config: ExperimentConfig) -> Iterator[str]:
    """Check that the largest maze fits into the field of cells and into a sequence of the model."""
    if dataset.size < 2:
        yield f"dataset.size={dataset.size}: a maze needs at least 2"
    if dataset.size > dataset.field:
        yield f"dataset.size={dataset.size}: must be at most dataset.field={dataset.field}"
    yield from _check_larger_sizes("beyond_sizes", dataset.beyond_sizes, "size", dataset.size, dataset.field)
    cells = max([dataset.size, *dataset.beyond_sizes]) ** 2
    if cells > dataset.sequence_length:
        yield f"dataset.sequence_length={dataset.sequence_length}: the largest maze has {cells} cells"


@check_dataset.register
def check_addition(dataset: AdditionConfig, config: ExperimentConfig) -> Iterator[str]:
    """Check that the longest sum fits into its field of columns and into a sequence of the model."""
    longest = max([dataset.digits, *dataset.beyond_digits]) + 1
    if dataset.digits >= dataset.field:
        yield (
            f"dataset.digits={dataset.digits}: must be below dataset.field={dataset.field}: a sum can have one "
            "more digit"
        )
    yield from _check_larger_sizes("beyond_digits", dataset.beyond_digits, "digits", dataset.digits, dataset.field - 1)
    if longest > dataset.sequence_length:
        yield f"dataset.sequence_length={dataset.sequence_length}: the longest sum has {longest} digits"


def _check_larger_sizes(key: str, values: list[int], trained: str, low: int, high: int) -> Iterator[str]:
    """Check that the evaluation sizes exceed the trained size, fit into the field, and do not repeat."""
    wrong = [value for value in values if not low < value <= high]
    if wrong or len(set(values)) < len(values):
        yield f"dataset.{key}={values}: must be above dataset.{trained}={low} and at most {high}, each once"


@check_dataset.register
def check_hops(dataset: HopsConfig, config: ExperimentConfig) -> Iterator[str]:
    """Check that graphs of pointers have enough nodes for the longest chains, and fit into a sequence of the model."""
    longest = dataset.nodes // 2 - 1  # there are two chains of that length at least
    for key in ("train_hops", "beyond_hops"):
        hops = getattr(dataset, key)
        if hops is not None and (len(hops) != 2 or not 0 <= hops[0] <= hops[1] <= longest):
            yield f"dataset.{key}={hops}: must be [lowest, highest] within 0 and dataset.nodes / 2 - 1 = {longest}"
    if dataset.drawing is HopsDrawing.natural and not dataset.causal:
        yield "dataset.drawing=natural: needs dataset.causal=true: nodes point to earlier ones"
    if dataset.unit is LabelledUnit.token and dataset.nodes > dataset.sequence_length:
        yield f"dataset.sequence_length={dataset.sequence_length}: there are dataset.nodes={dataset.nodes}"


@check_dataset.register
def check_trace(dataset: TraceConfig, config: ExperimentConfig) -> Iterator[str]:
    """Check that a program of the tracing task has enough lines for its chains, and fits into a sequence."""
    for key in ("train_links", "beyond_links"):
        links = getattr(dataset, key)
        if links is not None and (len(links) != 2 or not 0 <= links[0] <= links[1] < dataset.lines):
            yield f"dataset.{key}={links}: must be [fewest, most] within 0 and dataset.lines - 1 = {dataset.lines - 1}"
    if dataset.questions > dataset.lines:
        yield f"dataset.questions={dataset.questions}: must be at most dataset.lines={dataset.lines}, one name each"
    yield from _check_length(dataset, 3 * dataset.lines + 2 * dataset.questions, "lines and questions have")


@check_dataset.register
def check_mano(dataset: ManoConfig, config: ExperimentConfig) -> Iterator[str]:
    """Check that the longest expression of the Mano task fits into a sequence of the model."""
    tokens = 2 * dataset.operations + 3 + dataset.length_token  # operators and operands, start, end
    yield from _check_length(dataset, tokens, "the longest expression has")


@check_dataset.register
def check_lengths(dataset: LengthsConfig, config: ExperimentConfig) -> Iterator[str]:
    """Check the lengths of the texts of parity, copy or addition, and that the longest fits into a sequence."""
    trained, beyond = dataset.train_lengths, dataset.beyond_lengths
    if len(trained) != 2 or not 1 <= trained[0] <= trained[1]:
        yield f"dataset.train_lengths={trained}: must be [lowest, highest], at least 1"
        return
    if min(beyond, default=trained[1] + 1) <= trained[1] or len(set(beyond)) < len(beyond):
        yield f"dataset.beyond_lengths={beyond}: must be above {trained[1]} of dataset.train_lengths, each once"
    longest = max([trained[1], *beyond])
    tokens = {"parity": longest + 1, "copy": 2 * longest, "addition": longest + 2}[dataset.algorithm]
    yield from _check_length(dataset, tokens, f"a text of length {longest} has")


def _check_length(dataset: GeneratedConfig, tokens: int, subject: str) -> Iterator[str]:
    if tokens > dataset.sequence_length:
        yield f"dataset.sequence_length={dataset.sequence_length}: {subject} {tokens} tokens"


_SPECIAL_TOKENS = 3  # at least, of a pair: [CLS] A [SEP] B [SEP]


@check_dataset.register
def check_questions(dataset: QuestionConfig, config: ExperimentConfig) -> Iterator[str]:
    """Check the settings that cut the contexts of questions into overlapping windows."""
    yield from _check_table(dataset, config)
    yield from _refuse_embedded_rows(dataset)
    most = dataset.sequence_length - dataset.max_question_length - _SPECIAL_TOKENS
    if dataset.stride > most:
        yield (
            f"dataset.stride={dataset.stride}: must be at most {most}, what "
            f"dataset.sequence_length={dataset.sequence_length} leaves after "
            f"dataset.max_question_length={dataset.max_question_length} and {_SPECIAL_TOKENS} special tokens; "
            "otherwise text between two windows is lost"
        )
    if dataset.labels is not None:
        yield f"dataset.labels={dataset.labels}: answers are text, not classes"
    if dataset.null_score_threshold and not dataset.unanswerable:
        yield (
            f"dataset.null_score_threshold={dataset.null_score_threshold}: only used with dataset.unanswerable=true, "
            "e.g. dataset=squad_v2"
        )


@check_dataset.register
def check_choices(dataset: ChoiceConfig, config: ExperimentConfig) -> Iterator[str]:
    """Check the settings that name the table columns of contexts and answer choices."""
    yield from _check_table(dataset, config)
    yield from _refuse_embedded_rows(dataset)
    contexts, endings, labels = dataset.context_columns, dataset.ending_columns, dataset.labels
    if len(contexts) not in (1, 2):
        yield (
            f"dataset.context_columns={contexts}: must name one column, or two; the second one holds the beginning "
            "of every ending"
        )
    if len(endings) < 2:
        yield f"dataset.ending_columns={endings}: must name at least two columns"
    columns = [*contexts, *endings, dataset.label_column]
    if repeated := sorted({name for name in columns if columns.count(name) > 1}):
        yield f"dataset.ending_columns={endings}: the column {repeated[0]} is named twice in this data set"
    if labels is not None and len(labels) != len(endings):
        yield f"dataset.labels={labels}: must name each of the {len(endings)} dataset.ending_columns, in order"


def _refuse_embedded_rows(dataset: TableConfig) -> Iterator[str]:
    if dataset.source is Source.embedded:
        yield f"dataset.source=embedded: {dataset.name} is read from the hub or local files"
