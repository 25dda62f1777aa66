"""Messages of a run: a metric that selects nothing is told at the end of the training."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from transformers import TrainerState

from adadepth.tasks.log_messages import describe_end, describe_selection

CONFIG: Any = SimpleNamespace(trainer=SimpleNamespace(early_stopping_patience=None))
STOP: Any = SimpleNamespace(reason=None)


def describe(*values: float, **fields: Any) -> tuple[str, Any]:
    """Message and selection of a training of as many steps as evaluations, with the first one as the best."""
    args: Any = SimpleNamespace(
        load_best_model_at_end=True, metric_for_best_model="eval_loss", greater_is_better=False, **fields
    )
    state = TrainerState(
        global_step=len(values), max_steps=len(values), best_global_step=1, best_metric=values[0],
        log_history=[{"eval_loss": value} for value in values],
    )  # fmt: skip
    return describe_end(CONFIG, args, STOP, state), describe_selection(args, state)


def test_a_metric_that_never_changed_is_told() -> None:
    line, selection = describe(6.93, 6.93, 6.93)
    assert line == (
        "training ended: all 3 steps are done; best step 1, eval/loss 6.9300\n"
        "warning: eval_loss was 6.93 at all 3 evaluations, so it cannot select a step; "
        "set trainer.metric_for_best_model to a metric that changes"
    ).removeprefix("training ended: ")
    assert selection == {"step": 1, "metric": "eval/loss", "value": 6.93, "extreme": "lowest"}


@pytest.mark.parametrize("values", [(6.93, 6.93), (6.93, 6.93, 6.92), (6.93, float("nan"), 6.93)])
def test_a_metric_that_changed_is_not_blamed(values: tuple[float, ...]) -> None:
    assert "warning" not in describe(*values)[0]
