"""What later tokens read of earlier ones, and that tokens which have exited run no further."""

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
from tests.marks_support import mostly_slow, quick_one_in
from tests.unit.models.looped.looped_support import IDS, KINDS, PIECES, SIZES, near, small
from tests.unit.models.looped.plain_cache import (
    EVERY_POLICY,
    POLICIES,
    by_calls,
    plain_by_calls,
    plain_generation,
)

RULES = ("fixed:2", "margin:0.05", "quantile:0.5")
# Each policy with one of two kinds; the slow tests compare all.
QUICK = [(("huginn", "fully looped")[number % 2], policy) for number, policy in enumerate(EVERY_POLICY)]


def drawn(model: Any) -> Tensor | None:
    return model.model._draw_states(torch.arange(16)) if model.config.start == "drawn" else None


@pytest.mark.parametrize(("kind", "policy"), mostly_slow(product(KINDS, EVERY_POLICY), lambda case: case in QUICK))
def test_every_policy_is_what_its_definition_says(kind: str, policy: str) -> None:
    model = small(**KINDS[kind]).double()
    for rule in RULES if model.config.gate else RULES[:2]:
        logits, exits = by_calls(model, IDS[:1], policy, exit_rule=rule)
        expected, steps = plain_by_calls(model.config, model.state_dict(), IDS[0], policy, rule, drawn(model))
        assert exits[0].tolist() == steps
        near(logits[0], expected, 2e-6)


@pytest.mark.parametrize(("family", "policy"), quick_one_in(7, product(["llama", "qwen2"], POLICIES)))
def test_layers_of_other_decoders_keep_what_the_policy_says(family: str, policy: str) -> None:
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
        for name, about in get_field_specs(model.config.settings_class).items()
        if about.in_model
    }
    config = SimpleNamespace(**values | {"rope_theta": 10000.0, "rms_norm_eps": 1e-6})
    logits, exits = by_calls(model, IDS[:1], policy, exit_rule="margin:0.1")
    expected, steps = plain_by_calls(config, weights, IDS[0], policy, "margin:0.1", None)
    assert exits[0].tolist() == steps
    assert len(set(steps)) > 1
    near(logits[0], expected)  # Llama's norms are float32


@pytest.mark.parametrize(
    ("policy", "attention"),
    quick_one_in(4, [*((policy, "sdpa") for policy in POLICIES), ("frozen", "eager"), ("mean", "eager")]),
)
def test_a_batch_is_its_rows_and_padding_changes_nothing(policy: str, attention: str) -> None:
    model = small(**KINDS["huginn"])
    model.set_attn_implementation(attention)
    logits, exits = by_calls(model, IDS, policy, exit_rule="margin:0.05")
    for row in range(len(IDS)):
        alone = by_calls(model, IDS[row : row + 1], policy, exit_rule="margin:0.05")
        near(logits[row], alone[0][0])
        assert exits[row].equal(alone[1][0])
    padded = torch.cat([torch.full((3, 4), PIECES - 1), IDS], dim=1)
    mask = torch.ones_like(padded)
    mask[:, :4] = 0
    mask[1, :6] = 0
    with torch.no_grad():
        prompt = model(padded[:, :10], mask[:, :10], use_cache=True, cache_policy=policy, exit_rule="margin:0.05")
        after = model(padded[:, 10:], mask, past_key_values=prompt.past_key_values, exit_rule="margin:0.05")
    found = torch.cat([prompt.exit_steps, after.exit_steps], dim=1)
    assert not found[:, :4].any()
    assert found[0, 4:10].equal(exits[0, :6])
    near(prompt.logits[2, 4:], logits[2, :6])
    short = model.generate(
        IDS[1:2, 2:], attention_mask=torch.ones(1, 7), max_new_tokens=3, cache_policy=policy, exit_rule="margin:0.05"
    )
    both = model.generate(
        padded[:, :13], attention_mask=mask, max_new_tokens=3, cache_policy=policy, exit_rule="margin:0.05"
    )
    assert both[1, 13:].equal(short[0, 7:])


@pytest.mark.parametrize(("policy", "rule"), quick_one_in(5, product(EVERY_POLICY, RULES)))
def test_greedy_generation_is_a_plain_loop(policy: str, rule: str) -> None:
    model = small(**KINDS["ouro"]).double()
    found = model.generate(IDS[:1], max_new_tokens=5, do_sample=False, exit_rule=rule, cache_policy=policy)
    expected, _ = plain_generation(model.config, model.state_dict(), IDS[0].tolist(), 5, rule, policy)
    assert found[0, IDS.shape[1] :].tolist() == expected


@pytest.mark.parametrize("policy", quick_one_in(3, ["frozen", "mean", "ring:2"]))
def test_draws_and_beams_are_those_of_their_definition(policy: str) -> None:
    """As without compaction and without views: the caches' rows are reordered, and every step begins with a copy."""
    model = small(**KINDS["huginn"])
    asked: dict[str, Any] = {"cache_policy": policy, "exit_rule": "margin:0.05", "max_new_tokens": 5}
    torch.manual_seed(1)
    drawn = model.generate(IDS, do_sample=True, **asked)
    torch.manual_seed(1)
    assert drawn.equal(model.generate(IDS, do_sample=True, **asked))
    beams = model.generate(
        IDS[:1], num_beams=3, num_return_sequences=3, output_scores=True, return_dict_in_generate=True, **asked
    )
    text = beams.sequences
    for row in range(3):  # a beam's score is what its tokens have by the definition
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
        near(beams.sequences_scores[row], torch.tensor(total / (ids.shape[1] - IDS.shape[1])), 1e-4)


@pytest.mark.parametrize("policy", quick_one_in(3, POLICIES))
def test_tokens_can_be_taken_back(policy: str) -> None:
    model = small(**KINDS["half way, from zeros, input added"])
    with torch.no_grad():
        once = model(IDS, use_cache=True, cache_policy=policy, exit_rule="margin:0.1")
        cache = once.past_key_values
        model(IDS[:, :3], past_key_values=cache, exit_rule="margin:0.1")
        cache.crop(-3)
        assert cache.get_seq_length() == IDS.shape[1]
        again = model(IDS[:, :1], past_key_values=cache, exit_rule="margin:0.1")
        fresh = model(IDS, use_cache=True, cache_policy=policy, exit_rule="margin:0.1").past_key_values
        near(again.logits, model(IDS[:, :1], past_key_values=fresh, exit_rule="margin:0.1").logits)
        cache.crop(-1)
        cache.batch_select_indices(torch.tensor([2, 0]))
        cache.batch_repeat_interleave(2)
        few = model(IDS[[2, 2, 0, 0], :1], past_key_values=cache, exit_rule="margin:0.1")
        near(few.logits, again.logits[[2, 2, 0, 0]])
        cache.reset()
        assert cache.get_seq_length() == 0


@pytest.mark.slow
def test_a_policy_says_nothing_where_nobody_exits() -> None:
    for kind in KINDS:
        model = small(**KINDS[kind])
        with torch.no_grad():
            plain = model(IDS).logits
            for policy in POLICIES:
                near(model(IDS, use_cache=True, cache_policy=policy).logits, plain)


def test_everything_is_read_where_a_call_says_so() -> None:
    model = small(**KINDS["ouro"])
    with torch.no_grad():
        plain = model(IDS, run_all_steps=True, labels=IDS)
        found = model(IDS, run_all_steps=True, labels=IDS, use_cache=True, cache_policy="last", exit_rule="margin:0.05")
    near(found.loss, plain.loss)
    near(found.step_logits[...], plain.step_logits[...])


def test_who_has_exited_runs_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small(**KINDS["ouro"])
    ran: list[int] = []
    whole = Layers.forward

    def counted(self: Any, states: Tensor, *args: Any) -> Tensor:
        ran.append(states.shape[0] * states.shape[1])
        return whole(self, states, *args)

    monkeypatch.setattr(Layers, "forward", counted)
    with torch.no_grad():
        prompt = model(IDS, use_cache=True, cache_policy="frozen", exit_rule="margin:0.05")
        running = [(prompt.exit_steps >= loop).sum(dim=1) for loop in range(1, 5)]
        assert ran == [int(each.max() * (each > 0).sum()) for each in running if each.any()]
        assert len(set(ran)) > 1
        ran.clear()
        step = model(IDS[:, :1], past_key_values=prompt.past_key_values, exit_rule="margin:0.05")
        assert sum(ran) == int(step.exit_steps.sum())
        assert step.trace.executed.computed.queries.tolist() == ran
        model.generate(IDS, max_new_tokens=1, exit_rule="fixed:1", cache_policy="last")
        work = model.price(step.trace)
        everybody = model.price(model(IDS[:, :1], use_cache=True, exit_rule="margin:0.05").trace)
    assert work.executed < everybody.executed


def test_bytes_of_a_token() -> None:
    model = small(**KINDS["huginn"], num_key_value_heads=2)
    one = 2 * 2 * 8 * 4
    places = {"all": 1 + 3 * 2 + 3, "frozen": 1 + 3 * 2 + 3, "last": 4, "mean": 4, "first": 4, "ring:2": 1 + 2 * 2 + 1}
    for policy, many in places.items():
        assert bytes_per_token(model.config, policy) == many * one
        with torch.no_grad():
            cache = model(IDS, use_cache=True, cache_policy=policy, exit_rule="margin:0.05").past_key_values
        if policy == "all":
            kept = sum(each.numel() * 4 for layer in cache.layers for each in (layer.keys, layer.values))
            assert kept == many * one * IDS.numel()
        else:
            assert cache.bytes_per_token() == many * one


def test_the_configuration_names_a_policy() -> None:
    model = small(**KINDS["ouro"], cache_policy="ring:2", exit_rule="margin:0.05")
    asked: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False, "return_dict_in_generate": True}
    found = model.generate(IDS, **asked)
    assert isinstance(found.past_key_values, LoopedCache)
    assert str(found.past_key_values.policy) == "ring:2"
    same = small(**KINDS["ouro"]).generate(IDS, cache_policy="ring:2", exit_rule="margin:0.05", **asked)
    assert found.sequences.equal(same.sequences)
    assert isinstance(model.generate(IDS, cache_policy="all", **asked).past_key_values, DynamicCache)


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
def test_a_wrong_call_is_one_line(fields: dict[str, Any], options: dict[str, Any], message: str) -> None:
    model = small(core=1, num_loops=2)
    if fields:
        model.config._attn_implementation = fields["attn_implementation"]
    with pytest.raises(ConfigError, match=message) as caught:
        model(IDS, **options)
    assert "\n" not in str(caught.value)


def test_wrong_policies_and_caches_are_one_line() -> None:
    with pytest.raises(ConfigError, match="cache_policy=none"):
        small(core=1, cache_policy="none")
    model = small(core=1, num_loops=2)
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
