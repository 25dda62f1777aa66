"""Routed models against stored results of the published Mixture-of-Recursions code (raymin0223/mixture_of_recursions).

`ADADEPTH_MOR_CASES=FOLDER pytest tests/parity/test_mor_published.py` reads files `*.pt`, each with the weights, tokens,
logits, routing decisions, losses and gradients of one run of that code in float64. It computes norms, softmax and
cross-entropies in float32.

The published losses differ in their denominators alone. Where its results contradict the equations, the equations hold:

    num_items    counts the first token of each row, which is no target; here the caller passes it (`num_targets`)
    logits_rows  token choice multiplies with the gates of another row where a row before it has no more tokens; the
                 equation x + p_d B(...B(x)) of a token holds for each row by itself
    aux_router   is trained by a backward pass of its own, without a weight: the weighted loss's gradient is compared
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from adadepth.models.routed.configuration import RoutedConfig
from adadepth.models.routed.heads import RoutedForCausalLM

_FOLDER = os.environ.get("ADADEPTH_MOR_CASES")
pytestmark = pytest.mark.skipif(_FOLDER is None, reason="ADADEPTH_MOR_CASES names no folder with results of MoR's code")
EXPERT = [
    "middle_cycle_train", "middle_cycle_eval", "middle_cycle_kv_train", "middle_cycle_kv_eval", "cycle_train",
    "cycle_eval", "cycle_kv_train", "cycle_kv_eval", "two_layers_train", "two_layers_kv_train", "aux_router_train",
    "aux_router_eval", "mlp_train", "two_recursions_train",
]  # fmt: skip
TOKEN = [
    "middle_cycle_train", "middle_cycle_eval", "middle_cycle_kv_train", "middle_cycle_kv_eval", "cycle_train",
    "cycle_eval", "cycle_kv_train", "cycle_kv_eval", "two_layers_train", "two_layers_kv_train", "loss_free_train",
    "loss_free_eval", "two_recursions_train", "eager_one_row_train", "misread_row_train", "misread_row_kv_train",
]  # fmt: skip
Z_WEIGHT, EXPERT_WEIGHT, TOKEN_WEIGHT = 1e-5, 0.001, 0.1


def load_case(name: str) -> dict[str, Any]:
    """Load the results of one run."""
    assert _FOLDER is not None
    case: dict[str, Any] = torch.load(Path(_FOLDER, f"{name}.pt"), weights_only=False)
    return case


def build_model(case: dict[str, Any]) -> Any:
    """Build a routed model with the weights of a case, in float64 and the mode of the case."""
    options, weights = case["options"], case["state_dict"]
    pieces, width = weights["model.embed_tokens.weight"].shape
    recursions, size = options.get("recursions", 3), options.get("layers_per_recursion", 1)
    outer = int(case["sharing"] == "middle_cycle")
    base = {
        "model_type": "llama", "vocab_size": pieces, "hidden_size": width, "num_hidden_layers": 2 * outer + size,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": width // 4, "intermediate_size": 2 * width,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "max_position_embeddings": 512, "pad_token_id": None,
        "bos_token_id": None, "eos_token_id": None,
    }  # fmt: skip
    config = RoutedConfig(
        base_config=base, router=case["way"], recursions=recursions, prelude=outer, coda=outer, z_weight=Z_WEIGHT,
        keys_and_values="first" if options.get("kv_sharing") else "selected",
        causal_choice="predictor" if options.get("sampling") == "aux_router" else "router",
        router_network=options.get("router_type", "linear"), gate_scale=0.1 if case["way"] == "expert" else 1.0,
        balance="bias" if options.get("balancing") == "loss_free" else "loss",
    )  # fmt: skip
    model = RoutedForCausalLM(config).double()
    translated = {rename_weight(key, outer, size, recursions): weight for key, weight in weights.items()}
    report = model.load_state_dict(translated, strict=False)
    assert not report.unexpected_keys
    assert set(report.missing_keys) <= {"depth_load", "depth_bias"}
    return model.train(case["training"])


def rename_weight(name: str, outer: int, size: int, recursions: int) -> str:
    """Return our name of a published weight, with `outer` layers before and after recursions of `size` layers."""
    if not name.startswith("model.layers."):
        names = {"model.norm.weight": "head.model.norm.weight", "lm_head.weight": "head.lm_head.weight"}
        return names.get(name, name)
    number, rest = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", name).groups()  # type: ignore[union-attr]
    block = re.fullmatch(r"(?:block_list\.\d+|block)\.(\d+)\.(.*)", rest)
    if block is not None:
        return f"model.layers.{outer + int(block[1])}.{block[2]}"
    if rest == "router_bias":
        return "depth_bias"
    router = re.fullmatch(r"(mor|mlp)_router\.router\.(?:(\d)\.)?weight", rest)
    if router is not None:
        room, part = {"mor": "routers", "mlp": "predictors"}[router[1]], "hidden" if router[2] == "0" else "output"
        return f"{room}.{int(number) - outer}.{part}.weight"
    return f"model.layers.{int(number) if int(number) < outer else outer + size}.{rest}"


def run_case(model: Any, case: dict[str, Any]) -> Any:
    """Run a case with its number of targets and, also in evaluation, the published routing decisions."""
    targets = {"task": torch.tensor(case["num_items"])}
    return model(case["input_ids"], labels=case["labels"], num_targets=targets, routing="topk")


def compute_logits(model: Any, case: dict[str, Any]) -> Tensor:
    """Compute logits, which a model omits in training, with the routing decisions of training."""
    states, _, _ = model.run({"input_ids": case["input_ids"]}, None, has_losses=False, routing="topk")
    logits: Tensor = model.read(states.flatten(0, 1)).unflatten(0, states.shape[:2])
    return logits


def load_selected(case: dict[str, Any]) -> Tensor:
    """Return published routing decisions, boolean (B, T, R)."""
    selected = torch.zeros(*case["input_ids"].shape, len(case["selected"]), dtype=torch.bool)
    for recursion, rows in enumerate(case["selected"]):
        for row, tokens in enumerate(rows):
            selected[row, tokens, recursion] = True
    return selected


def check_close(actual: Tensor, expected: Tensor | float) -> None:
    torch.testing.assert_close(actual.double(), torch.as_tensor(expected).double(), atol=1e-5, rtol=1e-5)


def check_gradients(model: Any, published: dict[str, Tensor], outer: int, size: int, recursions: int) -> None:
    """Compare all gradients; those of one weight in several recursions may be published under several names."""
    expected: dict[str, Tensor] = {}
    for name, gradient in published.items():
        ours = rename_weight(name, outer, size, recursions)
        expected[ours] = expected.get(ours, torch.zeros_like(gradient)) + gradient
    gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    for name, gradient in expected.items():
        torch.testing.assert_close(gradients[name], gradient, atol=1e-6, rtol=1e-4, msg=name)


@pytest.mark.parametrize("name", EXPERT)
def test_expert_choice_equals_the_published_code(name: str) -> None:
    case = load_case(f"expert_{name}")
    model, recursions = build_model(case), case["options"].get("recursions", 3)
    check_close(compute_logits(model, case), case["logits"])
    output = run_case(model, case)
    assert torch.equal(output.trace.iterations_run, load_selected(case))
    check_close(output.loss_parts["task"], case["loss"])
    check_close(output.token_losses.mean(), case["mean_loss"])
    if not case["training"]:
        return
    check_close(output.loss_parts["routing"] / EXPERT_WEIGHT, case["sampling_loss"])
    check_close(output.loss_parts["z"] / Z_WEIGHT, case["router_z_loss"])
    if case["options"].get("sampling") != "aux_router":
        _, routing, _ = model.run({"input_ids": case["input_ids"]}, None, has_losses=True, routing="topk")
        shares = torch.stack([agreed / candidates for agreed, candidates in routing.agreed])
        shares[0] = (case["router_logits"][0] > 0).double().mean()  # here a recursion of capacity 1 selects all tokens
        check_close(shares.mean(), case["sampling_accuracy"])
        check_close(output.loss, case["total_loss"])
        output.loss.backward()
        check_gradients(model, case["grads"], model.config.prelude, case["options"].get("layers_per_recursion", 1),
                        recursions)  # fmt: skip
        return
    output.loss.backward()
    gradients = {name: gradient * EXPERT_WEIGHT for name, gradient in case["sampling_grads"].items()}
    check_gradients(model, case["grads"] | gradients, 1, 1, recursions)


@pytest.mark.parametrize("name", TOKEN)
def test_token_choice_equals_the_published_code(name: str) -> None:
    case = load_case(f"token_{name}")
    model = build_model(case)
    check_close(compute_logits(model, case), case["logits_rows"])
    output = run_case(model, case)
    assert torch.equal(output.trace.updates.long() - 1, case["depth"])
    assert torch.equal(output.trace.iterations_run, load_selected(case))
    if not case["rows_misread"]:
        check_close(output.loss_parts["task"], case["loss"])
        check_close(output.token_losses.mean(), case["mean_loss"])
    if not case["training"]:
        return
    check_close(output.loss_parts["z"] / Z_WEIGHT, case["router_z_loss"])
    if model.config.balance == "loss":
        check_close(output.loss_parts["routing"] / TOKEN_WEIGHT, case["balancing_loss"])
    else:
        assert "routing" not in output.loss_parts
        assert torch.equal(model.depth_load // 2, case["depth"].flatten().bincount(minlength=3))  # of two passes
    if not case["rows_misread"]:
        check_close(output.loss, case["total_loss"])
        output.loss.backward()
        check_gradients(model, case["grads"], model.config.prelude, case["options"].get("layers_per_recursion", 1),
                        model.config.recursions)  # fmt: skip
