"""Classification from the mean of a sequence's tokens."""

from __future__ import annotations

import pytest
import torch

from adadepth import AlbertActForSequenceClassification
from adadepth.errors import ConfigError
from tests.configs.support import configured
from tests.models_support import make_padded_batch, make_small_config, spread_depths

LENGTHS = (10, 7, 1)


def mean_model(**changes):
    torch.manual_seed(0)
    settings = {"pooling": "mean", "num_labels": 3, "initializer_range": 0.3, "classifier_dropout_prob": 0.0}
    model = AlbertActForSequenceClassification(make_small_config(**(settings | changes))).eval()
    spread_depths(model)
    return model


def test_the_mean_is_over_real_tokens():
    model, batch = mean_model(), make_padded_batch(LENGTHS)
    with torch.no_grad():
        logits = model(**batch).logits
        states = model.albert(**batch).last_hidden_state
        by_hand = [model.classifier(row[:length].mean(dim=0)) for row, length in zip(states, LENGTHS, strict=True)]
        alone = [model(**{name: values[row : row + 1, :length] for name, values in batch.items()}).logits[0]
                 for row, length in enumerate(LENGTHS)]  # fmt: skip
    torch.testing.assert_close(logits, torch.stack(by_hand))
    torch.testing.assert_close(logits, torch.stack(alone), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(logits[0], model.classifier(states[0].mean(dim=0)), atol=1e-4), "padding changes the mean"


@pytest.mark.parametrize("state_rule", ["single", "graves"])
def test_ragged_execution_changes_nothing(state_rule):
    batch, outputs = make_padded_batch(LENGTHS), []
    for execution in ("dense", "ragged"):
        model = mean_model(state_rule=state_rule, execution=execution)
        outputs.append(model(**batch, labels=torch.tensor([0, 1, 2])))
        outputs[-1].loss.backward()
        outputs[-1].gradient = model.albert.encoder.albert_layer.ffn.weight.grad
    assert len(set(outputs[0].trace.updates[outputs[0].trace.valid].tolist())) > 1, "depths differ"
    torch.testing.assert_close(outputs[0].logits, outputs[1].logits, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(outputs[0].gradient, outputs[1].gradient, atol=1e-5, rtol=1e-4)


def test_every_weight_is_trained_and_there_is_no_pooler(tmp_path):
    model = mean_model()
    model(**make_padded_batch(LENGTHS), labels=torch.tensor([0, 1, 2])).loss.backward()
    assert all(weight.grad is not None for weight in model.parameters())
    assert not any("pooler" in name for name, _ in model.named_parameters())
    model.save_pretrained(tmp_path)
    loaded = AlbertActForSequenceClassification.from_pretrained(tmp_path).eval()
    assert loaded.config.pooling == "mean"
    torch.testing.assert_close(loaded(**make_padded_batch(LENGTHS)).logits, model(**make_padded_batch(LENGTHS)).logits)


@pytest.mark.parametrize("call", [{"exit_rule": "fixed:2"}, {"run_all_steps": True}])
def test_steps_are_refused(call):
    model = mean_model()
    assert model.exit_signals == frozenset()
    with pytest.raises(ConfigError) as caught:
        model(**make_padded_batch(LENGTHS), **call)
    assert "\n" not in str(caught.value)


def test_readouts_are_refused():
    model = mean_model(readout_weight=0.5)
    with pytest.raises(ConfigError, match="pooling=mean: exit rules and readouts need pooling=first"):
        model(**make_padded_batch(LENGTHS), labels=torch.tensor([0, 1, 2]))


def test_classification_accepts_mean_pooling():
    assert configured("act_cola", "model.pooling=mean").model.pooling == "mean"
