"""The model against a plain loop over the recurrence, and against transformers' ALBERT."""

import pytest
import torch
from transformers import AlbertConfig, AlbertForPreTraining, AlbertModel

from adadepth import AlbertActForPreTraining, AlbertActModel, convert_reference_state_dict
from tests.models_support import make_padded_batch, make_small_config, spread_depths
from tests.parity.act_variants import encode_variant


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("max_updates", [6, 12, 24])
def test_equals_plain_loop_for_any_batch_and_padding(max_updates, attention):
    torch.manual_seed(1)
    config = make_small_config(num_hidden_layers=max_updates)
    model = AlbertActModel(config).eval()
    model.set_attn_implementation(attention)
    spread_depths(model, bias=-4.0)
    lengths = (10, 7, 1, 12)
    batch = make_padded_batch(lengths)
    with torch.no_grad():
        outputs = model(**batch)
    weights = model.state_dict()
    seen = set()
    for row, length in enumerate(lengths):
        states, updates, remainders, probabilities, _ = encode_variant(
            weights, config, batch["input_ids"][row, :length], batch["token_type_ids"][row, :length]
        )
        seen |= set(updates)
        assert outputs.updates[row].tolist() == updates + [0] * (12 - length)
        torch.testing.assert_close(outputs.last_hidden_state[row, :length], states, atol=1e-5, rtol=0)
        torch.testing.assert_close(outputs.remainders[row, :length], torch.tensor(remainders), atol=1e-5, rtol=0)
        for token, expected in enumerate(probabilities):
            got = outputs.halting_probabilities[row, token]
            torch.testing.assert_close(got[: len(expected)], torch.tensor(expected), atol=1e-5, rtol=0)
            assert not got[len(expected) :].any()
    assert len(seen) >= 4, f"the case must exercise many depths, not {seen}"
    assert max(seen) == max_updates, "the case must exercise the cap"


def test_one_update_equals_one_layer_of_albert():
    """Check p = 1: every token gets exactly one update of weight 1, as in an ALBERT of depth one."""
    albert = AlbertModel(_build_albert_config(num_hidden_layers=1)).eval()
    model = AlbertActModel(make_small_config(halt_bias_init=30.0)).eval()
    report = model.load_state_dict(convert_reference_state_dict("albert_act", albert.state_dict()), strict=False)
    assert report.missing_keys == [f"encoder.albert_layer.act.dense.{kind}" for kind in ("weight", "bias")]
    assert not report.unexpected_keys
    batch = make_padded_batch()
    with torch.no_grad():
        ours, theirs = model(**batch), albert(**batch)
    assert set(ours.updates[batch["attention_mask"].bool()].tolist()) == {1.0}
    valid = batch["attention_mask"].bool()
    torch.testing.assert_close(ours.last_hidden_state[valid], theirs.last_hidden_state[valid], atol=1e-5, rtol=0)
    torch.testing.assert_close(ours.pooler_output, theirs.pooler_output, atol=1e-5, rtol=0)


def test_never_halting_equals_albert_of_full_depth():
    """Check p = 0 with the whole weight on the last output: the separate-stream rules are plain ALBERT."""
    albert = AlbertForPreTraining(_build_albert_config(num_hidden_layers=6)).eval()
    weights = convert_reference_state_dict("albert_act", albert.state_dict())
    batch = make_padded_batch()
    valid = batch["attention_mask"].bool()
    with torch.no_grad():
        expected = albert(**batch)
    for rule in ("graves", "accumulated", "basic"):
        config = make_small_config(halt_bias_init=-60.0, cap_remainder="forced", state_rule=rule)
        model = AlbertActForPreTraining(config).eval()
        model.load_state_dict(weights, strict=False)
        with torch.no_grad():
            outputs = model(**batch)
        assert set(outputs.updates[valid].tolist()) == {6.0}
        logits, expected_logits = outputs.prediction_logits[valid], expected.prediction_logits[valid]
        torch.testing.assert_close(logits, expected_logits, atol=1e-5, rtol=0)
        torch.testing.assert_close(outputs.sop_logits, expected.sop_logits, atol=1e-5, rtol=0)


def _build_albert_config(**changes):
    config = make_small_config()
    names = ("vocab_size", "embedding_size", "hidden_size", "num_attention_heads", "intermediate_size")
    return AlbertConfig(**{name: getattr(config, name) for name in names}, max_position_embeddings=32, **changes)
