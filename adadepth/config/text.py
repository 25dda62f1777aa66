"""Running text: streams for language models, and corpora that examples are cut from."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from adadepth.config.dataset import DatasetConfig, ExamplesConfig, Source, local_or_hub
from adadepth.declaration import OPEN_SHARE, SHARE, TEXTS, at_least, setting

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
    path: Any = setting(None, "local: a file, a folder, a glob, or a list of these (text, jsonl, parquet)", TEXTS)
    hub: list[dict[str, Any]] = setting([], "hub: entries {path, name, split, rows_per_document}")
    text_column: str = setting("text", "for jsonl, parquet and hub data")
    evaluation_path: Any = setting(
        None,
        "local held-out text; None: that of a folder with valid files, or a part of the text is set aside",
        TEXTS,
    )
    evaluation_hub: list[dict[str, Any]] = setting([], "hub: held-out text, entries like those of `hub`")
    evaluation_fraction: float = setting(0.05, "share of the text set aside", OPEN_SHARE)

    def __post_init__(self) -> None:
        self.source = local_or_hub(self.source, self.path)


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
class CorpusConfig(TextConfig, ExamplesConfig):
    """A pretraining corpus and how examples are cut from it."""

    document_separator: Separator = setting(Separator.auto, "what ends a document in plain text")
    streaming: bool = setting(False, "read hub or local data while training instead of preparing it")
    shuffle_buffer: int = setting(10000, "examples, streaming only", at_least(1))
    max_documents: int | None = setting(None, "use only the first documents", at_least(2), debug=20)
    short_sequence_probability: float = setting(0.1, "share of examples cut to a random shorter length", SHARE)
    sentence_order: bool = setting(True, "build segment pairs, half of them swapped")
    masking: MaskingConfig = setting(MaskingConfig, "which tokens are predicted")
