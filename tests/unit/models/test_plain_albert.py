"""Plain ALBERT under the contract of adaptive models: the baseline at full depth."""

import pytest
import torch
from transformers import AlbertConfig, AlbertForSequenceClassification, AlbertModel

from adadepth import AlbertActForPreTraining, AlbertActModel, PlainAlbertForSequenceClassification
from adadepth.errors import CheckpointError
from tests.models_support import SMALL, make_padded_batch, make_small_config


def make(**changes):
    torch.manual_seed(0)
    return PlainAlbertForSequenceClassification(AlbertConfig(**(SMALL | changes))).eval()


def test_checkpoints_are_those_of_transformers(tmp_path):
    ours = make(num_labels=3)
    ours.save_pretrained(tmp_path / "ours")
    theirs = AlbertForSequenceClassification.from_pretrained(tmp_path / "ours").eval()
    theirs.save_pretrained(tmp_path / "theirs")
    loaded = PlainAlbertForSequenceClassification.from_pretrained(tmp_path / "theirs").eval()
    batch = make_padded_batch()
    with torch.no_grad():
        expected = theirs(**batch).logits
        assert torch.equal(ours(**batch).logits, expected)
        assert torch.equal(loaded(**batch).logits, expected)


def test_the_trace_is_full_depth():
    model, batch = make(), make_padded_batch()
    outputs = model(**batch, output_hidden_states=True)
    assert outputs.trace.unit == "sequence"
    assert outputs.trace.updates.tolist() == [6.0, 6.0, 6.0]
    assert outputs.trace.execution.tokens.tolist() == [10, 7, 1]
    assert len(outputs.hidden_states) == 7
    hidden, inner, entry, head = 32, 64, 16 * 32, 32 * 32 + 32 * 2

    def price(length):
        return 6 * length * (4 * hidden**2 + 2 * length * hidden + 2 * hidden * inner) + length * entry + head

    work = model.price(outputs.trace)
    assert work.adaptive.item() == work.full.item() == sum(map(price, (10, 7, 1)))
    assert work.executed.item() == work.dense.item() == 3 * price(12)
    assert model(**batch, return_dict=False)[0].equal(outputs.logits)


def test_plain_albert_is_initialised_from_act_albert(tmp_path):
    """Compare both encoders at depth one, the depth of a token that halts at once."""
    torch.manual_seed(0)
    AlbertActForPreTraining(make_small_config(halt_bias_init=30.0)).save_pretrained(tmp_path)
    source = AlbertActModel.from_pretrained(tmp_path).eval()
    model = PlainAlbertForSequenceClassification.from_pretrained(tmp_path, num_hidden_layers=1, num_labels=3).eval()
    assert type(model.config) is AlbertConfig
    assert model.config.num_labels == 3
    batch = make_padded_batch()
    with torch.no_grad():
        expected, got = source(**batch), model.albert(**batch)
    torch.testing.assert_close(got.pooler_output, expected.pooler_output, atol=1e-5, rtol=0)
    assert [*model.albert.state_dict()] == [*AlbertModel(AlbertConfig(**SMALL)).state_dict()]


def test_a_model_of_another_type_is_refused(tmp_path):
    AlbertForSequenceClassification(AlbertConfig(**SMALL)).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(CheckpointError, match="contains a model of type bert"):
        PlainAlbertForSequenceClassification.from_pretrained(tmp_path)
