"""Relative distances and memory: the division of a text into segments changes no prediction."""

from __future__ import annotations

import math

import pytest
import torch

from adadepth.errors import DataError
from adadepth.models.par_xl.attention import Context, align_distances, relative_positions
from tests.marks_support import keep_one_quick
from tests.unit.models.par_xl_support import ORIGINAL, build_network, build_supernet, draw_words, read_in_segments

SHAPES = [(4, 0), (4, 4), (1, 31), (1, 0), (5, 2), (3, 7)]


@pytest.mark.parametrize(("length", "memory"), SHAPES)
def test_scores_are_aligned_as_in_a_plain_loop(length, memory):
    keys = length + memory
    by_distance = torch.randn(2, 3, length, keys + 1, generator=torch.Generator().manual_seed(0))
    aligned = align_distances(by_distance)
    assert aligned.shape == (2, 3, length, keys)
    for i in range(length):
        for j in range(i + memory + 1):
            # Column c holds the distance T + M - c.
            assert torch.equal(aligned[:, :, i, j], by_distance[:, :, i, keys - (i + memory - j)])


@pytest.mark.parametrize(("length", "memory"), keep_one_quick(2, SHAPES))
@pytest.mark.parametrize("clamp", keep_one_quick(2, [None, 0, 3, 100]))
def test_key_j_of_query_i_gets_the_code_of_its_distance(length, memory, clamp):
    width = 6
    positions = relative_positions(length, memory, Context(memory, clamp), torch.zeros(1, 1, width))
    for i in range(length):
        query = torch.randn(width, generator=torch.Generator().manual_seed(i))
        scores = align_distances((query @ positions.codes.T).expand(length, -1))
        for j in range(i + memory + 1):
            distance = i + memory - j if clamp is None else min(i + memory - j, clamp)
            code = [
                trigonometric(distance / 10000 ** (2 * pair / width))
                for pair in range(width // 2)
                for trigonometric in (math.sin, math.cos)
            ]
            assert scores[i, j].item() == pytest.approx(float(query @ torch.tensor(code)), abs=1e-5)


@pytest.mark.parametrize(("length", "memory"), keep_one_quick(2, SHAPES))
@pytest.mark.parametrize("window", [None, 1, 3])
def test_the_attention_mask_equals_its_definition(length, memory, window):
    context = Context(memory if window is None else window, None, window is not None)
    mask = relative_positions(length, memory, context, torch.zeros(1, 1, 4)).mask
    for i in range(length):
        for j in range(length + memory):
            distance = i + memory - j
            seen = distance >= 0 and (window is None or distance < window)
            assert mask[i, j].item() == (0.0 if seen else -math.inf)


CHANGES = [{}, ORIGINAL, {"branch_norm": "paper", "clamp_length": 3}, {"tie_word_embeddings": True, "cutoffs": [9, 20]}]


@pytest.mark.parametrize("changes", CHANGES)
@pytest.mark.parametrize("lengths", keep_one_quick(3, [[6, 6], [3, 5, 1, 3], [11, 1], [1] * 12]))
def test_segments_with_memory_equal_one_long_segment(changes, lengths):
    model, ids = build_supernet(memory_length=12, **changes), draw_words(length=12)
    expected = read_in_segments(model, ids, [12])
    torch.testing.assert_close(read_in_segments(model, ids, lengths), expected, atol=1e-5, rtol=1e-5)


def test_memory_changes_predictions():
    model, ids = build_supernet(memory_length=2), draw_words(length=12)
    whole, cut = read_in_segments(model, ids, [12]), read_in_segments(model, ids, [6, 6])
    torch.testing.assert_close(cut[:, :6], whole[:, :6], atol=1e-5, rtol=1e-5)
    assert (cut[:, 9:] - whole[:, 9:]).abs().max() > 1e-2


@pytest.mark.parametrize("lengths", [[6, 6], [3, 5, 1, 3], [1] * 12])
def test_with_the_same_length_for_all_even_a_short_memory_suffices(lengths):
    model, ids = build_supernet(memory_length=3, same_length=True), draw_words(length=12)
    expected = read_in_segments(model, ids, [12])
    torch.testing.assert_close(read_in_segments(model, ids, lengths), expected, atol=1e-5, rtol=1e-5)


def test_the_context_replaces_the_configured_one():
    ids, context = draw_words(length=12), Context(5, 2, True)
    configured = build_supernet(memory_length=5, clamp_length=2, same_length=True)
    expected = read_in_segments(configured, ids, [4, 4, 4])
    model = build_supernet(memory_length=1)
    assert torch.equal(read_in_segments(model, ids, [4, 4, 4], context=context), expected)
    assert not torch.allclose(read_in_segments(model, ids, [4, 4, 4]), expected)


def test_no_token_attends_to_later_ones():
    model, ids = build_supernet(), draw_words(length=8)
    changed = ids.clone()
    changed[:, 5] = (ids[:, 5] + 1) % 40
    with torch.no_grad():
        before, after = model(ids).logits, model(changed).logits
    assert torch.equal(before[:, :5], after[:, :5])
    assert (before[:, 5:] != after[:, 5:]).any(dim=-1).all()


def test_memory_contains_inputs_of_attention_blocks_without_gradient():
    model = build_network("fs-s", memory_length=5)
    model.train()
    first = model(draw_words(length=4), output_hidden_states=True)
    assert first.memory.shape == (2, 2, 4, 16)
    assert not first.memory.requires_grad
    assert torch.equal(first.memory, torch.stack([first.hidden_states[1], first.hidden_states[3]]).detach())
    second = model(draw_words(length=3, seed=1), memory=first.memory.requires_grad_(), output_hidden_states=True)
    assert second.memory.shape == (2, 2, 5, 16)
    assert torch.equal(second.memory[:, :, :2], first.memory[:, :, 2:])
    assert torch.equal(second.memory[1, :, 2:], second.hidden_states[3].detach())
    second.logits.sum().backward()
    assert first.memory.grad is None


def test_a_network_without_attention_needs_no_memory():
    model, ids = build_network("f-ff"), draw_words(length=6)
    assert not [name for name, _ in model.named_parameters() if "position" in name]
    outputs = model(ids)
    assert outputs.memory.shape == (0, 2, 6, 16)
    torch.testing.assert_close(read_in_segments(model, ids, [2, 4]), outputs.logits)


def test_a_memory_of_length_zero_is_supported():
    model, ids = build_supernet(memory_length=0), draw_words(length=6)
    assert model(ids).memory.shape == (4, 2, 0, 16)
    expected = torch.cat([read_in_segments(model, part, [3]) for part in ids.split(3, dim=1)], dim=1)
    assert torch.equal(read_in_segments(model, ids, [3, 3]), expected)


@pytest.mark.parametrize("shape", [(3, 2, 5, 16), (4, 1, 5, 16), (4, 2, 5, 8), (2, 5, 16)])
def test_memory_of_another_shape_is_refused_in_one_line(shape):
    with pytest.raises(DataError) as caught:
        build_supernet()(draw_words(), memory=torch.zeros(shape))
    message = str(caught.value)
    assert str(shape) in message
    assert "(4, 2, any length, 16)" in message
    assert "\n" not in message


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions_give_float32_logits(dtype):
    model, ids = build_supernet().to(dtype), draw_words(length=8)
    logits = read_in_segments(model, ids, [4, 4])
    assert logits.dtype == torch.float32
    reference = read_in_segments(build_supernet(), ids, [4, 4])
    torch.testing.assert_close(logits, reference, atol=1e-5 if dtype == torch.float64 else 0.5, rtol=0)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_autocast_is_supported(attention):
    model, ids = build_supernet(gate_path="soft").train(), draw_words(length=8)
    model.set_attn_implementation(attention)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        first = model(ids, targets=ids)
        second = model(ids, targets=ids, memory=first.memory)
    assert second.loss.dtype == second.token_losses.dtype == torch.float32
    assert second.trace.operations.weights.dtype == torch.float32
    second.loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
