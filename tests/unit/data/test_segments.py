"""Packing of sentences to spans, and the layout of pretraining examples."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adadepth.data.pretraining import examples
from adadepth.data.pretraining.examples import IN_ORDER, NO_PAIR, SWAPPED, cut_in_two, make_example, pack_spans
from adadepth.data.stores.documents import TokenStore, store_in_memory

from .support import CorpusConfig, MaskingConfig, flatten, make_vocabulary


def make_store(*documents: list[int]) -> TokenStore:
    """Return documents given by the lengths of their sentences; token ids count up from 5."""
    total = 5
    built: list[list[list[int]]] = []
    for document in documents:
        built.append([])
        for length in document:
            built[-1].append(list(range(total, total + length)))
            total += length
    return store_in_memory(built)


def list_spans(store: TokenStore, length: int, short: float = 0.0, shortest: int = 2) -> list[list[int]]:
    return flatten(block.tolist() for block in pack_spans(store, length, short, shortest, np.random.default_rng(0)))


def test_spans_equal_hand_packed_ones() -> None:
    # 4+3 fill 8 as far as whole sentences go; 5+3 fill it exactly; documents are never mixed.
    assert list_spans(make_store([4, 3, 5, 3], [2, 2]), 8) == [[0, 7], [7, 15], [15, 19]]
    # A sentence of 20 is cut at 8; its rest takes the next sentence in; one token left alone is dropped.
    assert list_spans(make_store([20, 4], [1], [9]), 8) == [[0, 8], [8, 16], [16, 24], [25, 33]]
    assert list_spans(make_store([1]), 8, shortest=1) == [[0, 1]]
    assert list_spans(store_in_memory([]), 8) == []


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(
    documents=st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=12), max_size=6),
    length=st.integers(4, 20),
    short=st.sampled_from([0.0, 0.1, 1.0]),
)
def test_spans_cover_every_document_once_in_order(documents: list[list[int]], length: int, short: float) -> None:
    store = make_store(*documents)
    packed = list_spans(store, length, short, shortest=1)
    covered = [position for start, end in packed for position in range(start, end)]
    assert covered == list(range(len(store.tokens)))
    borders, sentences = set(store.documents.tolist()), set(store.sentences.tolist())
    for start, end in packed:
        assert 1 <= end - start <= length
        assert not borders & set(range(start + 1, end))
        assert end in sentences or end - start == length  # only a full span cuts a sentence


def test_spans_do_not_depend_on_the_blocks_of_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(*([length, 7, length] for length in range(1, 40)))
    together = list_spans(store, 16)
    monkeypatch.setattr(examples, "_DOCUMENTS_AT_ONCE", 5)
    assert list_spans(store, 16) == together


def test_memory_does_not_grow_with_a_long_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "_DOCUMENTS_AT_ONCE", 500)
    config = CorpusConfig(name="x", sequence_length=16)

    def measure_peak(documents: int) -> int:
        """Return the largest allocation of Python and NumPy while so many documents were cut."""
        (folder := tmp_path / f"{documents}").mkdir()
        ends = np.arange(0, 60 * documents + 1, 60)
        np.save(folder / "tokens.npy", np.zeros(60 * documents, np.uint16))
        np.save(folder / "sentences.npy", np.arange(0, 60 * documents + 1, 6))
        np.save(folder / "documents.npy", ends)
        store = TokenStore.open(folder)
        in_memory = examples.ensure_spans(tmp_path, store, config, 0)
        monkeypatch.setattr(examples, "_TOKENS_IN_MEMORY", 0)
        tracemalloc.start()
        filed = examples.ensure_spans(tmp_path, store, config, 0)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        monkeypatch.undo()
        monkeypatch.setattr(examples, "_DOCUMENTS_AT_ONCE", 500)
        assert in_memory.folder is None
        assert filed.folder is not None
        assert np.array_equal(in_memory.spans, filed.spans)
        return most

    measure_peak(500)  # the first call imports modules
    assert measure_peak(20_000) < 1.5 * measure_peak(2_000)


def test_short_targets_shorten_some_spans() -> None:
    store = make_store([2] * 4000)
    lengths = np.diff(list_spans(store, 40, 0.1)).ravel()
    assert 0.05 < (lengths < 40).mean() < 0.15


def test_cuts_fall_on_sentence_boundaries_and_half_are_swapped() -> None:
    tokens, generator, swaps, cuts = np.arange(10), np.random.default_rng(0), 0, set()
    for _ in range(2000):
        first, second, label = cut_in_two(tokens, np.array([3, 7]), generator)
        assert len(first) + len(second) == 10
        in_order = np.concatenate([first, second] if label == IN_ORDER else [second, first])
        assert (in_order == tokens).all()
        swaps += label == SWAPPED
        cuts.add(len(first) if label == IN_ORDER else len(second))
    assert cuts == {3, 7}
    assert 900 < swaps < 1100
    without = {len(cut_in_two(np.arange(4), np.array([], dtype=int), generator)[0]) for _ in range(100)}
    assert without == {1, 2, 3}


def test_an_example_has_the_layout_of_bert() -> None:
    store, nothing = make_store([3, 4]), MaskingConfig(mask_share=0.0, random_share=0.0)
    pair = CorpusConfig(name="x", masking=nothing)
    seen = set()
    for index in range(20):
        example = make_example(store, np.array([0, 7]), make_vocabulary(), pair, np.random.default_rng(index))
        seen.add((tuple(example["input_ids"].tolist()), example["sentence_order_label"]))
        size = 3 if example["sentence_order_label"] == IN_ORDER else 4
        assert example["token_type_ids"].tolist() == [0] * (size + 2) + [1] * (8 - size)
        assert np.flatnonzero(example["special_tokens_mask"]).tolist() == [0, size + 1, 9]
    assert seen == {((2, 5, 6, 7, 3, 8, 9, 10, 11, 3), 0), ((2, 8, 9, 10, 11, 3, 5, 6, 7, 3), 1)}
    single = CorpusConfig(name="x", masking=nothing, sentence_order=False)
    example = make_example(store, np.array([0, 7]), make_vocabulary(), single, np.random.default_rng(0))
    assert example["input_ids"].tolist() == [2, *range(5, 12), 3]
    assert not example["token_type_ids"].any()
    assert example["sentence_order_label"] == NO_PAIR == -100
