"""Routed models: causal routing decisions, batches against single rows, and pretrained networks."""

from __future__ import annotations

from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForTokenClassification,
)

from adadepth.errors import ConfigError
from adadepth.models.build import build_classifier, build_language_model
from adadepth.models.routed.heads import RoutedForCausalLM, RoutedForTokenClassification
from adadepth.models.routed.settings import RoutedSettings
from tests.marks_support import keep_one_quick
from tests.unit.models.early_exit.early_exit_support import draw_weights
from tests.unit.models.routed.routed_support import (
    IDS,
    LEFT,
    LENGTH,
    PIECES,
    RECURSIONS,
    RIGHT,
    ROUTERS,
    SIZES,
    build_routed,
    check_close,
    select_real,
)

RANDOM = {"random": RECURSIONS | {"router": "random"}}
TOKENS = RoutedForTokenClassification
LABELS = {"id2label": {0: "a", 1: "b", 2: "c"}, "label2id": {"a": 0, "b": 1, "c": 2}}


@cache
def get_model(name: str) -> Any:
    """Return a cached model in evaluation mode, which tests do not change."""
    return build_routed(**(ROUTERS | RANDOM)[name])


def route(model: Any, ids: Tensor, **call: Any) -> tuple[Tensor, Tensor]:
    """Return logits and routing decisions; random routers draw the same numbers in every call."""
    with torch.no_grad():
        output = model(ids, generator=torch.Generator().manual_seed(2), **call)
    return output.logits, output.trace.iterations_run


# ---- Hidden states


@pytest.mark.parametrize("name", keep_one_quick(5, ROUTERS))
def test_states_before_and_after_every_span_are_returned(name: str) -> None:
    """Check that skipped tokens keep their states, and that the last states are the inputs of the head."""
    model = get_model(name)
    with torch.no_grad():
        output = model(IDS, output_hidden_states=True)
        assert len(output.hidden_states) == 1 + len(model.config.spans)
        check_close(output.logits, model.read(output.hidden_states[-1]))
        for number, span in enumerate(model.config.spans):
            before, after = output.hidden_states[number : number + 2]
            assert before.shape == (*IDS.shape, model.config.hidden_size)
            if span.router is not None and not len(model.adapters):
                skipped = ~output.trace.iterations_run[..., span.router]
                assert torch.equal(before[skipped], after[skipped])
        states = model(IDS, output_hidden_states=[0, -1]).hidden_states
    assert [state is None for state in states] == [False, *[True] * (len(states) - 2), False]
    check_close(states[-1], output.hidden_states[-1])
    assert model(IDS).hidden_states is None


# ---- Routing decisions


@settings(deadline=None, max_examples=3)
@given(
    st.lists(st.integers(3, PIECES - 1), min_size=2, max_size=12), st.lists(st.integers(3, PIECES - 1), min_size=12),
    st.data(),
)  # fmt: skip
@pytest.mark.parametrize("name", keep_one_quick(5, [*ROUTERS, "random"]))
def test_later_tokens_change_nothing(name: str, text: list[int], suffix: list[int], data: st.DataObject) -> None:
    length = data.draw(st.integers(1, len(text) - 1))
    logits, ran = route(get_model(name), torch.tensor([text, [*text[:length], *suffix[: len(text) - length]]]))
    if name == "random":  # draws differ between rows
        logits, ran = (
            torch.cat(pair) for pair in zip(
                route(get_model(name), torch.tensor([text])),
                route(get_model(name), torch.tensor([[*text[:length], *suffix[: len(text) - length]]])), strict=True,
            )
        )  # fmt: skip
    assert torch.equal(ran[0, :length], ran[1, :length])
    check_close(logits[0, :length], logits[1, :length])


@pytest.mark.parametrize("name", ["expert selected", "layers selected"])
def test_selection_by_largest_scores_depends_on_later_tokens(name: str) -> None:
    """Check that the test above can fail."""
    ids = torch.randint(3, PIECES, (20, 8), generator=torch.Generator().manual_seed(0))
    changed = torch.cat([ids[:, :4], ids[:, 4:].flip(0)], dim=1)
    ran = [route(get_model(name), text, routing="topk")[1][:, :4] for text in (ids, changed)]
    assert not torch.equal(*ran)


def test_largest_scores_fill_the_capacity_and_recursions_are_nested() -> None:
    ran = route(get_model("expert selected"), IDS, routing="topk")[1]
    assert ran.sum(dim=1).tolist() == [[10, 6, 3]] * 3
    for name in ("expert selected", "expert predictor", "token selected", "random"):
        first, second, third = route(get_model(name), IDS)[1].unbind(-1)
        assert not bool((second & ~first).any()), name
        assert not bool((third & ~second).any()), name


@pytest.mark.parametrize("fields", [RECURSIONS, {"capacities": [0.5, 0.2]}, {"recursions": 3, "capacities": [0.6]}])
@torch.no_grad()
def test_a_random_router_has_the_capacity_on_average(fields: dict[str, Any]) -> None:
    model = build_routed(**fields, router="random")
    ids, generator = IDS.repeat(60, 1), torch.Generator().manual_seed(0)
    shares = model(ids, generator=generator).trace.iterations_run.double().mean(dim=(0, 1))
    expected = torch.tensor(model.config.routed_capacities, dtype=torch.float64)
    check_close(shares, expected, 0.04)
    exact = model.train()(ids, generator=generator).trace.iterations_run.sum(dim=1)
    assert torch.equal(exact, (expected * LENGTH + 1e-9).long().expand_as(exact))


@pytest.mark.parametrize("name", keep_one_quick(3, [
    "expert selected", "expert first", "layers all", "token selected", "threshold", "adapters", "expert predictor",
]))  # fmt: skip
def test_more_bias_gives_more_depth(name: str) -> None:
    model, depths = build_routed(**ROUTERS[name]), []
    for level in (0.02, 0.3, 0.5, 0.7, 0.98):
        model.set_depth_level(level)
        depths.append(float(route(model, IDS)[1].sum(dim=-1).double().mean()))
    assert depths == sorted(depths)
    assert depths[0] < depths[-1]


# ---- Batches


@pytest.mark.parametrize(
    ("name", "side", "routing"), keep_one_quick(9, product(ROUTERS, ["right", "left"], ["causal", "topk"]))
)
def test_rows_of_a_batch_equal_rows_alone(name: str, side: str, routing: str) -> None:
    model, mask = get_model(name), {"right": RIGHT, "left": LEFT}[side]
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    logits, ran = route(model, IDS * mask, attention_mask=mask, position_ids=positions, routing=routing)
    assert not bool(ran[mask == 0].any())
    for row, is_real in enumerate(mask.bool()):
        alone, ran_alone = route(model, IDS[row : row + 1, is_real], routing=routing)
        assert torch.equal(ran[row, is_real], ran_alone[0])
        check_close(logits[row, is_real], alone[0])


@pytest.mark.parametrize("name", keep_one_quick(5, ROUTERS))
def test_documents_of_a_row_equal_separate_rows(name: str) -> None:
    model, lengths = get_model(name), (4, 7, 9)
    texts = [IDS.flatten()[start : start + length] for start, length in zip((0, 4, 11), lengths, strict=True)]
    numbers = torch.repeat_interleave(torch.arange(3), torch.tensor(lengths)).unsqueeze(0)
    logits, ran = route(model, torch.cat(texts).unsqueeze(0), documents=numbers)
    for text, some, selected in zip(texts, logits[0].split(lengths), ran[0].split(lengths), strict=True):
        alone, ran_alone = route(model, text.unsqueeze(0))
        assert torch.equal(selected, ran_alone[0])
        check_close(some, alone[0])


@pytest.mark.parametrize("routing", ["causal", "topk"])
@pytest.mark.parametrize("name", ROUTERS)
def test_padding_of_a_row_of_documents_is_never_selected(name: str, routing: str) -> None:
    """Check that padding, a document of its own, has no updates and takes no capacity from real tokens."""
    model, mask = get_model(name), RIGHT[:1]
    length = int(mask.sum())
    logits, ran = route(model, IDS[:1] * mask, attention_mask=mask, documents=mask - 1, routing=routing)
    assert not bool(ran[mask == 0].any())
    alone, ran_alone = route(model, IDS[:1, :length], routing=routing)
    assert torch.equal(ran[:, :length], ran_alone)
    check_close(logits[:, :length], alone)
    with torch.no_grad():
        trace = model(IDS[:1] * mask, attention_mask=mask, documents=mask - 1, routing=routing).trace
    assert torch.equal(trace.valid, mask.bool())


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("name", keep_one_quick(3, ["expert first", "layers selected", "token selected"]))
def test_attention_implementations_agree(name: str, implementation: str) -> None:
    model = build_routed(**ROUTERS[name]).float()  # in float64, eager attention of transformers to no key is NaN
    model.set_attn_implementation(implementation)
    logits, ran = route(model, IDS * LEFT, attention_mask=LEFT)
    expected, ran_expected = route(get_model(name), IDS * LEFT, attention_mask=LEFT)
    assert torch.equal(ran, ran_expected)
    check_close(select_real(logits, LEFT), select_real(expected, LEFT), 1e-4)


@pytest.mark.parametrize(("base", "name"), [
    ("qwen2", "layers all"), ("gemma2", "expert selected"), ("olmo2", "token all"), ("mistral", "expert first"),
])  # fmt: skip
def test_other_decoders_run_the_selected_tokens(base: str, name: str) -> None:
    """Compare rows of a batch with rows alone in any decoder."""
    model = build_routed(base=base, **ROUTERS[name])
    logits, ran = route(model, IDS * RIGHT, attention_mask=RIGHT)
    assert 0 < ran.double().mean() < 1
    for row, is_real in enumerate(RIGHT.bool()):
        check_close(logits[row, is_real], route(model, IDS[row : row + 1, is_real])[0][0])


# ---- Training


@pytest.mark.parametrize("name", keep_one_quick(4, ROUTERS))
def test_every_weight_has_a_gradient(name: str) -> None:
    model = build_routed(**ROUTERS[name]).train()
    model(IDS, labels=IDS).loss.backward()
    silent = [key for key, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()]
    assert silent == ([] if name != "token bias" else ["routers.0.output.weight"])  # its gate is B(x) itself


@pytest.mark.parametrize("name", ["threshold", "adapters", "layers all", "token selected"])
def test_a_frozen_network_has_no_gradients(name: str) -> None:
    model = build_routed(**ROUTERS[name] | {"trains": "routers"}).train()
    model(IDS, labels=IDS).loss.backward()
    trained = {key for key, weight in model.named_parameters() if weight.grad is not None}
    assert trained == {key for key, _ in model.named_parameters() if key.startswith(("routers.", "adapters."))}
    assert not model.model.training


def test_a_bias_balances_the_depths() -> None:
    model = build_routed(**ROUTERS["token bias"]).train()
    start = model.depth_bias.clone()
    model.set_step(0, 9)
    assert torch.equal(model.depth_bias, start)
    depths = model(IDS, labels=IDS).trace.updates.long() - 1
    load = depths.flatten().bincount(minlength=3)
    assert torch.equal(model.depth_load, load)
    model.set_step(1, 9)
    check_close(model.depth_bias - start, model.config.bias_step * (load.double().mean() - load).sign(), 1e-9)
    assert not model.depth_load.any()


def test_losses_of_micro_batches_add_up() -> None:
    model = build_routed(**ROUTERS["expert selected"], z_weight=0.1)
    labels = IDS.masked_fill(RIGHT == 0, -100)
    counts = model.count_targets({"input_ids": IDS, "labels": labels, "attention_mask": RIGHT})
    whole = model(IDS, attention_mask=RIGHT, labels=labels).loss_parts
    rows = [
        model(IDS[row : row + 1, is_real], labels=IDS[row : row + 1, is_real], num_targets=counts).loss_parts
        for row, is_real in enumerate(RIGHT.bool())
    ]
    for part, value in whole.items():
        check_close(sum((row[part] for row in rows), torch.zeros(())), value)


# ---- Folders


@pytest.mark.parametrize("name", keep_one_quick(4, ["expert predictor", "token bias", "adapters", "layers all"]))
def test_a_saved_model_is_loaded_unchanged(name: str, tmp_path: Path) -> None:
    model = build_routed(**ROUTERS[name]).float()
    model.save_pretrained(tmp_path)
    loaded: Any = RoutedForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.spans == model.config.spans
    for field in (*ROUTERS[name], "routed_capacities", "weight_of_routing"):
        assert getattr(loaded.config, field) == getattr(model.config, field), field
    for key, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], value), key
    (logits, ran), (expected, ran_expected) = route(loaded, IDS), route(model, IDS)
    assert torch.equal(ran, ran_expected)
    check_close(logits, expected)


def save_stock(kind: str, folder: Path, auto: Any = AutoModelForCausalLM, **fields: Any) -> Any:
    """Save a network of transformers."""
    torch.manual_seed(0)
    model = draw_weights(auto.from_config(AutoConfig.for_model(kind, **SIZES, head_dim=8, **fields)))
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize(("kind", "fields"), keep_one_quick(3, [
    ("llama", {}), ("qwen2", {}), ("gemma2", {}), ("olmo2", {}), ("llama", {"adapter_size": 6}),
]))  # fmt: skip
@torch.no_grad()
def test_routers_that_select_all_tokens_change_nothing(kind: str, fields: dict[str, Any], tmp_path: Path) -> None:
    """Check a threshold router with gate 1, and adapters with gate sigmoid(z) of a selected token, in the limit 1."""
    stock = save_stock(kind, tmp_path, num_key_value_heads=2)
    options = {"router": "threshold", "keys_and_values": "all", "trains": "routers", **fields}
    model: Any = build_language_model(RoutedSettings(pretrained=str(tmp_path), **options), PIECES)
    for router in model.routers:
        router.output.weight.zero_()
        router.output.bias.fill_(60.0)
    output = model(IDS)
    assert bool(output.trace.iterations_run.all())
    expected = stock(IDS).logits
    if fields:
        check_close(output.logits, expected)
    else:
        torch.testing.assert_close(output.logits, expected, atol=0, rtol=0)
    mask = {"attention_mask": LEFT}
    check_close(select_real(model(IDS, **mask).logits, LEFT), select_real(stock(IDS, **mask).logits, LEFT))
    model.train()
    check_close(model.read(model.run({"input_ids": IDS}, None, has_losses=False, routing=None)[0].flatten(0, 1)),
         expected.flatten(0, 1))  # fmt: skip


@pytest.mark.parametrize("fields", keep_one_quick(4, [
    {"router": "threshold", "keys_and_values": "all"}, {"router": "token", "recursions": 2},
    {"router": "threshold", "keys_and_values": "all", "adapter_size": 6},
    {"router": "expert", "router_network": "mlp", "causal_choice": "predictor", "initializer_range": 0.02},
]))  # fmt: skip
@pytest.mark.parametrize("pretrained", [True, False])
@torch.no_grad()
def test_missing_weights_of_a_network_are_initialised(fields: dict[str, Any], pretrained: bool, tmp_path: Path) -> None:
    save_stock("llama", tmp_path)
    sizes = {name: size for name, size in SIZES.items() if name != "pad_token_id"}
    source = {"pretrained": str(tmp_path)} if pretrained else sizes
    model: Any = build_language_model(RoutedSettings(**{**source, **fields}), PIECES)
    weights = {
        name: weight for name, weight in model.named_parameters() if name.startswith(("rout", "predict", "adapt"))
    }
    assert weights
    for name, weight in weights.items():
        if "bias" in name:
            assert torch.equal(weight, torch.full_like(weight, 2.0)), name
        elif "norm" in name:
            assert torch.equal(weight, torch.ones_like(weight)), name
        elif "down_proj" in name:
            assert not weight.any(), name
        else:
            assert 0.01 < float(weight.std()) < 0.03, name
    if fields["router"] == "token":
        assert not model.depth_bias.any()
        assert not model.depth_load.any()
    if fields["router"] == "threshold":
        assert bool(model(IDS).trace.iterations_run.all())


@pytest.mark.parametrize("router", keep_one_quick(3, ["expert", "token", "threshold"]))
@pytest.mark.parametrize("kind", ["bert", "modernbert"])
@torch.no_grad()
def test_encoders_classify_tokens(kind: str, router: str, tmp_path: Path) -> None:
    stock = save_stock(kind, tmp_path, AutoModelForTokenClassification, num_labels=3)
    fields: dict[str, Any] = {
        "expert": {"capacities": [1.0], "gating": "none"}, "token": {"recursions": 1, "gating": "none"},
        "threshold": {"keys_and_values": "all"},
    }[router]  # fmt: skip
    model_settings = RoutedSettings(pretrained=str(tmp_path), router=router, **fields)
    model: Any = build_classifier(model_settings, PIECES, LABELS, "tagging")
    if (kind, router) == ("modernbert", "threshold"):
        with pytest.raises(ConfigError, match="keys_and_values=all: the layers of this base store no keys and values"):
            model(IDS)
        return
    output = model(IDS * RIGHT, attention_mask=RIGHT)
    expected = stock(IDS * RIGHT, attention_mask=RIGHT).logits
    assert bool(output.trace.iterations_run[RIGHT.bool()].all())
    check_close(select_real(output.logits, RIGHT), select_real(expected, RIGHT))


@pytest.mark.parametrize(("kind", "name"), keep_one_quick(4, [
    *(("bert", name) for name in ("expert selected", "token selected", "threshold", "layers all", "expert first")),
    ("modernbert", "expert selected"), ("modernbert", "layers selected"), ("modernbert", "token selected"),
]))  # fmt: skip
def test_rows_of_an_encoder_equal_rows_alone(kind: str, name: str) -> None:
    model = build_routed(TOKENS, kind, **ROUTERS[name], **LABELS)
    logits, ran = route(model, IDS * RIGHT, attention_mask=RIGHT)
    assert 0 < ran[RIGHT.bool()].double().mean() < 1
    for row, is_real in enumerate(RIGHT.bool()):
        alone, ran_alone = route(model, IDS[row : row + 1, is_real])
        assert torch.equal(ran[row, is_real], ran_alone[0])
        check_close(logits[row, is_real], alone[0])


def test_a_classifier_learns_from_its_labels() -> None:
    model = build_routed(TOKENS, "bert", **ROUTERS["expert selected"], **LABELS).train()
    labels = (IDS % 3).masked_fill(RIGHT == 0, -100)
    output = model(IDS * RIGHT, attention_mask=RIGHT, labels=labels)
    expected = torch.nn.functional.cross_entropy(output.logits.flatten(0, 1), labels.flatten())
    check_close(output.loss_parts["task"], expected)
    assert set(output.loss_parts) == {"task", "routing"}


def test_an_evaluation_measures_loads_dead_tokens_and_leakage() -> None:
    model = build_routed(**ROUTERS["layers selected"], measure_leak=True).eval()
    labels = IDS.masked_fill(RIGHT == 0, -100)
    output = model(IDS, attention_mask=RIGHT, labels=labels)
    measured = {name: float(term.total / term.count) for name, term in output.measures.items()}
    ran, real = output.trace.iterations_run, RIGHT.bool()
    for number, part in enumerate(ran[real].double().mean(dim=0), 1):
        assert measured[f"routing/load_{number}"] == pytest.approx(float(part))
    assert measured["routing/dead"] == pytest.approx(float((~ran[real].any(dim=-1)).double().mean()))
    leaked = model(IDS, attention_mask=RIGHT, labels=labels, routing="topk")
    assert measured["routing/topk_loss"] == pytest.approx(float(leaked.loss_parts["task"]))
    assert 0 < measured["routing/agreement"] <= 1


def test_a_model_with_a_resized_vocabulary_is_loaded_unchanged(tmp_path: Path) -> None:
    model = build_routed(**ROUTERS["expert selected"]).eval()
    model.resize_token_embeddings(model.config.vocab_size + 5)
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        check_close(RoutedForCausalLM.from_pretrained(tmp_path).eval()(IDS).logits, model(IDS).logits)


@pytest.mark.parametrize("name", keep_one_quick(3, ["expert selected", "token selected", "layers selected"]))
def test_checkpointing_changes_no_gradient(name: str) -> None:
    gradients = []
    for recomputes in (False, True):
        model = build_routed(**ROUTERS[name]).train()
        if recomputes:
            model.gradient_checkpointing_enable({"use_reentrant": False})
            assert all(layer.gradient_checkpointing for layer in model.layers)
        model(input_ids=IDS, labels=IDS).loss.backward()
        gradients.append({name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None})
    assert len(gradients[0]) > 10
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=0)


def test_layers_with_stored_keys_are_not_checkpointed() -> None:
    with pytest.raises(ValueError, match="does not support"):
        get_model("expert first").gradient_checkpointing_enable()
