"""Selection of a model whose predictions are frozen, by the loss that its training lowers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from adadepth.evaluation.evaluation import Evaluation
from adadepth.evaluation.packed_language_model import BlockScorer
from tests.unit.models.early_exit import early_exit_support as exits
from tests.unit.models.looped import looped_support as looped

BATCH = {"input_ids": exits.IDS, "labels": exits.IDS, "attention_mask": torch.ones_like(exits.IDS)}
DATA: Any = SimpleNamespace(tokenizer=SimpleNamespace(convert_ids_to_tokens=str))
BLOCKS: Any = SimpleNamespace(tokens=24, words=12, characters=60, bytes=60)


def evaluate(model: Any) -> dict[str, float]:
    """Return the metrics of one batch of text."""
    evaluation = Evaluation(
        model, BlockScorer(model, BLOCKS, DATA, torch.device("cpu")), torch.device("cpu"), wants_statistics=False
    )
    with torch.no_grad():
        evaluation.update(BATCH, model(**BATCH, **evaluation.options(BATCH)))
    evaluation.merge()
    return evaluation.metrics()


def test_early_exits_of_a_frozen_network_are_selected_by_their_mean_loss() -> None:
    model = exits.build_early_exit(exit_heads="own", trains="exits", exit_layers=[1, 2], exit_weights="uniform")
    before = evaluate(model)
    assert before["loss"] == pytest.approx((before["lm_loss_step_1"] + before["lm_loss_step_2"]) / 2)
    assert before["lm_loss"] == before["lm_loss_step_3"] != before["loss"]
    with torch.no_grad():
        for weight in model.exits[0].parameters():
            weight.mul_(0.5)
    after = evaluate(model)
    assert after["loss"] != before["loss"]
    assert (after["lm_loss"], after["perplexity"]) == (before["lm_loss"], before["perplexity"])


def test_a_gate_trained_alone_is_selected_by_its_loss() -> None:
    model = looped.build_looped(**looped.OURO | {"objective": "gate_alone", "exit_rule": None})
    before = evaluate(model)
    with torch.no_grad():
        model.model.gate.bias.add_(1.0)
    after = evaluate(model)
    assert after["loss"] != before["loss"]
    assert after["lm_loss"] == before["lm_loss"]


@pytest.mark.parametrize("fields", [{}, {"trains": "exits", "exit_heads": "own", "exit_rule": "margin:0.5"}])
def test_the_likelihood_selects_if_training_changes_it(fields: dict[str, Any]) -> None:
    metrics = evaluate(exits.build_early_exit(**fields))
    assert metrics["loss"] == metrics["lm_loss"]
