"""Pretraining data, from a configuration to batches: determinism, loaders, cache and streaming."""

from __future__ import annotations

import multiprocessing
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from adadepth.data import EpochSampler, RunData, load_pretraining_data, unigram_baseline
from adadepth.data.batches import IGNORE
from adadepth.data.cache import digest, ensure_folder
from adadepth.data.pretraining import load as pretraining
from adadepth.data.stores.parallel_tokenisation import ensure_texts
from adadepth.errors import DataError

from .support import TokenizerConfig, is_same_example, make_corpus_config, make_tokenizer_config, write_corpus


def test_examples_are_pure_functions_of_seed_epoch_and_index(data: RunData, corpus: Path, workspace: Path) -> None:
    again = load_pretraining_data(make_corpus_config(corpus, workspace / "cache"), make_tokenizer_config(), seed=3)
    other = load_pretraining_data(make_corpus_config(corpus, workspace / "cache"), make_tokenizer_config(), seed=4)
    for index in (5, 0, 7):
        first = data.train[(2, index)]
        data.train[(0, 1)]
        assert is_same_example(first, again.train[(2, index)])
        assert not is_same_example(first, data.train[(3, index)])
        assert not is_same_example(first, other.train[(2, index)])
        originals = [
            np.sort(np.where(e["labels"] == IGNORE, e["input_ids"], e["labels"]))
            for e in (first, data.train[(3, index)])
        ]
        assert np.array_equal(*originals)  # the same text, cut and masked afresh
        assert is_same_example(data.evaluation["held_out"][index], data.evaluation["held_out"][(-1, index)])
        assert is_same_example(data.evaluation["held_out"][index], other.evaluation["held_out"][index])


def test_the_summary_counts_the_read_text(data: RunData, corpus: Path) -> None:
    train, evaluation = data.summary["train"], data.summary["evaluation"]
    assert train["documents"] + evaluation["documents"] == 40
    assert evaluation["documents"] == 8
    assert train["sentences"] + evaluation["sentences"] == len(
        [line for line in corpus.read_text().split("\n") if line]
    )
    assert train["examples"] == len(data.train)
    assert evaluation["examples_used"] == len(data.evaluation["held_out"])
    assert data.summary["tokenizer"] == {"path": None, "vocab_size": len(data.tokenizer)}
    lengths = [len(data.train[(0, i)]["input_ids"]) for i in range(len(data.train))]
    lost = train["tokens"] - sum(lengths) + 3 * len(lengths)
    assert 0 <= lost < 0.01 * train["tokens"]  # single tokens left over by over-long sentences
    assert max(lengths) <= 32


def test_evaluation_is_capped_evenly(corpus: Path, workspace: Path) -> None:
    config = make_corpus_config(corpus, workspace / "cache", max_evaluation_examples=5)
    capped = load_pretraining_data(config, make_tokenizer_config(), 0)
    assert len(capped.evaluation["held_out"]) == 5
    assert capped.evaluation["held_out"].spans[-1, 0] > 0.7 * capped.summary["evaluation"]["tokens"]


@pytest.mark.parametrize("pad_to_length", [False, True])
def test_batches_are_padded_tensors(data: RunData, pad_to_length: bool) -> None:
    collate = replace(data.collate, pad_to_length=pad_to_length)
    examples = [data.train[(0, index)] for index in range(6)]
    batch = collate(examples)
    longest = max(len(example["input_ids"]) for example in examples)
    width = 32 if pad_to_length else min(32, (longest + 7) // 8 * 8)
    kinds = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in batch.items()}
    long, byte = ((6, width), torch.int64), ((6, width), torch.uint8)
    assert kinds == {
        "input_ids": long, "attention_mask": long, "token_type_ids": long, "labels": long, "mask_kind": byte,
        "special_tokens_mask": byte, "sentence_order_label": ((6,), torch.int64), "index": ((6,), torch.int64),
    }  # fmt: skip
    for row, example in enumerate(examples):
        length = len(example["input_ids"])
        assert batch["attention_mask"][row].tolist() == [1] * length + [0] * (width - length)
        assert batch["input_ids"][row, :length].tolist() == example["input_ids"].tolist()
        assert set(batch["input_ids"][row, length:].tolist()) <= {0}
        assert set(batch["labels"][row, length:].tolist()) <= {-100}
        assert set(batch["special_tokens_mask"][row, length:].tolist()) <= {1}
        assert not batch["mask_kind"][row, length:].any()
    short = {key: value[:9] if isinstance(value, np.ndarray) else value for key, value in examples[0].items()}
    assert data.collate([short])["input_ids"].shape == (1, 16)


def test_sampler_is_a_pure_permutation_of_every_epoch() -> None:
    sampler = EpochSampler(50, seed=1)
    orders = []
    for epoch in (0, 1, 0):
        sampler.set_epoch(epoch)
        order = list(sampler)
        assert sorted(order) == [(epoch, index) for index in range(50)]
        assert list(sampler) == order
        orders.append([index for _, index in order])
    assert orders[0] == orders[2] != orders[1]
    assert [index for _, index in EpochSampler(50, seed=2)] != orders[0]
    assert len(sampler) == 50


def load_batches(data: RunData, workers: int, epochs: tuple[int, ...]) -> list[dict[str, torch.Tensor]]:
    sampler = EpochSampler(len(data.train), seed=3)
    loader = DataLoader(
        data.train, batch_size=4, sampler=sampler, num_workers=workers, collate_fn=data.collate,
        persistent_workers=workers > 0,
    )  # fmt: skip
    loaded = []
    for epoch in epochs:
        sampler.set_epoch(epoch)
        torch.rand(3 + workers)  # the global generator must not matter
        loaded.extend(loader)
    return loaded


@pytest.mark.slow
def test_workers_do_not_change_a_batch(data: RunData) -> None:
    alone, helped = load_batches(data, 0, (0, 1)), load_batches(data, 2, (0, 1))
    assert len(alone) == len(helped) == 2 * -(-len(data.train) // 4)
    for first, second in zip(alone, helped, strict=True):
        assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_pickled_data_set_is_small_and_equal(data: RunData) -> None:
    assert len(pickle.dumps(data.train.store)) < 1000
    received = pickle.loads(pickle.dumps(data.train))
    assert is_same_example(received[(1, 2)], data.train[(1, 2)])


def test_the_unigram_baseline_equals_a_plain_count(data: RunData) -> None:
    tokens = np.asarray(data.train.store.tokens).tolist()
    vocabulary = [id for id in range(len(data.tokenizer)) if id >= 5]
    counts = {id: 1 + tokens.count(id) for id in vocabulary}
    held_out = data.evaluation["held_out"]
    labels = [int(id) for i in range(len(held_out)) for id in held_out[i]["labels"] if id != IGNORE]
    total, best = sum(counts.values()), max(vocabulary, key=lambda id: counts[id])
    baseline = unigram_baseline(data)
    assert baseline["positions"] == len(labels)
    assert baseline["accuracy"] == pytest.approx(labels.count(best) / len(labels))
    assert baseline["cross_entropy"] == pytest.approx(-np.mean([np.log(counts[id] / total) for id in labels]))
    assert baseline["token"] == data.tokenizer.convert_ids_to_tokens(best)


# --- cache


def count_builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    built: list[str] = []

    def count(root: Path, name: str, texts: Any, *rest: Any) -> Path:
        def yield_texts() -> Any:
            built.append(name.split("-")[0])
            return texts()

        return ensure_texts(root, name, yield_texts, *rest)

    monkeypatch.setattr(pretraining, "ensure_texts", count)
    return built


def test_the_cache_is_reused_only_for_the_same_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = count_builds(monkeypatch)
    file, cache = write_corpus(tmp_path), tmp_path / "cache"
    load_pretraining_data(make_corpus_config(file, cache), make_tokenizer_config(), 0)
    assert built == ["train", "evaluation"]
    moved = tmp_path / "moved.txt"
    moved.write_bytes(file.read_bytes())
    load_pretraining_data(make_corpus_config(moved, cache, sequence_length=16, name="b"), make_tokenizer_config(), 1)
    assert len(built) == 2  # the same bytes elsewhere, another packing: the tokens are the same

    def is_rebuilt(config: Any, tokenizer: TokenizerConfig) -> bool:
        before = len(built)
        load_pretraining_data(config, tokenizer, 0)
        return len(built) == before + 2

    assert is_rebuilt(make_corpus_config(file, cache), TokenizerConfig(vocab_size=55))
    assert is_rebuilt(make_corpus_config(file, cache), TokenizerConfig(vocab_size=60, lowercase=False))
    assert is_rebuilt(make_corpus_config(file, cache, evaluation_fraction=0.4), make_tokenizer_config())
    assert is_rebuilt(make_corpus_config(file, cache, max_documents=30), make_tokenizer_config())
    assert is_rebuilt(make_corpus_config(file, cache, document_separator="line"), make_tokenizer_config())
    size, times = file.stat().st_size, (file.stat().st_atime_ns, file.stat().st_mtime_ns)
    file.write_bytes(file.read_bytes().replace(b"The", b"Thy", 1))
    import os

    os.utime(file, ns=times)  # same length, same date: only the content tells
    assert file.stat().st_size == size
    assert is_rebuilt(make_corpus_config(file, cache), make_tokenizer_config())
    assert is_rebuilt(make_corpus_config(moved, cache, evaluation_path=str(file)), make_tokenizer_config())


def _load_in_process(file: str, cache: str, queue: Any) -> None:
    data = load_pretraining_data(make_corpus_config(file, Path(cache)), make_tokenizer_config(), 0)
    queue.put((data.summary, data.train[(0, 0)]["input_ids"].tolist()))


@pytest.mark.slow
def test_processes_that_start_together_share_one_cache(tmp_path: Path) -> None:
    file, cache = write_corpus(tmp_path, documents=400), tmp_path / "cache"
    # SentencePiece may not survive a fork of a process that has trained: a fresh process imports what both need and
    # is forked twice.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    queue = context.Queue()
    processes = [context.Process(target=_load_in_process, args=(str(file), str(cache), queue)) for _ in range(2)]
    for process in processes:
        process.start()
    results = [queue.get(timeout=600) for _ in processes]
    for process in processes:
        process.join(timeout=600)
        assert process.exitcode == 0
    assert results[0] == results[1]
    folders = [entry.name for entry in cache.iterdir() if entry.is_dir()]
    assert sorted(name.split("-")[0] for name in folders) == ["evaluation", "tokenizer", "train"]


def test_an_interrupted_build_leaves_no_folder_and_its_remains_are_removed(tmp_path: Path) -> None:
    (tmp_path / "x.123.partial").mkdir()

    def interrupt(folder: Path) -> None:
        (folder / "a").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure_folder(tmp_path, "x", interrupt)
    assert not [entry for entry in tmp_path.iterdir() if entry.is_dir()]
    assert ensure_folder(tmp_path, "x", lambda folder: None) == tmp_path / "x"
    (tmp_path / "occupied").write_text("a file")
    with pytest.raises(DataError, match="occupied: File exists; make the folder writable, or choose"):
        ensure_folder(tmp_path / "occupied", "x", lambda folder: None)
    assert digest(1, "a") != digest(1, "b")


# --- streaming


@pytest.fixture(scope="module")
def streamed(corpus: Path, workspace: Path) -> RunData:
    config = make_corpus_config(
        corpus, workspace / "cache", streaming=True, shuffle_buffer=20, max_evaluation_examples=10
    )
    return load_pretraining_data(config, make_tokenizer_config(), seed=3)


def restore_texts(examples: Any) -> list[tuple[int, ...]]:
    """Return the texts of examples without masks, truncation and order."""
    return [tuple(sorted(np.where(e["labels"] == IGNORE, e["input_ids"], e["labels"]).tolist())) for e in examples]


def test_a_stream_repeats_itself_and_changes_with_the_epoch(streamed: RunData) -> None:
    first, again = list(streamed.train), list(streamed.train)
    assert len(first) > 50
    assert all(is_same_example(a, b) for a, b in zip(first, again, strict=True))
    streamed.train.set_epoch(1)
    later = list(streamed.train)
    streamed.train.set_epoch(0)
    assert not is_same_example(first[0], later[0])
    assert restore_texts(first) != restore_texts(later)  # shuffled afresh
    assert len(streamed.evaluation["held_out"]) == 10
    assert streamed.summary["train"] == {"streamed": True}
    with pytest.raises(DataError, match=r"dataset.streaming=true"):
        unigram_baseline(streamed)


def test_ranks_and_workers_of_a_stream_divide_the_documents(streamed: RunData, monkeypatch: pytest.MonkeyPatch) -> None:
    streamed.train.dataset.short_sequence_probability = 0.0  # spans then depend on the documents only
    everything = sorted(restore_texts(streamed.train))
    parts = []
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        loader = DataLoader(streamed.train, batch_size=None, num_workers=2, collate_fn=lambda example: example)
        part = list(loader)
        assert all(is_same_example(a, b) for a, b in zip(part, loader, strict=True))
        parts.append(restore_texts(part))
    assert sorted(parts[0] + parts[1]) == everything


@pytest.mark.slow
def test_a_persistent_worker_reads_the_epoch(streamed: RunData) -> None:
    loader = DataLoader(streamed.train, batch_size=None, num_workers=1, persistent_workers=True, collate_fn=lambda e: e)
    first = list(loader)
    streamed.train.set_epoch(5)
    later = list(loader)
    assert all(is_same_example(a, b) for a, b in zip(later, streamed.train, strict=True))
    streamed.train.set_epoch(0)
    assert not is_same_example(first[0], later[0])
