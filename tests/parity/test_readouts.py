"""The loss of readouts after every iteration, against a plain loop over tokens and iterations."""

import json

import pytest
import torch
import torch.nn.functional as F

from adadepth import (
    AlbertActConfig,
    AlbertActForMaskedLM,
    AlbertActForMultipleChoice,
    AlbertActForPreTraining,
    AlbertActForQuestionAnswering,
    AlbertActForSequenceClassification,
    AlbertActForTokenClassification,
    AlbertActModel,
)
from adadepth.errors import ConfigError
from adadepth.models.albert_act.reference import apply_linear, normalise
from tests.albert_act_support import (
    compute_prescribed_probabilities,
    make_labelled_batch,
    prescribe,
    repack_at_every_halt,
)
from tests.marks_support import keep_one_quick
from tests.models_support import make_padded_batch, make_small_config, spread_depths
from tests.parity.act_variants import encode_variant

LENGTHS, STEPS, WEIGHT = (10, 7, 1), 5, 0.3
WITH_READOUTS = (
    AlbertActForTokenClassification,
    AlbertActForSequenceClassification,
    AlbertActForMaskedLM,
    AlbertActForPreTraining,
    AlbertActForMultipleChoice,
)


@pytest.fixture(autouse=True, scope="module")
def _force_repacking():
    with repack_at_every_halt():
        yield


def build_model(model_class, rule="single", **changes):
    """Build a model in float64 without dropout."""
    torch.manual_seed(0)
    settings = {"num_hidden_layers": STEPS, "num_labels": 3, "initializer_range": 0.2, "act_penalty": 0.01}
    settings |= {"classifier_dropout_prob": 0.0, "readout_weight": WEIGHT, "state_rule": rule}
    return model_class(make_small_config(**(settings | changes))).double()


def build_depths(shape):
    """Return depths from 1 to the cap, each of them present."""
    return torch.arange(shape.numel()).mul(7).remainder(STEPS).add(1).view(shape)


def apply_head(name, weights, config, state):
    """Apply the head of a model to one state."""
    if name == "AlbertActForTokenClassification":
        return apply_linear(weights, "classifier", state)
    if name == "AlbertActForSequenceClassification":
        return apply_linear(weights, "classifier", torch.tanh(apply_linear(weights, "albert.pooler", state)))
    hidden = F.gelu(apply_linear(weights, "predictions.dense", state), approximate="tanh")
    hidden = normalise(weights, "predictions.LayerNorm", hidden, config.layer_norm_eps)
    return apply_linear(weights, "predictions.decoder", hidden)


def compute_plain_readouts(model, batch, depths):
    """Return the sum over units of the mean cross-entropy over the updates each executed, and its gradients."""
    parameters = {name: weight.detach().clone().requires_grad_() for name, weight in model.named_parameters()}
    tied = {"predictions.decoder.weight": "albert.embeddings.word_embeddings.weight"}
    tied["predictions.decoder.bias"] = "predictions.bias"
    weights = parameters | {name: parameters[other] for name, other in tied.items() if other in parameters}
    inner = {name.removeprefix("albert."): weight for name, weight in weights.items()}
    total, units = 0.0, 0
    for row, length in enumerate(batch["attention_mask"].sum(dim=1).tolist()):
        trails = encode_variant(
            inner,
            model.config,
            batch["input_ids"][row, :length],
            batch["token_type_ids"][row, :length],
            prescribed=compute_prescribed_probabilities(depths)[row, :length].tolist(),
        ).trails
        labels = batch["labels"][row]
        for token in range(length) if labels.dim() else [0]:
            label = labels[token] if labels.dim() else labels
            if label < 0:
                continue
            units += 1
            assert len(trails[token]) == depths[row, token]
            losses = [
                F.cross_entropy(apply_head(type(model).__name__, weights, model.config, x), label)
                for x in trails[token]
            ]
            total = total + sum(losses) / len(losses)
    loss = WEIGHT * total / units
    loss.backward()
    return loss, {name: weight.grad for name, weight in parameters.items() if weight.grad is not None}


@pytest.mark.parametrize("name", ["dense", "ragged"])
@pytest.mark.parametrize("rule", keep_one_quick(2, ["single", "graves"]))
@pytest.mark.parametrize("model_class", WITH_READOUTS[:3])
def test_equals_a_loop_over_tokens_and_iterations(model_class, rule, name):
    model, batch = build_model(model_class, rule, execution=name), make_labelled_batch(model_class)
    depths = build_depths(batch["input_ids"].shape)
    prescribe(model.albert, depths)
    outputs = model(**batch)
    assert outputs.updates.equal(depths * batch["attention_mask"].float())
    outputs.loss_parts["readouts"].backward()
    expected, gradients = compute_plain_readouts(model, batch, depths)
    torch.testing.assert_close(outputs.loss_parts["readouts"].double(), expected, atol=0, rtol=1e-6)
    scale = max(gradient.norm() for gradient in gradients.values())
    for key, gradient in gradients.items():
        actual = model.get_parameter(key).grad
        actual = torch.zeros_like(gradient) if actual is None else actual
        assert (actual - gradient).norm() <= 1e-5 * gradient.norm() + 1e-7 * scale, key


@pytest.mark.parametrize(
    ("rule", "recall"), keep_one_quick(2, [("single", False), ("graves", False), ("graves", True)])
)
@pytest.mark.parametrize("model_class", WITH_READOUTS)
def test_dense_equals_ragged(model_class, rule, recall):
    model, batch = build_model(model_class, rule, recall=recall), make_labelled_batch(model_class)
    depths = build_depths(batch["input_ids"].flatten(0, -2).shape)
    prescribe(model.albert, depths)
    by_execution = {}
    for name in ("dense", "ragged"):
        model.config.execution = name
        model.zero_grad()
        outputs = model(**batch)
        outputs.loss.backward()
        by_execution[name] = outputs, {key: weight.grad.clone() for key, weight in model.named_parameters()}
    (dense, expected), (ragged, gradients) = by_execution["dense"], by_execution["ragged"]
    for part, value in dense.loss_parts.items():
        torch.testing.assert_close(ragged.loss_parts[part], value, atol=1e-6, rtol=0)
    scale = max(gradient.norm() for gradient in expected.values())
    for key, gradient in expected.items():
        assert (gradients[key] - gradient).norm() <= 1e-5 * gradient.norm() + 1e-7 * scale, key


@pytest.mark.parametrize("rule", ["single", "graves", "accumulated", "basic"])
def test_states_are_those_of_every_iteration(rule):
    """Compare with the recorded hidden states, which contain all tokens."""
    torch.manual_seed(0)
    model = AlbertActModel(make_small_config(state_rule=rule, initializer_range=0.2)).double().eval()
    spread_depths(model)
    batch, slots = make_padded_batch(LENGTHS), torch.tensor([0, 3, 9, 11, 14, 24, 30])
    for name in ("dense", "ragged") if rule in ("single", "graves") else ("dense",):
        model.config.execution = name
        outputs = model(**batch, output_hidden_states=True, readout_slots=slots)
        expected = torch.stack([state.flatten(0, 1)[slots] for state in outputs.hidden_states[1:]], dim=1)
        torch.testing.assert_close(outputs.readout_states, expected, atol=0, rtol=0)
        assert outputs.readout_states.shape[1] == outputs.trace.execution.steps > 2


@pytest.mark.parametrize("problem", ["regression", "multi_label_classification"])
def test_values_and_several_classes(problem):
    regression = problem == "regression"
    model = build_model(AlbertActForSequenceClassification, num_labels=1 if regression else 3, problem_type=problem)
    batch = make_padded_batch(LENGTHS)
    labels = torch.tensor([0.5, 2.0, -1.0]) if regression else torch.tensor([[1.0, 0, 1], [0, 0, 0], [1, 1, 1]])
    outputs = model(**batch, labels=labels, output_hidden_states=True)
    total = 0.0
    for row in range(3):
        steps = int(outputs.updates[row, 0])
        logits = [
            model.classifier(model.albert.pooled(state[row, 0])) for state in outputs.hidden_states[1 : steps + 1]
        ]
        targets = labels[row].double().expand_as(logits[0])
        compute = F.mse_loss if regression else F.binary_cross_entropy_with_logits
        total = total + sum(compute(value, targets) for value in logits) / steps
    torch.testing.assert_close(outputs.loss_parts["readouts"].double(), WEIGHT * total / 3, atol=1e-6, rtol=0)


@pytest.mark.parametrize("model_class", WITH_READOUTS)
def test_halves_of_a_batch_add_up_to_the_whole(model_class):
    """Check losses normalised by the counts of the whole step, as gradient accumulation and distributed runs need."""
    model, batch = build_model(model_class).eval(), make_labelled_batch(model_class)
    counts = model.count_targets(batch)
    whole = model(**batch)
    assert counts.keys() == whole.loss_parts.keys()
    halves = [{name: value[rows] for name, value in batch.items()} for rows in (slice(0, 1), slice(1, 3))]
    parts = [model(**half, num_targets=counts).loss_parts["readouts"] for half in halves]
    torch.testing.assert_close(sum(parts), whole.loss_parts["readouts"])
    weighted = build_model(model_class, readout_weight=2 * WEIGHT).eval()(**batch)
    torch.testing.assert_close(weighted.loss_parts["readouts"], 2 * whole.loss_parts["readouts"])


@pytest.mark.parametrize("model_class", WITH_READOUTS)
def test_weight_zero_changes_nothing(model_class, tmp_path):
    """Check that no part and no count is added, and that configurations without the key load with weight 0."""
    model, batch = build_model(model_class, readout_weight=0.0), make_labelled_batch(model_class)
    outputs = model(**batch)
    assert "readouts" not in outputs.loss_parts
    assert "readouts" not in model.count_targets(batch)
    with_weight = build_model(model_class)(**batch)
    assert with_weight.loss_parts.keys() - outputs.loss_parts.keys() == {"readouts"}
    for name, part in outputs.loss_parts.items():
        assert torch.equal(part, with_weight.loss_parts[name]), name
    model.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved.pop("readout_weight") == 0.0
    assert AlbertActConfig(**saved).readout_weight == 0.0


def test_padding_and_ignored_labels_do_not_count():
    model = build_model(AlbertActForTokenClassification)
    batch = make_labelled_batch(AlbertActForTokenClassification)
    wide = {name: F.pad(value, (0, 5), value=-100 if name == "labels" else 0) for name, value in batch.items()}
    parts = [model(**inputs).loss_parts["readouts"] for inputs in (batch, wide)]
    torch.testing.assert_close(parts[1], parts[0], atol=1e-6, rtol=0)
    batch["labels"].fill_(-100)
    assert model(**batch).loss_parts["readouts"] == 0


def test_invalid_weights_are_refused():
    with pytest.raises(ConfigError, match=r"readout_weight=0\.5: question answering has no readouts; set it to 0"):
        AlbertActForQuestionAnswering(make_small_config(readout_weight=0.5))
    with pytest.raises(ConfigError, match=r"readout_weight=-1\.0 must be at least 0"):
        make_small_config(readout_weight=-1.0)
