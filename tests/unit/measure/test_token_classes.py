from __future__ import annotations

import numpy as np
import pytest
import torch

from adadepth.measure.classes import TOKEN_CLASSES, token_classes
from tests.unit.report.synthetic import CLS, MASK, SEP, make_batch

#        [CLS] plain [MASK] random kept [SEP] lucky [SEP] PAD
FED = [[CLS, 10, MASK, 11, 12, SEP, 13, SEP, 0]]
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


def batch_of(**fields: list[list[int]]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(values) for name, values in fields.items()}


def sorted_tokens(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return token_classes(batch, cls_id=CLS, sep_id=SEP, mask_id=MASK)


@pytest.mark.parametrize("name", TOKEN_CLASSES)
def test_hand_written_example(name: str) -> None:
    batch = batch_of(input_ids=FED, attention_mask=REAL, labels=LABELS, mask_kind=KIND)
    assert sorted_tokens(batch)[name][0].nonzero().flatten().tolist() == EXPECTED[name]


def test_names_and_order() -> None:
    batch = batch_of(input_ids=FED, attention_mask=REAL, labels=LABELS, mask_kind=KIND)
    assert tuple(sorted_tokens(batch)) == TOKEN_CLASSES


def test_random_batches_agree_with_a_loop_and_never_hold_padding() -> None:
    batch = make_batch(np.random.default_rng(3))
    classes = sorted_tokens(batch)
    counts = dict.fromkeys(TOKEN_CLASSES, 0)
    rows = zip(*(batch[name].flatten().tolist() for name in ("input_ids", "attention_mask", "labels")), strict=True)
    for fed, real, label in rows:
        if not real:
            continue
        selected = label != -100
        counts["all"] += 1
        counts["unmasked"] += fed != MASK
        counts["plain"] += not selected and fed not in (CLS, SEP, MASK)
        counts["mask"] += fed == MASK
        counts["mask/mask"] += selected and fed == MASK
        counts["mask/random"] += selected and fed != MASK and fed != label
        counts["mask/original"] += selected and fed == label
        counts["mask/random_reference"] += selected and fed != label
        counts["cls"] += fed == CLS
        counts["sep"] += fed == SEP
    assert {name: int(mask.sum()) for name, mask in classes.items()} == counts
    assert not any((mask & (batch["attention_mask"] == 0)).any() for mask in classes.values())


def test_without_masking_labels_of_another_task_select_nothing() -> None:
    classes = sorted_tokens(batch_of(input_ids=FED, attention_mask=REAL, labels=[[1]]))
    assert not any(classes[name].any() for name in TOKEN_CLASSES if name.startswith("mask/"))
    assert classes["plain"][0].nonzero().flatten().tolist() == [1, 3, 4, 6]
