"""Looped language models: equations, caches, padding, exits, saved folders and published sizes."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

from adadepth import (
    LoopedConfig,
    LoopedForCausalLM,
    LoopedForSequenceClassification,
    LoopedForTokenClassification,
    LoopedModel,
)
from adadepth.errors import ConfigError, DataError
from adadepth.models.build import classifier_class
from tests.configs.support import configured
from tests.marks_support import keep_one_quick
from tests.unit.models.looped.looped_support import (
    HUGINN,
    IDS,
    KINDS,
    LENGTH,
    OURO,
    PIECES,
    SIZES,
    WIDTH,
    build_looped,
    check_close,
)
from tests.unit.models.looped.plain_looped import run_plain_looped

# ---- The equations


@pytest.mark.parametrize("kind", keep_one_quick(2, KINDS))
def test_every_loop_equals_the_equations(kind: str) -> None:
    model = build_looped(**KINDS[kind]).double()
    state = torch.randn(3, LENGTH, WIDTH, dtype=torch.float64) if kind == "huginn" else None
    with torch.no_grad():
        output = model(IDS, run_all_steps=True, initial_state=state)
    for row, ids in enumerate(IDS):
        expected = run_plain_looped(model.config, model.state_dict(), ids, None if state is None else state[row])
        for step, logits in enumerate(expected):
            check_close(output.step_logits[row, :, step], logits)
        check_close(output.logits[row], expected[-1])


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_attention_implementations_agree(attention: str) -> None:
    model = build_looped(**KINDS["few keys, wide heads"])
    expected = model(IDS).logits
    model.set_attn_implementation(attention)
    check_close(model(IDS).logits, expected)


def test_more_loops_begin_with_the_configured_ones() -> None:
    model = build_looped(**OURO)
    longer = model(IDS, num_loops=7, run_all_steps=True)
    assert longer.step_logits.shape == (3, LENGTH, 7, PIECES)
    assert longer.trace.max_updates == 7
    check_close(longer.step_logits[:, :, 3], model(IDS).logits)


def test_hidden_states_are_before_and_after_every_loop() -> None:
    model = build_looped(LoopedModel, **OURO)
    output = model(IDS, output_hidden_states=True)
    assert len(output.hidden_states) == 5
    assert torch.equal(output.hidden_states[0], model.embed_tokens(IDS))
    assert torch.equal(output.hidden_states[-1], output.last_hidden_state)  # normed states are fed back, and read


# ---- Caches, padding, rows


def test_a_cache_has_an_entry_for_every_executed_layer() -> None:
    model = build_looped(**HUGINN)
    cache = model(IDS, use_cache=True).past_key_values
    assert len(cache.layers) == model.config.num_hidden_layers == 1 + 3 * 2 + 1
    assert {layer.keys.shape for layer in cache.layers} == {(3, 4, LENGTH, 8)}


@pytest.mark.parametrize("kind", keep_one_quick(4, KINDS))
def test_padding_changes_nothing(kind: str) -> None:
    model = build_looped(**KINDS[kind])
    for side in ("left", "right"):
        padded = torch.zeros(3, LENGTH + 2, dtype=torch.long)
        mask = torch.zeros_like(padded)
        where = slice(2, None) if side == "left" else slice(None, LENGTH)
        padded[:, where], mask[:, where] = IDS, 1
        with torch.no_grad():
            output = model(padded, attention_mask=mask, exit_rule="margin:0.05")
            expected = model(IDS, exit_rule="margin:0.05")
        check_close(output.logits[:, where], expected.logits)
        assert torch.equal(output.exit_steps[:, where], expected.exit_steps)
        assert torch.equal(output.trace.updates.sum(dim=1), expected.trace.updates.sum(dim=1))
        assert not output.exit_steps[~mask.bool()].any()


def test_random_states_depend_on_their_positions() -> None:
    model = build_looped(LoopedModel, **HUGINN)
    states = model._draw_states(torch.tensor([[0, 5, 700], [700, 5, 0]]))
    assert torch.equal(states[0], states[1].flip(0))
    assert 0.55 < model._draw_states(torch.arange(600).unsqueeze(0)).std() < 0.65  # sqrt(2/5), slightly truncated
    fresh = build_looped(LoopedModel, **HUGINN)  # positions in another order
    assert torch.equal(fresh._draw_states(torch.tensor([[5]])), states[:1, 1:2])
    assert not torch.equal(
        build_looped(LoopedModel, **HUGINN, draw_seed=1)._draw_states(torch.tensor([[5]])), states[:1, 1:2]
    )


def test_random_states_change_in_training() -> None:
    model = build_looped(**HUGINN).train()
    outputs = [model(IDS, output_hidden_states=True).hidden_states[0] for _ in range(2)]
    assert not torch.equal(*outputs)


@pytest.mark.parametrize("kind", ["ouro", "huginn"])
@pytest.mark.parametrize(
    "options", keep_one_quick(2, [{"do_sample": False}, {"num_beams": 3}]), ids=["greedy", "beams"]
)
def test_generation_is_the_same_without_a_cache(kind: str, options: dict[str, Any]) -> None:
    model = build_looped(**KINDS[kind])
    mask = torch.ones_like(IDS)
    mask[0, :3] = 0
    generated = [
        model.generate(IDS, attention_mask=mask, max_new_tokens=6, use_cache=cached, pad_token_id=0, **options)
        for cached in (True, False)
    ]
    assert torch.equal(*generated)


@pytest.mark.parametrize("kind", ["ouro", "huginn"])
def test_a_static_cache_has_room_for_all_loops(kind: str) -> None:
    model = build_looped(**KINDS[kind])
    generated, expected = (
        model.generate(IDS, max_new_tokens=6, do_sample=False, pad_token_id=0, disable_compile=True, **cache)
        for cache in ({"cache_implementation": "static"}, {})
    )
    assert torch.equal(generated, expected)


# ---- Exits


EXITS = ("fixed:2", "margin:0.05", "confidence:0.1", "patience:1", "quantile:0.5", "sample", "kl:0.05",
         "distance:0.8", "acceleration:1:1")  # fmt: skip


@pytest.mark.parametrize(("kind", "rule"), keep_one_quick(5, product(["ouro", "huginn"], EXITS)))
def test_exits_equal_those_of_running_all_loops(kind: str, rule: str) -> None:
    model = build_looped(**{**KINDS[kind], "gate": True})
    with torch.no_grad():
        exiting, every = (
            model(IDS, exit_rule=rule, run_all_steps=everything, generator=torch.Generator().manual_seed(2))
            for everything in (False, True)
        )
    assert torch.equal(exiting.exit_steps, every.exit_steps)
    check_close(exiting.logits, every.logits)
    rows, tokens = torch.meshgrid(torch.arange(3), torch.arange(LENGTH), indexing="ij")
    check_close(exiting.logits, every.step_logits[rows, tokens, every.exit_steps - 1])
    assert torch.equal(exiting.trace.updates, exiting.exit_steps.float())
    assert exiting.trace.executed.steps == (2 if rule == "fixed:2" else exiting.exit_steps.max())


def test_loops_end_when_all_tokens_have_exited() -> None:
    model = build_looped(**OURO)
    torch.nn.init.constant_(model.model.gate.bias, 50.0)
    output = model(IDS, exit_rule="quantile:0.5")
    assert output.trace.executed.steps == 1
    assert output.halting_logits.shape == (3, LENGTH, 1)
    assert model(IDS, exit_rule="quantile:0.5", use_cache=True).trace.executed.steps == 4  # keys for later tokens


def test_expectation_is_the_weighted_mean_of_probabilities() -> None:
    model = build_looped(**OURO)
    with torch.no_grad():
        output = model(IDS, exit_rule="expectation", run_all_steps=True)
    z, remaining, mixed = output.halting_logits, 1.0, 0.0
    for step in range(4):
        share = remaining if step == 3 else remaining * z[..., step].sigmoid()
        mixed = mixed + torch.as_tensor(share).unsqueeze(-1) * output.step_logits[:, :, step].softmax(-1)
        remaining = remaining * (1 - z[..., step].sigmoid())
    check_close(output.logits.softmax(-1), mixed)


def test_gates_are_float32_in_any_precision() -> None:
    model = build_looped(**OURO).to(torch.bfloat16)
    torch.nn.init.constant_(model.model.gate.bias, 12.0)  # in bfloat16 sigmoid(12) is 1, with no remainder
    output = model(IDS, run_all_steps=True)
    assert output.halting_logits.dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = build_looped(**OURO)(IDS, run_all_steps=True)
    assert inside.halting_logits.dtype == torch.float32


def test_logits_are_computed_of_requested_loops_only() -> None:
    model = build_looped(**OURO)
    sizes = []
    model.lm_head.register_forward_hook(lambda module, inputs, output: sizes.append(output.numel()))
    with torch.no_grad():
        outputs = model(IDS, run_all_steps=True)
    assert sum(sizes) == 3 * LENGTH * PIECES  # only those that it returns
    assert outputs.step_logits[0, 2:4, 1].shape == (2, PIECES)
    assert sum(sizes) == (3 * LENGTH + 2) * PIECES


# ---- Errors


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_attention_heads": 5}, "num_attention_heads=5 must divide hidden_size=32"),
        ({"num_key_value_heads": 3}, "num_key_value_heads=3 must divide num_attention_heads=4"),
        ({"head_dim": 7}, "head_dim=7 must be even"),
        ({"norms": "sandwhich"}, r"norms='sandwhich' must be one of pre, branch, sandwich \(did you mean 'sandwich'"),
        ({"exit_rule": "quantil:0.5"}, "did you mean 'quantile'"),
        ({"num_loops": 0}, "num_loops=0 must be at least 1"),
    ],
)
def test_a_wrong_configuration_is_refused_in_one_line(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        LoopedConfig(**{**SIZES, **fields})
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"exit_rule": "quantile:0.5"}, ConfigError, "needs halting probabilities, which looped does not have"),
        ({"exit_rule": "fixed:9"}, ConfigError, "the model has 2 steps"),
        ({"num_loops": 0}, ConfigError, "num_loops=0 must be at least 1"),
        ({"initial_state": torch.zeros(1, 2, 3)}, DataError, r"initial_state of shape \(1, 2, 3\): must be \(3, 9"),
        ({"inputs_embeds": torch.zeros(3, LENGTH, WIDTH)}, DataError, "give exactly one"),
        ({"labels": IDS, "run_all_steps": False}, ValueError, "objective=mean needs every loop"),
    ],
    ids=str,
)
def test_a_wrong_call_is_refused_in_one_line(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build_looped(**KINDS["plain"], objective="mean")(IDS, **options)


# ---- Other heads


@pytest.mark.parametrize("side", ["left", "right"])
def test_texts_are_classified_at_their_last_token(side: str) -> None:
    model = build_looped(LoopedForSequenceClassification, **OURO, num_labels=3)
    mask = torch.ones_like(IDS)
    mask[0, slice(None, 4) if side == "left" else slice(5, None)] = 0
    with torch.no_grad():
        output = model(IDS, attention_mask=mask, run_all_steps=True, exit_rule="quantile:0.6")
        real = IDS[:1][mask[:1].bool()].unsqueeze(0)
        check_close(output.logits[0], model(real, exit_rule="quantile:0.6").logits[0])
        states = model.model(IDS, output_hidden_states=True).hidden_states
    assert output.step_logits.shape == (3, 4, 3)
    for step in range(4):
        check_close(output.step_logits[1, step], model.score(states[step + 1][1, -1]))
    assert output.trace.unit == "sequence"
    assert output.exit_steps.shape == (3,)


def test_tokens_are_classified_one_by_one() -> None:
    model = build_looped(LoopedForTokenClassification, **OURO, num_labels=3)
    mask = torch.ones_like(IDS)
    mask[0, 5:] = 0
    labels = (IDS % 3).masked_fill(mask == 0, -100)
    with torch.no_grad():
        output = model(IDS, attention_mask=mask, labels=labels, run_all_steps=True)
        plain = model(IDS, attention_mask=mask)
    assert torch.equal(output.unit_slots, mask.flatten().nonzero().squeeze(1))
    assert output.logits.shape == (3, LENGTH, 3)
    assert not output.logits[0, 5:].any()
    check_close(plain.logits[mask.bool()], output.step_logits[:, -1])
    expected = torch.nn.functional.cross_entropy(output.logits[mask.bool()], labels[mask.bool()])
    check_close(output.loss, expected)
    assert model.count_targets({"labels": labels})["task"] == mask.sum()


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_every_objective_of_a_classifier_has_a_gradient(task: str) -> None:
    for objective in ("last", "mean", "geometric", "gate"):
        fields = {"num_labels": 1 if task == "regression" else 3, "objective": objective}
        model = build_looped(LoopedForSequenceClassification, **OURO, **fields).train()
        labels = torch.tensor([0.5, 1.0, -1.0]) if task == "regression" else torch.tensor([0, 1, 2])
        model(IDS, labels=labels).loss.backward()
        assert model.score.weight.grad.abs().sum() > 0
        assert (model.model.gate.weight.grad is not None) == (objective == "gate")


# ---- Contract, folders, sizes


def test_macs_follow_the_loops() -> None:
    model = build_looped(**OURO)
    with torch.no_grad():
        full, two = (model.price(model(IDS, exit_rule=rule).trace) for rule in ("fixed:4", "fixed:2"))
    token, pairs = 4 * WIDTH**2 + 3 * WIDTH * 48, LENGTH * (LENGTH + 1) / 2
    layer = LENGTH * token + pairs * 2 * WIDTH
    assert full.executed == full.full == full.adaptive == 3 * 4 * 2 * layer
    assert two.executed == two.adaptive == two.full / 2


@pytest.mark.parametrize("injection", ["none", "linear"])
def test_macs_equal_the_counter_of_torch(injection: str) -> None:
    """Compare with torch's counter, which counts all pairs of tokens, of which a causal mask removes half."""
    fields = {"prelude": 1, "core": 2, "num_loops": 3, "injection": injection}
    model = build_looped(LoopedForSequenceClassification, **fields, num_labels=2)
    model.set_attn_implementation("eager")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        trace = model(IDS).trace
    queries = 3 * (1 + 2 * 3) * 2 * WIDTH
    halved = queries * LENGTH**2 - queries * LENGTH * (LENGTH + 1) / 2
    work = model.price(trace)
    assert work.executed == work.dense == work.adaptive == work.full
    assert counter.get_total_flops() == 2 * (work.executed + halved + 3 * WIDTH * 2)


def test_padding_and_exited_tokens_count_only_executed_loops() -> None:
    model = build_looped(**OURO)
    mask = torch.ones_like(IDS)
    mask[0, :4] = 0
    with torch.no_grad():
        trace = model(IDS, attention_mask=mask, exit_rule="quantile:0.6").trace
    work, token = model.price(trace), 4 * WIDTH**2 + 3 * WIDTH * 48
    adaptive = 0.0
    for row, length in enumerate((5, 9, 9)):
        adaptive += trace.updates[row].sum().item() * 2 * (token + 2 * WIDTH * (length + 1) / 2)
    assert work.adaptive.item() == pytest.approx(adaptive)
    assert work.adaptive < work.dense <= work.executed


@pytest.mark.parametrize("kind", keep_one_quick(4, KINDS))
def test_a_saved_model_is_loaded_unchanged(kind: str, tmp_path: Path) -> None:
    model = build_looped(**KINDS[kind])
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        expected = model(IDS).logits
        assert torch.equal(LoopedForCausalLM.from_pretrained(tmp_path)(IDS).logits, expected)
        assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path)(IDS).logits, expected)


def test_tied_embeddings_are_one_matrix(tmp_path: Path) -> None:
    model = build_looped(**OURO, tie_word_embeddings=True)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    model.save_pretrained(tmp_path)
    loaded = LoopedForCausalLM.from_pretrained(tmp_path)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    check_close(loaded(IDS).logits, model(IDS).logits)


@pytest.mark.parametrize(
    ("option", "parameters"),
    keep_one_quick(4, [
        ("ouro_1_4b", 1_434_652_673), ("ouro_2_6b", 2_667_974_657), ("huginn_3_5b", 3_564_976_800),
        ("hrm_text_1b", 1_182_793_728), ("nanbeige_3b", 4_169_800_704),
    ]),
)  # fmt: skip
def test_published_sizes(option: str, parameters: int) -> None:
    """Check the sums of parameters of published models.

    Ouro: 2 V D + L (4 D^2 + 3 D F + 4 D) + D + D + 1; Huginn: V D + 2 D^2 + 8 (4 D^2 + 3 D F + 6 D) + D.
    HRM-Text: 2 V D + 2 L (5 D^2 + 3 D F). Nanbeige: 2 V D + L (2 D d (h + k) + 3 D F + 2 D) + D.
    """
    settings = configured("ponder_tiny", f"model={option}").model
    fields = {
        name: getattr(settings, name)
        for name in LoopedConfig.__dataclass_fields__
        if hasattr(settings, name) and getattr(settings, name) is not None
    }
    with torch.device("meta"):
        model = LoopedForCausalLM(LoopedConfig(**fields))
    assert sum(weight.numel() for weight in model.parameters()) == parameters
    assert classifier_class(settings, "classification") is LoopedForSequenceClassification


def test_initial_weights_are_scaled_as_in_huginn() -> None:
    torch.manual_seed(1)
    model = LoopedForCausalLM(LoopedConfig(**{**SIZES, "hidden_size": 128, "intermediate_size": 256}, **HUGINN,
                                           initializer="scaled"))  # fmt: skip
    cut, width = 0.9866, (2 / (5 * 128)) ** 0.5  # relative deviation of a normal truncated at three deviations
    layer = model.model.core[0]
    for weight in (layer.self_attn.q_proj.weight, layer.mlp.gate_proj.weight, model.model.adapter.weight):
        assert weight.std().item() == pytest.approx(cut * width, rel=0.05)
        assert weight.abs().max() <= 3 * width
    for weight in (layer.self_attn.o_proj.weight, layer.mlp.up_proj.weight, layer.mlp.down_proj.weight):
        assert weight.std().item() == pytest.approx(cut * width / (2 * 8) ** 0.5, rel=0.05)


def test_a_gate_starts_at_one_half() -> None:
    model = LoopedForCausalLM(LoopedConfig(**SIZES, **OURO))
    assert model.model.gate.bias.item() == 0.0
    assert model.model.gate.weight.std() > 0
