"""Settings of all kinds of data: text, tables, generated tasks, puzzles."""

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
    """Settings of every data set."""

    name: str = setting(MISSING, "shown in reports")
    sequence_length: int = setting(128, "tokens, including [CLS] and [SEP] where there are any", at_least(8))
    cache_dir: str | None = setting(None, "prepared data; None: the user's cache folder", neutral=True)


@dataclass
class ExamplesConfig(DatasetConfig):
    """Settings of data that consist of examples, in any order."""

    max_evaluation_examples: int | None = setting(2000, "None: all", at_least(1), debug=8)
    pad_to_length: bool = setting(False, "pad every batch to sequence_length: fixed shapes for compiled runs")


def resolve_source(source: Source, path: Any) -> Source:
    """Return the source that `auto` stands for, so that a stored configuration names where its data came from."""
    if source is not Source.auto:
        return source
    return Source.local if path else Source.hub


@dataclass
class HubTable:
    """A data set of the hub."""

    path: str | None = setting(None, "its name there, or a local folder in its layout")
    name: str | None = setting(None, "of one of its configurations")


Separator = StrEnum("Separator", ["auto", "blank_line", "file", "line", "heading"])


@dataclass
class MaskingConfig:
    """Masked-language-model corruption (ALBERT: n-grams of whole words, favouring short ones)."""

    probability: float = setting(0.15, "share of the tokens selected for prediction", OPEN_SHARE)
    max_predictions: int | None = setting(20, "most selected tokens a sequence; None: no limit", at_least(1))
    max_ngram: int = setting(3, "longest masked n-gram, in words; length n is drawn with weight 1/n", at_least(1))
    mask_share: float = setting(0.8, "of the selected: replaced by [MASK]", SHARE)
    random_share: float = setting(0.1, "of the selected: replaced by a random token; the rest is kept", SHARE)
    whole_word: bool = setting(True, "select all pieces of a word together")


@dataclass
class TextConfig(DatasetConfig):
    """Running text, wherever it is."""

    source: Source = setting(
        Source.embedded, "Python's own documentation, local files, or the hub; auto: local where path names files"
    )
    path: Any = setting(
        None, "local: a file, a folder, a glob, or a list of these (text, jsonl, parquet, arrow)", TEXTS
    )
    hub: list[dict[str, Any]] = setting([], "hub: entries {path, name, split, rows_per_document, streamed}")
    text_column: str = setting("text", "for jsonl, parquet and hub data")
    evaluation_path: Any = setting(
        None,
        "local held-out text; None: that of a folder with valid files, or a part of the text is set aside",
        TEXTS,
    )
    evaluation_hub: list[dict[str, Any]] = setting([], "hub: held-out text, entries like those of `hub`")
    evaluation_fraction: float = setting(0.05, "share of the text set aside", OPEN_SHARE)
    prepare_workers: int | None = setting(
        None, "processes that tokenise a long text; None: one for every core", between(1, 1024), neutral=True
    )

    def __post_init__(self) -> None:
        self.source = resolve_source(self.source, self.path)


@dataclass
class StreamConfig(TextConfig):
    """Text as contiguous streams, read from beginning to end by a model that remembers."""

    test_path: Any = setting(
        None,
        "local: a further text that selects nothing; None: that of a folder with test files, or none",
        TEXTS,
    )
    test_hub: list[dict[str, Any]] = setting([], "hub: entries like those of `hub`")
    append_eos: bool = setting(True, "a token after every line; without it blank lines vanish")
    evaluation_length: int | None = setting(
        None, "tokens of a segment in evaluation; None: sequence_length", at_least(1)
    )
    max_evaluation_tokens: int | None = setting(None, "use only the first so many; None: all", at_least(1), debug=400)


@dataclass
class CausalConfig(StreamConfig):
    """The same text as blocks, in any order, in which documents stand side by side without seeing each other."""

    document_separator: Separator = setting(
        Separator.auto, "what ends a document: of rows of tables and the embedded text their end, else as told there"
    )
    pad_to_length: bool = setting(False, "pad every batch to the length of a block: fixed shapes for compiled runs")


@dataclass
class CorpusConfig(TextConfig, ExamplesConfig):
    """A pretraining corpus and how examples are cut from it."""

    document_separator: Separator = setting(Separator.auto, "what ends a document in plain text")
    streaming: bool = setting(False, "read hub or local data while training instead of preparing it")
    shuffle_buffer: int = setting(10000, "examples, streaming only", at_least(1))
    max_documents: int | None = setting(None, "use only the first documents", at_least(2), debug=20)
    short_sequence_probability: float = setting(0.1, "share of examples cut to a random shorter length", SHARE)
    sentence_order: bool = setting(True, "build segment pairs, half of them swapped")
    masking: MaskingConfig = setting(MaskingConfig, "which tokens are predicted")


SequenceProblem = StrEnum("SequenceProblem", ["classification", "multi_label", "regression"])
_CLASS_WEIGHTS = "of the loss: balanced, or {NAME: weight}, 1 where none is named; None: every example counts alike"
LabelledPieces = StrEnum("LabelledPieces", ["first", "all"])


@dataclass
class TableConfig(ExamplesConfig):
    """Rows of a table, whatever is to be predicted of them."""

    source: Source = setting(
        Source.hub, "the hub, local files, or Python's own documentation; auto: local where path names files"
    )
    path: Any = setting(
        None, "local: a folder with {train,validation,test}.{parquet,jsonl,...}, or a mapping split: file", FILES
    )
    hub: HubTable = setting(HubTable, "with source=hub")
    labels: list[str] | None = setting(None, "names of the classes or tags in order; None: those of the data")
    metrics: list[str] = setting(["accuracy"], "the task's; eval/score is their mean")
    train_split: str = setting("train", "its name in the data")
    evaluation_splits: list[str] = setting(["validation"], "the first one selects the model")
    held_out: float | None = setting(
        None, "share of the training rows set aside as the evaluation split held_out", OPEN_SHARE
    )
    max_train_examples: int | None = setting(
        None, "use only so many, evenly spread over the data", at_least(1), debug=64
    )

    def __post_init__(self) -> None:
        self.source = resolve_source(self.source, self.path)


@dataclass
class LabelledConfig(TableConfig):
    """Sentences or pairs of sentences with a class or a value: GLUE's tasks, and any table of that shape."""

    text_columns: list[str] | None = setting(None, "one, or two for pairs; None: sentence, or by their usual names")
    label_column: str | None = setting(
        None, "a class name or number, a value, or several names; None: label, or by its usual name"
    )
    problem: SequenceProblem = setting(
        SequenceProblem.classification, "one class a text, any number of labels, or one value"
    )
    label_separator: str = setting(",", "between the labels of a text, with problem=multi_label; lists need none")
    test_splits: list[str] = setting(["test"], "predicted at the end; may be absent", neutral=True)
    max_test_examples: int | None = setting(None, "of each of them; None: all", at_least(1), neutral=True, debug=8)
    test_hub: dict[str, Any] = setting(
        {}, "hub: test splits that are data sets of their own there, {SPLIT: {path, name, split}}", neutral=True
    )
    submission: list[str] = setting([], "GLUE's file names, one a test split", neutral=True)
    difficulty_column: str | None = setting(None, "whole numbers from 0 on: how hard a row is; None: not known")
    class_weights: Any = setting(None, _CLASS_WEIGHTS)


@dataclass
class SentEvalConfig(LabelledConfig):
    """A probing task of SentEval (Conneau et al. 2018), or any file of that format."""

    task: str | None = setting(None, "TASK.txt in the folder dataset.path: past_present, tree_depth, bigram_shift, ...")


@dataclass
class AgreementConfig(LabelledConfig):
    """Number of a verb from the words before it (Linzen, Dupoux and Goldberg 2016)."""


@dataclass
class TaggingConfig(TableConfig):
    """Sentences as lists of words with a tag each: named entities, parts of speech."""

    token_column: str = setting("tokens", "lists of words")
    tag_column: str = setting("ner_tags", "lists of tags: class numbers or names")
    labelled_pieces: LabelledPieces = setting(
        LabelledPieces.first, "of a word that is cut in pieces; all: those after B-X are I-X"
    )
    metrics: list[str] = setting(["entity_f1"], "token_accuracy where tags mark no entities")
    class_weights: Any = setting(None, _CLASS_WEIGHTS)


@dataclass
class QuestionConfig(TableConfig):
    """Questions about a text that holds their answers, in the columns of SQuAD (Rajpurkar et al. 2016, 2018)."""

    sequence_length: int = setting(384, "tokens of a window: the question and a part of its context", at_least(8))
    question_column: str = setting("question", "texts")
    context_column: str = setting("context", "texts")
    answers_column: str = setting("answers", "{text: [...], answer_start: [...]}: texts, and their first characters")
    id_column: str | None = setting("id", "in predictions; None: the row's number")
    stride: int = setting(128, "context tokens from the beginning of a window to that of the next one", at_least(1))
    max_question_length: int = setting(64, "tokens; longer questions are cut", at_least(1))
    max_answer_length: int = setting(30, "tokens; longer spans are not predicted", at_least(1))
    n_best: int = setting(20, "starts and ends of a window that are combined to spans", at_least(1))
    unanswerable: bool = setting(False, "questions may have no answer, which is then predicted at [CLS]")
    null_score_threshold: float = setting(0.0, "no answer where its score exceeds the best span's by more", FINITE)
    metrics: list[str] = setting(["exact_match", "f1"], "as SQuAD's script defines them")


@dataclass
class ChoiceConfig(TableConfig):
    """One of several endings of a text, in columns of their own: SWAG (Zellers et al. 2018)."""

    context_columns: list[str] = setting(["sent1", "sent2"], "a text; the second begins endings")
    ending_columns: list[str] = setting([f"ending{number}" for number in range(4)], "the choices")
    label_column: str = setting("label", "number of the right ending from 0 on, or its name in labels")


Representation = StrEnum("Representation", ["vectors", "tokens"])
Counted = StrEnum("Counted", ["nonzero", "positive"])
LabelledUnit = StrEnum("LabelledUnit", ["token", "sequence"])
HopsDrawing = StrEnum("HopsDrawing", ["even", "natural"])


@dataclass
class GeneratedConfig(ExamplesConfig):
    """Examples that are drawn afresh in every epoch, and of which it is known how much computing a unit needs."""

    train_examples: int = setting(100000, "an epoch", between(1, 10**8))


@dataclass
class ParityConfig(GeneratedConfig):
    """Is the number of ones odd? The task of ACT (Graves 2016) and PonderNet."""

    representation: Representation = setting(Representation.vectors, "for a recurrent cell, or as tokens")
    size: int = setting(64, "values, each 0, 1 or -1", at_least(1))
    train_ones: list[int] = setting([1, 64], "lowest and highest number of ones")
    easy_epochs: int = setting(
        0, "epochs at first in which no training example has more ones than easy_ones", at_least(0)
    )
    easy_ones: int | None = setting(None, "with easy_epochs: easy examples first make hard ones learnable sooner")
    extrapolation_ones: list[int] | None = setting(None, "also evaluated: a range that training does not see")
    counted: Counted = setting(Counted.nonzero, "whether -1 counts as a one")


@dataclass
class FieldConfig(GeneratedConfig):
    """Generated examples that lie at a random place of a larger field, so that larger ones can be read as well."""

    field: int = setting(16, "positions along each side; the model needs as many", at_least(1))


@dataclass
class MazeConfig(FieldConfig):
    """Can a cell be reached from the start? A cell's difficulty is its distance."""

    size: int = setting(8, "cells along each side", at_least(1))
    walls: float = setting(0.4, "share of cells that are walls", BELOW_ONE)
    beyond_sizes: list[int] = setting([12], "also evaluated: sizes that training does not see")


@dataclass
class HopsConfig(GeneratedConfig):
    """Which colour do pointers lead to? A node's difficulty is how many pointers must be followed."""

    unit: LabelledUnit = setting(
        LabelledUnit.token, "every node has a label, or the sequence has that of one marked node"
    )
    nodes: int = setting(16, "of an example", at_least(2))
    colours: int = setting(4, "of the nodes that do not point to another", between(2, 8))
    train_hops: list[int] = setting([0, 5], "lowest and highest difficulty of labelled nodes")
    beyond_hops: list[int] | None = setting([6, 7], "also evaluated: not seen in training")
    causal: bool = setting(
        False, "pointers lead to nodes before their own and say how far back, for models that see nothing else"
    )
    drawing: HopsDrawing = setting(
        HopsDrawing.even,
        "nodes have any number of hops as often; natural: each points to an earlier node or is a colour, all alike",
        more="With natural, which needs causal=true, most nodes are near a root. An evaluation set whose range does "
        "not begin at 0 has a chain of the range in each example.",
    )


@dataclass
class AdditionConfig(FieldConfig):
    """The sum of two numbers, a column a token; a column's difficulty is how far away its carry is decided."""

    digits: int = setting(12, "of each number", at_least(1))
    nines: float = setting(0.5, "share of columns whose digits sum to 9, which hand a carry on", BELOW_ONE)
    beyond_digits: list[int] = setting([20], "also evaluated: longer numbers")


@dataclass
class TraceConfig(GeneratedConfig):
    """What does a name stand for? Lines `b = a`, then `print b`; difficulty is how many lines must be read."""

    lines: int = setting(8, "of an example, each with a name of its own", between(2, 26))
    values: int = setting(4, "that a line may give a name; else it has the name of an earlier line", between(2, 8))
    reach: int = setting(3, "how many lines back a source may be", at_least(1))
    questions: int = setting(8, "names that are asked for after the lines", at_least(1))
    train_links: list[int] = setting([0, 4], "fewest and most names between a labelled name and its value")
    beyond_links: list[int] | None = setting([5, 6], "also evaluated: not seen in training")


@dataclass
class ManoConfig(GeneratedConfig):
    """Mano: prefix expressions of +, - and * modulo a number. Difficulty is how many operations there are."""

    modulus: int = setting(23, "of all arithmetic; operands are below it", between(2, 100))
    operations: int = setting(10, "most of an expression; any number from 1 on is as likely", between(1, 40))
    length_token: bool = setting(True, "whether a token before the expression says how many operations it has")
    answers_only: bool = setting(True, "training predicts the answer alone; else every next token, too")


Symmetries = StrEnum("Symmetries", ["none", "sudoku", "square"])
CellCount = StrEnum("CellCount", ["givens", "path_length"])
_SYMBOLS = Allowed(
    lambda text: text.isascii() and text.isprintable() and len(text) > 1 and len(set(text)) == len(text),
    "two or more different characters of ASCII",
)


@dataclass
class DrawnPuzzleConfig(GeneratedConfig):
    """Generated puzzles: a grid is given, its solution is the answer, and all cells have to be right."""

    train_examples: int = setting(100000, "an epoch", between(1, 10**8), debug=256)  # all drawn before training
    metrics: list[str] = setting(["exact_accuracy", "cell_accuracy"], "eval/score is their mean")
    symmetries: bool = setting(True, "training sees each puzzle under a symmetry drawn anew in every epoch")


@dataclass
class SudokuConfig(DrawnPuzzleConfig):
    """Sudoku with one solution each. A puzzle's difficulty is how many rounds of simple conclusions fill it."""

    size: int = setting(6, "digits, and cells along each side", Allowed(lambda size: size in (4, 6, 9), "4, 6 or 9"))
    blanks: int | None = setting(None, "no more of a puzzle; None: as many as leave one solution", at_least(1))


@dataclass
class MazePathConfig(DrawnPuzzleConfig):
    """The shortest way from start to goal, where there is but one. A maze's difficulty is its length."""

    size: int = setting(10, "cells along each side", at_least(3))
    walls: float = setting(0.4, "share of cells that are walls", BELOW_ONE)


@dataclass
class PuzzleTableConfig(TableConfig):
    """Puzzles of a table, written with a character a cell: Sudoku-Extreme, Maze-Hard."""

    question_column: str = setting("question", "texts")
    answer_column: str = setting("answer", "texts of the same length")
    difficulty_column: str | None = setting(
        None, "whole numbers from 0 on; None: cells whose answer is not what is given"
    )
    symbols: str = setting(".123456789", "of a cell, in puzzle and answer; the first one is token 1", _SYMBOLS)
    counted: CellCount = setting(
        CellCount.givens, "what reports tell steps by, with columns of whole numbers; path_length: of a maze's answer"
    )
    symmetries: Symmetries = setting(
        Symmetries.none, "training sees each puzzle under one drawn anew in every epoch: of Sudoku, or of a square"
    )
    metrics: list[str] = setting(["exact_accuracy", "cell_accuracy"], "eval/score is their mean")
