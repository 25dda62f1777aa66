"""`torch.export` and `torch.compile` of the families: one graph, the predictions of eager mode, batches of any size."""

import pytest
import torch

from tests.ecosystem.families_under_test import CASES, build_targets

pytestmark = pytest.mark.slow
# Adalayers stops its base at a layer that depends on weights, which no graph can express.
EXPORTED = [case for case in CASES if case.name != "AdaLayers"]
MODELS = [pytest.param(case, model, id=model.__name__) for case in EXPORTED for model in case.models()]
STEPPED = ("AlbertAct", "PonderAlbert", "MultiExitAlbert", "PonderRnn")
# Their steppers count the rows of a batch, or gather masks by row, which fixes the number of rows.
ONE_SIZE = {"PonderRnnForClassification", "RoutedForCausalLM", "RoutedForTokenClassification", "TrmForPuzzles"}
LOGITS = ("logits", "prediction_logits", "start_logits", "last_hidden_state")


def draw_batch(case, model, config, rows):
    inputs = {name: value[:1].expand(rows, -1).clone() for name, value in case.inputs(config).items()}
    if "input_ids" in inputs:
        inputs["input_ids"] = torch.randint(5, config.vocab_size, inputs["input_ids"].shape)
    if "MultipleChoice" in model.__name__:
        inputs = {name: value.unsqueeze(1).expand(-1, 2, -1).clone() for name, value in inputs.items()}
    return inputs


@pytest.mark.parametrize(("case", "model"), MODELS)
def test_an_exported_model_predicts_as_eager_mode(case, model):
    config = case.config()
    if hasattr(config, "execution"):
        config.execution = "dense"
    eager = model(config).eval()
    example = draw_batch(case, model, config, rows=3)
    sizes = (3,) if model.__name__ in ONE_SIZE else (3, 5)
    rows = torch.export.Dim("rows", min=2, max=64) if len(sizes) > 1 else None
    program = torch.export.export(eager, (), example, dynamic_shapes={name: {0: rows} for name in example})
    for count in sizes:
        batch = draw_batch(case, model, config, count)
        with torch.no_grad():
            expected, exported = eager(**batch), program.module()(**batch)
        name = next(name for name in LOGITS if name in expected)
        torch.testing.assert_close(exported[name], expected[name], rtol=1e-5, atol=1e-5)
        if "trace" in expected:
            assert torch.equal(exported["trace"].updates, expected.trace.updates)


@pytest.mark.parametrize(
    ("case", "head"),
    [
        pytest.param(case, head, id=head.__name__)
        for case in CASES
        if case.name in STEPPED
        for head in case.models()
        if build_targets(head)
    ],
)
def test_a_training_pass_is_one_graph_with_the_loss_of_eager_mode(case, head):
    config = case.config()
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout_prob"):
        if hasattr(config, name):
            setattr(config, name, 0.0)
    model = head(config).train()
    batch = draw_batch(case, head, config, rows=3) | build_targets(head)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)(**batch)
    torch.testing.assert_close(compiled.loss, model(**batch).loss, rtol=1e-5, atol=1e-6)
