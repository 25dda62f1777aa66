"""Classes of tokens by masking and special tokens."""

from __future__ import annotations

import torch

from adadepth.metrics.unit_classes import TOKEN_CLASSES, token_classes
from tests.unit.report.synthetic import CLS, MASK, SEP

#        [CLS] plain [MASK] random kept [SEP] lucky [SEP] PAD
INPUT_IDS = [[CLS, 10, MASK, 11, 12, SEP, 13, SEP, 0]]
REAL = [[1, 1, 1, 1, 1, 1, 1, 1, 0]]
LABELS = [[-100, -100, 20, 21, 12, -100, 13, -100, -100]]
KIND = [[0, 0, 1, 2, 3, 0, 2, 0, 0]]  # the last random word happens to be the original
EXPECTED = {
    "all": [0, 1, 2, 3, 4, 5, 6, 7],
    "unmasked": [0, 1, 3, 4, 5, 6, 7],
    "plain": [1],
    "mask": [2],
    "mask/mask": [2],
    "mask/random": [3],
    "mask/original": [4, 6],
    "mask/random_reference": [2, 3],
    "cls": [0],
    "sep": [5, 7],
}


def make_batch(**fields: list[list[int]]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(values) for name, values in fields.items()}


def classify_tokens(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return token_classes(batch, cls_id=CLS, sep_id=SEP, mask_id=MASK)


def test_every_class_has_the_expected_positions() -> None:
    masks = classify_tokens(make_batch(input_ids=INPUT_IDS, attention_mask=REAL, labels=LABELS, mask_kind=KIND))
    assert tuple(masks) == TOKEN_CLASSES
    assert {name: mask[0].nonzero().flatten().tolist() for name, mask in masks.items()} == EXPECTED


def test_without_masking_labels_of_another_task_select_nothing() -> None:
    classes = classify_tokens(make_batch(input_ids=INPUT_IDS, attention_mask=REAL, labels=[[1]]))
    assert not any(classes[name].any() for name in TOKEN_CLASSES if name.startswith("mask/"))
    assert classes["plain"][0].nonzero().flatten().tolist() == [1, 3, 4, 6]
