"""Records of every exit in an evaluation of running text: compute, and the distribution of a halting unit."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from adadepth.evaluation.packed_language_model import BlockScorer
from tests.unit.models.early_exit import early_exit_support as exits
from tests.unit.models.looped import looped_support as looped

BATCH = {"input_ids": exits.IDS, "labels": exits.IDS, "attention_mask": torch.ones_like(exits.IDS)}
DATA: Any = SimpleNamespace(tokenizer=SimpleNamespace(convert_ids_to_tokens=str))
BLOCKS: Any = SimpleNamespace(tokens=24, words=12, characters=60)


def summarise(model: Any) -> dict[str, Any]:
    """Return the content of exits.json for one batch of text."""
    scorer = BlockScorer(model, BLOCKS, DATA, torch.device("cpu"))
    with torch.no_grad():
        scorer.record(BATCH, model(**BATCH, **scorer.options(BATCH)))
    scorer.merge()
    summary = scorer.report({}).exits
    assert summary is not None
    return summary


def count_matrices(module: nn.Module) -> int:
    return sum(part.weight.numel() for part in module.modules() if isinstance(part, nn.Linear))


@pytest.mark.parametrize("exit_heads", ["shared", "own"])
def test_compute_of_an_exit_is_that_of_its_layers_and_one_prediction(exit_heads: str) -> None:
    """Use exits after layers 1, 3 and 4, so that a third of the exits is no third of the layers."""
    model = exits.build_early_exit(exit_layers=[1, 3], exit_heads=exit_heads)
    tokens = exits.LENGTH
    attention = 2 * exits.WIDTH * tokens * (tokens + 1) // 2
    layer = tokens * count_matrices(model.layers.get_layer(0)) + attention
    head = tokens * count_matrices(model.head)
    shares = [(number * layer + head) / (exits.LAYERS * layer + head) for number in model.config.exits]
    summary = summarise(model)
    assert [row["compute"] for row in summary["steps"]] == pytest.approx(shares)
    assert summary["halting"] == {}


def test_a_halting_unit_fills_the_columns_of_halting() -> None:
    """Compare with the definition of p_n, token by token; the last loop gets the rest of the probability."""
    model = looped.build_looped(**looped.OURO | {"exit_rule": "quantile:0.5"})
    with torch.no_grad():
        logits = model(**BATCH, run_all_steps=True).halting_logits
    rows = logits[:, :-1].flatten(0, 1).double().tolist()  # the last position predicts no token
    steps = len(rows[0])
    probabilities, expected, entropies = [], [], []
    for row in rows:
        remaining, pmf = 1.0, []
        for number, logit in enumerate(row, start=1):
            halting = 1 / (1 + math.exp(-logit)) if number < steps else 1.0
            pmf.append(remaining * halting)
            remaining *= 1 - halting
        probabilities.append(pmf)
        expected.append(sum(step * share for step, share in enumerate(pmf, start=1)))
        entropies.append(-sum(share * math.log(share) for share in pmf))
    summary = summarise(model)
    means = [sum(column) / len(rows) for column in zip(*probabilities, strict=True)]
    assert [row["posterior"] for row in summary["steps"]] == pytest.approx(means, rel=1e-5)
    assert summary["n"] == len(rows)
    for name, values in (("expected_steps", expected), ("entropy", entropies)):
        mean = sum(values) / len(values)
        std = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
        assert summary["halting"][name]["mean"] == pytest.approx(mean, rel=1e-5)
        assert summary["halting"][name]["std"] == pytest.approx(std, rel=1e-3)


def test_the_gate_of_early_exits_is_no_halting_distribution() -> None:
    """Check that a gate, which judges each prediction by itself, gives no distribution."""
    summary = summarise(exits.build_early_exit(exit_gate=True))
    assert summary["halting"] == {}
    assert "posterior" not in summary["steps"][0]
