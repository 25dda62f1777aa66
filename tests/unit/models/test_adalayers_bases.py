"""States read during the forward pass of a base, against transformers' hidden states, for every kind of base."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import gelu
from transformers import AutoModel, BertModel, XLNetConfig, XLNetModel

from adadepth import AdaLayersConfig, AdaLayersForSequenceClassification
from adadepth.errors import ConfigError
from adadepth.models.adalayers.base import find_blocks, stream_states
from tests.marks_support import mark_mostly_slow
from tests.unit.models.adalayers_support import BASES, DEPTH, HEAD, draw_texts, save_base, set_scores


@pytest.fixture(scope="module", params=mark_mostly_slow(BASES, ("bert", "t5").__contains__))
def base(request, tmp_path_factory):
    return save_base(request.param, tmp_path_factory.mktemp(request.param))


def compute_hidden_states(model, batch):
    """Return the hidden states of an encoder of transformers."""
    with torch.no_grad():
        return model(**batch, output_hidden_states=True).hidden_states


def count_calls(model):
    calls = []
    for block in find_blocks(model.model):
        block.register_forward_hook(lambda *_: calls.append(1))
    return calls


def test_streamed_states_equal_the_hidden_states(base):
    batch = draw_texts()
    model = AdaLayersForSequenceClassification.from_base(base, **HEAD)
    expected = compute_hidden_states(model.model, batch)
    assert len(expected) == DEPTH + 1
    reference = AutoModel.from_pretrained(base).eval()
    encoder = reference.get_encoder() if reference.config.is_encoder_decoder else reference
    torch.testing.assert_close(expected, compute_hidden_states(encoder, batch))
    calls = count_calls(model)
    states = model.base_states(range(DEPTH + 1), **batch)
    expected = [gelu(state) for state in expected]  # what every projection reads
    assert all(torch.equal(states[n], expected[n]) for n in range(DEPTH + 1))
    for n in range(DEPTH + 1):
        calls.clear()
        assert torch.equal(model.base_states([n], **batch)[n], expected[n])
        assert len(calls) == n, "deeper blocks ran"
    repeated = model.base_states([1, DEPTH], **batch)
    assert torch.equal(repeated[DEPTH], expected[DEPTH])
    assert not any(block._forward_pre_hooks for block in find_blocks(model.model))


@pytest.mark.parametrize("deepest", mark_mostly_slow([0, 2, 4], lambda deepest: deepest == 2))
def test_a_truncated_model_predicts_the_same(base, deepest, tmp_path):
    model = AdaLayersForSequenceClassification.from_base(base, **HEAD, distribution_cutoff=0.1)
    set_scores(model, [1.0 if n in (0, deepest) else 0.0 for n in range(DEPTH + 1)])
    batch = draw_texts()
    with torch.no_grad():
        expected = model(**batch)
        num_weights = sum(weight.numel() for weight in model.model.parameters())
        model.truncate()
        output = model(**batch)
    assert model.active_states() == tuple(sorted({0, deepest}))
    assert set(model.projectors) == {str(n) for n in {0, deepest}}
    torch.testing.assert_close(output.logits, expected.logits, atol=1e-6, rtol=0)
    assert output.trace.execution.steps == expected.trace.execution.steps == deepest
    shared = "albert" in base
    assert shared or deepest == DEPTH or sum(weight.numel() for weight in model.model.parameters()) < num_weights
    for save_base_too in (False, True):
        model.save_pretrained(tmp_path, save_base=save_base_too)
        loaded = AdaLayersForSequenceClassification.from_pretrained(tmp_path)
        assert loaded.config.kept_layers == sorted({0, deepest})
        assert {n: w.shape for n, w in loaded.state_dict().items()} == {
            n: w.shape for n, w in model.state_dict().items()
        }
        with torch.no_grad():
            torch.testing.assert_close(loaded(**batch).logits, output.logits)
            assert loaded(**batch).trace.max_updates == DEPTH


def test_a_base_works_as_before_after_an_error(base):
    model = AdaLayersForSequenceClassification.from_base(base, **HEAD)

    def fail(number, state):
        raise RuntimeError("consumer")

    with pytest.raises(RuntimeError, match="consumer"):
        stream_states(model.model, draw_texts(), [2], fail)
    assert not any(block._forward_pre_hooks for block in find_blocks(model.model))
    expected = compute_hidden_states(model.model, draw_texts())
    assert torch.equal(model.base_states([3], **draw_texts())[3], gelu(expected[3]))


def test_deeper_states_of_a_truncated_base_are_refused(tmp_path):
    model = AdaLayersForSequenceClassification.from_base(save_base("bert", tmp_path), **HEAD, pick_one_layer_only=2)
    model.truncate()
    with pytest.raises(ConfigError, match="states: the base was truncated"):
        model.base_states([3], **draw_texts())


def test_a_base_can_be_truncated_twice(tmp_path):
    model = AdaLayersForSequenceClassification.from_base(save_base("t5", tmp_path), **HEAD)
    set_scores(model, [1.0, 0.9, 0.8, 0.7, 0.0])
    batch = draw_texts()
    for least, deepest in ((0.01, 3), (0.1, 1)):
        model.truncate(least)
        with torch.no_grad():
            assert model(**batch).trace.execution.steps == deepest
        assert model.layer_distribution().sum().item() == pytest.approx(1.0)
    with pytest.raises(ConfigError, match=r"min_weight=0\.99 leaves no layer; the largest weight is 0\.7"):
        model.truncate(0.99)


def test_unknown_inputs_of_a_base_are_omitted(base):
    model = AdaLayersForSequenceClassification.from_base(base, **HEAD)
    batch = draw_texts()
    with torch.no_grad():
        plain = model(**batch).logits
        zeros = torch.zeros_like(batch["input_ids"])
        assert torch.equal(model(**batch, token_type_ids=zeros, word_ids=zeros, position_ids=None).logits, plain)
        segments = model(**batch, token_type_ids=batch["attention_mask"]).logits
    knows = any(name in base for name in ("/bert", "albert", "electra"))
    assert torch.equal(segments, plain) is not knows


def test_a_base_without_blocks_is_refused():
    class Blockless(BertModel):
        def __init__(self, config):
            super().__init__(config)
            self.encoder = nn.Identity()

    with pytest.raises(ConfigError, match="Blockless has no list of 4 blocks"):
        find_blocks(Blockless(BASES["bert"]))


def test_random_skipping_of_trained_blocks_is_refused():
    config = type(BASES["bart"])(**(BASES["bart"].to_diff_dict() | {"encoder_layerdrop": 0.1}))
    AdaLayersForSequenceClassification(AdaLayersConfig(base_config=config, **HEAD))
    with pytest.raises(ConfigError, match=r"freeze_base_model=False: .*layerdrop=0\.1"):
        AdaLayersForSequenceClassification(AdaLayersConfig(base_config=config, **HEAD, freeze_base_model=False))


def test_the_longest_sequence_of_a_base_is_exact(base):
    """Check that the base fails with one token more."""
    model = AdaLayersForSequenceClassification.from_base(base, **HEAD)
    longest = model.longest_sequence
    if longest is None:
        longest = 99  # relative positions
    ids = torch.full((1, longest + 1), 7)
    with torch.no_grad():
        model(ids[:, :longest])
        if model.longest_sequence is not None:
            with pytest.raises((IndexError, RuntimeError)):
                model(ids)


def test_a_base_with_tokens_first_is_refused(tmp_path):
    """Check XLNet, whose states (T, B, K) would be misread without an error for as many texts as tokens."""
    config = XLNetConfig(vocab_size=40, d_model=16, n_layer=2, n_head=2, d_inner=16)
    XLNetModel(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"the states of a xlnet have the shape \(2, 1, 16\) for 1 text of 2 tokens"):
        AdaLayersForSequenceClassification.from_base(str(tmp_path), **HEAD)
