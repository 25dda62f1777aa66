"""Compute of a token or sequence, from plain counts, comparable between models whose units differ."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from adadepth.evaluation.evaluation import Evaluation
from adadepth.evaluation.scorer import Scorer, Units
from adadepth.metrics.unit_costs import compute_unit_macs
from adadepth.models.albert_act.configuration import AlbertActConfig
from adadepth.models.albert_act.heads import AlbertActForSequenceClassification
from adadepth.models.ponder.configuration import PonderAlbertConfig
from adadepth.models.ponder.modeling import PonderAlbertForSequenceClassification

SHAPE = {
    "vocab_size": 20, "embedding_size": 4, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16,
    "num_labels": 2,
}  # fmt: skip
LENGTHS = ((5, 3, 1), (4, 2, 2))


class EveryUnit(Scorer):
    """Scorer that has one class for all units."""

    classes = ("all",)

    def units(self, batch: Any, outputs: Any) -> Units:
        """Return all units."""
        return Units({"all": outputs.trace.valid})


def build_act() -> Any:
    return AlbertActForSequenceClassification(AlbertActConfig(**SHAPE, num_hidden_layers=4))


def build_ponder() -> Any:
    return PonderAlbertForSequenceClassification(PonderAlbertConfig(**SHAPE, num_hidden_layers=4))


@pytest.mark.parametrize(("build", "unit"), [(build_act, "token"), (build_ponder, "sequence")])
def test_compute_of_all_tokens_is_that_of_the_set(build: Any, unit: str) -> None:
    torch.manual_seed(0)
    model = build().eval()
    evaluation = Evaluation(model, EveryUnit(), torch.device("cpu"), wants_statistics=True)
    needed = 0.0
    for lengths in LENGTHS:
        mask = torch.tensor([[1] * length + [0] * (5 - length) for length in lengths])
        batch = {"input_ids": torch.randint(1, 20, mask.shape), "attention_mask": mask}
        with torch.no_grad():
            outputs = model(**batch, **evaluation.options(batch))
        needed += float(model.price(outputs.trace).adaptive)
        evaluation.update(batch, outputs)
    evaluation.merge()
    report = evaluation.report()
    assert report is not None
    cost = report.statistics["cost"]
    assert report.statistics["unit"] == unit
    assert cost["macs_per_token"] == pytest.approx(needed / (5 + 3 + 1 + 4 + 2 + 2))
    assert cost.get("macs_per_sequence") == (pytest.approx(needed / 6) if unit == "sequence" else None)


@pytest.mark.parametrize(
    ("unit", "tokens", "expected"),
    [
        ("token", None, {"macs_per_token": 25.0}),
        ("token", 8, {"macs_per_token": 12.5}),
        ("sequence", None, {"macs_per_sequence": 25.0}),
        ("sequence", 50, {"macs_per_token": 2.0, "macs_per_sequence": 25.0}),
        ("task", 50, {"macs_per_token": 2.0}),
        ("architecture", 50, {"macs_per_token": 100.0}),
    ],
)
def test_known_units_of_older_runs_are_counted(unit: str, tokens: int | None, expected: dict[str, float]) -> None:
    assert compute_unit_macs({"unit": unit, "n": 4, "cost": {"adaptive_macs": 100.0}}, tokens) == expected


@pytest.mark.parametrize("summary", [{}, {"cost": None}, {"unit": "token", "n": 4, "cost": {}}])
def test_a_token_has_no_compute_if_none_was_counted(summary: dict[str, Any]) -> None:
    assert compute_unit_macs(summary, 3) == {}
