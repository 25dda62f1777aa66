"""The adaptive softmax and embedding against plain loops, torch's module, and properties of a distribution."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from adadepth.errors import ConfigError
from adadepth.models.par_xl import adaptive_softmax as module
from adadepth.models.par_xl.adaptive_softmax import (
    AdaptiveEmbedding,
    AdaptiveSoftmax,
    check_cutoffs,
    chunked_cross_entropy,
)
from tests.marks_support import keep_one_quick

HIDDEN, VOCAB, CUTOFFS = 16, 50, (7, 20)
CASES = [((), 4), ((7,), 4), (CUTOFFS, 4), (CUTOFFS, 2), (CUTOFFS, 1), ((1, 2, 49), 4)]


def make_softmax(cutoffs=CUTOFFS, factor=4, bias=True):
    torch.manual_seed(0)
    return AdaptiveSoftmax(HIDDEN, VOCAB, cutoffs, factor, bias)


def draw_state_per_word():
    return torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(1)), torch.arange(VOCAB)


def compute_plain_log_prob(softmax, state, word):
    """Return log p(word | state) of a single state, by the definition."""
    head = list(softmax.tables[0](state).double())
    if softmax.tail_entries is not None:
        head += list(softmax.tail_entries(state).double())
    edges = [softmax.head_words, *(stop for _, stop in softmax.tails)]
    cluster = sum(word >= edge for edge in edges)
    column = word if cluster == 0 else softmax.head_words + cluster - 1
    value = head[column] - torch.stack(head).logsumexp(0)
    if cluster:
        tail = softmax.tables[cluster](softmax.projections[cluster](state)).double()
        value = value + tail[word - edges[cluster - 1]] - tail.logsumexp(0)
    return value


@pytest.mark.parametrize(("cutoffs", "factor"), keep_one_quick(2, CASES))
@pytest.mark.parametrize("bias", [False, True])
def test_log_probabilities_equal_the_definition(cutoffs, factor, bias):
    softmax = make_softmax(cutoffs, factor, bias)
    states, words = draw_state_per_word()
    expected = torch.stack(
        [compute_plain_log_prob(softmax, state, word) for state, word in zip(states, words, strict=True)]
    )
    torch.testing.assert_close(softmax(states, words), -expected.float())


@pytest.mark.parametrize(("cutoffs", "factor"), CASES)
def test_probabilities_sum_to_one_and_equal_those_of_the_loss(cutoffs, factor):
    softmax = make_softmax(cutoffs, factor)
    states, words = draw_state_per_word()
    states = 5 * states
    log_probs = softmax.log_probs(states.view(5, 10, HIDDEN))
    assert log_probs.shape == (5, 10, VOCAB)
    assert log_probs.dtype == torch.float32
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(5, 10))
    torch.testing.assert_close(softmax(states, words), -log_probs.view(VOCAB, VOCAB).diagonal())


@pytest.mark.parametrize("rows", [0, 1, VOCAB])
def test_probabilities_equal_those_of_the_module_of_torch(rows):
    """Compare models without biases in tails, whose entries are rows of the head's matrix, as in torch."""
    softmax = make_softmax(bias=False)
    peer = nn.AdaptiveLogSoftmaxWithLoss(HIDDEN, VOCAB, list(CUTOFFS), div_value=4.0)
    with torch.no_grad():
        peer.head.weight.copy_(torch.cat([softmax.tables[0].weight, softmax.tail_entries.weight]))
        for (narrow, words), projection, table in zip(
            peer.tail, softmax.projections[1:], softmax.tables[1:], strict=True
        ):
            narrow.weight.copy_(projection.weight)
            words.weight.copy_(table.weight)
    states, words = (whole[:rows] for whole in draw_state_per_word())
    torch.testing.assert_close(softmax(states, words), -peer(states, words).output)
    torch.testing.assert_close(softmax.log_probs(states), peer.log_prob(states))


def test_gradients_equal_those_of_the_whole_distribution():
    states, words = draw_state_per_word()
    gradients = []
    for loss in ("forward", "log_probs"):
        softmax, leaf = make_softmax(), states.clone().requires_grad_()
        if loss == "forward":
            softmax(leaf, words).sum().backward()
        else:
            (-softmax.log_probs(leaf)).gather(1, words[:, None]).sum().backward()
        gradients.append([leaf.grad, *(weight.grad for weight in softmax.parameters())])
    torch.testing.assert_close(gradients[0], gradients[1])


@pytest.mark.parametrize("targets", [[], [0, 6], [7, 19], [20, 49]])
def test_a_tail_without_targets_has_gradients_of_zero(targets):
    softmax = make_softmax()
    losses = softmax(torch.randn(len(targets), HIDDEN), torch.tensor(targets, dtype=torch.int64))
    assert losses.shape == (len(targets),)
    losses.sum().backward()
    assert all(weight.grad is not None for weight in softmax.parameters())
    for tail, (start, stop) in enumerate(softmax.tails, 1):
        used = any(start <= target < stop for target in targets)
        assert softmax.tables[tail].weight.grad.any() == used


@pytest.mark.parametrize("logits", [1, 3 * 50, 2**20])
@pytest.mark.parametrize("bias", [True, False])
def test_chunks_change_no_loss_and_no_gradient(logits, bias, monkeypatch):
    monkeypatch.setattr(module, "_LOGITS", logits)
    torch.manual_seed(0)
    states, weight = torch.randn(10, 4, dtype=torch.float64), torch.randn(50, 4, dtype=torch.float64)
    offsets = torch.randn(50, dtype=torch.float64) if bias else None
    inputs = [value.requires_grad_() for value in (states, weight, offsets) if value is not None]
    targets = torch.randint(50, (10,))
    above = torch.rand(10, dtype=torch.float64)  # every row's own
    expected = torch.nn.functional.cross_entropy(
        torch.nn.functional.linear(states, weight, offsets), targets, reduction="none"
    )
    loss = chunked_cross_entropy(states, weight, offsets, targets)
    torch.testing.assert_close(loss, expected)
    gradients = zip(torch.autograd.grad(loss, inputs, above), torch.autograd.grad(expected, inputs, above), strict=True)
    for actual, expected_gradient in gradients:
        torch.testing.assert_close(actual, expected_gradient)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("cutoffs", [(), CUTOFFS])
def test_half_precision_normalises_in_float32(dtype, cutoffs):
    softmax = make_softmax(cutoffs)
    states, words = draw_state_per_word()
    exact = softmax(states, words)
    with torch.autocast("cpu", dtype=dtype):
        losses, log_probs = softmax(states, words), softmax.log_probs(states)
    assert losses.dtype == log_probs.dtype == torch.float32
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(VOCAB))
    torch.testing.assert_close(losses, exact, atol=0.05, rtol=0.02)
    losses.sum().backward()
    assert all(weight.grad.isfinite().all() for weight in softmax.parameters())
    halved = make_softmax(cutoffs).to(dtype)
    torch.testing.assert_close(halved(states.to(dtype), words), exact, atol=0.05, rtol=0.02)


def test_the_number_of_parameters_is_that_of_the_original():
    """Check cutoffs 250 and 2,500 of 12,000 words at d = 128 with biases: 197,418 parameters (reference, section 3)."""
    softmax = AdaptiveSoftmax(128, 12_000, (250, 2_500), factor=4, bias=True)
    assert sum(weight.numel() for weight in softmax.parameters()) == 197_418
    assert [table.weight.shape[1] for table in softmax.tables] == [128, 32, 8]


@pytest.mark.parametrize("widths", [(9, 5), (3, 16), (1, 20)], ids=str)
def test_tails_have_the_given_widths(widths):
    """Check any width, also one not narrower than the states; one of d needs no projection."""
    torch.manual_seed(0)
    softmax = AdaptiveSoftmax(HIDDEN, VOCAB, CUTOFFS, bias=True, tail_widths=widths)
    head = (HIDDEN + 1) * (7 + 2)
    tails = [
        (0 if width == HIDDEN else (HIDDEN + 1) * width) + (width + 1) * words
        for width, words in zip(widths, (20 - 7, 50 - 20), strict=True)
    ]
    assert sum(weight.numel() for weight in softmax.parameters()) == head + sum(tails)
    states, words = draw_state_per_word()
    expected = torch.stack(
        [compute_plain_log_prob(softmax, state, word) for state, word in zip(states, words, strict=True)]
    )
    torch.testing.assert_close(softmax(states, words), -expected.float())
    embedding = AdaptiveEmbedding(VOCAB, HIDDEN, CUTOFFS, tail_widths=widths)
    assert [table.weight.shape for table in softmax.tables] == [table.weight.shape for table in embedding.tables]
    assert embedding(words).shape == (VOCAB, HIDDEN)


@pytest.mark.parametrize("widths", [(), (4,), (4, 1, 1), (4, 0)], ids=str)
def test_a_wrong_number_of_widths_is_refused(widths):
    with pytest.raises(ConfigError, match=r"^proj_dims=\[.*\]: must be 2 positive widths, one per tail$"):
        AdaptiveSoftmax(HIDDEN, VOCAB, CUTOFFS, tail_widths=widths)


@pytest.mark.parametrize(("cutoffs", "factor"), CASES)
def test_an_embedding_is_a_projected_row_of_its_table(cutoffs, factor):
    torch.manual_seed(0)
    embedding = AdaptiveEmbedding(VOCAB, HIDDEN, cutoffs, factor)
    ids = torch.randint(VOCAB, (3, 4))
    vectors = embedding(ids)
    assert vectors.shape == (3, 4, HIDDEN)
    edges = [0, *cutoffs, VOCAB]
    for row in range(3):
        for column in range(4):
            word = int(ids[row, column])
            cluster = sum(word >= edge for edge in edges[1:-1])
            expected = embedding.tables[cluster].weight[word - edges[cluster]]
            if len(expected) < HIDDEN:
                expected = embedding.projections[cluster].weight @ expected
            torch.testing.assert_close(vectors[row, column], expected)
    vectors.sum().backward()
    assert all(weight.grad is not None for weight in embedding.parameters())


@pytest.mark.parametrize("cutoffs", [(), CUTOFFS])
def test_tables_of_input_and_output_have_equal_shapes(cutoffs):
    softmax, embedding = make_softmax(cutoffs), AdaptiveEmbedding(VOCAB, HIDDEN, cutoffs, factor=4)
    assert [table.weight.shape for table in softmax.tables] == [table.weight.shape for table in embedding.tables]


def test_an_embedding_under_autocast_keeps_its_tables_precision():
    embedding = AdaptiveEmbedding(VOCAB, HIDDEN, CUTOFFS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert embedding(torch.arange(VOCAB)).dtype == torch.float32


@pytest.mark.parametrize("cutoffs", [[20, 7], [7, 7], [0, 7], [-3], [50], [7, 51]])
def test_invalid_cutoffs_are_refused(cutoffs):
    with pytest.raises(ConfigError, match=r"^cutoffs=\[.*\]: [^\n]*vocab_size=50[^\n]*$"):
        check_cutoffs(cutoffs, 50)
    with pytest.raises(ConfigError):
        AdaptiveSoftmax(HIDDEN, 50, cutoffs)
    with pytest.raises(ConfigError):
        AdaptiveEmbedding(50, HIDDEN, cutoffs)
