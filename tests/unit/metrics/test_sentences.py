"""Sampler of example sentences: which it selects, and what it records of their tokens."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from adadepth.halting.trace import DepthTrace, Halting
from adadepth.metrics.example_sentences import SentenceSampler
from tests.unit.report import synthetic


def run_sampler(sizes: list[int], per_rule: int = 3) -> tuple[SentenceSampler, list[dict], list[DepthTrace]]:
    generator = np.random.default_rng(5)
    sampler, batches, traces = SentenceSampler(synthetic.decode, per_rule), [], []
    for size in sizes:
        batch = synthetic.make_batch(generator, size=size)
        trace = synthetic.make_trace(generator, batch, 9)
        losses = synthetic.make_losses(generator, batch, trace)
        sampler.update(batch, trace, losses, batch["labels"].clamp(min=0) + 1)
        batches.append(batch | {"losses": losses})
        traces.append(trace)
    return sampler, batches, traces


@pytest.mark.parametrize("sizes", [[4, 4, 3], [1] * 11, [11]])
def test_rules_select_first_deepest_and_shallowest_sentences(sizes: list[int]) -> None:
    sampler, _, traces = run_sampler(sizes)
    depths = [float(row[row > 0].mean()) for trace in traces for row in trace.updates]
    selected = {
        rule: [s["index"] for s in sampler.sentences() if s["rule"] == rule]
        for rule in ("first", "deepest", "shallowest")
    }
    order = np.argsort(depths)
    assert selected == {"first": [0, 1, 2], "deepest": order[::-1][:3].tolist(), "shallowest": order[:3].tolist()}


def test_the_order_of_the_examples_does_not_matter() -> None:
    generator = np.random.default_rng(5)
    batch = synthetic.make_batch(generator, size=11)
    trace = synthetic.make_trace(generator, batch, 9)
    trace.updates[4:8] = trace.updates[4]  # ties go to the earlier example
    batch["attention_mask"][4:8] = batch["attention_mask"][4]
    losses = synthetic.make_losses(generator, batch, trace)

    def sentences(numbers: list[int], size: int) -> list[dict]:
        sampler = SentenceSampler(synthetic.decode)
        for first in range(0, len(numbers), size):
            rows = torch.tensor(numbers[first : first + size])
            part = {name: values[rows] for name, values in batch.items()} | {"index": rows}
            halting = Halting(trace.halting.probabilities[rows], trace.halting.remainders[rows])
            halted = replace(trace, updates=trace.updates[rows], valid=trace.valid[rows], halting=halting)
            sampler.update(part, halted, losses[rows], part["labels"].clamp(min=0) + 1)
        return sampler.sentences()

    expected = sentences(list(range(11)), 11)
    for seed, size in enumerate((1, 3, 4, 11)):
        assert sentences(np.random.default_rng(seed).permutation(11).tolist(), size) == expected


def test_a_sentence_has_the_fields_of_its_example() -> None:
    sampler, batches, traces = run_sampler([4, 4, 3])
    for sentence in sampler.sentences():
        batch, row = divmod(sentence["index"], 4)
        source, trace = batches[batch], traces[batch]
        real = source["attention_mask"][row].bool()
        fed = source["input_ids"][row][real].tolist()
        assert sentence["tokens"] == [synthetic.decode(token) for token in fed]
        assert sentence["updates"] == trace.updates[row][real].tolist()
        assert sentence["remainders"] == pytest.approx(trace.halting.remainders[row][real].tolist(), abs=1e-4)
        kinds = ["", "mask", "random", "original"]
        assert sentence["mask_kind"] == [kinds[kind] for kind in source["mask_kind"][row][real].tolist()]
        labels, losses = source["labels"][row][real].tolist(), source["losses"][row][real].tolist()
        assert sentence["original"] == [None if label < 0 else synthetic.decode(label) for label in labels]
        assert sentence["predicted"] == [None if label < 0 else synthetic.decode(label + 1) for label in labels]
        for loss, label, expected in zip(sentence["loss"], labels, losses, strict=True):
            assert loss is None if label < 0 else loss == pytest.approx(expected, abs=1e-4)
    json.dumps(sampler.sentences(), allow_nan=False)


def test_memory_is_bounded_and_small_sets_work() -> None:
    assert len(run_sampler([8] * 6, per_rule=2)[0].sentences()) == 6
    assert len(run_sampler([2])[0].sentences()) == 6
    assert SentenceSampler(synthetic.decode).sentences() == []


def test_sequence_depths_and_absent_remainders() -> None:
    batch = synthetic.make_batch(np.random.default_rng(0), size=2)
    sampler = SentenceSampler(synthetic.decode, per_rule=1)
    trace = DepthTrace("sequence", torch.tensor([2.0, 5.0]), torch.ones(2, dtype=torch.bool), 6)
    sampler.update(batch, trace, torch.full(batch["labels"].shape, torch.nan), batch["labels"])
    first, deepest, shallowest = sampler.sentences()
    assert (first["index"], deepest["index"], shallowest["index"]) == (0, 1, 0)
    assert set(deepest["updates"]) == {5}
    assert set(deepest["remainders"]) == set(deepest["predicted"]) == {None}


def test_iterations_are_recorded_if_the_trace_has_them() -> None:
    ids = torch.tensor([[7, 8, 9]])
    batch = {"input_ids": ids, "attention_mask": torch.tensor([[1, 1, 0]]), "labels": torch.full_like(ids, -100)}
    ran = torch.tensor([[[False, True, False, True], [False] * 4, [False] * 4]])
    trace = DepthTrace("token", ran.sum(dim=-1), batch["attention_mask"].bool(), 4, ran=ran)
    sampler = SentenceSampler(str)
    sampler.update(batch, trace, torch.full(ids.shape, torch.nan), ids)
    sentence, *_ = sampler.sentences()
    assert sentence["updates"] == [2, 0]
    assert sentence["iterations"] == [[2, 4], []]


def test_halting_probabilities_of_tokens_end_with_their_last_iteration() -> None:
    sampler, _, traces = run_sampler([4])
    for sentence in sampler.sentences():
        row = sentence["index"]
        real = traces[0].valid[row]
        expected = traces[0].halting.probabilities[row][real].tolist()
        for recorded, updates, all_steps in zip(sentence["probabilities"], sentence["updates"], expected, strict=True):
            assert recorded == pytest.approx(all_steps[:updates], abs=5e-4)


def test_a_sentence_that_halts_as_a_whole_has_one_distribution() -> None:
    batch = synthetic.make_batch(np.random.default_rng(1), size=3)
    trace = DepthTrace("sequence", torch.tensor([1.0, 2.0, 3.0]), torch.ones(3, dtype=torch.bool), 3)
    unknown = torch.full(batch["input_ids"].shape, torch.nan)
    distributions = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.2, 0.3, 0.5]])
    sampler = SentenceSampler(synthetic.decode)
    sampler.update(batch, trace, unknown, batch["input_ids"], distributions)
    sentences = sampler.sentences()
    assert all("probabilities" not in sentence for sentence in sentences)
    assert all(
        sentence["distribution"] == pytest.approx(distributions[sentence["index"]].tolist()) for sentence in sentences
    )
