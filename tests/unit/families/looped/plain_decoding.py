"""Decoding one text token by token, in float64: every token by itself, what it reads of earlier ones looked up.

It reads weights by our names and shares no line with the package. Shape legend: D width, V pieces.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from tests.unit.families.looped.plain_looped import rms, swiglu

Weights = Mapping[str, Tensor]
Exits = Callable[[int, Tensor, float], bool]  # loop, logits (V,), halting logit


def plain_decoding(
    config: Any, weights: Weights, prompt: list[int], new: int, exits: Exits, policy: str, drawn: Tensor | None = None
) -> tuple[list[int], list[int]]:
    """The likeliest tokens behind a prompt, and after which loop each of them was read.

    Args:
        config: Of the model.
        weights: Of the model.
        prompt: Token ids.
        new: How many tokens follow.
        exits: Whether a token is read after this loop.
        policy: What is read of earlier tokens at loops behind their exit, `all` or `frozen`.
        drawn: States before the first loop by position, (positions, D), where they are drawn.
    """
    w = {name: weight.double() for name, weight in weights.items()}
    pairs, width = config.rope_pairs, config.head_dim or config.hidden_size // config.num_attention_heads
    shared = config.num_key_value_heads or config.num_attention_heads
    loops, kept = config.num_loops, dict[tuple[Any, ...], tuple[Tensor, Tensor]]()

    def norm(u: Tensor, name: str) -> Tensor:
        return rms(u, w[name], config.rms_norm_eps)

    def turn(each: Tensor, position: int) -> Tensor:
        """Pairs of features as complex numbers, times exp(i p theta^(-2j/d))."""
        angles = position * config.rope_theta ** (-2 * torch.arange(width // 2, dtype=torch.float64) / width)
        parts = (each[:, 0::2], each[:, 1::2]) if pairs else each.chunk(2, dim=1)
        numbers = torch.complex(*(part.contiguous() for part in parts)) * torch.polar(torch.ones_like(angles), angles)
        both = numbers.real, numbers.imag
        return torch.stack(both, dim=-1).flatten(1) if pairs else torch.cat(both, dim=1)

    def heads(u: Tensor, p: str, letter: str, position: int) -> Tensor:
        said = w[f"{p}self_attn.{letter}_proj.weight"] @ u + w.get(f"{p}self_attn.{letter}_proj.bias", torch.tensor(0))
        each = said.view(-1, width)
        return each if letter == "v" else turn(each, position)

    def keys_values(x: Tensor, p: str, position: int) -> tuple[Tensor, Tensor]:
        u = norm(x, p + "attention_norm.weight")
        return heads(u, p, "k", position), heads(u, p, "v", position)

    def layer(x: Tensor, p: str, place: int, position: int) -> Tensor:
        kept[p, place, position] = keys_values(x, p, position)
        query = heads(norm(x, p + "attention_norm.weight"), p, "q", position)
        outputs = []
        for head in range(len(query)):
            of = head // (len(query) // shared)
            keys = torch.stack([kept[p, place, earlier][0][of] for earlier in range(position + 1)])
            values = torch.stack([kept[p, place, earlier][1][of] for earlier in range(position + 1)])
            outputs.append((keys @ query[head] / math.sqrt(width)).softmax(0) @ values)
        a = w[f"{p}self_attn.o_proj.weight"] @ torch.cat(outputs)

        def add(u: Tensor, branch: Tensor, name: str) -> Tensor:
            if config.norms == "pre":
                return u + branch
            return norm(u + branch, p + name) if config.norms == "sandwich" else u + norm(branch, p + name)

        x = add(x, a, "attention_post_norm.weight")
        u = norm(x, p + "mlp_norm.weight").unsqueeze(0)
        m = swiglu(u, *(w[f"{p}mlp.{part}_proj.weight"] for part in ("gate", "up", "down")))[0]
        return add(x, m, "mlp_post_norm.weight")

    def inject(s: Tensor, e: Tensor) -> Tensor:
        if config.injection == "linear":
            return w["model.adapter.weight"] @ torch.cat([s, e])
        return s + e if config.injection == "add" else s

    def token(number: int, position: int) -> tuple[Tensor, int]:
        e = w["model.embed_tokens.weight"][number]
        e = e * (math.sqrt(config.hidden_size) if config.scale_embeddings else 1.0)
        for index in range(config.prelude):
            e = layer(e, f"model.prelude.{index}.", 0, position)
        s = {"input": e, "zeros": torch.zeros_like(e)}[config.start] if drawn is None else drawn[position].double()
        exited, said = 0, torch.zeros(0)
        for loop in range(1, loops + 1):
            z = inject(s, e)
            for index in range(config.core):
                p = f"model.core.{index}."
                if exited and policy == "frozen":
                    kept[p, loop, position] = keys_values(z, p, position)
                else:
                    z = layer(z, p, loop, position)
            if exited and policy == "frozen":
                for index in range(config.coda):
                    p = f"model.coda.{index}."
                    kept[p, loop, position] = kept[p, exited, position]
                continue
            s = s + (1.0 / loops if config.damping is None else config.damping) * (z - s)
            normed = norm(s, "model.norm.weight")
            s = normed if config.state_norm == "fed" else s
            x = s if config.state_norm == "none" else normed
            for index in range(config.coda):
                x = layer(x, f"model.coda.{index}.", loop, position)
            x = norm(x, "model.norm.weight") if config.coda else normed
            logits = w["lm_head.weight"] @ x
            gate = (normed @ w["model.gate.weight"][0] + w["model.gate.bias"][0]) if config.gate else torch.tensor(0.0)
            if not exited and (loop == loops or exits(loop, logits, float(gate))):
                exited, said = loop, logits
        return said, exited

    found, steps = list(prompt), []
    for position in range(len(prompt) + new - 1):
        logits, exited = token(found[position], position)
        if position >= len(prompt) - 1:
            found.append(int(logits.argmax()))
            steps.append(exited)
    return found[len(prompt) :], steps
