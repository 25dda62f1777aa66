"""Losses of every family: torch's loss of each step, averaged over steps, for any division of a batch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from adadepth import (
    AdaLayersForSequenceClassification,
    AdaLayersForTokenClassification,
    AlbertActForSequenceClassification,
    AlbertActForTokenClassification,
    PlainAlbertForSequenceClassification,
)
from adadepth.data.labelled.table_loader import compute_class_weights
from adadepth.errors import DataError
from tests.marks_support import keep_one_quick
from tests.models_support import SMALL, make_small_config, make_small_multi_exit, make_small_ponder, spread_depths
from tests.unit.models.adalayers_support import HEAD, save_base
from tests.unit.models.ponder_rnn_support import build_recurrent

WEIGHTS = torch.tensor([0.5, 2.0, 7.0])
Make = Callable[[int, Path], Any]  # number of outputs, a folder


def act(model_class: Any, outputs: int, **changes: Any) -> Any:
    model = model_class(make_small_config(initializer_range=0.3, num_labels=outputs, **changes))
    spread_depths(model, scale=3.0)
    return model


def build_adalayers(model_class: Any, outputs: int, folder: Path, **changes: Any) -> Any:
    penalties = {"lambda_distribution_depth": 0.3, "lambda_distribution_entropy": -0.1}
    base = save_base("bert", folder / "base")
    return model_class.from_base(base, **(HEAD | penalties | changes), num_labels=outputs)


def build_plain(outputs: int) -> Any:
    model_class = PlainAlbertForSequenceClassification
    return model_class(model_class.config_class(**SMALL, num_labels=outputs))


SEQUENCES: dict[str, Make] = {
    "act": lambda outputs, _: act(AlbertActForSequenceClassification, outputs),
    "readouts": lambda outputs, _: act(AlbertActForSequenceClassification, outputs, readout_weight=0.5),
    "ponder": lambda outputs, _: make_small_ponder(num_labels=outputs),
    "exits": lambda outputs, _: make_small_multi_exit(num_labels=outputs),
    "exits, uniform": lambda outputs, _: make_small_multi_exit(num_labels=outputs, exit_weights="uniform"),
    "plain": lambda outputs, _: build_plain(outputs),
    "adalayers": lambda outputs, folder: build_adalayers(AdaLayersForSequenceClassification, outputs, folder),
    "recurrent": lambda outputs, _: build_recurrent(num_labels=outputs),
}
TOKENS: dict[str, Make] = {
    "act tokens": lambda outputs, _: act(AlbertActForTokenClassification, outputs, readout_weight=0.5),
    "adalayers tokens": lambda outputs, folder: build_adalayers(AdaLayersForTokenClassification, outputs, folder),
}
# Weight of each step in the loss, (B, N) or (N,); where missing, the last step has all of it.
SHARES: dict[str, Callable[[Any], Tensor]] = {
    "ponder": lambda outputs: outputs.posterior.pmf,
    "recurrent": lambda outputs: outputs.posterior.pmf,
    "exits": lambda outputs: torch.arange(1, 7) / 21,
    "exits, uniform": lambda outputs: torch.full((6,), 1 / 6),
}
CLASSES = torch.tensor([0, 1, 2, 2, 0, 0, 1, -100])
TARGETS = {
    "classes": CLASSES,
    "weighted classes": CLASSES,
    "values": torch.linspace(-1, 2, 8),
    "several labels": (torch.arange(8).unsqueeze(1) >> torch.arange(3) & 1).float(),
}
CASES = [*product(SEQUENCES, TARGETS), *product(TOKENS, ("classes", "weighted classes"))]


def build_batch(kind: str, targets: str = "classes") -> dict[str, Tensor]:
    torch.manual_seed(0)
    if kind == "recurrent":
        return {"inputs": 2 * torch.randn(8, 5), "labels": TARGETS[targets]}
    ids = torch.randint(5, 20, (8, 6))
    labels = TARGETS[targets]
    if kind in TOKENS:
        labels = torch.randint(0, 3, (8, 6)).where(torch.rand(8, 6) < 0.7, -100)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def build_model(kind: str, targets: str, folder: Path) -> Any:
    torch.manual_seed(0)
    model = (SEQUENCES | TOKENS)[kind](1 if targets == "values" else 3, folder).eval()
    if targets.startswith("weighted"):
        model.config.classes_weights = WEIGHTS.tolist()
    if targets == "several labels":
        model.config.problem_type = "multi_label_classification"
    return model


def compute_torch_losses(logits: Tensor, labels: Tensor, targets: str) -> Tensor:
    """Return one loss for each row of logits (K, C), 0 without a label."""
    if targets == "values":
        return (logits.squeeze(-1) - labels).square()
    if targets == "several labels":
        return functional.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(dim=1)
    return functional.cross_entropy(logits, labels, WEIGHTS if "weighted" in targets else None, reduction="none")


def compute_divisor(labels: Tensor, targets: str) -> Tensor | int:
    if not targets.endswith("classes"):
        return len(labels)
    real_labels = labels[labels >= 0]
    return WEIGHTS[real_labels].sum() if "weighted" in targets else len(real_labels)


@pytest.mark.parametrize(("kind", "targets"), keep_one_quick(5, CASES))
def test_losses_equal_torch_for_whole_and_divided_batches(kind: str, targets: str, tmp_path: Path) -> None:
    model, batch = build_model(kind, targets, tmp_path), build_batch(kind, targets)
    outputs, labels = model(**batch), batch["labels"].flatten(0, 1) if kind in TOKENS else batch["labels"]
    steps = outputs.step_logits if kind in SHARES else outputs.logits.flatten(0, -2).unsqueeze(1)
    losses = torch.stack([compute_torch_losses(step, labels, targets) for step in steps.unbind(dim=1)], dim=1)
    shares = SHARES[kind](outputs) if kind in SHARES else 1.0
    torch.testing.assert_close(outputs.loss_parts["task"], (losses * shares).sum() / compute_divisor(labels, targets))
    torch.testing.assert_close(outputs.loss, sum(outputs.loss_parts.values()))
    counts = model.count_targets(batch)
    parts = [
        model(**{name: values[rows] for name, values in batch.items()}, num_targets=counts).loss
        for rows in torch.arange(8).chunk(3)
    ]
    torch.testing.assert_close(sum(parts), outputs.loss, atol=1e-5, rtol=1e-5)


def compute_gradients(model: Any, batch: dict[str, Tensor], cuts: int) -> dict[str, Tensor]:
    """Return the gradients of an update in this many micro-batches, each divided by the counts of all."""
    model.zero_grad()
    counts = model.count_targets(batch)
    for rows in torch.arange(8).chunk(cuts):
        model(**{name: values[rows] for name, values in batch.items()}, num_targets=counts).loss.backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("kind", keep_one_quick(3, ["act", "ponder", "exits", "adalayers", *TOKENS]))
def test_gradients_do_not_depend_on_micro_batches(kind: str, tmp_path: Path) -> None:
    model, batch = build_model(kind, "weighted classes", tmp_path), build_batch(kind)
    whole = compute_gradients(model, batch, 1)
    for name, gradient in compute_gradients(model, batch, 4).items():
        torch.testing.assert_close(gradient, whole[name], atol=1e-5, rtol=1e-4, msg=name)


def test_focal_losses_do_not_depend_on_micro_batches(tmp_path: Path) -> None:
    model = build_adalayers(AdaLayersForTokenClassification, 3, tmp_path, focal_loss_enabled=True).eval()
    whole, parts = (compute_gradients(model, build_batch("adalayers tokens"), cuts) for cuts in (1, 4))
    torch.testing.assert_close(parts, whole, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("kind", keep_one_quick(3, SEQUENCES))
def test_rows_without_a_target_do_not_count_and_a_wrong_class_is_named(kind: str, tmp_path: Path) -> None:
    model, batch = build_model(kind, "classes", tmp_path), build_batch(kind)
    without = {name: values[:7] for name, values in batch.items()}
    torch.testing.assert_close(model(**without).loss, model(**batch).loss)
    losses_without_targets = model(**batch | {"labels": torch.full((8,), -100)}).loss_parts
    assert losses_without_targets["task"] == 0
    with pytest.raises(DataError, match=r"labels: 3 is not a class of this model, which has 3 classes \(0 to 2\)"):
        model(**batch | {"labels": torch.full((8,), 3)})


def test_class_weights_follow_from_counts() -> None:
    counts = {"rare": 2, "common": 6, "absent": 0}
    assert compute_class_weights("balanced", counts) == pytest.approx((8 / 6, 8 / 18, 1))
    assert compute_class_weights({"rare": 3}, counts) == (3, 1, 1)
    with pytest.raises(
        DataError,
        match=r"dataset.class_weights.comon: not a class \(did you mean 'common'\?\); the classes are rare, common",
    ):
        compute_class_weights({"comon": 1}, counts)
