"""Recall, a fixed depth and sinusoidal positions of ACT-ALBERT, against plain loops and closed forms."""

from __future__ import annotations

import math

import pytest
import torch

from adadepth import AlbertActConfig
from adadepth.errors import ConfigError
from adadepth.models.albert_act.heads import AlbertActForTokenClassification
from adadepth.models.shared.albert.block import sinusoids
from tests.marks_support import keep_one_quick

MASK = torch.tensor([[1] * 9, [1] * 6 + [0] * 3, [1] * 2 + [0] * 7])
IDS = torch.arange(27).view(3, 9) % 17 + 5


def build_tagger(**fields) -> AlbertActForTokenClassification:
    torch.manual_seed(0)
    shape = {
        "vocab_size": 30,
        "embedding_size": 8,
        "hidden_size": 16,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    config = AlbertActConfig(
        **(shape | {"num_hidden_layers": 5, "num_labels": 3, "initializer_range": 0.3, "halt_bias_init": -1.0} | fields)
    )
    return AlbertActForTokenClassification(config).double().eval()


def compute_gradients(model, execution="dense"):
    model.config.execution = execution
    model.zero_grad()
    labels = (IDS % 3).masked_fill(MASK == 0, -100)
    outputs = model(input_ids=IDS, attention_mask=MASK, labels=labels)
    outputs.loss.backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    return outputs, gradients


@pytest.mark.parametrize("rule", keep_one_quick(2, ["single", "graves"]))
@pytest.mark.parametrize("fixed", [None, 3])
def test_dense_and_ragged_execution_agree(rule, fixed):
    model = build_tagger(state_rule=rule, recall=True, fixed_depth=fixed)
    (dense, dense_gradients), (ragged, ragged_gradients) = compute_gradients(model), compute_gradients(model, "ragged")
    real = MASK.bool()
    assert torch.equal(dense.updates, ragged.updates)
    torch.testing.assert_close(dense.logits[real], ragged.logits[real], atol=1e-6, rtol=1e-6)
    for name, gradient in dense_gradients.items():
        torch.testing.assert_close(ragged_gradients[name], gradient, atol=1e-7, rtol=1e-5, msg=name)


@pytest.mark.parametrize("recall", [False, True])
def test_a_fixed_depth_applies_the_block_this_often(recall):
    model = build_tagger(state_rule="graves", recall=recall, fixed_depth=4)
    outputs, _ = compute_gradients(model)
    assert torch.equal(outputs.updates, 4.0 * MASK)
    encoder, row = model.albert.encoder, 1
    tokens = MASK[row].bool()
    first = encoder.embedding_hidden_mapping_in(model.albert.embeddings(IDS[row : row + 1]))[:, tokens]
    state = first
    for _ in range(4):
        state = encoder.albert_layer(state + first if recall else state, None)[0]
    torch.testing.assert_close(model.classifier(state)[0], outputs.logits[row, tokens])


def test_a_forced_depth_temporarily_overrides_the_configuration():
    model = build_tagger(fixed_depth=4)
    model.force_depth(2)
    assert compute_gradients(model)[0].updates.max() == 2
    model.force_depth(None)
    assert compute_gradients(model)[0].updates.max() == 4


def test_recall_changes_outputs_and_no_saved_weight():
    plain, recalling = build_tagger(recall=False), build_tagger(recall=True)
    assert plain.state_dict().keys() == recalling.state_dict().keys()
    assert not torch.allclose(compute_gradients(plain)[0].logits, compute_gradients(recalling)[0].logits)


@pytest.mark.parametrize("depth", [0, 6])
def test_a_fixed_depth_below_one_or_above_the_cap_is_refused(depth):
    with pytest.raises(ConfigError, match=f"fixed_depth={depth} must lie between 1 and num_hidden_layers=5"):
        build_tagger(fixed_depth=depth)


# ---- positions


def test_sinusoids_equal_their_formula():
    waves = sinusoids(6, 4, 0.5)
    for position in range(6):
        for pair, wavelength in enumerate((2.0, 24.0)):
            angle = 2 * math.pi * position / wavelength
            expected = [0.5 * math.sqrt(2) * math.sin(angle), 0.5 * math.sqrt(2) * math.cos(angle)]
            assert waves[position, 2 * pair : 2 * pair + 2].tolist() == pytest.approx(expected, abs=1e-6)


def test_rows_and_columns_share_the_width_and_survive_a_save(tmp_path):
    model = build_tagger(position_init="sinusoidal", max_position_embeddings=7, type_vocab_size=9).float()
    rows = model.albert.embeddings.position_embeddings.weight
    columns = model.albert.embeddings.token_type_embeddings.weight
    torch.testing.assert_close(rows[:, :4], sinusoids(7, 4, 0.3))
    torch.testing.assert_close(columns[:, 4:], sinusoids(9, 4, 0.3))
    assert not rows[:, 4:].any()
    assert not columns[:, :4].any()
    torch.nn.init.constant_(rows.data, 0.25)  # as if trained
    model.save_pretrained(tmp_path)
    loaded = AlbertActForTokenClassification.from_pretrained(tmp_path)
    assert (loaded.albert.embeddings.position_embeddings.weight == 0.25).all()


def test_segment_types_that_are_no_columns_stay_random():
    model = build_tagger(position_init="sinusoidal", max_position_embeddings=7)
    torch.testing.assert_close(
        model.albert.embeddings.position_embeddings.weight.float(), sinusoids(7, 8, 0.3), atol=1e-6, rtol=1e-6
    )
    assert model.albert.embeddings.token_type_embeddings.weight.std() > 0.05
