"""Data set of a run: its examples, tokenizer, collator and summary, for every task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

from adadepth.config.kinds import Problem

if TYPE_CHECKING:
    from adadepth.config import DatasetConfig, TokenizerConfig

ExampleSet = Dataset[dict[str, Any]]
Picture = Literal["cells", "chains"]


@dataclass(frozen=True, kw_only=True)
class RunData:
    """Training, evaluation and test examples with their tokenizer, collator and summary, and the labels of examples.

    Attributes:
        train: Training examples: ``train[(epoch, index)]`` is a pure function of (seed, epoch, index). Streams of text
            have the micro-batches of this process. Streamed examples are an iterable data set with ``set_epoch``.
        evaluation: Mapping from evaluation sets to their examples, ``[index]``, which are independent of the seed. The
            first set selects the best checkpoint. Running text has the set ``held_out``.
        test: Mapping from test sets to their examples. Labelled test sets have no labels.
        tokenizer: Tokenizer to save with the model, or None if the input is a vector.
        collate: Collator of a batch. It returns ``input_ids``, ``attention_mask``, ``token_type_ids`` (B, S) int64 and
            ``special_tokens_mask`` (B, S) uint8, or ``inputs`` (B, S) float32. It also returns ``index`` (B,) int64,
            ``labels`` (B,) int64 or float32 except for a test set, and ``difficulty`` (B,) int64 if the set has it. In
            tagging, ``labels`` are (B, S) int64, with the tag at the first token of each word and -100 elsewhere.
            ``difficulty`` is then (B, S), too, and -1 at tokens without a difficulty. ``position_ids`` (B, S) int64 are
            included if positions do not just count up. In puzzles, ``labels`` are those of the cells, (B, S), and -100
            at cells without an answer. For question answering, multiple choice, masked text and blocks of text see
            `QuestionCollator`, `ChoiceCollator`, `PretrainingCollator` and `BlockCollator`. An item of a stream is a
            whole batch, which it returns.
        summary: Description of the data, for logs and reports; see `summarise_data`.
        problem: Kind of prediction. ``language_model`` stands for running text, masked or not. The fields after it
            describe labelled examples.
        labels: Names of classes, tags or choices, in order. Empty for regression and for question answering.
        metrics: Names of the task's metrics.
        has_difficulty: Whether examples, or their tokens, have a difficulty.
        has_special_tokens: Whether texts are wrapped in [CLS] and [SEP].
        picture: Kind of drawing of an example, or None for no drawing. ``cells`` draws a grid with the rows in
            ``position_ids`` and the columns in ``token_type_ids``. ``chains`` draws chains of pointers.
        model_fields: Fields of the model configuration that are determined by the data.
        least_fields: Lower bounds for fields of the model configuration. A trained model may have larger values.
        class_weights: Weight in the loss of an example of each class, or None if all weights are 1.
    """

    train: Any
    evaluation: Mapping[str, Any]
    test: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: PreTrainedTokenizerFast | None
    collate: Callable[[Sequence[dict[str, Any]]], dict[str, Tensor]]
    summary: dict[str, Any]
    problem: Problem = "language_model"
    labels: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    has_difficulty: bool = False
    has_special_tokens: bool = True
    picture: Picture | None = None
    model_fields: Mapping[str, Any] = field(default_factory=dict)
    least_fields: Mapping[str, int] = field(default_factory=dict)
    class_weights: tuple[float, ...] | None = None


def summarise_data(
    dataset: DatasetConfig,
    counts: Mapping[str, Any],
    *,
    source: str | None = None,
    facts: Mapping[str, Any] | None = None,
    tokenizer: Mapping[str, Any] | None = None,
    identity: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the summary of the data of a run, for logs, records and reports.

    Args:
        dataset: Settings of the data.
        counts: Counts of the training examples, ``train``, and of the evaluation and test examples.
        source: Origin of the data, or None for the setting ``source``, or for generated data if there is none.
        facts: Properties of all sets, such as ``sequence_length``.
        tokenizer: Description of the tokenizer; see `describe_tokenizer`. None if the data have symbols of their own.
        identity: Values that identify the content: digests of the source files, ``sources``, and a ``cache_key``.
    """
    return {
        "name": dataset.name,
        "source": str(getattr(dataset, "source", "drawn")) if source is None else source,
        **(facts or {}),
        **counts,
        **({} if tokenizer is None else {"tokenizer": tokenizer}),
        **(identity or {}),
    }


def describe_tokenizer(
    settings: TokenizerConfig, tokenizer: PreTrainedTokenizerFast, *, has_kind: bool = False
) -> dict[str, Any]:
    """Return path and vocabulary size of a tokenizer and, with ``has_kind``, the kind of a trained one."""
    kind = {"kind": None if settings.path else str(settings.kind)} if has_kind else {}
    return {"path": settings.path, **kind, "vocab_size": len(tokenizer)}


def count_set_examples(train: Any, evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Return the number of training examples and of the examples of each evaluation set, for a summary."""
    return {
        "train": {"examples": len(train)},
        "evaluation": {name: {"examples": len(examples)} for name, examples in evaluation.items()},
    }
