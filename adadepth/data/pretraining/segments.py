"""Sentence-order prediction (Lan et al. 2020): consecutive sentences packed into examples, cut in two, half swapped."""

from __future__ import annotations

import numpy as np

from adadepth.data.stores.documents import TokenStore

IN_ORDER, SWAPPED, NO_PAIR = 0, 1, -100  # values of sentence_order_label


def pack_spans(
    store: TokenStore, length: int, short_probability: float, shortest: int, generator: np.random.Generator
) -> np.ndarray:
    """Cut every document into consecutive spans of whole sentences with up to ``length`` tokens.

    A span takes sentences while they fit. With ``short_probability`` its target is a random shorter length instead.
    It always takes one sentence; one longer than ``length`` is cut, and the rest of it begins the next span, so no
    token is lost, save in spans of less than ``shortest`` tokens, which are dropped.

    Returns:
        First and end token of every span, (spans, 2) int64, in the order of the text.
    """
    first, stop = np.array(store.documents[:-1]), np.array(store.documents[1:])
    sentences = np.asarray(store.sentences)
    spans = [np.empty((0, 2), np.int64)]
    while first.size:  # the next span of every document that has one
        target = np.full(first.size, length)
        short = generator.random(first.size) < short_probability
        target[short] = generator.integers(2, length + 1, int(short.sum()))
        last = np.searchsorted(sentences, first + target, side="right") - 1
        last += sentences[last] <= first
        end = np.minimum(np.minimum(sentences[last], first + length), stop)
        spans.append(np.stack([first, end], axis=1))
        more = end < stop
        first, stop = end[more], stop[more]
    packed = np.concatenate(spans)
    packed = packed[packed[:, 1] - packed[:, 0] >= shortest]
    return packed[np.argsort(packed[:, 0])]


def cut_in_two(
    tokens: np.ndarray, boundaries: np.ndarray, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, int]:
    """Cut a span at a random sentence boundary, or at a random token if it has none, and swap the parts half the time.

    Args:
        tokens: at least 2 ids.
        boundaries: where sentences begin inside the span, each in [1, len(tokens) - 1].
        generator: the example's own.

    Returns:
        Segment A, segment B, and the label, 0 in order or 1 swapped.
    """
    cut = generator.choice(boundaries) if len(boundaries) else generator.integers(1, len(tokens))
    parts = tokens[:cut], tokens[cut:]
    swapped = int(generator.random() < 0.5)
    return parts[swapped], parts[1 - swapped], SWAPPED if swapped else IN_ORDER
