"""Settings of all dataset types: text, tables, generated tasks and puzzles."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from adadepth.config.declaration import (
    BELOW_ONE,
    FILES,
    FINITE,
    MISSING,
    OPEN_SHARE,
    SHARE,
    TEXTS,
    Allowed,
    at_least,
    between,
    setting,
)

Source = StrEnum("Source", ["embedded", "local", "hub", "auto"])


@dataclass
class DatasetConfig:
    """Settings that every type of data set has."""

    name: str = setting(MISSING, "name of the data set in reports")
    sequence_length: int = setting(128, "maximum number of tokens, [CLS] and [SEP] included", at_least(8))
    cache_dir: str | None = setting(None, "folder of prepared data; None: the user's cache folder", neutral=True)


@dataclass
class ExamplesConfig(DatasetConfig):
    """Settings of a data set of separate examples, which can be read in any order."""

    max_evaluation_examples: int | None = setting(
        2000, "maximum number of examples per evaluation set; None: all", at_least(1), debug=8
    )
    pad_to_length: bool = setting(False, "pad every batch to sequence_length: fixed shapes for compiled runs")


def resolve_source(source: Source, path: Any) -> Source:
    """Return the source of data for `dataset.source=auto`, so that a stored configuration names it explicitly."""
    if source is not Source.auto:
        return source
    return Source.local if path else Source.hub


@dataclass
class HubTable:
    """Settings that name a data set on the Hugging Face hub, such as its subset and split."""

    path: str | None = setting(None, "name of the data set on the hub, or a local folder in its layout")
    name: str | None = setting(None, "name of a configuration of the data set")


Separator = StrEnum("Separator", ["auto", "blank_line", "file", "line", "heading"])


@dataclass
class MaskingConfig:
    """Settings of token masking for masked language modelling, with n-grams of whole words as in ALBERT."""

    probability: float = setting(0.15, "share of the tokens selected for prediction", OPEN_SHARE)
    max_predictions: int | None = setting(
        20, "maximum number of selected tokens a sequence; None: no limit", at_least(1)
    )
    max_ngram: int = setting(3, "longest masked n-gram, in words; length n is sampled with weight 1/n", at_least(1))
    mask_share: float = setting(0.8, "share of the selected tokens that [MASK] replaces", SHARE)
    random_share: float = setting(
        0.1, "share of the selected tokens that a random token replaces; the rest stays unchanged", SHARE
    )
    whole_word: bool = setting(True, "select all pieces of a word together")


@dataclass
class TextConfig(DatasetConfig):
    """Running text from files, from the hub or from the package."""

    source: Source = setting(
        Source.embedded, "embedded (Python's documentation), local files, or the hub; auto: local if path names files"
    )
    path: Any = setting(
        None, "local: a file, a folder, a glob, or a list of these (text, jsonl, parquet, arrow)", TEXTS
    )
    hub: list[dict[str, Any]] = setting([], "hub: entries {path, name, split, rows_per_document, streamed}")
    text_column: str = setting("text", "name of the text column in jsonl, parquet and hub data")
    evaluation_path: Any = setting(
        None,
        "local held-out text; None: the valid files of the folder, or else a share of the text",
        TEXTS,
    )
    evaluation_hub: list[dict[str, Any]] = setting([], "hub: entries of the held-out text, as in `hub`")
    evaluation_fraction: float = setting(0.05, "share of the text that is held out for evaluation", OPEN_SHARE)
    prepare_workers: int | None = setting(
        None, "number of processes that tokenise a long text; None: one per core", between(1, 1024), neutral=True
    )

    def __post_init__(self) -> None:
        self.source = resolve_source(self.source, self.path)


@dataclass
class StreamConfig(TextConfig):
    """Text divided into contiguous streams, which a model with recurrent memory reads in order."""

    test_path: Any = setting(
        None,
        "local: test text, which selects nothing; None: the test files of the folder, if any",
        TEXTS,
    )
    test_hub: list[dict[str, Any]] = setting([], "hub: entries of the test text, as in `hub`")
    append_eos: bool = setting(True, "add an end token after every line; after every document if newlines are kept")
    evaluation_length: int | None = setting(
        None, "number of tokens of a segment in evaluation; None: sequence_length", at_least(1)
    )
    max_evaluation_tokens: int | None = setting(
        None, "maximum number of evaluated tokens, from the start of the text; None: all", at_least(1), debug=400
    )


@dataclass
class CausalConfig(StreamConfig):
    """Text packed into blocks; documents in the same block do not attend to each other."""

    document_separator: Separator = setting(
        Separator.auto,
        "what ends a document in plain text; rows of tables and the embedded text end documents themselves",
    )
    keep_newlines: bool | None = setting(
        None, "keep newlines as they are in the text; None: for pretrained decoders, which have read such text"
    )
    pad_to_length: bool = setting(False, "pad every batch to the length of a block: fixed shapes for compiled runs")


@dataclass
class ChatConfig(DatasetConfig):
    """Conversations in JSON files; a language model learns the answers of the assistant."""

    path: Any = setting(
        None, "a file, a folder, a glob, or a list of these (jsonl, json); every row has messages", TEXTS
    )
    evaluation_path: Any = setting(
        None, "held-out conversations; None: the valid files of the folder, or else a share of the rows", TEXTS
    )
    evaluation_fraction: float = setting(0.05, "share of the conversations held out for evaluation", OPEN_SHARE)
    packing: bool = setting(False, "put whole conversations together in an example; they do not read each other")


@dataclass
class CorpusConfig(TextConfig, ExamplesConfig):
    """Text corpus for pretraining, divided into examples."""

    document_separator: Separator = setting(Separator.auto, "what ends a document in plain text")
    streaming: bool = setting(False, "read hub or local data while training instead of preparing it")
    shuffle_buffer: int = setting(10000, "number of examples in the shuffle buffer, with streaming only", at_least(1))
    max_documents: int | None = setting(
        None, "maximum number of documents, from the start; None: all", at_least(2), debug=20
    )
    short_sequence_probability: float = setting(0.1, "share of examples cut to a random shorter length", SHARE)
    sentence_order: bool = setting(True, "build segment pairs, half of them swapped")
    masking: MaskingConfig = setting(MaskingConfig, "which tokens are predicted")


SequenceProblem = StrEnum("SequenceProblem", ["classification", "multi_label", "regression"])
_CLASS_WEIGHTS = (
    "weights of classes in the loss: balanced, or {NAME: weight} with 1 for all others; None: equal weights"
)
LabelledPieces = StrEnum("LabelledPieces", ["first", "all"])


@dataclass
class TableConfig(ExamplesConfig):
    """Rows of a table, for any type of prediction."""

    source: Source = setting(
        Source.hub, "hub, local files, or embedded (Python's documentation); auto: local if path names files"
    )
    path: Any = setting(
        None, "local: a folder with {train,validation,test}.{parquet,jsonl,...}, or a mapping split: file", FILES
    )
    hub: HubTable = setting(HubTable, "entry of the hub, with source=hub")
    labels: list[str] | None = setting(None, "names of the classes or tags in order; None: the names in the data")
    metrics: list[str] = setting(["accuracy"], "metrics of the task; eval/score is their mean")
    train_split: str = setting("train", "name of the training split")
    evaluation_splits: list[str] = setting(["validation"], "evaluated splits; the first one selects the model")
    held_out: float | None = setting(
        None, "share of the training rows that forms the evaluation split held_out", OPEN_SHARE
    )
    max_train_examples: int | None = setting(
        None, "maximum number of training examples, evenly spread over the data; None: all", at_least(1), debug=64
    )

    def __post_init__(self) -> None:
        self.source = resolve_source(self.source, self.path)


@dataclass
class LabelledConfig(TableConfig):
    """Sentences or sentence pairs with a class or a value: the GLUE tasks, or tables of the same format."""

    text_columns: list[str] | None = setting(None, "text column, or two for pairs; None: sentence, or the usual names")
    label_column: str | None = setting(
        None, "column of the class (name or number), the value, or several names; None: label, or the usual name"
    )
    problem: SequenceProblem = setting(
        SequenceProblem.classification, "one class per text, any number of labels, or one value"
    )
    label_separator: str = setting(
        ",", "separator between the labels of a text, with problem=multi_label; lists need none"
    )
    test_splits: list[str] = setting(["test"], "splits that are predicted at the end; they may be absent", neutral=True)
    max_test_examples: int | None = setting(
        None, "maximum number of examples per evaluation set; None: all", at_least(1), neutral=True, debug=8
    )
    test_hub: dict[str, Any] = setting(
        {}, "hub: test splits that are separate data sets, {SPLIT: {path, name, split}}", neutral=True
    )
    submission: list[str] = setting([], "file names of GLUE's submission format, one per test split", neutral=True)
    difficulty_column: str | None = setting(None, "column of the difficulty, an integer of at least 0; None: unknown")
    class_weights: Any = setting(None, _CLASS_WEIGHTS)


@dataclass
class SentEvalConfig(LabelledConfig):
    """Probing task of SentEval (Conneau et al. 2018), or any file in that format."""

    task: str | None = setting(
        None, "probing task, TASK.txt in the folder dataset.path: past_present, tree_depth, bigram_shift, ..."
    )


@dataclass
class AgreementConfig(LabelledConfig):
    """Subject-verb agreement: predict singular or plural of a verb from the words before it (Linzen et al. 2016)."""


@dataclass
class TaggingConfig(TableConfig):
    """Tagged sentences: lists of words with one tag per word, e.g. named entities or parts of speech."""

    token_column: str = setting("tokens", "column with lists of words")
    tag_column: str = setting("ner_tags", "column with lists of tags, as class numbers or names")
    labelled_pieces: LabelledPieces = setting(
        LabelledPieces.first, "labelled pieces of a word of several pieces; all: the pieces after B-X get I-X"
    )
    metrics: list[str] = setting(["entity_f1"], "seqeval, or token_accuracy if the tags mark no entities")
    class_weights: Any = setting(None, _CLASS_WEIGHTS)


@dataclass
class QuestionConfig(TableConfig):
    """Extractive question answering, with the columns of SQuAD (Rajpurkar et al. 2016, 2018)."""

    sequence_length: int = setting(
        384, "number of tokens of a window: the question and a part of its context", at_least(8)
    )
    question_column: str = setting("question", "column of texts")
    context_column: str = setting("context", "column of texts")
    answers_column: str = setting(
        "answers", "column of {text: [...], answer_start: [...]}: answers and the positions of their first characters"
    )
    id_column: str | None = setting("id", "column of the question's id in predictions; None: row number")
    stride: int = setting(128, "number of context tokens between the starts of two windows", at_least(1))
    max_question_length: int = setting(
        64, "maximum number of question tokens; longer questions are truncated", at_least(1)
    )
    max_answer_length: int = setting(30, "maximum number of tokens of a predicted span", at_least(1))
    n_best: int = setting(
        20, "number of the best starts and ends of a window that are combined into spans", at_least(1)
    )
    unanswerable: bool = setting(False, "whether questions may have no answer, which is predicted at [CLS]")
    null_score_threshold: float = setting(
        0.0, "predict no answer if its score exceeds that of the best span by more than this", FINITE
    )
    metrics: list[str] = setting(["exact_match", "f1"], "metrics as defined by SQuAD's evaluation script")


@dataclass
class ChoiceConfig(TableConfig):
    """Multiple choice between endings of a text, one column per ending, as in SWAG (Zellers et al. 2018)."""

    context_columns: list[str] = setting(
        ["sent1", "sent2"], "column of the context; a second column holds the beginning of the endings"
    )
    ending_columns: list[str] = setting([f"ending{number}" for number in range(4)], "columns of the choices")
    label_column: str = setting("label", "column of the right ending, as a number from 0 or a name in labels")


Representation = StrEnum("Representation", ["vectors", "tokens"])
Counted = StrEnum("Counted", ["nonzero", "positive"])
LabelledUnit = StrEnum("LabelledUnit", ["token", "sequence"])
HopsDrawing = StrEnum("HopsDrawing", ["even", "natural"])


@dataclass
class GeneratedConfig(ExamplesConfig):
    """Settings of tasks whose examples are generated in every epoch, with a known difficulty."""

    train_examples: int = setting(100000, "number of training examples per epoch", between(1, 10**8))


@dataclass
class ParityConfig(GeneratedConfig):
    """Parity task: decide whether the number of ones is odd, as in ACT (Graves 2016) and PonderNet."""

    representation: Representation = setting(
        Representation.vectors, "format of the inputs: vectors for a recurrent cell, or tokens"
    )
    size: int = setting(64, "number of values in an example, each 0, 1 or -1", at_least(1))
    train_ones: list[int] = setting([1, 64], "lowest and highest number of ones")
    easy_epochs: int = setting(
        0, "number of initial epochs in which training examples have at most easy_ones ones", at_least(0)
    )
    easy_ones: int | None = setting(
        None, "maximum number of ones during easy_epochs; easy examples first speed up learning of hard ones"
    )
    extrapolation_ones: list[int] | None = setting(None, "a second evaluation range of ones, not seen in training")
    counted: Counted = setting(Counted.nonzero, "whether -1 counts as a one")


@dataclass
class FieldConfig(GeneratedConfig):
    """Settings of generated examples placed at random in a larger field, which leaves room for larger test sizes."""

    field: int = setting(16, "side length of the grid of positions; the model needs as many positions", at_least(1))


@dataclass
class MazeConfig(FieldConfig):
    """Maze task: decide whether a cell can be reached from the start. The difficulty of a cell is its distance."""

    size: int = setting(8, "number of cells along each side", at_least(1))
    walls: float = setting(0.4, "share of cells that are walls", BELOW_ONE)
    beyond_sizes: list[int] = setting([12], "further evaluated sizes, not seen in training")


@dataclass
class HopsConfig(GeneratedConfig):
    """Pointer following: predict the colour at the end of a chain of pointers. The difficulty is its length."""

    unit: LabelledUnit = setting(
        LabelledUnit.token, "label every node, or the sequence with the label of one marked node"
    )
    nodes: int = setting(16, "number of nodes in an example", at_least(2))
    colours: int = setting(4, "number of colours, the labels of nodes without a pointer", between(2, 8))
    train_hops: list[int] = setting([0, 5], "lowest and highest number of hops (difficulty) of labelled nodes")
    beyond_hops: list[int] | None = setting([6, 7], "a second evaluation range of hops, not seen in training")
    causal: bool = setting(False, "pointers lead to earlier nodes and state the distance, as causal models need")
    drawing: HopsDrawing = setting(
        HopsDrawing.even,
        "even: every number of hops is equally frequent; natural: a node points to any earlier node or is a colour",
        more="With natural, which needs causal=true, most nodes are near a root. If the range of an evaluation set "
        "does not begin at 0, each example contains a chain of that range.",
    )


@dataclass
class AdditionConfig(FieldConfig):
    """Addition with one column per token. The difficulty of a column is its distance to the source of the carry."""

    digits: int = setting(12, "number of digits of each number", at_least(1))
    nines: float = setting(0.5, "share of columns with digits that sum to 9 and propagate a carry", BELOW_ONE)
    beyond_digits: list[int] = setting([20], "further evaluated numbers of digits, longer than in training")


@dataclass
class TraceConfig(GeneratedConfig):
    """Variable tracing: read assignments `b = a`, then `print b`. The difficulty is the number of lines to follow."""

    lines: int = setting(8, "number of lines of an example, each with a different name", between(2, 26))
    values: int = setting(
        4, "number of values that a line may assign; otherwise it copies the name of an earlier line", between(2, 8)
    )
    reach: int = setting(3, "maximum number of lines between a line and its source", at_least(1))
    questions: int = setting(8, "number of names queried after the lines", at_least(1))
    train_links: list[int] = setting([0, 4], "lowest and highest number of names between a labelled name and its value")
    beyond_links: list[int] | None = setting([5, 6], "a second evaluation range of links, not seen in training")


@dataclass
class ManoConfig(GeneratedConfig):
    """Mano: evaluate prefix expressions of +, - and * modulo a number. The difficulty is the number of operations."""

    modulus: int = setting(23, "modulus of the arithmetic; operands are smaller", between(2, 100))
    operations: int = setting(10, "maximum number of operations; every number from 1 is equally likely", between(1, 40))
    length_token: bool = setting(True, "put a token with the number of operations before the expression")
    answers_only: bool = setting(True, "train on the answer only; false: on every next token")


Algorithm = StrEnum("Algorithm", ["parity", "copy", "addition"])


@dataclass
class LengthsConfig(GeneratedConfig):
    """Parity, copy or binary addition for causal models. Difficulty and number of loops of a text are its length."""

    algorithm: Algorithm = setting(
        Algorithm.parity, "task: parity of bits, copy of symbols, or addition of two numbers"
    )
    train_lengths: list[int] = setting([1, 10], "lowest and highest length of a text in training")
    beyond_lengths: list[int] = setting([20, 30], "further evaluated lengths, not seen in training")


Symmetries = StrEnum("Symmetries", ["none", "sudoku", "square"])
CellCount = StrEnum("CellCount", ["givens", "path_length"])
_SYMBOLS = Allowed(
    lambda text: text.isascii() and text.isprintable() and len(text) > 1 and len(set(text)) == len(text),
    "two or more different ASCII characters",
)


@dataclass
class DrawnPuzzleConfig(GeneratedConfig):
    """Generated puzzles, each a grid and its solution. An answer is right only if all its cells are right."""

    train_examples: int = setting(
        100000, "number of training examples per epoch", between(1, 10**8), debug=256
    )  # all drawn before training
    metrics: list[str] = setting(["exact_accuracy", "cell_accuracy"], "eval/score is their mean")
    symmetries: bool = setting(True, "augment training: a new random symmetry of each puzzle in every epoch")


@dataclass
class SudokuConfig(DrawnPuzzleConfig):
    """Sudoku with a unique solution. The difficulty is the number of rounds of simple deduction that solve it."""

    size: int = setting(
        6, "number of digits and of cells along each side", Allowed(lambda size: size in (4, 6, 9), "4, 6 or 9")
    )
    blanks: int | None = setting(
        None, "maximum number of empty cells; None: as many as leave one solution", at_least(1)
    )


@dataclass
class MazePathConfig(DrawnPuzzleConfig):
    """Mazes with a unique shortest path from start to goal. The difficulty is the length of the path."""

    size: int = setting(10, "number of cells along each side", at_least(3))
    walls: float = setting(0.4, "share of cells that are walls", BELOW_ONE)


@dataclass
class PuzzleTableConfig(TableConfig):
    """Puzzles from a table, with one character per cell, such as Sudoku-Extreme and Maze-Hard."""

    question_column: str = setting("question", "column of texts")
    answer_column: str = setting("answer", "columns of puzzle and answer, texts of the same length")
    difficulty_column: str | None = setting(
        None, "column of the difficulty, an integer of at least 0; None: number of cells to fill in"
    )
    symbols: str = setting(".123456789", "symbols of a cell in puzzle and answer; the first one is token 1", _SYMBOLS)
    counted: CellCount = setting(
        CellCount.givens,
        "attributes by which reports group steps, with their integer columns; path_length: of a maze's answer",
    )
    symmetries: Symmetries = setting(
        Symmetries.none,
        "augment training: a new random symmetry of each puzzle in every epoch, of Sudoku or of a square",
    )
    metrics: list[str] = setting(["exact_accuracy", "cell_accuracy"], "eval/score is their mean")
