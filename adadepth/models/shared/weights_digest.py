"""Digest of weights, with which a model that is stored without its base recognises the base."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor


def weights_digest(weights: Iterable[Tensor]) -> str:
    """Return the SHA-256 digest of weights in any order.

    Names are not included, because they differ between transformers releases.
    """
    digests = (
        hashlib.sha256(weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data).digest()
        for weight in weights
    )
    return hashlib.sha256(b"".join(sorted(digests))).hexdigest()
