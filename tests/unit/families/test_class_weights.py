"""Weights of classes: the same loss as torch's, in every family, however a batch is cut."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from adadepth import (
    AdaLayersForSequenceClassification,
    AdaLayersForTokenClassification,
    AlbertActForSequenceClassification,
    AlbertActForTokenClassification,
    PlainAlbertForSequenceClassification,
)
from adadepth.data.labelled.contract import weights_of_classes
from adadepth.errors import DataError
from tests.models_support import SMALL, small_config, small_multi_exit, small_ponder, spread_depths
from tests.unit.families.adalayers_support import HEAD, save_base

WEIGHTS = [0.5, 2.0, 7.0]
Make = Callable[[Path], Any]


def act(model_class: Any, **changes: Any) -> Any:
    model = model_class(small_config(initializer_range=0.3, num_labels=3, **changes))
    spread_depths(model, scale=3.0)
    return model


def adalayers(model_class: Any, folder: Path) -> Any:
    return model_class.from_base(save_base("bert", folder / "base"), **HEAD, num_labels=3)


SEQUENCES: dict[str, Make] = {
    "act": lambda _: act(AlbertActForSequenceClassification),
    "readouts": lambda _: act(AlbertActForSequenceClassification, readout_weight=0.5),
    "ponder": lambda _: small_ponder(num_labels=3),
    "multi exit": lambda _: small_multi_exit(num_labels=3),
    "plain": lambda _: PlainAlbertForSequenceClassification(
        PlainAlbertForSequenceClassification.config_class(**SMALL, num_labels=3)
    ),
    "adalayers": lambda folder: adalayers(AdaLayersForSequenceClassification, folder),
}
TOKENS: dict[str, Make] = {
    "act tokens": lambda _: act(AlbertActForTokenClassification, readout_weight=0.5),
    "adalayers tokens": lambda folder: adalayers(AdaLayersForTokenClassification, folder),
}


def batch_for(kind: str) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    ids = torch.randint(5, 20, (8, 6))
    labels = torch.tensor([0, 1, 2, 2, 0, 0, 1, -100])
    if kind in TOKENS:
        labels = torch.randint(-1, 3, (8, 6)).where(torch.rand(8, 6) < 0.7, -100)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def gradients(model: Any, batch: dict[str, torch.Tensor], cuts: int) -> dict[str, torch.Tensor]:
    """Of one update in so many micro-batches, each divided by the counts of all."""
    model.zero_grad()
    counts = model.count_targets(batch)
    for rows in torch.arange(8).chunk(cuts):
        model(**{name: values[rows] for name, values in batch.items()}, num_targets=counts).loss.backward()
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


@pytest.mark.parametrize("kind", [*SEQUENCES, *TOKENS])
def test_gradients_do_not_depend_on_how_a_batch_is_cut(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, batch = (SEQUENCES | TOKENS)[kind](tmp_path).eval(), batch_for(kind)
    unweighted = gradients(model, batch, 1)
    model.config.classes_weights = WEIGHTS
    whole = gradients(model, batch, 1)
    for name, gradient in gradients(model, batch, 4).items():
        torch.testing.assert_close(gradient, whole[name], atol=1e-5, rtol=1e-4, msg=name)
    assert any(not torch.allclose(unweighted[name], gradient, atol=1e-5) for name, gradient in whole.items())


@pytest.mark.parametrize("kind", ["act", "plain", "adalayers", *TOKENS])
def test_the_loss_is_torch_s(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, batch = (SEQUENCES | TOKENS)[kind](tmp_path).eval(), batch_for(kind)
    model.config.classes_weights = WEIGHTS
    outputs = model(**batch)
    labels = batch["labels"].masked_fill(batch["labels"] < 0, -100).flatten()
    expected = torch.nn.functional.cross_entropy(outputs.logits.flatten(0, -2), labels, torch.tensor(WEIGHTS))
    torch.testing.assert_close(outputs.loss_parts["task"], expected)


def test_steps_are_weighted_alike(tmp_path: Path) -> None:
    """PonderNet's expected loss: sum_i w_i sum_n p_in CE_in / sum_i w_i."""
    torch.manual_seed(0)
    model, batch = SEQUENCES["ponder"](tmp_path).eval(), batch_for("ponder")
    model.config.classes_weights = WEIGHTS
    outputs = model(**batch)
    labels, weights = batch["labels"][:-1], torch.tensor(WEIGHTS)
    losses = torch.stack([
        torch.nn.functional.cross_entropy(step[:-1], labels, weights, reduction="none")
        for step in outputs.step_logits.unbind(dim=1)
    ], dim=1)  # fmt: skip
    expected = (losses * outputs.posterior.pmf[:-1]).sum() / weights[labels].sum()
    torch.testing.assert_close(outputs.loss_parts["task"], expected)


def test_what_the_data_say() -> None:
    counts = {"rare": 2, "common": 6, "absent": 0}
    assert weights_of_classes("balanced", counts) == pytest.approx((8 / 6, 8 / 18, 1))
    assert weights_of_classes({"rare": 3}, counts) == (3, 1, 1)
    with pytest.raises(DataError, match=r"dataset.class_weights.comon: no class \(did you mean 'common'\?\)"):
        weights_of_classes({"comon": 1}, counts)
