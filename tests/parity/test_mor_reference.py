"""Routed models against a plain loop over rows, tokens and keys: states, routing decisions and losses."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

from tests.marks_support import mark_mostly_slow
from tests.parity.routed_variants import PlainModel, PlainRow, compute_plain_balance
from tests.unit.models.routed.routed_support import IDS, PIECES, RIGHT, ROUTERS, build_routed, check_close

ROWS, MASK = IDS[:2], RIGHT[:2]
LABELS = ROWS.masked_fill(MASK == 0, -100)
LABELS[:, 1] = LABELS[1, 2] = -100  # two labels for three tokens in both rows, for equal shares of the losses
SETTINGS: dict[str, dict[str, Any]] = {
    **ROUTERS,
    "expert update": ROUTERS["expert selected"] | {"gating": "update", "num_key_value_heads": 1},
    "expert none": ROUTERS["expert all"] | {"gating": "none", "capacities": [0.8, 0.5, 0.2]},
    "expert first, fewer": ROUTERS["expert first"] | {"capacities": [0.8, 0.5, 0.2]},
    "token update": ROUTERS["token first"] | {"gating": "update", "num_key_value_heads": 1},
    "layers none": ROUTERS["layers all"]
    | {"gating": "none", "routed_layers": [1, 2, 4], "capacities": [1.0, 0.5, 0.3]},
}

QUICK = {(name, number % 2 == 0) for number, name in enumerate(SETTINGS)}  # each in training or in evaluation


def build_plain_model(model: Any) -> PlainModel:
    """Build the plain model with the same weights."""
    config, weights = model.config, {name: value.detach() for name, value in model.state_dict().items()}
    parts, order, single = [], [], config.recursions is None
    modules = range(config.num_hidden_layers)
    core = modules[config.prelude : len(modules) - config.coda]
    if single:
        every = 1 if config.router == "threshold" else 2
        routed = config.routed_layers or list(range(2, len(modules) + 1, every))
        order = list(modules)
        parts = [(n, n + 1, routed.index(n + 1) if n + 1 in routed else None) for n in modules]
    else:
        looped = {
            "cycle": list(core) * config.recursions,
            "sequence": [module for module in core for _ in range(config.recursions)],
            "none": list(core),
        }[config.sharing]
        order = [*modules[: config.prelude], *looped, *modules[len(modules) - config.coda :]]
        parts = [(n, n + 1, None) for n in range(config.prelude)]
        size = len(looped) // config.recursions
        starts = [config.prelude + r * size for r in range(config.recursions)]
        parts += [(start, start + size, r) for r, start in enumerate(starts)]
        parts += [(n, n + 1, None) for n in range(len(order) - config.coda, len(order))]
    routers = sum(router is not None for _, _, router in parts)
    capacities = config.capacities or [(routers - r) / routers for r in range(routers)]
    return PlainModel(
        weights, heads=config.num_attention_heads, epsilon=config.base_config.rms_norm_eps, order=order, parts=parts,
        router=config.router, capacities=capacities * routers if len(capacities) == 1 else capacities,
        leaves=not single, gate=config.gating, gate_scale=config.gate_scale, sources=config.keys_and_values,
        bias=config.choice_bias, adapters=config.adapter_size is not None,
    )  # fmt: skip


def run_rows(model: Any, training: bool) -> list[PlainRow]:
    """Run every row; `choice_bias` changes routing decisions in evaluation alone."""
    plain = build_plain_model(model)
    plain.bias = 0.0 if training else model.config.choice_bias
    return [plain.run(ids[mask.bool()].tolist(), largest=training) for ids, mask in zip(ROWS, MASK, strict=True)]


def average_rows(values: list[Any], rows: list[PlainRow]) -> torch.Tensor:
    """Average a mean over the tokens of each row over all tokens."""
    weights = [len(row.states) for row in rows]
    return torch.as_tensor(sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights))


def compute_expected_losses(model: Any, rows: list[PlainRow]) -> dict[str, Any]:
    """Compute the routers' losses, without their weights."""
    config, tokens = model.config, sum(len(row.states) for row in rows)
    if config.router == "token":
        z = sum(sum(row.z_losses) for row in rows) / tokens
        return {"z": z, **({"routing": compute_plain_balance(rows)} if config.balance == "loss" else {})}
    losses: dict[str, Any] = {"z": average_rows([sum(row.z_losses) for row in rows], rows)}
    if config.router == "expert":
        return losses | {"routing": average_rows([sum(row.choice_losses) for row in rows], rows)}
    parts = [[sum(row.gates[part]) for row in rows] for part in range(len(rows[0].gates))]
    if config.adapter_size is None:
        return losses | {"routing": sum(max(sum(part) / tokens - config.capacities[0], 0) for part in parts)}
    depths = [sum(gates) for row in rows for gates in zip(*row.gates, strict=True)]
    return losses | {"routing": sum(depth**2 for depth in depths) / tokens}


@pytest.mark.parametrize(("name", "training"), mark_mostly_slow(product(SETTINGS, (True, False)), QUICK.__contains__))
def test_a_routed_model_equals_the_plain_loop(name: str, training: bool) -> None:
    model = build_routed(**SETTINGS[name], z_weight=1.0, routing_weight=1.0).train(training)
    with torch.no_grad():
        rows = run_rows(model, training)
        ids, mask, labels = ROWS * MASK, MASK, LABELS
        states, _, _ = model.run({"input_ids": ids, "attention_mask": mask}, mask, has_losses=False, routing=None)
        output = model(ids, attention_mask=mask, labels=labels)
    for number, row in enumerate(rows):
        check_close(states[number, : len(row.states)], torch.stack(row.states))
        for part, tokens in enumerate(row.selected):
            assert output.trace.iterations_run[number, :, part].nonzero().flatten().tolist() == tokens
    plain, expected = build_plain_model(model), compute_expected_losses(model, rows)
    logits = torch.stack([plain.read(state) for row in rows for state in row.states[:-1]])
    targets = torch.cat([row[is_real][1:] for row, is_real in zip(LABELS, MASK.bool(), strict=True)])
    expected["task"] = torch.nn.functional.cross_entropy(logits.view(-1, PIECES), targets)
    assert set(output.loss_parts) == set(expected)
    for part, value in expected.items():
        check_close(output.loss_parts[part], torch.as_tensor(value))
    count = sum(len(tokens) for row in rows for tokens in row.selected)
    assert 0 < count < sum(len(row.states) * len(row.selected) for row in rows), "the routers must choose some tokens"
