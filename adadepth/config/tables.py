"""Rows of tables: what is predicted of them, and in which columns it stands."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from adadepth.config.dataset import ExamplesConfig, HubTable, Source, local_or_hub
from adadepth.config.text import MaskingConfig
from adadepth.declaration import FILES, FINITE, OPEN_SHARE, at_least, setting

Problem = StrEnum("Problem", ["classification", "multi_label", "regression"])
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
        self.source = local_or_hub(self.source, self.path)


@dataclass
class LabelledConfig(TableConfig):
    """Sentences or pairs of sentences with a class or a value: GLUE's tasks, and any table of that shape."""

    text_columns: list[str] = setting(["sentence"], "one, or two for pairs")
    label_column: str = setting("label", "a class number, a class name, a value, or several names")
    problem: Problem = setting(Problem.classification, "one class a text, any number of labels, or one value")
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


@dataclass
class TreebankConfig(ExamplesConfig):
    """Words with part of speech, relation and head, by which mode=evaluate tells the depths of a model's tokens."""

    path: Any = setting(
        None, "a folder of CoNLL-U files, a file, a glob, a list, or a mapping split: file; None: the hub", FILES
    )
    hub: HubTable = setting(HubTable, "read without a path")
    evaluation_splits: list[str] | None = setting(None, "None: validation and test, or all there is without these")
    max_evaluation_examples: int | None = setting(None, "sentences of a split; None: all", at_least(1), debug=8)
    masking: MaskingConfig = setting(MaskingConfig, "of a model that predicts masked words: which ones")
