"""PonderALBERT with the weights of the original classifier, with other losses than the paper's, and as plain ALBERT."""

import math

import pytest
import torch
from transformers import AlbertConfig, AlbertModel

from adadepth import PonderAlbertConfig, PonderAlbertForSequenceClassification, convert_reference_state_dict
from adadepth.errors import CheckpointError
from adadepth.halting.distribution import TRUNCATIONS
from adadepth.models.ponder import reference
from adadepth.models.shared.albert.stepper import Reading
from tests.models_support import SMALL, make_padded_batch, make_small_ponder
from tests.parity.ponder_variants import build_reference_layout, compute_plain_pmf
from tests.parity.references_support import select_options

REFERENCE = {
    "ce_normalisation": "mean_over_steps",
    "kl_direction": "posterior_prior",
    "truncation": "renormalise",
    "target_halt_probability": 0.2,
    "kl_penalty_factor": 5e-3,
    "num_labels": 3,
}


def draw_reference_weights(seed=0):
    """Draw parameters of a reference classifier, large enough for its halting to vary."""
    generator = torch.Generator().manual_seed(seed)
    shapes = build_reference_layout(120, 32, 16, 32, 64, classes=3)
    weights = {name: 0.3 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    weights["ponder.2.weight"] *= 10.0
    return weights | {"embeddings.position_ids": torch.arange(32).unsqueeze(0)}


def rename_original(name):
    """Return the original classifier's name of a weight."""
    name = name.replace("albert_layer.LayerNorm", "albert_layer.attention.LayerNorm")
    return name.removeprefix("albert.").removeprefix("encoder.")


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_equals_the_reference_classifier(attention):
    weights = draw_reference_weights()
    config = PonderAlbertConfig(**SMALL, **REFERENCE)
    model = PonderAlbertForSequenceClassification(config).eval()
    model.set_attn_implementation(attention)
    converted = convert_reference_state_dict("ponder_albert", weights)
    assert all(weight is weights[rename_original(name)] for name, weight in converted.items())
    model.load_state_dict(converted)
    batch, labels = make_padded_batch((10, 7, 2, 12)), torch.tensor([0, 2, 1, 1])
    with torch.no_grad():
        outputs = model(**batch, labels=labels)
    options = select_options(reference.forward, config)
    expected = reference.forward(converted, **batch, labels=labels, levels=torch.zeros(4), **options)
    # The original classifier also averages over steps.
    task, divergence = float(expected.loss_parts["task"]) / 6, float(expected.loss_parts["kl"])

    assert expected.pmf.std(dim=0).max() > 0.05, "the examples must halt differently"
    torch.testing.assert_close(outputs.step_logits, expected.step_logits, atol=1e-5, rtol=1e-5)
    for name, values in (("halting_probabilities", outputs.halting_probabilities), ("pmf", outputs.posterior.pmf)):
        torch.testing.assert_close(values.double(), getattr(expected, name), atol=1e-5, rtol=1e-5)
    assert outputs.loss_parts["task"].item() == pytest.approx(task, rel=1e-5)
    assert outputs.loss_parts["kl"].item() == pytest.approx(divergence, rel=1e-5)
    assert outputs.loss.item() == pytest.approx(task + divergence, rel=1e-5)


def test_a_name_outside_the_reference_layout_is_refused():
    with pytest.raises(CheckpointError, match=r"pooler\.weight: not a parameter of the reference classifier"):
        convert_reference_state_dict("ponder_albert", {"pooler.weight": torch.zeros(1)})


@pytest.mark.parametrize("direction", ["posterior_prior", "prior_posterior"])
@pytest.mark.parametrize("truncation", TRUNCATIONS)
def test_losses_equal_a_plain_loop(truncation, direction):
    model = make_small_ponder(num_labels=3, truncation=truncation, kl_direction=direction, kl_penalty_factor=0.5)
    labels = torch.tensor([0, 2, 1])
    with torch.no_grad():
        outputs = model(**make_padded_batch(), labels=labels)
    posteriors = [compute_plain_pmf(row, truncation) for row in outputs.halting_probabilities.tolist()]
    prior = compute_plain_pmf([0.1] * 6, "leftover" if truncation in ("none", "palbert") else truncation)
    task = divergence = 0.0
    for logits, posterior, label in zip(outputs.step_logits, posteriors, labels, strict=True):
        for step, p in enumerate(posterior):
            task -= p * float(torch.log_softmax(logits[step], dim=-1)[label]) / 3
            first, second = (p, prior[step]) if direction == "posterior_prior" else (prior[step], p)
            divergence += 0.5 * first * math.log(first / second) / 3
    assert outputs.loss_parts["task"].item() == pytest.approx(task, rel=1e-4)
    assert outputs.loss_parts["kl"].item() == pytest.approx(divergence, rel=1e-4)
    torch.testing.assert_close(outputs.prior.pmf, torch.tensor(prior), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("depth", [1, 6, 43])
def test_halting_at_the_last_step_only_equals_albert(depth, tmp_path):
    """Check lambda_N = 1 and others 0: plain ALBERT of depth N, whatever depth the weights came from."""
    torch.manual_seed(0)
    sizes = SMALL | {"num_hidden_layers": 6}
    AlbertModel(AlbertConfig(**sizes)).save_pretrained(tmp_path)
    albert = AlbertModel.from_pretrained(tmp_path, num_hidden_layers=depth).eval()
    model = PonderAlbertForSequenceClassification.from_pretrained(tmp_path, num_hidden_layers=depth).eval()
    states = []

    def read(state, memory, step):
        states.append(state)
        certain = torch.full((len(state),), 80.0 if step == depth else -80.0)
        return Reading(state[:, 0], certain)

    model.read = read
    batch = make_padded_batch()
    with torch.no_grad():
        outputs = model(**batch, exit_rule="quantile:0.5")
        expected = albert(**batch).last_hidden_state
    valid = batch["attention_mask"].bool()[:, :2]
    assert outputs.exit_steps.tolist() == [depth] * 3
    torch.testing.assert_close(states[-1][:, :2][valid], expected[:, :2][valid], atol=1e-5, rtol=0)
    torch.testing.assert_close(outputs.logits, expected[:, 0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("truncation", TRUNCATIONS)
def test_the_uniform_prior_is_uniform_whatever_the_truncation(truncation):
    with torch.no_grad():
        outputs = make_small_ponder(prior="uniform", truncation=truncation)(**make_padded_batch(), run_all_steps=True)
    torch.testing.assert_close(outputs.prior.pmf, torch.full((6,), 1 / 6))
