"""Decoding with early exits: cache policies against passes without a cache, drafts, and compute."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import DynamicCache

from adadepth.errors import ConfigError
from adadepth.models.early_exit import token_steps
from adadepth.models.early_exit.cache import ExitCache
from adadepth.models.early_exit.token_steps import group_texts
from tests.marks_support import keep_one_quick
from tests.unit.models.early_exit.early_exit_support import DECODERS, IDS, LAYERS, build_early_exit, check_close

RULE = "margin:0.1"
LEFT = torch.ones_like(IDS)
LEFT[0, :3] = 0
LEFT[1, :1] = 0


def decode(model: Any, policy: str, parts: tuple[int, ...], rule: str = RULE, mask: Tensor = LEFT, **call: Any) -> Any:
    """Predict the tokens of `IDS` in several calls with a cache; return logits, exits and cache."""
    cache, logits, exits, end = None, [], [], 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    for part in parts:
        columns = slice(end, end + part)
        end += part
        output = model(
            IDS[:, columns], attention_mask=mask[:, :end], position_ids=positions[:, columns], past_key_values=cache,
            use_cache=True, exit_rule=rule, cache_policy=policy if cache is None else None, **call,
        )  # fmt: skip
        cache = output.past_key_values
        logits.append(output.logits)
        exits.append(output.exit_steps)
    return torch.cat(logits, 1), torch.cat(exits, 1), cache


def with_diverse_exits(base: str = "llama", **fields: Any) -> Any:
    model = build_early_exit(base=base, **fields)
    exits = model(IDS, exit_rule=RULE).exit_steps
    assert len(exits.unique()) >= 3, "the test needs tokens that exit at different layers"
    return model


@pytest.mark.parametrize("base", keep_one_quick(6, DECODERS))
def test_delayed_tokens_change_no_prediction(base: str) -> None:
    model = with_diverse_exits(base)
    positions = (LEFT.cumsum(1) - 1).clamp(min=0)
    whole = model(IDS, attention_mask=LEFT, position_ids=positions, exit_rule=RULE)
    for parts in ((1,) * 9, (4, 1, 1, 3), (9,)):
        logits, exits, _ = decode(model, "deferred", parts)
        assert torch.equal(exits, whole.exit_steps)
        check_close(logits[LEFT.bool()], whole.logits[LEFT.bool()])


def list_partitions(texts: list[int]) -> Iterator[list[list[int]]]:
    """List all ways to split texts into groups."""
    if not texts:
        yield []
        return
    first, *remaining = texts
    for partition in list_partitions(remaining):
        yield [[first], *partition]
        for number, group in enumerate(partition):
            yield [*partition[:number], [first, *group], *partition[number + 1 :]]


@given(st.lists(st.integers(0, 30), max_size=6), st.integers(0, 20))
def test_groups_of_texts_are_the_cheapest_partition(counts: list[int], overhead: int) -> None:
    def compute_cost(groups: list[list[int]]) -> int:
        return sum(len(group) * max(counts[text] for text in group) + overhead for group in groups)

    texts = [number for number, count in enumerate(counts) if count]
    groups = group_texts(counts, overhead)
    assert sorted(text for group in groups for text in group) == texts
    assert compute_cost(groups) == min(compute_cost(partition) for partition in list_partitions(texts))


@pytest.mark.parametrize("policy", ["frozen", "deferred"])
def test_rectangles_of_similar_texts_change_no_prediction(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, computed, results = with_diverse_exits(), [0], []
    model.register_forward_hook(lambda _, __, out: computed.append(int(out.trace.execution.computed.queries.sum())))
    for overhead in (0, 1000):
        monkeypatch.setattr(token_steps, "_TOKENS_PER_READ", {"cpu": overhead})
        logits, exits, _ = decode(model, policy, (4, 1, 1, 3))
        results.append((logits[LEFT.bool()], exits, sum(computed)))
        computed.clear()
    separate, together = results
    check_close(separate[0], together[0])
    assert torch.equal(separate[1], together[1])
    assert separate[2] < together[2]


def run_frozen(model: Any, ids: Tensor, rule: str) -> tuple[Tensor, Tensor]:
    """Run all layers on all tokens without a cache, and keep the state of a token that has exited."""
    model.eval()
    running, margin = model.begin({"input_ids": ids}), float(rule.partition(":")[2])
    states, exits = running.states, torch.zeros_like(ids)
    for number in range(1, LAYERS + 1):
        arguments, options = running.inputs[number - 1]
        updated = model.layers[number - 1](states, *arguments, **options)
        states = torch.where((exits == 0).unsqueeze(-1), updated, states)
        best = model.read(number, states.flatten(0, 1)).softmax(-1).topk(2).values.view(*ids.shape, 2)
        leaves = best[..., 0] - best[..., 1] >= margin if number < LAYERS else torch.ones_like(ids, dtype=torch.bool)
        exits = torch.where((exits == 0) & leaves, number, exits)
    return model.read_exits(states, exits), exits


@pytest.mark.parametrize("base", keep_one_quick(6, DECODERS))
def test_frozen_states_are_read_by_the_layers_that_a_token_skips(base: str) -> None:
    model = with_diverse_exits(base)
    expected, exits = run_frozen(model, IDS, RULE)
    assert not torch.allclose(expected, model(IDS, exit_rule=RULE).logits, atol=1e-3)
    for parts in ((1,) * 9, (4, 1, 1, 3), (9,)):
        logits, decoded_exits, _ = decode(model, "frozen", parts, mask=torch.ones_like(IDS))
        assert torch.equal(decoded_exits, exits)
        check_close(logits, expected)


@pytest.mark.parametrize("policy", keep_one_quick(2, ["frozen", "deferred"]))
def test_a_padded_text_is_decoded_as_alone(policy: str) -> None:
    model = with_diverse_exits()
    logits, exits, _ = decode(model, policy, (5, 1, 1, 1, 1))
    for row, padding in enumerate((3, 1, 0)):
        cache, alone = None, []
        for first, last in ((padding, 5), (5, 6), (6, 7), (7, 8), (8, 9)):
            output = model(
                IDS[row : row + 1, first:last], past_key_values=cache, use_cache=True, exit_rule=RULE,
                cache_policy=policy if cache is None else None,
            )  # fmt: skip
            cache = output.past_key_values
            alone.append(output.logits)
            assert torch.equal(output.exit_steps, exits[row : row + 1, first:last])
        check_close(torch.cat(alone, 1), logits[row : row + 1, padding:])


def test_a_prompt_runs_to_the_depth_of_its_last_token() -> None:
    model = with_diverse_exits()
    output = model(IDS, use_cache=True, exit_rule="fixed:2", cache_policy="deferred", logits_to_keep=1)
    assert output.past_key_values.waiting.done.unique().tolist() == [2]
    computed = output.trace.execution.computed
    assert computed.queries.tolist() == [IDS.numel()] * 2
    after = model(IDS[:, :1], past_key_values=output.past_key_values, exit_rule=f"fixed:{LAYERS}")
    assert after.past_key_values.waiting is None
    whole = model(torch.cat([IDS, IDS[:, :1]], 1))
    check_close(after.logits[:, -1], whole.logits[:, -1])
    # One new token in all layers, and all tokens of the prompt in the layers 3 and 4.
    assert after.trace.execution.computed.queries.tolist() == [3, 3, 3 + IDS.numel(), 3 + IDS.numel()]


@pytest.mark.parametrize("policy", ["frozen", "deferred"])
def test_exits_save_the_macs_of_the_trace(policy: str) -> None:
    model = build_early_exit(num_key_value_heads=2)
    call = {"use_cache": True, "cache_policy": policy, "logits_to_keep": 1}
    work = [model.price(model(IDS, exit_rule=f"fixed:{exit}", **call).trace).executed for exit in (1, LAYERS)]
    layer = model.layers[0]
    macs = sum(part.weight.numel() for part in layer.modules() if isinstance(part, torch.nn.Linear))
    pairs = 2 * 32 * sum(range(1, 10)) * 3
    attention = sum(getattr(layer.self_attn, name).weight.numel() for name in ("q_proj", "k_proj", "v_proj"))
    projections = 3 * IDS.numel() * attention if policy == "frozen" else 0
    assert float(work[0]) == IDS.numel() * macs + pairs + projections
    assert float(work[1]) == LAYERS * (IDS.numel() * macs + pairs)


def test_beams_of_early_exits_equal_those_with_full_caches() -> None:
    """Reorder rows of a cache in which layers above the exits have no keys yet."""
    options = {"max_new_tokens": 6, "num_beams": 2, "exit_rule": "fixed:2"}
    expected = build_early_exit().generate(IDS, cache_policy="all", **options)
    assert torch.equal(build_early_exit().generate(IDS, cache_policy="deferred", **options), expected)


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"do_sample": True, "top_k": 5}])
def test_generation_with_delayed_tokens_equals_that_of_all_layers(options: dict[str, Any]) -> None:
    model = with_diverse_exits()
    texts = []
    for policy in ("all", "deferred"):
        torch.manual_seed(0)
        texts.append(
            model.generate(IDS, attention_mask=LEFT, max_new_tokens=12, exit_rule=RULE, cache_policy=policy, **options)
        )
    assert torch.equal(*texts)


def test_generation_with_frozen_states_equals_that_without_a_cache() -> None:
    model, ids = with_diverse_exits(), IDS[:1]
    generated = model.generate(ids, max_new_tokens=12, exit_rule=RULE, cache_policy="frozen")
    for _ in range(12):
        ids = torch.cat([ids, run_frozen(model, ids, RULE)[0][:, -1:].argmax(-1)], 1)
    assert torch.equal(generated, ids)


@pytest.mark.parametrize("policy", keep_one_quick(2, ["all", "deferred"]))
@pytest.mark.parametrize("layer", keep_one_quick(2, [1, 3]))
def test_drafts_of_an_early_exit_do_not_change_the_text(layer: int, policy: str) -> None:
    model = build_early_exit(cache_policy=policy)
    expected = model.generate(IDS[:1], max_new_tokens=15, cache_policy="all")
    assert torch.equal(model.generate(IDS[:1], max_new_tokens=15, assistant_early_exit=layer), expected)
    assert model.model.config.num_hidden_layers == LAYERS


def test_drafts_run_the_first_layers_only(monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = build_early_exit(), []
    handles = [
        layer.register_forward_hook(lambda *_, number=number: calls.append(number))
        for number, layer in enumerate(torch.nn.ModuleList.__iter__(model.layers))
    ]
    model.generate(IDS[:1], max_new_tokens=15, assistant_early_exit=2)
    assert len(handles) == LAYERS
    assert calls.count(0) > 1.5 * calls.count(LAYERS - 1)


def test_a_missing_early_exit_is_refused() -> None:
    model = build_early_exit(exit_layers=[2])
    with pytest.raises(ConfigError, match="assistant_early_exit=3: must be a layer with an early exit: 2"):
        model.generate(IDS, assistant_early_exit=3)
    assert model.model.config.num_hidden_layers == LAYERS


def test_removed_tokens_do_not_affect_predictions() -> None:
    model = with_diverse_exits()
    expected = decode(model, "deferred", (5, 1, 1))[0][:, 5:]
    _, _, cache = decode(model, "deferred", (5, 1, 1, 1, 1))
    cache.crop(-4)
    assert cache.get_seq_length() == 5
    positions = (LEFT.cumsum(1) - 1).clamp(min=0)
    for number, column in enumerate((5, 6)):
        output = model(
            IDS[:, column : column + 1], attention_mask=LEFT[:, : column + 1],
            position_ids=positions[:, column : column + 1], past_key_values=cache, exit_rule=RULE,
        )  # fmt: skip
        check_close(output.logits, expected[:, number : number + 1])


def test_losses_under_a_policy_are_cross_entropies_of_its_predictions() -> None:
    model = with_diverse_exits()
    output = model(IDS, labels=IDS, use_cache=True, cache_policy="frozen", exit_rule=RULE)
    logits, _ = run_frozen(model, IDS, RULE)
    expected = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), IDS[:, 1:].flatten(), reduction="none")
    check_close(output.token_losses, expected)
    check_close(output.loss, expected.mean())
    call = {"labels": IDS, "use_cache": True, "cache_policy": "frozen", "exit_rule": RULE}
    check_close(model(IDS, **call, num_items_in_batch=48).loss, expected.sum() / 48)
    check_close(model(IDS, **call, num_targets={"task": torch.tensor(48)}).loss_parts["task"], expected.sum() / 48)


@pytest.mark.parametrize(("policy", "kind"), [("all", DynamicCache), ("frozen", ExitCache), ("deferred", ExitCache)])
def test_a_call_with_a_policy_creates_a_cache(policy: str, kind: type) -> None:
    cache = build_early_exit()(IDS, cache_policy=policy).past_key_values
    assert isinstance(cache, kind)
    assert cache.get_seq_length() == IDS.shape[1]
    assert build_early_exit()(IDS).past_key_values is None


def test_bytes_per_token_are_those_of_keys_and_values() -> None:
    model = build_early_exit(num_key_value_heads=2)
    cache = decode(model, "deferred", (9,), "fixed:1")[2]
    assert cache.bytes_per_token() == 2 * LAYERS * 2 * 8 * 4


def test_ids_outside_of_the_vocabulary_are_refused_with_a_cache() -> None:
    with pytest.raises(ValueError, match="input_ids from 1003 to 1052: must be from 0 to 52"):
        build_early_exit()(IDS + 1000, use_cache=True, cache_policy="deferred")


def test_wrong_policies_are_refused() -> None:
    model = build_early_exit()
    with pytest.raises(ConfigError, match="cache_policy=defered: must be one of all, frozen, deferred"):
        model(IDS, use_cache=True, cache_policy="defered")
    with pytest.raises(ConfigError, match="cache_policy=frozen: the cache is a ExitCache of policy deferred"):
        model(IDS, past_key_values=ExitCache(LAYERS, "deferred"), cache_policy="frozen")
    with pytest.raises(ConfigError, match="use_cache=False"):
        model(IDS, use_cache=False, cache_policy="frozen")
    with pytest.raises(ConfigError, match="has 3 texts, but the call has 1"):
        model(IDS[:1], past_key_values=decode(model, "frozen", (4,))[2])
