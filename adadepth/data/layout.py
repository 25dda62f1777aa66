"""Where the special tokens of a classified sequence or pair go, and what is cut when it is too long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

DoubleCls = Literal["first", "both"]


@dataclass(frozen=True)
class Layout:
    """Builds ``[CLS] A [SEP]`` and ``[CLS] A [SEP] B [SEP]``, with ``cls_tokens`` of the first token.

    PonderALBERT predicts at the first [CLS] and decides when to halt at the second.

    Attributes:
        cls: Id of [CLS].
        sep: Id of [SEP].
        sequence_length: Most tokens, special ones included.
        cls_tokens: How many [CLS] a sequence begins with.
        double_cls_pairs: ``both`` puts the further [CLS] before B as well, as the reference PonderAlbert does.
    """

    cls: int
    sep: int
    sequence_length: int
    cls_tokens: int = 1
    double_cls_pairs: DoubleCls = "first"

    def room(self, parts: int) -> int:
        """Return how many ordinary tokens a sequence of one part or a pair can hold."""
        return self.sequence_length - self.cls_tokens - parts - self._inner(parts)

    def _inner(self, parts: int) -> int:
        return self.cls_tokens - 1 if parts == 2 and self.double_cls_pairs == "both" else 0

    def build(self, parts: list[np.ndarray]) -> dict[str, Any]:
        """Return the sequence of one or two parts, the longer one cut first.

        Args:
            parts: Ids without special tokens, each (tokens,).

        Returns:
            ``input_ids``, ``token_type_ids`` (0 up to the first [SEP], then 1), (S,) int64, and ``special_tokens_mask``
            (S,) uint8. Nothing is padded.
        """
        lengths = cut_longest([len(part) for part in parts], self.room(len(parts)))
        pieces: list[np.ndarray] = []
        types, special = list(pieces), list(pieces)
        for number, (part, length) in enumerate(zip(parts, lengths, strict=True)):
            leading = self.cls_tokens if number == 0 else self._inner(len(parts))
            pieces += [np.full(leading, self.cls), part[:length], np.array([self.sep])]
            types += [np.full(leading + length + 1, number)]
            special += [np.ones(leading), np.zeros(length), np.ones(1)]
        return {
            "input_ids": np.concatenate(pieces).astype(np.int64),
            "token_type_ids": np.concatenate(types).astype(np.int64),
            "special_tokens_mask": np.concatenate(special).astype(np.uint8),
        }


def cut_longest(lengths: list[int], room: int) -> list[int]:
    """Return the lengths of one or two parts when tokens are taken from the longer one until both fit into ``room``.

    Of two that end up equally long but for one token, the longer one keeps it, as in the ``tokenizers`` library.
    """
    if sum(lengths) <= room:
        return lengths
    if len(lengths) == 1:
        return [room]
    short = min(lengths)
    kept = min(short, room // 2)
    rest = room - kept
    return [kept, rest] if lengths[0] <= lengths[1] else [rest, kept]
