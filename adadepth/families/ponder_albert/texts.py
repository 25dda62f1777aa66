"""Texts for a model that reads one or two [CLS]: the convenience of a call with texts. Data sets have a collator."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from adadepth.families.ponder_albert.configuration import PonderAlbertConfig


def encode_texts(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str | tuple[str, str]], config: PonderAlbertConfig
) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, mask and segments (B, T) of texts, or of pairs of texts.

    `[CLS] [CLS] a [SEP] b [SEP]` with two [CLS]; with `double_cls_pairs=both` another one before b, as in the reference
    code. The longer text of a pair loses tokens first where the model has too few positions.

    Raises:
        ValueError: If there is no text.
    """
    if not texts:
        raise ValueError("no texts to encode")
    rows = [_encode(tokenizer, (text,) if isinstance(text, str) else tuple(text), config) for text in texts]
    width = max(len(ids) for ids, _ in rows)
    pad = config.pad_token_id or 0
    ids = torch.tensor([row + [pad] * (width - len(row)) for row, _ in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row, _ in rows])
    segments = torch.tensor([row + [0] * (width - len(row)) for _, row in rows])
    return ids, mask, segments


def _encode(
    tokenizer: PreTrainedTokenizerBase, texts: tuple[str, ...], config: PonderAlbertConfig
) -> tuple[list[int], list[int]]:
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    parts = [list(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]
    heads = [[cls] * config.cls_tokens]
    if len(parts) == 2:
        heads.append([cls] if config.cls_tokens == 2 and config.double_cls_pairs == "both" else [])
    room = config.max_position_embeddings - sum(map(len, heads)) - len(parts)
    lengths = [len(part) for part in parts]
    while sum(map(len, parts)) > room:
        # Of two that have become equally long, the one that was shorter loses the token, as in the tokenizers library.
        parts[max(range(len(parts)), key=lambda index: (len(parts[index]), -lengths[index]))].pop()
    ids: list[int] = []
    segments: list[int] = []
    for segment, (head, part) in enumerate(zip(heads, parts, strict=True)):
        piece = [*head, *part, sep]
        ids += piece
        segments += [segment] * len(piece)
    return ids, segments
