"""Adalayers with the weights of the original heads: logits, losses, distributions, gradients and known defects."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModel

from adadepth import AdaLayersForSequenceClassification, AdaLayersForTokenClassification, convert_reference_state_dict
from adadepth.models.adalayers import reference
from tests.parity.adalayers_variants import (
    add_positions,
    build_reference_layout,
    compute_plain_cross_entropy,
    compute_plain_entropy_penalty,
    compute_plain_focal,
)
from tests.unit.models.adalayers_support import DEPTH, HEAD, WIDTH, draw_texts, save_base

ALPHA, HEADS, K, CLASSES = 5.0, 4, 16, 3
FIELDS = HEAD | {"alpha_distribution": ALPHA, "num_labels": CLASSES, "seed_compat": True}
CLASS_WEIGHTS = [0.2, 1.0, 3.0]
MODELS = {"sequence": AdaLayersForSequenceClassification, "tokens": AdaLayersForTokenClassification}
PLAIN = {"sequence": reference.classify_sequences, "tokens": reference.classify_tokens}


def draw_reference_weights(kind, layers, **shape):
    generator = torch.Generator().manual_seed(0)
    shapes = build_reference_layout(kind, layers, WIDTH, K, CLASSES, **shape)
    weights = {name: 0.4 * torch.randn(size, generator=generator) for name, size in shapes.items()}
    for name in weights:
        if ".norm" in name and name.endswith("weight"):
            weights[name] += 1.0
    return weights


def load_model(kind, path, weights, **changes):
    model = MODELS[kind].from_base(path, **(FIELDS | changes))
    report = model.load_state_dict(convert_reference_state_dict("adalayers", weights), strict=False)
    assert not report.unexpected_keys
    assert all(name.startswith("model.") for name in report.missing_keys)
    return model


def draw_labels(kind, batch):
    generator = torch.Generator().manual_seed(1)
    if kind == "sequence":
        return torch.randint(0, CLASSES, (3,), generator=generator)
    labels = torch.randint(0, CLASSES, batch["input_ids"].shape, generator=generator)
    return labels.masked_fill(batch["attention_mask"] == 0, -100).index_fill(1, torch.tensor([0]), -100)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save_base("roberta", tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def hidden_states(base):
    with torch.no_grad():
        return AutoModel.from_pretrained(base).eval()(**draw_texts(), output_hidden_states=True).hidden_states


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("layers", [DEPTH, DEPTH + 1])
@pytest.mark.parametrize(("cutoff", "positions"), [(0.0, False), (0.04, True)])
def test_equals_the_reference(kind, layers, cutoff, positions, base, hidden_states):
    weights, batch = draw_reference_weights(kind, layers), draw_texts()
    labels, mask = draw_labels(kind, batch), batch["attention_mask"]
    model = load_model(
        kind,
        base,
        weights,
        layers_num=layers,
        distribution_cutoff=cutoff,
        add_pos_embeddings=positions,
        classes_weights=CLASS_WEIGHTS,
        lambda_distribution_entropy=0.3,
    )
    with torch.no_grad():
        output = model(**batch, labels=labels)
    mixing = reference.compute_distribution(weights, ALPHA, cutoff)
    distribution = mixing.tolist()
    assert (0.0 in distribution) is (cutoff > 0)
    features = reference.mix_layers(weights, hidden_states, mixing)
    features = add_positions(features) if positions else features
    expected = PLAIN[kind](weights, features, mask, HEADS)
    task, penalty = (
        compute_plain_cross_entropy(expected, labels, CLASS_WEIGHTS),
        compute_plain_entropy_penalty(distribution),
    )
    real = mask.bool() if kind == "tokens" else ...
    torch.testing.assert_close(output.logits[real], expected[real], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model.layer_distribution(), torch.tensor(distribution), atol=1e-5, rtol=1e-5)
    assert output.loss_parts["task"].item() == pytest.approx(task, rel=1e-5)
    assert output.loss_parts["entropy"].item() == pytest.approx(0.3 * penalty, rel=1e-5)
    assert output.loss.item() == pytest.approx(task + 0.3 * penalty, rel=1e-5)


def test_several_encoder_layers(base, hidden_states):
    weights, batch = draw_reference_weights("tokens", DEPTH + 1, encoder_layers=2), draw_texts()
    model = load_model("tokens", base, weights, attention_layers_num=2)
    features = reference.mix_layers(weights, hidden_states, reference.compute_distribution(weights, ALPHA, 0.0))
    expected = reference.classify_tokens(weights, features, batch["attention_mask"], HEADS)
    real = batch["attention_mask"].bool()
    with torch.no_grad():
        torch.testing.assert_close(model(**batch).logits[real], expected[real], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("class_weights", [None, CLASS_WEIGHTS])
def test_focal_loss_with_and_without_the_defect(class_weights, base, hidden_states):
    weights, batch = draw_reference_weights("tokens", DEPTH + 1), draw_texts()
    labels = draw_labels("tokens", batch)
    focal = {"focal_loss_enabled": True, "focal_loss_alpha": 0.3, "focal_loss_gamma": 1.5}
    model = load_model("tokens", base, weights, **focal, classes_weights=class_weights)
    features = reference.mix_layers(weights, hidden_states, reference.compute_distribution(weights, ALPHA, 0.0))
    logits = reference.classify_tokens(weights, features, batch["attention_mask"], HEADS)
    with torch.no_grad():
        original = model(**batch, labels=labels).loss.item()
        model.config.seed_compat = False
        fixed = model(**batch, labels=labels).loss.item()
    assert original == pytest.approx(compute_plain_focal(logits, labels, 0.3, 1.5, class_weights), rel=1e-5)
    total = count = 0.0
    for row, label in zip(logits.flatten(0, 1), labels.flatten().tolist(), strict=True):
        if label >= 0:
            weight, log_p = (class_weights or [1.0] * 3)[label], row.log_softmax(-1)[label]
            total += float(-weight * 0.3 * (1 - log_p.exp()) ** 1.5 * log_p)
            count += weight
    assert fixed == pytest.approx(total / count, rel=1e-5)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("picked", [None, 3])
def test_gradients_equal_those_through_the_stack(kind, picked, base, hidden_states):
    """Compare the running sum over layers with the sum over stored hidden states."""
    weights, batch = draw_reference_weights(kind, DEPTH + 1), draw_texts()
    labels = draw_labels(kind, batch)
    used_weights = weights
    if picked is not None:
        unused = [f"projectors.{i}.weight" for i in range(DEPTH + 1) if i != picked]
        used_weights = {name: weight for name, weight in weights.items() if name not in unused}
    model = load_model(kind, base, used_weights, pick_one_layer_only=picked, seed_compat=False).train()
    model(**batch, labels=labels).loss.backward()

    stacked = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
    one_layer = torch.eye(DEPTH + 1)[0 if picked is None else picked]
    mixing = reference.compute_distribution(stacked, ALPHA, 0.0) if picked is None else one_layer
    features = reference.mix_layers(stacked, hidden_states, mixing)
    logits = PLAIN[kind](stacked, features, batch["attention_mask"], HEADS)
    torch.nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten()).backward()
    compared = 0
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(
                parameter.grad, stacked[name].grad.view_as(parameter), atol=1e-6, rtol=1e-4, msg=lambda m, n=name: n + m
            )
            compared += 1
    assert compared == len(used_weights) - (picked is not None)


def test_the_reference_freezes_projections_with_a_frozen_distribution(base):
    for compat, trains in ((True, False), (False, True)):
        model = AdaLayersForSequenceClassification.from_base(
            base, **(FIELDS | {"seed_compat": compat, "pick_one_layer_only": 3})
        ).train()
        model(**draw_texts(), labels=torch.tensor([0, 1, 2])).loss.backward()
        assert (model.projectors["3"].weight.grad is not None) is trains
        assert model.logits.weight.grad is not None
