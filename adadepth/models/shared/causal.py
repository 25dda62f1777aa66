"""Building blocks of causal language models: targets, positions in packed documents, and losses computed in chunks.

Shape legend: B rows, T tokens, M targets, D width, V pieces.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from adadepth.errors import DataError
from adadepth.models.shared.losses import IGNORED_LABEL, check_classes

_MAX_LOGITS = 2**23  # logits computed at once on a CPU, and at least as many on other devices
_MEMORY_PER_LOGIT = 256  # bytes of a GPU for each of the logits computed at once, which then take a 64th in float32


def causal_targets(labels: Tensor) -> Tensor:
    """Return the next token as the target of each position, (B, T); the last position has no target."""
    return nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED_LABEL)


def count_in_documents(documents: Tensor) -> Tensor:
    """Return each token's position within its document, int64, from document numbers, (B, T) each."""
    columns = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    starts = nn.functional.pad(documents[:, 1:] != documents[:, :-1], (1, 0), value=True)
    return columns - torch.where(starts, columns, 0).cummax(dim=1).values


def mask_by_documents(documents: Tensor, position_ids: Tensor | None, uses_cache: bool) -> dict[str, Any]:
    """Return positions and mask with which each token sees its own document alone: positions of 0 begin documents.

    Raises:
        DataError: If the call has positions or uses a cache.
    """
    if uses_cache or position_ids is not None:
        raise DataError("documents: cannot be combined with a cache or position_ids")
    return {"position_ids": count_in_documents(documents), "attention_mask": None}


def select_kept_columns(logits_to_keep: int | Tensor) -> slice | Tensor:
    """Return the index of the last positions whose predictions are returned, or the given positions; 0: all."""
    return slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep


def count_rows_at_once(pieces: int, device: torch.device) -> int:
    """Return the number of rows of logits that are computed per chunk to limit memory.

    Every chunk reads the head's weights again, so a GPU has larger chunks: an 80 GiB GPU computes 335 million logits at
    once, 6,700 rows of 50,000 pieces.
    """
    most = _MAX_LOGITS
    if device.type == "cuda":
        most = max(most, torch.cuda.get_device_properties(device).total_memory // _MEMORY_PER_LOGIT)
    return max(1, most // pieces)


def compute_in_parts(compute: Callable[..., Tensor], pieces: int, *inputs: Tensor) -> Tensor:
    """Compute the losses of M rows in chunks to save memory, and recompute them in the backward pass; float32 (M,).

    Args:
        compute: Function from rows of the inputs to their losses, whose logits are not stored.
        pieces: V, the logits of a row.
        *inputs: Tensors with M rows each.
    """
    rows = count_rows_at_once(pieces, inputs[0].device)
    parts = zip(*(values.split(rows) for values in inputs), strict=True)
    losses = [
        checkpoint(compute, *part, use_reentrant=False) if torch.is_grad_enabled() else compute(*part) for part in parts
    ]
    return torch.cat(losses)


def cross_entropies(states: Tensor, targets: Tensor, head: Callable[[Tensor], Tensor], pieces: int) -> Tensor:
    """Compute the cross-entropy of every prediction, float32 (M,).

    Args:
        states: Input of the head, (M, D).
        targets: Pieces, (M,), none of them negative.
        head: Function from (m, D) to logits (m, V).
        pieces: V.

    Raises:
        DataError: If a target is no piece; see `check_classes`.
    """
    check_classes(targets, pieces)

    def compute(read: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(head(read).float(), target, reduction="none")

    return compute_in_parts(compute, pieces, states, targets)
