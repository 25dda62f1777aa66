"""Absence of float64 on devices without it, such as Apple's MPS, for every family: checked on the meta device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from adadepth.budget.controller import BudgetController, BudgetSchedule
from adadepth.config import BudgetConfig, BudgetUnit
from adadepth.evaluation.evaluation import Evaluation
from adadepth.evaluation.scorer import Scorer, Units
from adadepth.runtime import devices
from adadepth.training.depth_budget import TrainingBudget
from adadepth.training.profiling import Stopwatch
from tests.host_reads_support import ACCELERATOR, Float64Uses, accelerator_autocast
from tests.marks_support import keep_one_quick
from tests.mirrored_reads_support import MirroredReads
from tests.unit.models.every_model_support import BUILD, FURTHER, build_training_batch

ALL = BUILD | FURTHER


class EveryUnit(Scorer):
    """Scorer with one class for all units."""

    classes = ("all",)

    def units(self, batch: Any, outputs: Any) -> Units:
        """Return all units without losses."""
        valid = outputs.trace.valid
        return Units({"all": valid}, losses=torch.zeros_like(outputs.trace.updates))


class MirroredFloat64Uses(Float64Uses, MirroredReads):
    """`Float64Uses` with the values of a mirror, for models that plan by text lengths on the host."""


@pytest.fixture(autouse=True)
def refuse_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_WITHOUT_FLOAT64", {ACCELERATOR.type})


@pytest.mark.parametrize("name", keep_one_quick(14, ALL))
def test_training_evaluation_and_statistics_have_no_float64(name: str) -> None:
    torch.manual_seed(0)
    uses = MirroredFloat64Uses() if name in ("ponder", "exits") else Float64Uses()
    with accelerator_autocast(), uses:
        model: Any = ALL[name]().to(ACCELERATOR)
        batch = {
            key: value.to(ACCELERATOR) if isinstance(value, Tensor) else value
            for key, value in build_training_batch(name).items()
        }
        evaluation = Evaluation(model, EveryUnit(), ACCELERATOR, wants_statistics=True)
        model.train().set_step(1, 10)
        model(**batch).loss.backward()
        model.eval()
        evaluation.update(batch, model(**batch))
    assert not uses.doubles, dict(uses.doubles)


@pytest.mark.parametrize("name", ["act tagging", "supernet"])
def test_a_budget_has_no_float64(name: str) -> None:
    fields = {"operation_costs": [3.0, 1.0, 0.5]} if name == "supernet" else {}
    model: Any = ALL[name]().to(ACCELERATOR)
    for key, value in fields.items():
        setattr(model.config, key, value)
    unit = BudgetUnit.milliseconds if name == "supernet" else BudgetUnit.updates
    budget = TrainingBudget(BudgetConfig(target=2, unit=unit), model, ACCELERATOR, lambda _: True)
    batch = {
        key: value.to(ACCELERATOR) if isinstance(value, Tensor) else value
        for key, value in build_training_batch(name).items()
    }
    uses = Float64Uses()
    with accelerator_autocast(), uses:
        model.train().set_step(1, 10)
        outputs = model(**batch)
        parts = budget.loss_parts(outputs, {"budget": torch.tensor(3.0, device=ACCELERATOR)})
        (outputs.loss + sum(parts.values())).backward()
        budget.on_step_end(None, None, None)  # type: ignore[arg-type]
    assert not uses.doubles, dict(uses.doubles)


def test_a_stopwatch_has_no_float64() -> None:
    uses, watch = Float64Uses(), Stopwatch(ACCELERATOR)
    with uses:
        list(watch.time([({"attention_mask": torch.ones(2, 3, device=ACCELERATOR)}, None)]))
        assert watch.tokens_per_second() > 0
    assert not uses.doubles, dict(uses.doubles)


def test_float64_is_detected() -> None:
    uses = Float64Uses()
    with uses:
        torch.zeros(2, device=ACCELERATOR).double()
        BudgetController(BudgetSchedule(2.0, 4.0, 4), device=ACCELERATOR)
    assert uses.doubles.total() == 2
