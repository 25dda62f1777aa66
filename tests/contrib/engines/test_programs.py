"""Steps of models as functions of tensors, and models that no program can express; no engine runs."""

import ast
from pathlib import Path

import pytest
import torch

import adadepth
import adadepth.contrib.engines
from adadepth.contrib.engines.programs import make_example, prepare_model
from adadepth.contrib.engines.text_steps import Carried, FirstStep, FixedSteps, NextStep, select_steps
from adadepth.errors import ConfigError
from tests.contrib.engines.models_under_test import (
    BRANCHING,
    build_early_exit,
    build_looped,
    build_par_xl,
    build_routed,
    draw_batch,
    predict,
)
from tests.models_support import make_small_act, make_small_ponder


@pytest.mark.parametrize("name", BRANCHING)
def test_steps_with_exits_give_the_predictions_and_depths_of_the_model(name):
    model = BRANCHING[name]()
    torch.manual_seed(1)
    batch = draw_batch(model, rows=8, length=9)
    logits, depths = predict(model, batch)
    assert len(depths.unique()) > 1, "the texts of this test exit at different steps"
    model = prepare_model(model, "onnx")
    steps, rule = select_steps(model), model.config.parsed_exit_rule
    num_states = len(steps.advance(1, *steps.begin(batch)).states)
    split = len(Carried._fields) - 1 + num_states
    values, ran = FirstStep(steps, rule, [*batch])(*batch.values()), 1
    while values[0] and ran < model.max_updates:
        ran += 1
        values = (*NextStep(steps, rule, ran, num_states)(*values), *values[split:])
    carried = Carried(*values[:5], values[5:split])
    assert ran == depths.max()
    torch.testing.assert_close(carried.logits, logits, rtol=1e-5, atol=1e-5)
    assert torch.equal(carried.depth, depths)


def test_a_fixed_exit_runs_no_later_step(monkeypatch):
    model = make_small_ponder(exit_rule="fixed:2")
    batch, ran = draw_batch(model, rows=3, length=9), []
    steps = select_steps(model)
    advance = steps.advance
    monkeypatch.setattr(steps, "advance", lambda step, *rest: ran.append(step) or advance(step, *rest))
    (logits,) = FixedSteps(steps, 2, [*batch])(*batch.values())
    assert ran == [1, 2]
    torch.testing.assert_close(logits, predict(model, batch)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (build_routed, "model_type=routed: export.format=onnx has no program in which routers choose tokens"),
        (build_par_xl, "model_type=par_xl: export.format=onnx has no program of its relative attention"),
        (
            lambda: build_early_exit("EarlyExitForCausalLM", exit_rule="margin:0.5"),
            "exit_rule=margin:0.5: export.format=onnx needs a fixed exit, fixed:N",
        ),
        (
            lambda: build_looped("LoopedForSequenceClassification", exit_rule="margin:0.5"),
            "exit_rule=margin:0.5: export.format=onnx needs a fixed exit, fixed:N",
        ),
        (
            lambda: build_looped("LoopedForCausalLM", start="drawn"),
            "start=drawn: export.format=onnx needs a first state that is not drawn: input or zeros",
        ),
        (
            lambda: make_small_act(adadepth.AlbertActForMultipleChoice),
            "model_type=albert_act: export.format=onnx needs one text, not several choices",
        ),
        (
            lambda: make_small_act(adadepth.AlbertActForQuestionAnswering),
            "model_type=albert_act: export.format=onnx needs logits, which AlbertActForQuestionAnswering has not",
        ),
        (
            lambda: make_small_ponder(exit_rule="sample"),
            "exit_rule=sample: export.format=onnx has no program that draws random numbers",
        ),
        (
            lambda: adadepth.PonderRnnForClassification(adadepth.PonderRnnConfig(hidden_size=8, input_size=4)),
            "model_type=ponder_rnn: export.format=onnx needs token ids as inputs, not vectors",
        ),
    ],
)
def test_inexpressible_models_are_one_line_errors(build, message):
    with pytest.raises(ConfigError) as raised:
        prepare_model(build(), "onnx")
    assert str(raised.value) == message


@pytest.mark.parametrize("name", ["run_onnx.py", "run_executorch.py"])
def test_a_runner_does_not_import_the_package(name):
    source = Path(adadepth.contrib.engines.__file__).with_name(name).read_text(encoding="utf-8")
    imported = {
        alias.name if isinstance(node, ast.Import) else node.module
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert not any(name.startswith("adadepth") for name in imported)


def test_the_example_has_the_inputs_of_the_model():
    assert [*make_example(build_looped("LoopedForCausalLM"))] == ["input_ids", "attention_mask"]
    assert [*make_example(make_small_ponder())] == ["input_ids", "attention_mask", "token_type_ids"]
