"""Documents side by side in one row, read as separate rows; losses per token, and loops that grow in training."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import nn

from adadepth.errors import DataError
from adadepth.models.looped.objectives import compute_curriculum_loops
from tests.marks_support import keep_one_quick
from tests.unit.models.looped.looped_support import HUGINN, IDS, KINDS, OURO, build_looped, check_close

ROW = IDS.flatten()[:12].view(1, -1)
SIZES = (1, 5, 4)  # and two positions of padding
DOCUMENTS = torch.tensor([[0] + [1] * 5 + [2] * 4 + [-1] * 2])
MASK = (DOCUMENTS >= 0).long()


@pytest.mark.parametrize(("kind", "attention"), keep_one_quick(7, product(KINDS, ["eager", "sdpa"])))
def test_a_document_equals_a_separate_row(kind: str, attention: str) -> None:
    model = build_looped(**KINDS[kind])
    model.set_attn_implementation(attention)
    packed = model(ROW, MASK, documents=DOCUMENTS, run_all_steps=True)
    first = 0
    for size in SIZES:
        alone = model(ROW[:, first : first + size], run_all_steps=True)
        check_close(packed.step_logits[:, first : first + size], alone.step_logits[...])
        check_close(packed.logits[:, first : first + size], alone.logits)
        first += size
    assert packed.exit_steps[0, 10:].tolist() == [0, 0]


def test_changing_a_document_leaves_the_others_unchanged() -> None:
    """Check bit for bit that changing a document leaves the logits of the others unchanged."""
    model = build_looped(**OURO)
    other = ROW.clone()
    other[0, 1:6] = (other[0, 1:6] + 1) % 53
    first, second = (model(row, MASK, documents=DOCUMENTS).logits[0] for row in (ROW, other))
    assert torch.equal(first[6:10], second[6:10])
    assert torch.equal(first[0], second[0])
    assert not torch.allclose(first[1:6], second[1:6])


def test_documents_have_separate_positions_and_no_cache() -> None:
    model = build_looped(**OURO)
    for options in ({"position_ids": torch.arange(12).view(1, -1)}, {"use_cache": True}):
        with pytest.raises(DataError, match="documents: cannot be combined with"):
            model(ROW, documents=DOCUMENTS, **options)


def build_labels() -> torch.Tensor:
    starts = torch.nn.functional.pad(DOCUMENTS[:, 1:] != DOCUMENTS[:, :-1], (1, 0), value=True)
    return torch.where(starts | (DOCUMENTS < 0), -100, ROW)


@pytest.mark.parametrize("rule", keep_one_quick(2, ["fixed:4", "fixed:2", "margin:0.3", "quantile:0.6", "expectation"]))
@pytest.mark.parametrize("objective", keep_one_quick(2, ["last", "mean", "gate"]))
def test_token_losses_are_cross_entropies_of_their_predictions(rule: str, objective: str) -> None:
    model = build_looped(**OURO, objective=objective)
    output = model(ROW, MASK, labels=build_labels(), documents=DOCUMENTS, exit_rule=rule, run_all_steps=True)
    follow = torch.nn.functional.pad(build_labels()[0, 1:], (0, 1), value=-100)
    where = (follow >= 0).nonzero().squeeze(1)
    assert len(where) == 7
    for number, position in enumerate(where):
        expected = nn.functional.cross_entropy(output.logits[0, position], follow[position])
        check_close(output.token_losses[number], expected)
        for loop in range(4):
            logits = output.step_logits[0, position, loop]
            check_close(output.step_losses[number, loop], nn.functional.cross_entropy(logits, follow[position]))


def test_losses_are_those_of_the_loops_read() -> None:
    model = build_looped(**HUGINN)
    output = model(ROW, MASK, labels=build_labels(), documents=DOCUMENTS)
    assert output.step_losses.shape == (7, 1)
    check_close(output.token_losses.mean(), output.loss)


@pytest.mark.parametrize(("shape", "expected"), [
    ("none", [4, 4, 4, 4, 4, 4, 4, 4, 4, 4]),
    ("linear", [1, 1, 2, 3, 4, 4, 4, 4, 4, 4]),  # ceil(4 s / 5) of s = 0..9
    ("sqrt", [1, 1, 1, 2, 3, 4, 4, 4, 4, 4]),  # ceil(4 (1 - sqrt(1 - s / 5)))
])  # fmt: skip
def test_loops_grow_with_the_steps(shape: str, expected: list[int]) -> None:
    assert [compute_curriculum_loops(4, shape, 0.5, step, 10) for step in range(10)] == expected


def test_training_runs_the_scheduled_number_of_loops() -> None:
    model = build_looped(**HUGINN, loop_curriculum="linear", curriculum_share=1.0).train()
    for step, loops in ((0, 1), (4, 1), (5, 2), (8, 2), (9, 3)):
        model.set_step(step, 12)
        assert model(ROW, MASK, labels=build_labels(), documents=DOCUMENTS).trace.max_updates == loops
    model.set_step(0, 12)
    assert model(ROW, labels=ROW, num_loops=2).trace.max_updates == 2
    assert model.eval()(ROW, labels=ROW).trace.max_updates == 3
