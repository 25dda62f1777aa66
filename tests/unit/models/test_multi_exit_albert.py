"""The multi-exit ALBERT, whose exits at every step are trained together."""

import pytest
import torch
from torch.nn import functional
from transformers import AlbertConfig, AlbertModel

from adadepth import MultiExitAlbertForSequenceClassification
from adadepth.errors import ConfigError
from tests.models_support import SMALL, make_padded_batch, make_small_multi_exit


def test_every_exit_reads_the_pooled_state_at_its_depth(tmp_path):
    torch.manual_seed(0)
    AlbertModel(AlbertConfig(**SMALL)).save_pretrained(tmp_path)
    model = MultiExitAlbertForSequenceClassification.from_pretrained(tmp_path).eval()
    batch = make_padded_batch()
    with torch.no_grad():
        outputs = model(**batch, run_all_steps=True)
        for depth in range(1, 7):
            albert = AlbertModel.from_pretrained(tmp_path, num_hidden_layers=depth).eval()
            expected = model.classifiers[depth - 1](albert(**batch).pooler_output)
            torch.testing.assert_close(outputs.step_logits[:, depth - 1], expected, atol=1e-5, rtol=0)
    assert outputs.halting_logits is None
    assert outputs.trace.halting is None


def test_patience_is_the_default_and_halting_rules_are_refused():
    model = make_small_multi_exit()
    with torch.no_grad():
        outputs = model(**make_padded_batch(), run_all_steps=True)
    answers = outputs.step_logits.argmax(dim=-1)
    for row, exit_step in zip(answers.tolist(), outputs.exit_steps.tolist(), strict=True):
        runs = [step for step in range(4, 7) if len({*row[step - 4 : step]}) == 1]
        assert exit_step == (runs[0] if runs else 6)
    with pytest.raises(ConfigError, match="needs halting probabilities, which multi_exit_albert does not have"):
        model(**make_padded_batch(), exit_rule="quantile:0.5")


def test_the_loss_of_the_last_step_alone_is_its_cross_entropy():
    model, labels = make_small_multi_exit(num_labels=3, exit_weights="last"), torch.tensor([0, 2, 1])
    outputs = model(**make_padded_batch(), labels=labels, run_all_steps=True)
    torch.testing.assert_close(outputs.loss, functional.cross_entropy(outputs.step_logits[:, -1], labels))
    outputs.loss.backward()
    assert [bool(head.weight.grad.any()) for head in model.classifiers] == [False] * 5 + [True]


def test_a_wrong_weighting_is_refused():
    model = make_small_multi_exit(exit_weights="uniformly")
    with pytest.raises(ConfigError, match="did you mean 'uniform'"):
        model(**make_padded_batch(), labels=torch.tensor([0, 1, 1]))


def test_macs_equal_their_formula():
    model = make_small_multi_exit(num_labels=3)
    with torch.no_grad():
        outputs = model(**make_padded_batch(), exit_rule="fixed:2")
    hidden, inner, entry, heads = 32, 64, 16 * 32, 32 * 32 + 32 * 3
    work = model.price(outputs.trace)
    expected = 0
    for length in (10, 7, 1):
        step = length * (4 * hidden**2 + 2 * length * hidden + 2 * hidden * inner) + heads
        expected += 2 * step + length * entry
    assert work.adaptive.item() == expected
