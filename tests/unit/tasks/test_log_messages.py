"""Messages at the start and the end of a run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from transformers import TrainerState

from adadepth.tasks import log_messages, results
from adadepth.tasks.log_messages import describe_end, describe_selection, describe_start
from adadepth.training.arguments import training_arguments
from tests.configs.support import configured

CONFIG: Any = SimpleNamespace(trainer=SimpleNamespace(early_stopping_patience=None))
STOP: Any = SimpleNamespace(reason=None)


def describe(*values: float, **fields: Any) -> tuple[str, Any]:
    """Return message and selection of a training of as many steps as evaluations, with the first one as the best."""
    args: Any = SimpleNamespace(
        load_best_model_at_end=True, metric_for_best_model="eval_loss", greater_is_better=False, **fields
    )
    state = TrainerState(
        global_step=len(values), max_steps=len(values), best_global_step=1, best_metric=values[0],
        log_history=[{"eval_loss": value} for value in values],
    )  # fmt: skip
    return describe_end(CONFIG, args, STOP, state), describe_selection(args, state)


def test_a_metric_that_never_changed_is_reported() -> None:
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


@pytest.mark.parametrize(("overrides", "summary", "expected"), [
    (
        ["trainer.max_steps=60", "trainer.warmup_steps=0.1", "trainer.gradient_accumulation_steps=2"],
        {"train": {"examples": 96000}, "hops": {"inside": [0, 5], "beyond": [6, 7]},
         "evaluation": {"inside": {"examples": 512}, "beyond": {"examples": 256}}},
        ["act_hops: Model, 1,000 parameters, 900 of them trained, at most 8 updates per token, target 3 (updates)",
         "data: hops; training 96,000 examples; inside (hops 0 to 5) 512 examples; beyond (hops 6 to 7) 256 examples",
         "training: 60 steps, batch 128, adamw, lr 0.002, cosine schedule, warm-up 10% of steps",
         "machine: CPU, ",
         "output: evaluation every 750 steps, keeps the step on target with the highest eval/score, in RUN"],
    ),
    (
        ["mode=evaluate", "checkpoint=RUN", "budget=none", "trainer.precision=bf16"],
        {"train": {"streamed": True}, "evaluation": {"lines": 20, "tokens": 3620, "tokens_used": 905},
         "sources": {"train": "32dc"}},
        ["act_hops: Model, 1,000 parameters, 900 of them trained, 4 updates per token",
         "data: hops; training streamed; evaluation 905 tokens (75% of 3,620 are cut)",
         "machine: CPU, ", "output: RUN"],
    ),
])  # fmt: skip
def test_the_first_lines_have_the_settings_in_effect(
    overrides: list[str], summary: dict[str, Any], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_messages, "estimate_least_memory", lambda model, data, args: 2**20)

    class Model:
        depth_unit, max_updates = "token", 8
        one_depth = 4 if "budget=none" in overrides else None

    config = configured("act_hops", *overrides)
    record = {"config_name": "act_hops", "parameters": 1000, "trainable_parameters": 900}
    run: Any = SimpleNamespace(record=record, directory="RUN")
    data: Any = SimpleNamespace(summary={"name": "hops", **summary}, train=None)
    lines = describe_start(config, training_arguments(config), run, Model(), data).splitlines()
    assert [line[: len(start)] for line, start in zip(lines, expected, strict=True)] == expected
    assert ("a step needs at least 1 MiB" in lines[-2]) == (config.mode == "train")
    assert ("bf16, seed 0" in lines[-2]) == ("trainer.precision=bf16" in overrides)


@pytest.mark.parametrize(("overrides", "is_warned"), [
    (("model.gate=true",), True),
    (("model.gate=true", "model.exit_rule=quantile:0.5"), True),
    (("model.gate=true", "model.objective=gate"), False),
    (("model.gate=true", "mode=evaluate", "checkpoint=a"), False),
    (("model.gate=true", "rival_of=RUN"), False),
    ((), False),
])  # fmt: skip
def test_a_gate_that_is_not_trained_is_a_warning_at_the_start(
    overrides: tuple[str, ...], is_warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_messages, "estimate_least_memory", lambda model, data, args: 2**20)
    config = configured("loop_tiny", *overrides)
    record = {"config_name": "loop_tiny", "parameters": 1000, "trainable_parameters": 1000}
    run: Any = SimpleNamespace(record=record, directory="RUN")
    model = SimpleNamespace(depth_unit="token", max_updates=4, one_depth=None)
    data: Any = SimpleNamespace(summary={"name": "causal_python_docs"}, train=None)
    text = describe_start(config, training_arguments(config), run, model, data)
    line = "warning: the gate is not trained by model.objective=mean; model.objective=gate trains it"
    assert (line in text.splitlines()) == is_warned


@pytest.mark.parametrize("names", [("inside", "beyond"), ("inside",)])
def test_warnings_of_depth_name_their_evaluation_set_if_there_are_several(
    names: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    statistics = {"adaptation": {"warning": "depth does not adapt: 9 tokens", "advice": "train longer"}}
    reports = {name: SimpleNamespace(statistics=statistics) for name in names}
    trainer: Any = SimpleNamespace(last_reports=reports, is_world_process_zero=lambda: True)
    results.warn_of_depth(trainer)
    lines = capsys.readouterr().out.splitlines()
    expected = [f"on {name}, " for name in names] if names[1:] else [""]
    assert lines == [f"warning: {on}depth does not adapt: 9 tokens: train longer" for on in expected]
