"""Calls of a looped model token by token, in float64: what is read of each token stands in dictionaries by its name.

A call's tokens take their loops together, one after the other in each; a token that has exited takes none, except under
the policy `all`. It reads weights by our names and shares no line with the package.

Shape legend: D width, V pieces, d width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from tests.halting_units_support import compute_halting_logit
from tests.unit.models.looped.plain_looped import rms, swiglu

Exits = Callable[[int, Tensor, list[float]], bool]  # loop, logits (V,), halting logits so far
Pair = tuple[Tensor, Tensor]  # keys and values of one token in one layer, (shared heads, d) each


POLICIES = ("frozen", "last", "mean", "first", "ring:2")
EVERY_POLICY = ("all", *POLICIES)
CALLS = ((0, 6), (6, 7), (7, 9))  # a prompt, a token, two at once


class PlainCache:
    """One text. What a token said in a layer after each of its loops is written down; a policy says what is read."""

    def __init__(self, config: Any, weights: Mapping[str, Tensor], policy: str, drawn: Tensor | None = None) -> None:
        self.config, self.policy, self.drawn = config, policy, drawn
        self.w = {name: weight.double() for name, weight in weights.items()}
        self.said: dict[tuple[str, int], dict[int, Pair]] = {}  # layer, position -> loop -> pair
        self.behind: dict[tuple[str, int], Pair] = {}  # of a frozen state
        self.exits: dict[int, int] = {}  # position -> loop; those that still run are missing
        self.length = 0

    def call(self, ids: list[int], exits: Exits) -> tuple[list[Tensor], list[int]]:
        """Logits (V,) of each new token at its exit, and that loop."""
        config, w = self.config, self.w
        positions = range(self.length, self.length + len(ids))
        e: dict[int, Tensor] = {}
        for position, piece in zip(positions, ids, strict=True):
            x = w["model.embed_tokens.weight"][piece]
            e[position] = x * (config.embedding_scale or (math.sqrt(len(x)) if config.scale_embeddings else 1.0))
        for index in range(config.prelude):
            e = self._layer(e, f"model.prelude.{index}.", 0)
        s = {p: self._start(e[p], p) for p in positions}
        low = {p: w["model.low_start"] if config.low_layers else torch.zeros_like(e[p]) for p in positions}
        cycles = range(config.low_cycles if config.low_layers else 0)
        previous: dict[int, Tensor] = {}
        logits: dict[int, Tensor] = {}
        halting: dict[int, list[float]] = {p: [] for p in positions}
        trails: dict[int, list[Tensor]] = {p: [] for p in positions}
        for loop in range(1, config.num_loops + 1):
            running = [p for p in positions if self.policy == "all" or p not in self.exits]
            if not running:
                break
            for cycle in cycles:
                z = {p: self._inject(s[p] + low[p], e[p]) for p in running}
                for index in range(config.low_layers):
                    z = self._layer(z, f"model.low.{index}.", loop, cycle=str(cycle))
                low |= {p: self._norm(z[p], "model.low_norm.weight") for p in running}
            z = {p: self._inject(s[p] + low[p], e[p]) for p in running}
            for index in range(config.core):
                z = self._layer(z, f"model.core.{index}.", loop, previous if config.queries == "previous" else {})
            read: dict[int, Tensor] = {}
            for p in running:
                s[p] = s[p] + (1.0 / config.num_loops if config.damping is None else config.damping) * (z[p] - s[p])
                previous[p] = self._norm(s[p], "model.norm.weight")
                s[p] = previous[p] if config.state_norm == "fed" else s[p]
                read[p] = s[p] if config.state_norm == "none" else previous[p]
            for index in range(config.coda):
                read = self._layer(read, f"model.coda.{index}.", loop)
            for p in running:
                if p in self.exits:
                    continue
                u = self._norm(read[p], "model.norm.weight") if config.coda else previous[p]
                logits[p] = w["lm_head.weight"] @ u
                trails[p].append(previous[p])
                if config.gate:
                    halting[p].append(float(compute_halting_logit(w, "model.gate.", trails[p])))
                if loop == config.num_loops or exits(loop, logits[p], halting[p]):
                    self.exits[p] = loop
                    names = [(f"model.core.{index}.", "") for index in range(config.core)]
                    names += [
                        (f"model.low.{index}.", str(cycle)) for index in range(config.low_layers) for cycle in cycles
                    ]
                    for name, cycle in names:
                        self.behind[name + cycle, p] = self._pair(self._inject(s[p] + low[p], e[p]), name, p)
        self.length += len(ids)
        return [logits[p] for p in positions], [self.exits[p] for p in positions]

    def _reads(self, name: str, position: int, loop: int, own_call: bool) -> Pair:
        """What a token at this loop reads of the one at that position."""
        said = self.said[name, position]
        if name.startswith("model.prelude."):
            return said[0]
        if self.policy == "all" or (own_call and position not in self.exits):
            return said[loop]
        last = self.exits[position]
        if name.startswith("model.coda."):
            return said[loop] if self.policy == "frozen" and loop in said else said[last]
        match self.policy.partition(":")[0]:
            case "frozen":
                return said[loop] if loop <= last else self.behind[name, position]
            case "last":
                return said[last]
            case "first":
                return said[1]
            case "mean":
                pairs = [said[m] for m in range(1, last + 1)]
                return sum(k for k, _ in pairs) / last, sum(v for _, v in pairs) / last  # type: ignore[return-value]
            case "ring":
                ring = int(self.policy.partition(":")[2])
                same = [m for m in range(1, last + 1) if (m - loop) % ring == 0]
                return said[max(same, default=last)]
        raise AssertionError(self.policy)

    def _layer(
        self, xs: dict[int, Tensor], name: str, loop: int, asked: Mapping[int, Tensor] | None = None, cycle: str = ""
    ) -> dict[int, Tensor]:
        """Of the tokens at these positions, all of which say their keys before any of them reads."""
        for p, x in xs.items():
            self.said.setdefault((name + cycle, p), {})[loop] = self._pair(x, name, p)
        found = {}
        for p, x in xs.items():
            asks = (asked or {}).get(p, x)
            query = self._heads(self._norm(asks, name + "attention_norm.weight"), name, "q", p)
            first = max(0, p + 1 - (self.config.sliding_window or p + 1))
            pairs = [self._reads(name + cycle, q, loop, q >= self.length) for q in range(first, p + 1)]
            outputs = []
            for head in range(len(query)):
                of = head // (len(query) // len(pairs[0][0]))
                keys, values = (torch.stack([pair[each][of] for pair in pairs]) for each in (0, 1))
                outputs.append((keys @ query[head] / math.sqrt(query.shape[1])).softmax(0) @ values)
            heads = torch.cat(outputs)
            if (gate := self.w.get(f"{name}self_attn.gate_proj.weight")) is not None:
                heads = heads * torch.sigmoid(gate @ self._norm(x, name + "attention_norm.weight"))
            a = self.w[f"{name}self_attn.o_proj.weight"] @ heads
            y = self._add(x, a, name + "attention_post_norm.weight")
            parts = (self.w[f"{name}mlp.{part}_proj.weight"] for part in ("gate", "up", "down"))
            m = swiglu(self._norm(y, name + "mlp_norm.weight").unsqueeze(0), *parts)[0]
            found[p] = self._add(y, m, name + "mlp_post_norm.weight")
        return found

    def _pair(self, x: Tensor, name: str, position: int) -> Pair:
        u = self._norm(x, name + "attention_norm.weight")
        return self._heads(u, name, "k", position), self._heads(u, name, "v", position)

    def _heads(self, u: Tensor, name: str, letter: str, position: int) -> Tensor:
        config = self.config
        width = config.head_dim or config.hidden_size // config.num_attention_heads
        said = self.w[f"{name}self_attn.{letter}_proj.weight"] @ u
        if (bias := self.w.get(f"{name}self_attn.{letter}_proj.bias")) is not None:
            said = said + bias
        each = said.view(-1, width)
        if letter == "v":
            return each
        angles = position * config.rope_theta ** (-2 * torch.arange(width // 2, dtype=torch.float64) / width)
        first, second = (each[:, 0::2], each[:, 1::2]) if config.rope_pairs else each.chunk(2, dim=1)
        turned = torch.complex(first.contiguous(), second.contiguous()) * torch.polar(torch.ones_like(angles), angles)
        both = turned.real, turned.imag
        return torch.stack(both, dim=-1).flatten(1) if config.rope_pairs else torch.cat(both, dim=1)

    def _norm(self, u: Tensor, name: str) -> Tensor:
        return rms(u, self.w.get(name, torch.ones_like(u)), self.config.rms_norm_eps)

    def _add(self, u: Tensor, branch: Tensor, name: str) -> Tensor:
        if self.config.norms == "pre":
            return u + branch
        return self._norm(u + branch, name) if self.config.norms == "sandwich" else u + self._norm(branch, name)

    def _inject(self, s: Tensor, e: Tensor) -> Tensor:
        match self.config.injection:
            case "add":
                return s + e
            case "linear":
                return self.w["model.adapter.weight"] @ torch.cat([s, e])
            case "restart":
                return e
        return s

    def _start(self, e: Tensor, position: int) -> Tensor:
        if self.drawn is not None:
            return self.drawn[position].double()
        return torch.zeros_like(e) if self.config.start == "zeros" else e


def exits_by(rule: str) -> Exits:
    """Rules as they are defined: a loop, the gap of the two likeliest, a sum of the halting distribution above q."""
    name, _, number = rule.partition(":")
    value = float(number)

    def decide(loop: int, logits: Tensor, halting: list[float]) -> bool:
        if name == "fixed":
            return loop >= value
        if name == "margin":
            likeliest = logits.softmax(0).topk(2).values
            return bool(likeliest[0] - likeliest[1] >= value)
        left = 1.0
        for z in halting:
            left *= 1 - 1 / (1 + math.exp(-z))
        return value < 1 and 1 - left > value

    return decide


def plain_generation(
    config: Any, weights: Mapping[str, Tensor], prompt: list[int], new: int, rule: str, policy: str,
    drawn: Tensor | None = None,
) -> tuple[list[int], list[int]]:  # fmt: skip
    """The likeliest tokens behind a prompt, and after which loop each was read."""
    text = PlainCache(config, weights, policy, drawn)
    asked, found, steps = prompt, list[int](), list[int]()
    for _ in range(new):
        logits, exits = text.call(asked, exits_by(rule))
        found.append(int(logits[-1].argmax()))
        steps.append(exits[-1])
        asked = found[-1:]
    return found, steps


def by_calls(model: Any, ids: Tensor, policy: str, **options: Any) -> tuple[Tensor, Tensor]:
    cache, logits, exits = None, [], []
    with torch.no_grad():
        for first, last in CALLS:
            output = model(ids[:, first:last], past_key_values=cache, use_cache=True, cache_policy=policy, **options)
            cache = output.past_key_values
            logits.append(output.logits)
            exits.append(output.exit_steps)
    return torch.cat(logits, dim=1), torch.cat(exits, dim=1)


def plain_by_calls(config: Any, weights: Any, row: Tensor, policy: str, rule: str, states: Tensor | None) -> Any:
    text, logits, exits = PlainCache(config, weights, policy, states), [], []
    for first, last in CALLS:
        said, steps = text.call(row[first:last].tolist(), exits_by(rule))
        logits += said
        exits += steps
    return torch.stack(logits), exits
