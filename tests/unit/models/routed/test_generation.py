"""Generation with routed models: routing decisions, texts and compute of decoding against passes without a cache."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from adadepth.errors import ConfigError
from adadepth.models.routed.cache import RoutedCache
from tests.marks_support import keep_one_quick
from tests.unit.models.routed.routed_support import (
    IDS,
    LEFT,
    LENGTH,
    RECURSIONS,
    ROUTERS,
    build_routed,
    check_close,
    select_real,
)

POSITIONS = (LEFT.cumsum(1) - 1).clamp(min=0)
DECODED = ["expert selected", "expert all", "expert first", "expert in a row", "layers selected", "layers all",
           "token selected", "token first", "threshold", "adapters"]  # fmt: skip


@cache
def get_model(name: str) -> Any:
    """Return a cached model in evaluation mode, which tests do not change."""
    return build_routed(**ROUTERS[name])


@torch.no_grad()
def decode(
    model: Any, parts: list[int], past: RoutedCache | None = None, start: int = 0, rows: Tensor | None = None
) -> tuple[Tensor, Tensor, Any]:
    """Predict tokens of `IDS` in several calls with a cache; return logits, choices and the last output."""
    ids, mask, positions = (values if rows is None else values[rows] for values in (IDS, LEFT, POSITIONS))
    logits, ran, output, end = [], [], None, start
    for part in parts:
        columns = slice(end, end + part)
        end += part
        output = model(
            ids[:, columns], attention_mask=mask[:, :end], position_ids=positions[:, columns], past_key_values=past,
            use_cache=True,
        )  # fmt: skip
        past = output.past_key_values
        logits.append(output.logits)
        ran.append(output.trace.iterations_run)
    return torch.cat(logits, 1), torch.cat(ran, 1), output


@cache
@torch.no_grad()
def run_whole(name: str) -> tuple[Tensor, Tensor]:
    """Return logits and routing decisions of a pass over the whole rows, without a cache."""
    output = get_model(name)(IDS, attention_mask=LEFT, position_ids=POSITIONS)
    assert 0 < output.trace.iterations_run.double().mean() < 1
    return output.logits, output.trace.iterations_run


def check_decoding(name: str, logits: Tensor, ran: Tensor, start: int = 0) -> None:
    """Compare the predictions of tokens after `start` with those of whole rows."""
    expected, ran_expected = run_whole(name)
    assert torch.equal(ran, ran_expected[:, start:])
    check_close(select_real(logits, LEFT[:, start:]), select_real(expected[:, start:], LEFT[:, start:]))


@settings(deadline=None, max_examples=3)
@given(st.lists(st.integers(1, 6), min_size=LENGTH, max_size=LENGTH))
@example([1] * LENGTH)
@pytest.mark.parametrize("name", keep_one_quick(4, DECODED))
def test_decoding_equals_a_pass_over_whole_rows(name: str, lengths: list[int]) -> None:
    parts: list[int] = []
    while sum(parts) < LENGTH:
        parts.append(min(lengths[len(parts)], LENGTH - sum(parts)))
    logits, ran, output = decode(get_model(name), parts)
    check_decoding(name, logits, ran)
    assert output.past_key_values.get_seq_length() == LENGTH


@pytest.mark.parametrize("base", keep_one_quick(3, ["qwen2", "gemma2", "olmo2"]))
@torch.no_grad()
def test_other_decoders_support_a_cache(base: str) -> None:
    model = build_routed(base=base, **ROUTERS["expert selected"])
    if base == "gemma2":  # in float64, its eager attention to no key is NaN
        model = model.float()
    expected = model(IDS, attention_mask=LEFT, position_ids=POSITIONS)
    logits, ran, _ = decode(model, [5, 1, 4])
    assert torch.equal(ran, expected.trace.iterations_run)
    check_close(select_real(logits, LEFT), select_real(expected.logits, LEFT), 1e-4)


# ---- The cache


@pytest.mark.parametrize("name", keep_one_quick(2, DECODED))
def test_removed_tokens_do_not_affect_predictions(name: str) -> None:
    model = get_model(name)
    past = decode(model, [5, 3])[2].past_key_values
    past.crop(-4)
    assert past.get_seq_length() == 4
    check_decoding(name, *decode(model, [1, 5], past, 4)[:2], start=4)
    past.crop(0)
    assert past.get_seq_length() == LENGTH
    with pytest.raises(ValueError, match="minus the number of tokens to remove"):
        past.crop(4)


@pytest.mark.parametrize("name", keep_one_quick(5, DECODED))
def test_rows_of_a_cache_can_be_selected_and_repeated(name: str) -> None:
    model, order = get_model(name), torch.tensor([2, 0, 0, 1])
    expected, ran_expected = run_whole(name)
    for method in ("reorder_cache", "batch_select_indices"):
        past = decode(model, [6])[2].past_key_values
        getattr(past, method)(order)
        logits, ran, _ = decode(model, [1, 3], past, 6, order)
        assert torch.equal(ran, ran_expected[order, 6:])
        check_close(logits, expected[order, 6:])
    past = decode(model, [6])[2].past_key_values
    past.batch_repeat_interleave(2)
    repeated_rows = torch.tensor([0, 0, 1, 1, 2, 2])
    check_close(decode(model, [4], past, 6, repeated_rows)[0], expected[repeated_rows, 6:])


def test_a_reset_cache_equals_a_new_one() -> None:
    model = get_model("expert selected")
    past = decode(model, [6])[2].past_key_values
    past.reset()
    assert past.get_seq_length() == 0
    check_decoding("expert selected", *decode(model, [LENGTH], past)[:2])


@torch.no_grad()
def test_skipped_tokens_have_no_keys_and_values() -> None:
    model = build_routed(
        **RECURSIONS | {"choice_bias": -50.0}
    )  # the first recursion selects all tokens, the others none
    output = model(IDS, use_cache=True)
    past, layers = output.past_key_values, model.config.layer_order
    of_a_layer = 2 * 2 * 8 * 8  # keys and values of 2 heads, 8 wide, in float64
    routed = sum(len(span.modules) for span in model.config.spans if span.router in (1, 2))
    assert past.bytes_per_token() == of_a_layer * (len(layers) - routed)
    with pytest.raises(ConfigError, match="bytes_per_token: the cache is empty"):
        model.make_cache().bytes_per_token()


# ---- generate


@torch.no_grad()
def generate_plainly(model: Any, ids: Tensor, number: int) -> Tensor:
    """Append the most probable token again and again, without a cache."""
    for _ in range(number):
        ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], dim=1)
    return ids


@pytest.mark.parametrize("name", keep_one_quick(3, ["expert selected", "layers all", "token first"]))
def test_generated_texts_equal_those_without_a_cache(name: str) -> None:
    model = get_model(name)
    expected = generate_plainly(model, IDS, 5)
    options: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None}
    assert torch.equal(model.generate(IDS, **options), expected)
    assert torch.equal(model.generate(IDS, use_cache=False, **options), expected)
    padded = model.generate(IDS * LEFT, attention_mask=LEFT, **options)
    for row, mask in enumerate(LEFT.bool()):
        assert torch.equal(padded[row, LENGTH:], generate_plainly(model, IDS[row : row + 1, mask], 5)[0, mask.sum() :])


@pytest.mark.parametrize("name", keep_one_quick(3, ["expert selected", "token selected", "layers all"]))
def test_beams_equal_those_without_a_cache(name: str) -> None:
    options: dict[str, Any] = {"max_new_tokens": 4, "num_beams": 3, "attention_mask": LEFT}
    texts = [get_model(name).generate(IDS * LEFT, use_cache=use_cache, **options) for use_cache in (True, False)]
    assert torch.equal(*texts)


@pytest.mark.parametrize("name", ["expert first", "token all"])
def test_drafts_of_another_model_change_no_text(name: str) -> None:
    model, assistant = get_model(name), get_model("layers all")
    expected = generate_plainly(model, IDS[:1], 6)
    assert torch.equal(model.generate(IDS[:1], max_new_tokens=6, assistant_model=assistant), expected)


# ---- Compute


@pytest.mark.parametrize("name", keep_one_quick(5, DECODED))
@torch.no_grad()
def test_a_decoding_step_computes_only_selected_tokens(name: str) -> None:
    model = get_model(name)
    past, spans, skipped = None, model.config.spans, 0
    for column in range(LENGTH):
        output = model(IDS[:1, column : column + 1], past_key_values=past, use_cache=True)
        past, ran = output.past_key_values, output.trace.iterations_run[0, 0]
        queries, keys, pairs = output.trace.execution.computed
        for number, span in enumerate(spans):
            runs = span.router is None or bool(ran[span.router])
            assert queries[number] == int(runs)
            stores_all = model.config.keys_and_values == "all" and span.router is not None
            assert keys[number] == int(runs) + int(stores_all)  # keys of all tokens are computed outside of the layer
            assert (pairs[number] > 0) == runs
            skipped += not runs
    assert skipped


@pytest.mark.parametrize(
    "name",
    keep_one_quick(
        3, ["expert selected", "expert first", "expert all", "layers selected", "layers all", "token selected"]
    ),
)
@torch.no_grad()
def test_macs_equal_what_layers_compute(name: str) -> None:
    model, counted = build_routed(**ROUTERS[name]), [0]

    def count(layer: Any, inputs: Any) -> None:
        counted[0] += inputs[0].numel() // inputs[0].shape[-1] * layer.weight.numel()

    for layer in model.model.modules():
        if isinstance(layer, torch.nn.Linear):
            layer.register_forward_pre_hook(count)
    trace = model(IDS).trace
    pairs = sum(
        2 * model.config.hidden_size * float(number) * len(span.modules)
        for number, span in zip(trace.execution.computed.pairs, model.config.spans, strict=True)
    )
    routers = IDS.numel() * sum(weight.numel() for weight in model.routers.parameters())
    assert float(model.price(trace).executed) == counted[0] + pairs + routers


@pytest.mark.parametrize("name", [name for name in DECODED if name != "adapters"])
@torch.no_grad()
def test_pairs_count_the_keys_that_are_read(name: str) -> None:
    """Allow some computed pairs more than visible ones, because rows are rectangles."""
    model = get_model(name)
    trace = model(IDS[:1]).trace
    ran, all_tokens = trace.iterations_run[0], torch.ones(LENGTH, dtype=torch.bool)
    for span, pairs in zip(model.config.spans, trace.execution.computed.pairs, strict=True):
        queries = all_tokens if span.router is None else ran[:, span.router]
        source = {"selected": queries, "all": all_tokens, "first": ran[:, 0]}[model.config.keys_and_values]
        keys = all_tokens if span.router is None else source
        seen = int((keys.cumsum(0) * queries).sum())
        assert seen <= int(pairs) <= int(queries.sum()) * int(keys.sum())
        if model.config.keys_and_values == "selected":
            assert int(pairs) == seen
