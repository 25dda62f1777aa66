"""The token classes whose depths are compared: masks over the tokens of a batch.

The rows are those of Simoulin & Crabbé (2021). There `mask/random` selected every predicted position whose fed id is
not the original, [MASK] included: about eight parts of `mask/mask` to one of real random words. Here it is the latter
only, and the published blend has a name of its own, `mask/random_reference`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from adadepth.analysis.measure.class_definitions import CLASS_DEFINITIONS

TOKEN_CLASSES: tuple[str, ...] = tuple(CLASS_DEFINITIONS)


def token_classes(batch: Mapping[str, Tensor], *, cls_id: int, sep_id: int, mask_id: int) -> dict[str, Tensor]:
    """Sort the tokens of a batch into (overlapping) classes; padding is in none of them.

    Args:
        batch: `input_ids` and `attention_mask`, (B, T) int64; where tokens were selected for prediction also
            `mask_kind` (B, T), not 0 at a selected position, and `labels` (B, T), the original ids there.
        cls_id: Id of [CLS].
        sep_id: Id of [SEP].
        mask_id: Id of [MASK].

    Returns:
        Name to boolean mask (B, T), with the names of `TOKEN_CLASSES`. A random word that happens to be the original
        counts as `mask/original`: the model cannot tell them apart.
    """
    fed = batch["input_ids"]
    real = batch["attention_mask"].bool()
    selected = real & (batch["mask_kind"] > 0) if "mask_kind" in batch else torch.zeros_like(real)
    unchanged = fed == batch["labels"] if "mask_kind" in batch else torch.zeros_like(real)
    is_cls, is_sep, is_mask = (real & (fed == special) for special in (cls_id, sep_id, mask_id))
    return {
        "all": real,
        "unmasked": real & ~is_mask,
        "plain": real & ~selected & ~(is_cls | is_sep | is_mask),
        "mask": is_mask,
        "mask/mask": selected & is_mask,
        "mask/random": selected & ~is_mask & ~unchanged,
        "mask/original": selected & ~is_mask & unchanged,
        "mask/random_reference": selected & ~unchanged,
        "cls": is_cls,
        "sep": is_sep,
    }
