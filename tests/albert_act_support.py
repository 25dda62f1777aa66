"""Support for ACT-ALBERT tests: heads, labelled batches, and prescribed halting."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from adadepth import (
    AlbertActForMaskedLM,
    AlbertActForMultipleChoice,
    AlbertActForPreTraining,
    AlbertActForQuestionAnswering,
    AlbertActForSequenceClassification,
    AlbertActForTokenClassification,
    AlbertActModel,
)
from adadepth.models.albert_act.ragged import _REPACK_SAVES
from tests.models_support import make_padded_batch


@contextmanager
def repack_at_every_halt() -> Iterator[None]:
    """Pack again the remaining tokens whenever one halts, which models this small would never do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(_REPACK_SAVES, "cpu", 0)
        yield


def prescribe(model, depths):
    """Let tokens halt at given updates, with the gradient of the halting unit."""
    table = compute_prescribed_probabilities(depths)
    compute = model.encoder.halting_probability

    def halting_probability(probability, valid, slots=None):
        computed = compute(probability, valid, slots)
        return (table if slots is None else table.flatten()[slots]) + (computed - computed.detach())

    model.encoder.halting_probability = halting_probability


def compute_prescribed_probabilities(depths):
    """Return probabilities of which N cross the threshold of 0.99, and N - 1 do not."""
    return 0.99 / (depths - 0.5)


HEADS = {
    AlbertActModel: AutoModel,
    AlbertActForPreTraining: AutoModelForPreTraining,
    AlbertActForMaskedLM: AutoModelForMaskedLM,
    AlbertActForSequenceClassification: AutoModelForSequenceClassification,
    AlbertActForTokenClassification: AutoModelForTokenClassification,
    AlbertActForQuestionAnswering: AutoModelForQuestionAnswering,
    AlbertActForMultipleChoice: AutoModelForMultipleChoice,
}


def make_labelled_batch(model_class):
    """Return a batch with the labels that a head expects."""
    batch = make_padded_batch()
    valid = batch["attention_mask"].bool()
    if model_class in (AlbertActForPreTraining, AlbertActForMaskedLM):
        batch["labels"] = torch.where(valid & (torch.arange(12) % 3 == 0), batch["input_ids"], -100)
    if model_class is AlbertActForPreTraining:
        batch["sentence_order_label"] = torch.tensor([0, 1, -1])
    if model_class is AlbertActForSequenceClassification:
        batch["labels"] = torch.tensor([0, 2, 1])
    if model_class is AlbertActForTokenClassification:
        batch["labels"] = torch.where(valid, batch["input_ids"] % 3, -100)
    if model_class is AlbertActForQuestionAnswering:
        batch |= {"start_positions": torch.tensor([1, 2, 0]), "end_positions": torch.tensor([3, 2, 99])}
    if model_class is AlbertActForMultipleChoice:
        batch = {name: torch.stack([value, value.roll(1, 0)], dim=1) for name, value in batch.items()}
        batch["labels"] = torch.tensor([0, 1, 0])
    return batch
