"""ONNX programs of all families against the models themselves, in ONNX Runtime."""

import importlib.util

import pytest
import torch

from adadepth.config.export import ExportConfig
from adadepth.contrib import engines
from tests.contrib.engines.models_under_test import (
    BRANCHING,
    DENSE,
    build_early_exit,
    clear_padding,
    draw_batch,
    predict,
)

pytestmark = pytest.mark.slow
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


def write(model, folder, weights="f32"):
    engines.ONNX.write()(model, folder, folder, ExportConfig(format="onnx", weights=weights))
    spec = importlib.util.spec_from_file_location("engine", engines.ONNX.engine)
    engine = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(engine)
    return engine, engine.load(folder)


def run_session(session, batch):
    names = [value.name for value in session.get_outputs()]
    values = session.run(None, {name: value.numpy() for name, value in batch.items()})
    return {name: torch.from_numpy(value) for name, value in zip(names, values, strict=True)}


@pytest.mark.parametrize("name", BRANCHING | DENSE)
def test_a_program_predicts_as_its_model_does(name, tmp_path):
    model = (BRANCHING | DENSE)[name]()
    torch.manual_seed(1)
    batches = [draw_batch(model, rows, length) for rows, length in ((6, 9), (1, 5), (1, 2), (2, 12))]
    _, session = write(model, tmp_path)
    for batch in batches:
        logits, depths = predict(model, batch)
        outputs = run_session(session, batch)
        torch.testing.assert_close(clear_padding(outputs["logits"], batch), logits, rtol=1e-5, atol=1e-5)
        if "depth" in outputs:
            assert torch.equal(outputs["depth"], depths)
    assert ("depth" in outputs) == (name in BRANCHING or name in ("act_words", "act_texts", "early_exit_tokens"))


def test_branches_skip_the_steps_after_the_last_exit(tmp_path):
    import onnx

    model = BRANCHING["ponder"]()
    write(model, tmp_path)
    graph = onnx.load(tmp_path / "model.onnx").graph
    products = ("MatMul", "Gemm", "FusedMatMul")
    branches = [node for node in graph.node if node.op_type == "If"]
    assert len(branches) == model.max_updates - 1
    for branch in branches:
        bodies = {attribute.name: attribute.g.node for attribute in branch.attribute}
        assert any(node.op_type in products for node in bodies["then_branch"])
        assert {node.op_type for node in bodies["else_branch"]} == {"Identity"}


@pytest.mark.parametrize("name", ["adalayers_shallow", "adalayers_truncated"])
def test_unread_layers_are_left_out(name, tmp_path):
    import onnx

    model = DENSE[name]()
    assert max(model.active_states()) == 1
    write(model, tmp_path)
    names = [weight.name for weight in onnx.load(tmp_path / "model.onnx").graph.initializer]
    assert any(".layer.0." in name for name in names)
    assert not any(".layer.1." in name for name in names)


def test_int8_weights_are_smaller_and_close(tmp_path):
    model = BRANCHING["ponder"]()
    batch = draw_batch(model, rows=8, length=12)
    logits, _ = predict(model, batch)
    (full := tmp_path / "f32").mkdir()
    (small := tmp_path / "int8").mkdir()
    write(model, full)
    _, session = write(model, small, "int8")
    outputs = run_session(session, batch)
    error = (outputs["logits"] - logits).abs().mean()
    assert 0 < error < 0.3 * logits.std()
    assert (small / "model.onnx").stat().st_size < (full / "model.onnx").stat().st_size


def test_the_runner_generates_the_most_probable_words(tmp_path):
    model = build_early_exit("EarlyExitForCausalLM", exit_rule="fixed:2")
    words = [7, 30, 12]
    continued = model.generate(torch.tensor([words]), max_new_tokens=4, do_sample=False, eos_token_id=None)
    expected = continued[0, len(words) :].tolist()
    engine, session = write(model, tmp_path)
    assert engine.generate(session, words, 4) == expected
    logits = predict(model, {"input_ids": torch.tensor([words])})[0][0]
    torch.testing.assert_close(torch.tensor(engine.compute_logits(session, words)), logits, rtol=1e-5, atol=1e-5)
