"""Kinds of answers that a prediction pipeline gives for a text, as facts that pipeline, tables, reports and demo read.

The name of a kind is `Pipeline.predicts` and the field `predicts` of texts.json. No other module branches on the name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class AnswerSpec:
    """Registry entry of a kind of answer.

    Attributes:
        heads: Heads of model families that give it; see `Family.heads`.
        auto: Auto class of transformers whose models give it, too.
        special_tokens: Special tokens that a tokenizer needs in place of [CLS] and [SEP], as attribute names, or None
            if it needs these.
        more_tokens: Special tokens that a tokenizer needs besides.
        classifies_texts: Whether a text gets classes or a value.
        tags_words: Whether words get classes. A text may then be a list of words.
        fills_masks: Whether a text has masks, which get words.
        continues_texts: Whether every token gets a next word. A text is then read alone and without padding, after a
            start token.
        solves_puzzles: Whether a text is a puzzle with one character per cell, and its answer the solution.
        only_depths: Whether there are only depths, because the model has no head.
        takes_exit_rules: Whether exit rules can decide when the model stops.
    """

    heads: tuple[str, ...] = ()
    auto: str | None = None
    special_tokens: tuple[str, ...] | None = None
    more_tokens: tuple[str, ...] = ()
    classifies_texts: bool = False
    tags_words: bool = False
    fills_masks: bool = False
    continues_texts: bool = False
    solves_puzzles: bool = False
    only_depths: bool = False
    takes_exit_rules: bool = True


ANSWER_KINDS: Mapping[str, AnswerSpec] = {
    "classes": AnswerSpec(("classification",), "AutoModelForSequenceClassification", classifies_texts=True),
    "tags": AnswerSpec(("tagging",), "AutoModelForTokenClassification", tags_words=True),
    "masks": AnswerSpec(
        ("pretraining",),
        "AutoModelForMaskedLM",
        more_tokens=("mask_token",),
        fills_masks=True,
        takes_exit_rules=False,
    ),
    "next": AnswerSpec(("language_model",), special_tokens=("eos_token",), continues_texts=True),
    "cells": AnswerSpec(("puzzle",), special_tokens=("pad_token",), solves_puzzles=True),
    "depths": AnswerSpec(only_depths=True, takes_exit_rules=False),
}
