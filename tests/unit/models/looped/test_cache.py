"""Cache policies of looped models against plain loops, and exited tokens, which run no further loops."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from adadepth.config.declaration import get_field_specs
from adadepth.errors import ConfigError
from adadepth.models.looped.cache import LoopedCache, bytes_per_token
from adadepth.models.looped.loop_state import Layers
from adadepth.models.looped.retrofit import retrofit
from tests.marks_support import keep_one_quick, mark_mostly_slow
from tests.unit.models.looped.looped_support import IDS, KINDS, PIECES, SIZES, build_looped, check_close
from tests.unit.models.looped.plain_cache import (
    EVERY_POLICY,
    POLICIES,
    decode_in_calls,
    decode_plainly_in_calls,
    generate_plainly,
)

RULES = ("fixed:2", "margin:0.05", "quantile:0.5")
# Each policy with one of two kinds; the slow tests compare all.
QUICK = [(("huginn", "fully looped")[number % 2], policy) for number, policy in enumerate(EVERY_POLICY)]


def draw_states(model: Any) -> Tensor | None:
    return model.model._draw_states(torch.arange(16)) if model.config.start == "drawn" else None


@pytest.mark.parametrize(("kind", "policy"), mark_mostly_slow(product(KINDS, EVERY_POLICY), lambda case: case in QUICK))
def test_every_policy_equals_a_plain_loop(kind: str, policy: str) -> None:
    model = build_looped(**KINDS[kind]).double()
    for rule in RULES if model.config.gate else RULES[:2]:
        logits, exits = decode_in_calls(model, IDS[:1], policy, exit_rule=rule)
        expected, steps = decode_plainly_in_calls(
            model.config, model.state_dict(), IDS[0], policy, rule, draw_states(model)
        )
        assert exits[0].tolist() == steps
        check_close(logits[0], expected, 2e-6)


@pytest.mark.parametrize(("family", "policy"), keep_one_quick(7, product(["llama", "qwen2"], POLICIES)))
def test_policies_hold_for_layers_of_other_decoders(family: str, policy: str) -> None:
    torch.manual_seed(5)
    config_class, model_class = {
        "llama": (LlamaConfig, LlamaForCausalLM), "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    }[family]  # fmt: skip
    decoder = model_class(
        config_class(**SIZES, num_hidden_layers=4, num_key_value_heads=2, initializer_range=0.4)
    ).double().eval()  # fmt: skip
    model = retrofit(decoder, prelude=1, core=2, coda=1, num_loops=3)
    weights = {
        name.replace("post_attention_layernorm", "mlp_norm").replace("input_layernorm", "attention_norm"): weight
        for name, weight in model.state_dict().items()
    }
    values = {
        name: getattr(model.config, name)
        for name, spec in get_field_specs(model.config.settings_class).items()
        if spec.in_model
    }
    config = SimpleNamespace(**values | {"rope_theta": 10000.0, "rms_norm_eps": 1e-6})
    logits, exits = decode_in_calls(model, IDS[:1], policy, exit_rule="margin:0.1")
    expected, steps = decode_plainly_in_calls(config, weights, IDS[0], policy, "margin:0.1", None)
    assert exits[0].tolist() == steps
    assert len(set(steps)) > 1
    check_close(logits[0], expected)  # Llama's norms are float32


@pytest.mark.parametrize(
    ("policy", "attention"),
    keep_one_quick(4, [*((policy, "sdpa") for policy in POLICIES), ("frozen", "eager"), ("mean", "eager")]),
)
def test_a_batch_equals_its_rows_and_padding_changes_nothing(policy: str, attention: str) -> None:
    model = build_looped(**KINDS["huginn"])
    model.set_attn_implementation(attention)
    logits, exits = decode_in_calls(model, IDS, policy, exit_rule="margin:0.05")
    for row in range(len(IDS)):
        alone = decode_in_calls(model, IDS[row : row + 1], policy, exit_rule="margin:0.05")
        check_close(logits[row], alone[0][0])
        assert exits[row].equal(alone[1][0])
    padded = torch.cat([torch.full((3, 4), PIECES - 1), IDS], dim=1)
    mask = torch.ones_like(padded)
    mask[:, :4] = 0
    mask[1, :6] = 0
    with torch.no_grad():
        prompt = model(padded[:, :10], mask[:, :10], use_cache=True, cache_policy=policy, exit_rule="margin:0.05")
        after = model(padded[:, 10:], mask, past_key_values=prompt.past_key_values, exit_rule="margin:0.05")
    exit_steps = torch.cat([prompt.exit_steps, after.exit_steps], dim=1)
    assert not exit_steps[:, :4].any()
    assert exit_steps[0, 4:10].equal(exits[0, :6])
    check_close(prompt.logits[2, 4:], logits[2, :6])
    short = model.generate(
        IDS[1:2, 2:], attention_mask=torch.ones(1, 7), max_new_tokens=3, cache_policy=policy, exit_rule="margin:0.05"
    )
    generated = model.generate(
        padded[:, :13], attention_mask=mask, max_new_tokens=3, cache_policy=policy, exit_rule="margin:0.05"
    )
    assert generated[1, 13:].equal(short[0, 7:])


@pytest.mark.parametrize(("policy", "rule"), keep_one_quick(5, product(EVERY_POLICY, RULES)))
def test_greedy_generation_equals_a_plain_loop(policy: str, rule: str) -> None:
    model = build_looped(**KINDS["ouro"]).double()
    generated = model.generate(IDS[:1], max_new_tokens=5, do_sample=False, exit_rule=rule, cache_policy=policy)
    expected, _ = generate_plainly(model.config, model.state_dict(), IDS[0].tolist(), 5, rule, policy)
    assert generated[0, IDS.shape[1] :].tolist() == expected


@pytest.mark.parametrize("policy", keep_one_quick(3, ["frozen", "mean", "ring:2"]))
def test_sampling_and_beam_search_equal_full_copies_of_the_cache(policy: str) -> None:
    """Compare generation without compaction or views, where rows of caches are reordered and every step copies."""
    model = build_looped(**KINDS["huginn"])
    options: dict[str, Any] = {"cache_policy": policy, "exit_rule": "margin:0.05", "max_new_tokens": 5}
    torch.manual_seed(1)
    sampled = model.generate(IDS, do_sample=True, **options)
    torch.manual_seed(1)
    assert sampled.equal(model.generate(IDS, do_sample=True, **options))
    beams = model.generate(
        IDS[:1], num_beams=3, num_return_sequences=3, output_scores=True, return_dict_in_generate=True, **options
    )
    text = beams.sequences
    for row in range(3):  # a beam's score is the sum of log-probabilities of its tokens
        cache, total = None, 0.0
        ids = text[row : row + 1]
        for first, last in ((0, IDS.shape[1]), *((n, n + 1) for n in range(IDS.shape[1], ids.shape[1] - 1))):
            with torch.no_grad():
                step = model(
                    ids[:, first:last], past_key_values=cache, use_cache=True, cache_policy=policy,
                    exit_rule="margin:0.05",
                )  # fmt: skip
            cache = step.past_key_values
            total += float(step.logits[0, -1].log_softmax(-1)[ids[0, last]])
        check_close(beams.sequences_scores[row], torch.tensor(total / (ids.shape[1] - IDS.shape[1])), 1e-4)


@pytest.mark.parametrize("policy", keep_one_quick(3, POLICIES))
def test_tokens_can_be_removed_from_the_cache(policy: str) -> None:
    model = build_looped(**KINDS["half way, from zeros, input added"])
    with torch.no_grad():
        output = model(IDS, use_cache=True, cache_policy=policy, exit_rule="margin:0.1")
        cache = output.past_key_values
        model(IDS[:, :3], past_key_values=cache, exit_rule="margin:0.1")
        cache.crop(-3)
        assert cache.get_seq_length() == IDS.shape[1]
        repeated = model(IDS[:, :1], past_key_values=cache, exit_rule="margin:0.1")
        fresh = model(IDS, use_cache=True, cache_policy=policy, exit_rule="margin:0.1").past_key_values
        check_close(repeated.logits, model(IDS[:, :1], past_key_values=fresh, exit_rule="margin:0.1").logits)
        cache.crop(-1)
        cache.batch_select_indices(torch.tensor([2, 0]))
        cache.batch_repeat_interleave(2)
        selected = model(IDS[[2, 2, 0, 0], :1], past_key_values=cache, exit_rule="margin:0.1")
        check_close(selected.logits, repeated.logits[[2, 2, 0, 0]])
        cache.reset()
        assert cache.get_seq_length() == 0


@pytest.mark.slow
def test_a_policy_changes_nothing_without_exits() -> None:
    for kind in KINDS:
        model = build_looped(**KINDS[kind])
        with torch.no_grad():
            plain = model(IDS).logits
            for policy in POLICIES:
                check_close(model(IDS, use_cache=True, cache_policy=policy).logits, plain)


def test_run_all_steps_reads_all_loops() -> None:
    model = build_looped(**KINDS["ouro"])
    with torch.no_grad():
        plain = model(IDS, run_all_steps=True, labels=IDS)
        output = model(
            IDS, run_all_steps=True, labels=IDS, use_cache=True, cache_policy="last", exit_rule="margin:0.05"
        )
    check_close(output.loss, plain.loss)
    check_close(output.step_logits[...], plain.step_logits[...])


def test_exited_tokens_run_no_further_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_looped(**KINDS["ouro"])
    ran: list[int] = []
    forward = Layers.forward

    def count_and_run(self: Any, states: Tensor, *args: Any) -> Tensor:
        ran.append(states.shape[0] * states.shape[1])
        return forward(self, states, *args)

    monkeypatch.setattr(Layers, "forward", count_and_run)
    with torch.no_grad():
        prompt = model(IDS, use_cache=True, cache_policy="frozen", exit_rule="margin:0.05")
        running = [(prompt.exit_steps >= loop).sum(dim=1) for loop in range(1, 5)]
        assert ran == [int(depths.max() * (depths > 0).sum()) for depths in running if depths.any()]
        assert len(set(ran)) > 1
        ran.clear()
        step = model(IDS[:, :1], past_key_values=prompt.past_key_values, exit_rule="margin:0.05")
        assert sum(ran) == int(step.exit_steps.sum())
        assert step.trace.executed.computed.queries.tolist() == ran
        model.generate(IDS, max_new_tokens=1, exit_rule="fixed:1", cache_policy="last")
        work = model.price(step.trace)
        full_work = model.price(model(IDS[:, :1], use_cache=True, exit_rule="margin:0.05").trace)
    assert work.executed < full_work.executed


def test_bytes_per_token_follow_the_policy() -> None:
    model = build_looped(**KINDS["huginn"], num_key_value_heads=2)
    one = 2 * 2 * 8 * 4
    num_entries = {
        "all": 1 + 3 * 2 + 3,
        "frozen": 1 + 3 * 2 + 3,
        "last": 4,
        "mean": 4,
        "first": 4,
        "ring:2": 1 + 2 * 2 + 1,
    }
    for policy, number in num_entries.items():
        assert bytes_per_token(model.config, policy) == number * one
        with torch.no_grad():
            cache = model(IDS, use_cache=True, cache_policy=policy, exit_rule="margin:0.05").past_key_values
        if policy == "all":
            num_bytes = sum(tensor.numel() * 4 for layer in cache.layers for tensor in (layer.keys, layer.values))
            assert num_bytes == number * one * IDS.numel()
        else:
            assert cache.bytes_per_token() == number * one


def test_the_policy_of_the_configuration_is_the_default() -> None:
    model = build_looped(**KINDS["ouro"], cache_policy="ring:2", exit_rule="margin:0.05")
    options: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False, "return_dict_in_generate": True}
    output = model.generate(IDS, **options)
    assert isinstance(output.past_key_values, LoopedCache)
    assert str(output.past_key_values.policy) == "ring:2"
    same = build_looped(**KINDS["ouro"]).generate(IDS, cache_policy="ring:2", exit_rule="margin:0.05", **options)
    assert output.sequences.equal(same.sequences)
    assert isinstance(model.generate(IDS, cache_policy="all", **options).past_key_values, DynamicCache)


@pytest.mark.parametrize(
    ("fields", "options", "message"),
    [
        ({}, {"cache_policy": "frozn"}, r"cache_policy=frozn: must be one of .*ring:K.* \(did you mean 'frozen'\?\)"),
        ({}, {"cache_policy": "ring:0"}, "cache_policy=ring:0: must be one of"),
        ({}, {"cache_policy": "last:2"}, "cache_policy=last:2: must be one of"),
        ({}, {"cache_policy": "last", "use_cache": False}, "cache_policy=last: needs a call with a cache"),
        ({}, {"cache_policy": "last", "past_key_values": DynamicCache()}, "is a DynamicCache of policy all"),
        ({"attn_implementation": "flex_attention"}, {"cache_policy": "last"}, "attn_implementation=flex_attention"),
    ],
)  # fmt: skip
def test_a_wrong_call_is_refused_in_one_line(fields: dict[str, Any], options: dict[str, Any], message: str) -> None:
    model = build_looped(core=1, num_loops=2)
    if fields:
        model.config._attn_implementation = fields["attn_implementation"]
    with pytest.raises(ConfigError, match=message) as caught:
        model(IDS, **options)
    assert "\n" not in str(caught.value)


def test_wrong_policies_and_caches_are_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match="cache_policy=none"):
        build_looped(core=1, cache_policy="none")
    model = build_looped(core=1, num_loops=2)
    with pytest.raises(ConfigError, match="cache_policy=all: use DynamicCache"):
        LoopedCache(model.config)
    cache = LoopedCache(model.config, "frozen")
    with pytest.raises(ConfigError, match="num_loops=3: this cache was created for 2 loops"):
        model(IDS, past_key_values=cache, num_loops=3)
    with pytest.raises(ConfigError, match="the cache is empty"):
        cache.bytes_per_token()
    with pytest.raises(ConfigError, match="has its own cache and does not support cache_implementation=static"):
        model.generate(IDS, cache_policy="last", cache_implementation="static", max_new_tokens=2)
    with pytest.raises(ConfigError, match="needs a model in evaluation mode"):
        model.train()(IDS, use_cache=True, cache_policy="last")
    with pytest.raises(ValueError, match=r"crop\(1\)"):
        cache.crop(1)
