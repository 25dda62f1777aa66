"""Special tokens around a text or a pair of texts, and truncation of long texts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal

import numpy as np
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

DoubleCls = Literal["first", "both"]
CutSide = Literal["left", "right"]
_Special = tuple[tuple[int, int], ...]  # id and type of consecutive special tokens


@dataclass(frozen=True)
class Template:
    """Special tokens that a tokenizer puts around one text or a pair of texts.

    Attributes:
        special: Special tokens before the first text and after each text, as (id, type).
        types: Token type of each text.
    """

    special: tuple[_Special, ...]
    types: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of special tokens in the template."""
        return sum(map(len, self.special))


@dataclass(frozen=True)
class Layout:
    """Special tokens and length of a sequence: BERT's ``[CLS] A [SEP] B [SEP]``, RoBERTa's ``<s> A </s></s> B </s>``.

    Attributes:
        single: Special tokens around one text.
        pair: Special tokens around two texts.
        sequence_length: Maximum number of tokens, special tokens included.
        cut_side: Side on which a long text is truncated, like the tokenizer's `truncation_side`.
    """

    single: Template
    pair: Template
    sequence_length: int
    cut_side: CutSide = "right"

    @classmethod
    def from_tokenizer(
        cls,
        tokenizer: PreTrainedTokenizerFast,
        sequence_length: int,
        cls_tokens: int = 1,
        double_cls_pairs: DoubleCls = "first",
    ) -> Layout:
        """Return the layout of special tokens that fits a tokenizer.

        Args:
            tokenizer: Fast tokenizer. It must have [CLS] and [SEP] if ``cls_tokens`` is not 0.
            sequence_length: Maximum number of tokens, special tokens included.
            cls_tokens: Number of leading [CLS] tokens. With two of them, PonderALBERT predicts at the first and decides
                on halting at the second. With 0, the special tokens are the tokenizer's own. Otherwise they are BERT's
                if the tokenizer's own do not begin with [CLS].
            double_cls_pairs: Setting for pairs. With ``both``, the additional [CLS] tokens also precede B, as in the
                reference PonderAlbert.
        """
        single, pair = read_template(tokenizer, 1), read_template(tokenizer, 2)
        if cls_tokens:
            first = tokenizer.cls_token_id
            if not single.special[0] or single.special[0][0][0] != first:
                single, pair = _build_bert_templates(tokenizer)
            single, pair = _with_cls(single, 0, first, cls_tokens), _with_cls(pair, 0, first, cls_tokens)
            pair = _with_cls(pair, 1, first, cls_tokens - 1 if double_cls_pairs == "both" else 0)
        return cls(single, pair, sequence_length, "left" if tokenizer.truncation_side == "left" else "right")

    @classmethod
    def bert(cls, tokenizer: PreTrainedTokenizerFast, sequence_length: int) -> Layout:
        """Return BERT's layout for pretraining, with the [CLS] and [SEP] of a tokenizer."""
        return cls(*_build_bert_templates(tokenizer), sequence_length)

    @classmethod
    def plain(cls, sequence_length: int) -> Layout:
        """Return a layout without special tokens, for language models."""
        return cls(Template(((), ()), (0,)), Template(((), (), ()), (0, 0)), sequence_length)

    def cut_at_end(self) -> Layout:
        """Return the same layout with truncation at the end, as tagged words and context windows need it."""
        return replace(self, cut_side="right")

    def truncation_slice(self, tokens: int, length: int) -> slice:
        """Return the slice of a text's tokens that remains after truncation to `length`."""
        return slice(tokens - length, tokens) if self.cut_side == "left" else slice(length)

    def room(self, parts: int) -> int:
        """Return how many ordinary tokens fit into a sequence of one text or of a pair."""
        return self.sequence_length - self._get_template(parts).size

    def lengths(self, tokens: np.ndarray, parts: int) -> np.ndarray:
        """Return the lengths after truncation of sequences with the given numbers of ordinary tokens, (rows,) int64."""
        lengths: np.ndarray = np.minimum(tokens, self.room(parts)) + self._get_template(parts).size
        return lengths

    def count_tokens(self, tokens: np.ndarray, parts: int) -> dict[str, int]:
        """Count ordinary tokens for a data summary: all, those that remain after truncation, and truncated sequences.

        Args:
            tokens: Number of ordinary tokens of each sequence, int64 of any shape.
            parts: Number of texts of a sequence, 1 or 2.
        """
        room = self.room(parts)
        used = int(np.minimum(tokens, room).sum())
        return {"tokens": int(tokens.sum()), "tokens_used": used, "cut": int((tokens > room).sum())}

    def _get_template(self, parts: int) -> Template:
        return self.single if parts == 1 else self.pair

    def truncate(self, parts: list[np.ndarray]) -> list[np.ndarray]:
        """Return the tokens of one or two texts that fit into a sequence. The longer text is truncated first.

        Args:
            parts: Ids of each text without special tokens, (tokens,).
        """
        lengths = cut_longest([len(part) for part in parts], self.room(len(parts)))
        return [part[self.truncation_slice(len(part), length)] for part, length in zip(parts, lengths, strict=True)]

    def build(self, parts: list[np.ndarray]) -> dict[str, Any]:
        """Return the token sequence of one or two texts; see `truncate`.

        Args:
            parts: Ids of each text without special tokens, (tokens,).

        Returns:
            ``input_ids`` and ``token_type_ids``, (S,) int64, and ``special_tokens_mask`` (S,) uint8, all without
            padding.
        """
        template = self._get_template(len(parts))
        texts = [
            (part, np.full(len(part), kind), np.zeros(len(part)))
            for part, kind in zip(self.truncate(parts), template.types, strict=True)
        ]
        around = [
            (*np.array(special, dtype=np.int64).reshape(-1, 2).T, np.ones(len(special))) for special in template.special
        ]
        ordered = [around[0], *chain.from_iterable(zip(texts, around[1:], strict=True))]
        ids, types, marks = (np.concatenate(column) for column in zip(*ordered, strict=True))
        return {
            "input_ids": ids.astype(np.int64),
            "token_type_ids": types.astype(np.int64),
            "special_tokens_mask": marks.astype(np.uint8),
        }


def _build_bert_templates(tokenizer: PreTrainedTokenizerFast) -> tuple[Template, Template]:
    """Return the templates `[CLS] A [SEP]` and `[CLS] A [SEP] B [SEP]`. The second text has type 1."""
    first, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    special = (((first, 0),), ((sep, 0),))
    return Template(special, (0,)), Template((*special, ((sep, 1),)), (0, 1))


def read_template(tokenizer: PreTrainedTokenizerFast, texts: int) -> Template:
    """Return the special tokens that a tokenizer puts around one text or two."""
    # The post-processor knows their ids, so a vocabulary of one word is enough.
    probe = Tokenizer(models.WordLevel({"word": 0}))
    if tokenizer.backend_tokenizer.post_processor is not None:
        probe.post_processor = tokenizer.backend_tokenizer.post_processor
    encoding = probe.encode("word", "word" if texts == 2 else None)
    types = [encoding.type_ids[encoding.sequence_ids.index(text)] for text in range(texts)]
    special: list[list[tuple[int, int]]] = [[]]
    for token, kind, text in zip(encoding.ids, encoding.type_ids, encoding.sequence_ids, strict=True):
        if text is None:
            special[-1].append((token, kind))
        else:
            special.append([])
    return Template(tuple(map(tuple, special)), tuple(types))


def _with_cls(template: Template, text: int, token: int, count: int) -> Template:
    """Return a template with ``count`` [CLS] tokens before a text.

    Added tokens come after the other special tokens before the text and have the type of the text. A tokenizer that was
    saved with a model already has all of them.
    """
    special = list(template.special)
    missing = count - sum(number == token for number, _ in special[text])
    if missing < 0:
        special[text] = tuple(entry for entry in special[text] if entry[0] != token)
        missing = count
    special[text] += ((token, template.types[text]),) * missing
    return Template(tuple(special), template.types)


def cut_longest(lengths: list[int], room: int) -> list[int]:
    """Return the lengths of one or two texts after truncation to ``room`` tokens in total.

    The longer text is truncated until both fit. If one token remains when both texts have equal lengths, the originally
    longer text keeps it, as in the ``tokenizers`` library.
    """
    if sum(lengths) <= room:
        return lengths
    if len(lengths) == 1:
        return [room]
    short = min(lengths)
    shorter = min(short, room // 2)
    longer = room - shorter
    return [shorter, longer] if lengths[0] <= lengths[1] else [longer, shorter]
