"""The multi-exit ALBERT: exits at every step, trained together."""

import pytest
import torch
from torch import nn
from transformers import AlbertConfig, AlbertModel, AutoModelForSequenceClassification

from adadepth import AlbertActForPreTraining, MultiExitAlbertConfig, MultiExitAlbertForSequenceClassification
from adadepth.errors import ConfigError, DataError
from tests.models_support import SMALL, padded_batch, small_config, small_multi_exit


@pytest.mark.parametrize(("weighting", "weights"), [("linear", [1, 2, 3, 4, 5, 6]), ("uniform", [1] * 6)])
def test_loss_is_the_weighted_mean_of_the_exits(weighting, weights):
    model = small_multi_exit(num_labels=3, exit_weights=weighting)
    labels = torch.tensor([0, -100, 2])
    outputs = model(**padded_batch(), labels=labels)
    expected = sum(
        weight * nn.functional.cross_entropy(outputs.step_logits[:, step], labels)
        for step, weight in enumerate(weights)
    )
    torch.testing.assert_close(outputs.loss_parts["task"], expected / sum(weights))
    torch.testing.assert_close(outputs.loss, outputs.loss_parts["task"])
    assert {**model.count_targets({"labels": labels})} == {"task": 2}


def test_every_exit_reads_the_pooled_state_of_albert_at_its_depth(tmp_path):
    torch.manual_seed(0)
    AlbertModel(AlbertConfig(**SMALL)).save_pretrained(tmp_path)
    model = MultiExitAlbertForSequenceClassification.from_pretrained(tmp_path).eval()
    batch = padded_batch()
    with torch.no_grad():
        outputs = model(**batch, run_all_steps=True)
        for depth in range(1, 7):
            albert = AlbertModel.from_pretrained(tmp_path, num_hidden_layers=depth).eval()
            expected = model.classifiers[depth - 1](albert(**batch).pooler_output)
            torch.testing.assert_close(outputs.step_logits[:, depth - 1], expected, atol=1e-5, rtol=0)
    assert outputs.halting_logits is None
    assert outputs.trace.halting is None


def test_initialises_from_act_albert(tmp_path):
    source = AlbertActForPreTraining(small_config())
    source.save_pretrained(tmp_path)
    model = MultiExitAlbertForSequenceClassification.from_pretrained(tmp_path, num_labels=1)
    theirs = source.albert.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in model.albert.state_dict().items())
    assert model.classifiers[0].out_features == 1


def test_save_and_load_change_nothing(tmp_path):
    model = small_multi_exit(num_labels=3)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    assert type(loaded) is MultiExitAlbertForSequenceClassification
    assert all(torch.equal(loaded.state_dict()[name], value) for name, value in model.state_dict().items())
    with torch.no_grad():
        assert torch.equal(loaded(**padded_batch()).logits, model(**padded_batch()).logits)


@pytest.mark.parametrize("labels", [torch.tensor([0, 1, 2]), torch.tensor([0.5, 2.0, -1.0])])
def test_every_parameter_is_trained_and_it_learns(labels):
    torch.manual_seed(0)
    count = 1 if labels.is_floating_point() else 3
    model = MultiExitAlbertForSequenceClassification(
        MultiExitAlbertConfig(**SMALL, num_labels=count, classifier_dropout_prob=0.0)
    ).train()
    batch = padded_batch()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        losses.append(model(**batch, labels=labels).loss)
        losses[-1].backward()
        assert not {name for name, parameter in model.named_parameters() if parameter.grad is None}
        optimizer.step()
    assert losses[-1].item() < 0.5 * losses[0].item()


def test_patience_is_the_default_and_halting_rules_are_refused():
    model = small_multi_exit()
    with torch.no_grad():
        outputs = model(**padded_batch(), run_all_steps=True)
    answers = outputs.step_logits.argmax(dim=-1)
    for row, exit_step in zip(answers.tolist(), outputs.exit_steps.tolist(), strict=True):
        runs = [step for step in range(4, 7) if len({*row[step - 4 : step]}) == 1]
        assert exit_step == (runs[0] if runs else 6)
    with pytest.raises(ConfigError, match="needs halting probabilities, which multi_exit_albert does not have"):
        model(**padded_batch(), exit_rule="quantile:0.5")


def test_price():
    model = small_multi_exit(num_labels=3)
    with torch.no_grad():
        outputs = model(**padded_batch(), exit_rule="fixed:2")
    hidden, inner, entry, heads = 32, 64, 16 * 32, 32 * 32 + 32 * 3
    work = model.price(outputs.trace)
    expected = 0
    for length in (10, 7, 1):
        step = length * (4 * hidden**2 + 2 * length * hidden + 2 * hidden * inner) + heads
        expected += 2 * step + length * entry
    assert work.adaptive.item() == expected


def test_mistakes():
    with pytest.raises(ConfigError, match="did you mean 'uniform'"):
        MultiExitAlbertConfig(**SMALL, exit_weights="uniformly")
    with pytest.raises(DataError, match="labels: 2 is not a class"):
        small_multi_exit()(**padded_batch(), labels=torch.tensor([0, 1, 2]))
