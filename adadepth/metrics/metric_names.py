"""Names and wording of metrics, of classes of tokens and sequences, and of the units that have a depth."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

CLASS_SCALARS = ("mean", "std", "p10", "median", "p90", "n", "at_cap", "histogram", "loss", "accuracy")
LAYER_SCALARS = ("entropy", "effective_layers", "expected_depth", "deepest", "active")
ADAPTATION = ("effective_depths", "effective_depths_within", "commonest", "commonest_share")
# The cost of a run in verdict, tiles, comparisons and trackers: compute at the chosen depths over that at full depth.
# `cost/executed_over_full` is the cost of one evaluation, with its padding, measured steps and cached states.
WORK = "cost/adaptive_over_full"
# Measured speed-ups of ragged over dense execution, by mode.
SPEEDUPS = {"evaluation": "cost/speedup_over_dense", "training": "cost/training_speedup_over_dense"}
_LOSSES = ("loss", "perplexity", "bits_per_character", "bits_per_byte", "mse", "runtime")  # endings of names
# Errors of the `evaluate` library.
LIBRARY_ERRORS = frozenset({"brier_score", "cer", "mae", "mape", "mase", "max_error", "smape", "wer"})
# Quality metrics at the decided depths: the first that a task has is shown.
PREFERRED_QUALITIES = ("score", "mlm_loss", "lm_loss", "task_loss")
_WORDS = (("<=", "up to"), (">", "over"))


def metric_name(text: str) -> str:
    """Replace the characters of a metric name that trackers reject: all except letters, digits and `_./-`.

    `halting/length <= 5/mean` becomes `halting/length_up_to_5/mean`, and `label: no` becomes `label_no`. Letters
    outside ASCII become their code points, so that names in other scripts stay distinct.
    """
    for sign, word in _WORDS:
        text = text.replace(sign, word)
    text = re.sub(r"[^\x00-\x7f]", lambda letter: f"u{ord(letter[0]):x}", text)
    return re.sub(r"[^A-Za-z0-9_./-]+", "_", text)


def is_loss(measure: str) -> bool:
    """Return whether a smaller value of a metric is better, as for a loss or an error rate."""
    name = re.sub(r"_step_\d+$", "", measure.rpartition("/")[2].removeprefix("eval_"))
    return name.endswith(_LOSSES) or name in LIBRARY_ERRORS


def drop_losses_of_other_depths(
    metrics: Mapping[str, float], decided_loss: float | None, prefix: str = ""
) -> dict[str, float]:
    """Return the metrics without `loss` and `task_loss` if these are not the loss at the decided depths.

    Early exits weight the losses of all exits, which a network with one exit does not have.

    Args:
        metrics: Metrics of an evaluation, by name.
        decided_loss: Mean loss at the decided depths, or None if it is unknown. Language models have it as `lm_loss`.
        prefix: Text before the names of the first evaluation set, such as `eval/`.
    """
    decided_loss = metrics.get(f"{prefix}lm_loss", decided_loss)
    trained_loss = metrics.get(f"{prefix}loss" if f"{prefix}lm_loss" in metrics else f"{prefix}task_loss")
    if decided_loss is None or trained_loss is None or math.isclose(trained_loss, decided_loss, rel_tol=1e-3):
        return dict(metrics)
    return {name: value for name, value in metrics.items() if name.rpartition("/")[2] not in ("loss", "task_loss")}


def find_least_depth(histograms: Iterable[Sequence[float]]) -> int:
    """Return the first depth on a histogram's axis: 0 if a token or sequence received no update, else 1.

    Args:
        histograms: Counts or shares of the depths, starting at depth 0.
    """
    return 0 if any(histogram[0] for histogram in histograms) else 1


def find_first_depth(halting: Mapping[str, Any]) -> int:
    """Return the first depth on the axis of all histograms in halting.json; see `find_least_depth`."""
    classes = halting.get("classes", {}).values()
    return find_least_depth(described["histogram"] for described in classes if described.get("histogram"))


@dataclass(frozen=True)
class UnitWording:
    """Words with which reports name what has a depth, such as tokens or sequences.

    Attributes:
        kind: Title of the report, such as `Halting`.
        terms: Name of the glossary template.
        needed: Label of the compute `adaptive`, which is the cost of the model.
        needing: Start of a sentence that states the compute `adaptive`.
        full: Label of the compute `full`.
        of_full: Short label of the compute `full`.
        macs: Unit of compute.
        halts: Whether units halt one by one, so that some must wait for the deepest.
    """

    kind: str
    terms: str
    needed: str
    needing: str
    full: str
    of_full: str = "full depth"
    macs: str = "multiply-accumulates"
    halts: bool = False


_ONE_DEPTH = {
    "task": UnitWording(
        "Layer",
        "layer_terms",
        "needed up to the deepest state that is read",
        "The blocks up to the deepest state need",
        "all blocks for every sequence",
    ),
    "architecture": UnitWording(
        "Architecture",
        "architecture_terms",
        "needed by the blocks that are expected to run",
        "The blocks that are expected to run need",
        "as many blocks, alternating attention and feed-forward",
        "as many alternating blocks",
        "multiply-accumulates per token",
    ),
}


def get_unit_wording(unit: str) -> UnitWording:
    """Return the words with which reports name what has a depth: tokens, sequences, tasks or architectures.

    A task or an architecture has one depth. Every other unit has a depth of its own.
    """
    halting = UnitWording(
        "Halting",
        "halting_terms",
        "needed at the decided depths",
        "The decided depths need",
        f"full depth for every {unit}",
        halts=True,
    )
    return _ONE_DEPTH.get(unit, halting)


# Definitions of the token classes by name, in the order of tables.
CLASS_DEFINITIONS: dict[str, str] = {
    "all": "every token, padding excluded",
    "unmasked": "tokens fed as anything but [MASK]: special tokens and random words included",
    "plain": "tokens neither selected for prediction nor special",
    "mask": "tokens fed as [MASK]",
    "mask/mask": "selected for prediction, fed as [MASK]",
    "mask/random": "selected for prediction, fed as a random word",
    "mask/original": "selected for prediction, fed unchanged",
    "mask/random_reference": "selected for prediction, fed as [MASK] or a random word (the published row, a blend)",
    "cls": "[CLS]",
    "sep": "[SEP], both of a pair",
}


_DEFINITIONS = {
    "all": "every sequence",
    "correct": "predicted as labelled",
    "wrong": "predicted as another class",
    "label": "of this class, by its label",
    "length": "real tokens, special ones included",
    "difficulty": "as the data set defines it",
    "unlabelled": "tokens without a label",
    "question": "tokens of the question",
    "context": "tokens of the context of a question or of an ending",
    "answer": "context tokens of the labelled answer",
    "ending": "tokens of an ending",
    "right": "tokens of the right choice",
    "other": "tokens of another choice",
    "taken": "tokens of the choice predicted by the model",
}


def definition(name: str) -> str:
    """Return the definition of a class of sequences as a sentence, or an empty text for an unknown class."""
    return _DEFINITIONS.get(name.partition(" ")[0].removesuffix(":"), "")
