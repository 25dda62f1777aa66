"""Losses as named sums over named counts, so that batching cannot change a gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from adadepth.errors import ConfigError, DataError

IGNORED_LABEL = -100
CLASSES = "single_label_classification"
MULTI_LABEL = "multi_label_classification"


class LossOptions(TypedDict, total=False):
    """What transformers' trainers add to a batch; no arguments by name, as a `Trainer` waits for all labels it finds.

    Attributes:
        shift_labels: Labels that are shifted already, instead of `labels`: where a text is shared out over processes.
        num_items_in_batch: `num_targets` as one number, for all parts of the loss.
    """

    shift_labels: Tensor | None
    num_items_in_batch: Tensor | int | None


def refuse_unknown(options: LossOptions, owner: str) -> None:
    """Refuse arguments that `LossOptions` does not name, as Python does of a signature: `TypeError`."""
    if unknown := options.keys() - LossOptions.__annotations__:
        raise TypeError(f"{owner} got unexpected arguments: {', '.join(sorted(unknown))}")


@dataclass(frozen=True)
class LossTerm:
    """A part of the loss before normalisation: sum over targets, number of targets, weight in the total."""

    total: Tensor
    count: Tensor
    weight: float = 1.0


def combine_terms(
    terms: Mapping[str, LossTerm], num_targets: Mapping[str, Tensor] | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Normalise and add: loss = sum_k weight_k total_k / count_k.

    Args:
        terms: The parts of one (micro-)batch.
        num_targets: Counts to divide by instead of the batch's own: those of the whole optimiser step, over all
            micro-batches and processes, which makes gradients independent of how the step was cut up.

    Returns:
        The loss, and the parts that sum to it, by name. Scalars, float32.
    """
    counts = {name: term.count for name, term in terms.items()} | dict(num_targets or {})
    parts = {
        # A part without targets has a total of 0; the bound keeps 0 / 0 out, and fractions (a count shared by
        # several processes) intact.
        name: term.weight * term.total.float() / counts[name].float().clamp(min=1e-6)
        for name, term in terms.items()
    }
    return torch.stack(list(parts.values())).sum(), parts


def sum_cross_entropy(logits: Tensor, labels: Tensor) -> LossTerm:
    """Cross-entropy summed over the targets, in float32; negative labels are not targets."""
    labels = labels.masked_fill(labels < 0, IGNORED_LABEL)
    total = nn.functional.cross_entropy(
        logits.float().flatten(0, -2), labels.flatten(), ignore_index=IGNORED_LABEL, reduction="sum"
    )
    return LossTerm(total, (labels != IGNORED_LABEL).sum())


def target_weights(config: Any, labels: Tensor) -> Tensor:
    """What every class label counts, the labels' shape: nothing where it is negative, else 1, or its class's weight.

    Boolean, or float32 where the configuration has `classes_weights`, one a class. Losses are divided by the sum of
    them, so that a batch of rare classes is no stronger than another; see docs/decisions/0002.
    """
    counted = labels >= 0
    weights = getattr(config, "classes_weights", None)
    if weights is None:
        return counted
    table = torch.tensor(weights, dtype=torch.float32, device=labels.device)
    return counted * table[labels.clamp(min=0)]


def class_loss(config: Any, logits: Tensor, labels: Tensor) -> LossTerm:
    """Cross-entropy of logits (..., C) and classes (...), see `target_weights`, summed and counted with the weights.

    Raises:
        DataError: If a label is not one of the C classes; see `check_classes`.
    """
    check_classes(labels, logits.shape[-1])
    weights = target_weights(config, labels)
    if weights.dtype == torch.bool:
        return sum_cross_entropy(logits, labels)
    targets = labels.clamp(min=0).flatten()
    losses = nn.functional.cross_entropy(logits.float().flatten(0, -2), targets, reduction="none")
    return LossTerm((losses * weights.flatten()).sum(), weights.sum())


def label_count(config: PreTrainedConfig) -> int:
    """Classes of a head, 1 in regression; transformers' own default is two."""
    return config.num_labels or 2


def problem_type_of(config: PreTrainedConfig, labels: Tensor) -> str:
    """The kind of sequence task: `problem_type`, or inferred from the labels where it is unset, and never stored."""
    if config.problem_type is not None:
        return config.problem_type
    if label_count(config) == 1:
        return "regression"
    return MULTI_LABEL if labels.is_floating_point() else CLASSES


def takes_one_class(config: Any) -> bool:
    """Whether the classes of a head exclude each other."""
    return getattr(config, "problem_type", None) != MULTI_LABEL


def sequence_loss(config: PreTrainedConfig, logits: Tensor, labels: Tensor) -> LossTerm:
    """The loss of a sequence task: logits (B, C), labels as `problem_type_of` tells.

    Raises:
        DataError: If a label is not one of the C classes; see `check_classes`.
    """
    kind = problem_type_of(config, labels)
    if kind == CLASSES:
        return class_loss(config, logits, labels)
    count = torch.full((), labels.shape[0], device=labels.device)
    return LossTerm(unit_losses(kind, logits, labels).sum(), count)


def unit_losses(kind: str, logits: Tensor, labels: Tensor) -> Tensor:
    """The loss of every prediction of a task of this kind, float32: logits (B, C), labels none of which is ignored.

    Raises:
        DataError: If a label is not one of the C classes; see `check_classes`.
    """
    logits = logits.float()
    if kind == CLASSES:
        check_classes(labels, logits.shape[-1])
        return nn.functional.cross_entropy(logits, labels, reduction="none")
    if kind == "regression":
        return (logits - labels.float().view_as(logits)).square().mean(dim=-1)
    return nn.functional.binary_cross_entropy_with_logits(logits, labels.float(), reduction="none").mean(dim=-1)


def count_sequences(config: PreTrainedConfig, labels: Tensor) -> Tensor:
    """Sequences with a target: all of them, or the sum of what their classes count; see `target_weights`."""
    if labels.is_floating_point() or config.num_labels == 1 or not takes_one_class(config):
        return torch.full((), labels.shape[0], device=labels.device)
    return target_weights(config, labels).sum()


def step_losses(config: PreTrainedConfig, step_logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The task's loss after every step, float32 (B, N), and what every sequence counts, (B,); see `target_weights`.

    Cross-entropy of classes (B,), see `class_losses`; binary cross-entropy of labels (B, C), the mean over these; or
    squared error of values (B,) where there is one output.

    Raises:
        ConfigError: If the task is a regression with several outputs.
        DataError: If a label is not one of the model's classes.
    """
    kind, outputs = problem_type_of(config, labels), step_logits.shape[-1]
    if kind == CLASSES:
        return class_losses(step_logits, labels)[0], target_weights(config, labels)
    everyone = torch.ones_like(step_logits[:, 0, 0], dtype=torch.bool)
    if kind == MULTI_LABEL:
        targets = labels.float().unsqueeze(1).expand(step_logits.shape)
        return unit_losses(kind, step_logits, targets), everyone
    if kind != "regression" or outputs != 1:
        raise ConfigError(f"problem_type={kind} with {outputs} outputs: steps predict classes or one value")
    losses = (step_logits.float().squeeze(-1) - labels.float().view(-1, 1)) ** 2
    return losses, everyone


def class_losses(step_logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy after every step, (B, N, C) and (B,) to float32 (B, N), and which labels are not negative, (B,).

    Raises:
        DataError: If a label is not one of the C classes.
    """
    check_classes(labels, step_logits.shape[-1])
    counted = labels >= 0
    targets = labels.clamp(min=0).unsqueeze(1).expand(step_logits.shape[:2])
    losses = nn.functional.cross_entropy(step_logits.float().transpose(1, 2), targets, reduction="none")
    return losses, counted


def expected_loss(losses: Tensor, weights: Tensor) -> Tensor:
    """sum_n w_n loss_n of every example: (B, N) and (B, N) or (N,) to (B,)."""
    return (losses * weights).sum(dim=-1)


def check_classes(labels: Tensor, classes: int) -> None:
    """Refuse a class that the model does not have.

    Looking costs a host synchronisation, so it is done on the CPU only; an accelerator reports such a label by an
    assertion of its own.

    Raises:
        DataError: Naming the label and the model's classes.
    """
    if labels.device.type != "cpu" or torch.compiler.is_compiling():
        return
    largest = int(labels.max()) if labels.numel() else -1
    if largest >= classes:
        raise DataError(f"labels: {largest} is not a class of this model, which has {classes} (0 to {classes - 1})")
