"""Losses as named sums over named counts, so that the division into batches cannot change a gradient."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from adadepth.errors import ConfigError, DataError
from adadepth.halting.step_losses import StepLoss
from adadepth.halting.trace import register_trace_part
from adadepth.runtime.devices import fill_values, upload

IGNORED_LABEL = -100
CLASSES = "single_label_classification"
MULTI_LABEL = "multi_label_classification"


class LossOptions(TypedDict, total=False):
    """Arguments that transformers' trainers add to a batch, hidden from `Trainer`, which would treat them as labels.

    Attributes:
        shift_labels: Shifted labels that replace `labels` when texts are split over processes.
        num_items_in_batch: One number that replaces `num_targets` for all parts of the loss.
    """

    shift_labels: Tensor | None
    num_items_in_batch: Tensor | int | None


def refuse_unknown(
    options: Mapping[str, Any], owner: str, allowed: Collection[str] = frozenset(LossOptions.__annotations__)
) -> None:
    """Raise a `TypeError` for unknown keyword arguments, as Python does.

    An argument that is None counts as absent: PEFT passes `output_attentions=None` to every model.
    """
    if unknown := {name for name, value in options.items() if value is not None}.difference(allowed):
        raise TypeError(f"{owner} got unexpected arguments: {', '.join(sorted(unknown))}")


@register_trace_part
@dataclass(frozen=True)
class LossTerm:
    """One part of the loss before normalisation: sum over targets, number of targets, and weight."""

    total: Tensor
    count: Tensor
    weight: float = 1.0


def combine_terms(
    terms: Mapping[str, LossTerm],
    num_targets: Mapping[str, Tensor] | None = None,
    num_items: Tensor | int | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Normalise the parts of a loss by their counts and add them: loss = sum_k weight_k total_k / count_k.

    Args:
        terms: Parts of one (micro-)batch.
        num_targets: Counts of the whole optimiser step over all micro-batches and processes, which replace those of the
            batch. They make gradients independent of how the step is split.
        num_items: One count for all parts in place of both, as transformers' Trainer passes it; see `LossOptions`.

    Returns:
        Loss and its normalised parts by name, float32 scalars. The parts sum to the loss.
    """
    counts = {name: term.count for name, term in terms.items()} | dict(num_targets or {})
    if num_items is not None:
        counts = {
            name: num_items.to(term.total.device)
            if isinstance(num_items, Tensor)
            else torch.full((), num_items, device=term.total.device)
            for name, term in terms.items()
        }
    parts = {
        # A part without targets has a total of 0; the bound keeps 0 / 0 out, and fractions (a count shared by
        # several processes) intact.
        name: term.weight * term.total.float() / counts[name].float().clamp(min=1e-6)
        for name, term in terms.items()
    }
    return torch.stack(list(parts.values())).sum(), parts


def sum_cross_entropy(logits: Tensor, labels: Tensor) -> LossTerm:
    """Compute the cross-entropy summed over all targets, in float32. Negative labels are ignored."""
    labels = labels.masked_fill(labels < 0, IGNORED_LABEL)
    total = nn.functional.cross_entropy(
        logits.float().flatten(0, -2), labels.flatten(), ignore_index=IGNORED_LABEL, reduction="sum"
    )
    return LossTerm(total, (labels != IGNORED_LABEL).sum())


def target_weights(config: Any, labels: Tensor) -> Tensor:
    """Return the weight of every label, in its shape: 0 for a negative label, otherwise 1 or the weight of its class.

    The result is boolean, or float32 if the configuration has `classes_weights`, one per class. Losses are divided by
    the sum of the weights, so that batches of rare and frequent classes have the same influence; see
    docs/decisions/0002.
    """
    counted = labels >= 0
    weights = getattr(config, "classes_weights", None)
    if weights is None:
        return counted
    return counted * fill_values(weights, labels.device)[labels.clamp(min=0)]


def class_loss(config: Any, logits: Tensor, labels: Tensor) -> LossTerm:
    """Compute the weighted cross-entropy of logits (..., C) for classes (...).

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


def count_head_classes(config: PreTrainedConfig) -> int:
    """Return the number of classes of a model's head, which is 1 in regression."""
    return config.num_labels or 2


def infer_problem_type(config: PreTrainedConfig, labels: Tensor) -> str:
    """Return the `problem_type` of a configuration, such as regression, or infer it from the labels."""
    if config.problem_type is not None:
        return config.problem_type
    if count_head_classes(config) == 1:
        return "regression"
    return MULTI_LABEL if labels.is_floating_point() else CLASSES


def takes_one_class(config: Any) -> bool:
    """Return whether each example has exactly one class, so that classes are mutually exclusive."""
    return getattr(config, "problem_type", None) != MULTI_LABEL


def sequence_loss(config: PreTrainedConfig, logits: Tensor, labels: Tensor) -> LossTerm:
    """Compute the loss of a sequence classification or regression from logits, (B, C), and labels.

    Raises:
        DataError: If a label is not one of the C classes; see `check_classes`.
    """
    kind = infer_problem_type(config, labels)
    if kind == CLASSES:
        return class_loss(config, logits, labels)
    count = torch.full((), labels.shape[0], device=labels.device)
    return LossTerm(unit_losses(kind, logits, labels).sum(), count)


def unit_losses(kind: str, logits: Tensor, labels: Tensor) -> Tensor:
    """Compute the loss of every prediction, float32, from logits, (B, C), and labels without ignored ones.

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
    """Return the number of sequences with a label, or the sum of their class weights."""
    if labels.is_floating_point() or config.num_labels == 1 or not takes_one_class(config):
        return torch.full((), labels.shape[0], device=labels.device)
    return target_weights(config, labels).sum()


def step_losses(config: PreTrainedConfig, step_logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the task loss after every step, float32 (B, N), and the weights of the sequences, (B,).

    The loss is cross-entropy for classes, (B,), see `class_losses`. For multi-hot labels, (B, C), it is the mean binary
    cross-entropy over the labels. For values, (B,), it is the squared error of one output.

    Raises:
        ConfigError: If the task is a regression with several outputs.
        DataError: If a label is not a class of the model.
    """
    kind, outputs = infer_problem_type(config, labels), step_logits.shape[-1]
    if kind == CLASSES:
        return class_losses(step_logits, labels)[0], target_weights(config, labels)
    all_sequences = torch.ones_like(step_logits[:, 0, 0], dtype=torch.bool)
    if kind == MULTI_LABEL:
        targets = labels.float().unsqueeze(1).expand(step_logits.shape)
        return unit_losses(kind, step_logits, targets), all_sequences
    if kind != "regression" or outputs != 1:
        raise ConfigError(
            f"problem_type={kind} with {outputs} outputs: predictions after every step must be classes or one number"
        )
    losses = (step_logits.float().squeeze(-1) - labels.float().view(-1, 1)) ** 2
    return losses, all_sequences


def class_losses(step_logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the cross-entropy after every step, float32 (B, N), and a mask of the labelled examples, (B,).

    Raises:
        DataError: If a label is not one of the C classes.
    """
    check_classes(labels, step_logits.shape[-1])
    counted = labels >= 0
    targets = labels.clamp(min=0).unsqueeze(1).expand(step_logits.shape[:2])
    losses = nn.functional.cross_entropy(step_logits.float().transpose(1, 2), targets, reduction="none")
    return losses, counted


def expected_loss(losses: Tensor, weights: Tensor) -> Tensor:
    """Compute the expected loss over steps, sum_n w_n loss_n, (B,), of losses (B, N), for weights (B, N) or (N,)."""
    return (losses * weights).sum(dim=-1)


def weigh_steps(loss: StepLoss, losses: Tensor, depths: Sequence[int]) -> Tensor:
    """Compute the weights of the losses of N steps, float32 (N,) or (M, N).

    Args:
        loss: Loss over exits.
        losses: Losses after every step, float32 (M, N).
        depths: Depth of every step, such as the layer of an exit.

    Raises:
        ConfigError: If the loss returns weights of another shape, or no weight above 0.
    """
    if (relative := loss.weigh_depths(depths)) is not None:
        if not (whole := sum(relative)):
            raise ConfigError(f"loss over exits {loss.name!r}: all weights are 0 at depths {list(depths)}")
        return upload(torch.tensor([weight / whole for weight in relative], dtype=torch.float32), losses.device)
    weights = loss.weigh(losses.detach(), upload(torch.tensor(depths, dtype=torch.float32), losses.device))
    if weights.shape not in (losses.shape, losses.shape[1:]):
        shapes = f"{tuple(weights.shape)}, not {tuple(losses.shape)} or {tuple(losses.shape[1:])}"
        raise ConfigError(f"loss over exits {loss.name!r}: returned weights of shape {shapes}")
    return weights.detach().to(losses.dtype)


def check_classes(labels: Tensor, classes: int) -> None:
    """Raise an error if a label is not a class of the model.

    The check would synchronise an accelerator with the host, so it runs only on the CPU. An accelerator has its own
    assertion for such labels.

    Raises:
        DataError: Names the label and the classes of the model.
    """
    if labels.device.type != "cpu" or torch.compiler.is_compiling():
        return
    largest = int(labels.max()) if labels.numel() else -1
    if largest >= classes:
        raise DataError(
            f"labels: {largest} is not a class of this model, which has {classes} classes (0 to {classes - 1})"
        )
