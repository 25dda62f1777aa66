"""Calls of a looped model token by token, in float64, with keys and values in dictionaries by layer and position.

All tokens of a call run a loop together; a token that has exited runs no further loop, except under the policy `all`.
It uses our names of weights and shares no code with the package.

Shape legend: D width, V pieces, d width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from tests.halting_units_support import compute_halting_logit
from tests.unit.models.looped.plain_looped import apply_rms_norm, apply_swiglu

Exits = Callable[[int, Tensor, list[float]], bool]  # loop, logits (V,), halting logits so far
Pair = tuple[Tensor, Tensor]  # keys and values of one token in one layer, (shared heads, d) each


POLICIES = ("frozen", "last", "mean", "first", "ring:2")
EVERY_POLICY = ("all", *POLICIES)
CALLS = ((0, 6), (6, 7), (7, 9))  # a prompt, a token, two at once


class PlainCache:
    """Decoder of one text that stores keys and values of every layer and loop; a policy selects which are read."""

    def __init__(self, config: Any, weights: Mapping[str, Tensor], policy: str, states: Tensor | None = None) -> None:
        self.config, self.policy, self.states = config, policy, states
        self.w = {name: weight.double() for name, weight in weights.items()}
        self.pairs: dict[tuple[str, int], dict[int, Pair]] = {}  # layer, position -> loop -> pair
        self.exited: dict[tuple[str, int], Pair] = {}  # of a state frozen at its exit
        self.exits: dict[int, int] = {}  # position -> loop, without running tokens
        self.length = 0

    def call(self, ids: list[int], exits: Exits) -> tuple[list[Tensor], list[int]]:
        """Return the logits (V,) of each new token at its exit, and the exit loop."""
        config, w = self.config, self.w
        positions = range(self.length, self.length + len(ids))
        e: dict[int, Tensor] = {}
        for position, piece in zip(positions, ids, strict=True):
            x = w["model.embed_tokens.weight"][piece]
            e[position] = x * (config.embedding_scale or (math.sqrt(len(x)) if config.scale_embeddings else 1.0))
        for index in range(config.prelude):
            e = self._run_layer(e, f"model.prelude.{index}.", 0)
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
                z = {p: self._add_input(s[p] + low[p], e[p]) for p in running}
                for index in range(config.low_layers):
                    z = self._run_layer(z, f"model.low.{index}.", loop, cycle=str(cycle))
                low |= {p: self._norm(z[p], "model.low_norm.weight") for p in running}
            z = {p: self._add_input(s[p] + low[p], e[p]) for p in running}
            for index in range(config.core):
                z = self._run_layer(z, f"model.core.{index}.", loop, previous if config.queries == "previous" else {})
            read: dict[int, Tensor] = {}
            for p in running:
                s[p] = s[p] + (1.0 / config.num_loops if config.damping is None else config.damping) * (z[p] - s[p])
                previous[p] = self._norm(s[p], "model.norm.weight")
                s[p] = previous[p] if config.state_norm == "fed" else s[p]
                read[p] = s[p] if config.state_norm == "none" else previous[p]
            for index in range(config.coda):
                read = self._run_layer(read, f"model.coda.{index}.", loop)
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
                        self.exited[name + cycle, p] = self._compute_pair(self._add_input(s[p] + low[p], e[p]), name, p)
        self.length += len(ids)
        return [logits[p] for p in positions], [self.exits[p] for p in positions]

    def _select_pair(self, name: str, position: int, loop: int, own_call: bool) -> Pair:
        """Return the pair of a position that a token in this loop reads."""
        pairs_by_loop = self.pairs[name, position]
        if name.startswith("model.prelude."):
            return pairs_by_loop[0]
        if self.policy == "all" or (own_call and position not in self.exits):
            return pairs_by_loop[loop]
        last = self.exits[position]
        if name.startswith("model.coda."):
            return pairs_by_loop[loop] if self.policy == "frozen" and loop in pairs_by_loop else pairs_by_loop[last]
        match self.policy.partition(":")[0]:
            case "frozen":
                return pairs_by_loop[loop] if loop <= last else self.exited[name, position]
            case "last":
                return pairs_by_loop[last]
            case "first":
                return pairs_by_loop[1]
            case "mean":
                pairs = [pairs_by_loop[m] for m in range(1, last + 1)]
                return sum(k for k, _ in pairs) / last, sum(v for _, v in pairs) / last  # type: ignore[return-value]
            case "ring":
                ring = int(self.policy.partition(":")[2])
                same = [m for m in range(1, last + 1) if (m - loop) % ring == 0]
                return pairs_by_loop[max(same, default=last)]
        raise AssertionError(self.policy)

    def _run_layer(
        self,
        xs: dict[int, Tensor],
        name: str,
        loop: int,
        query_states: Mapping[int, Tensor] | None = None,
        cycle: str = "",
    ) -> dict[int, Tensor]:
        """Run a layer on the tokens at these positions, whose keys are all stored before any is read."""
        for p, x in xs.items():
            self.pairs.setdefault((name + cycle, p), {})[loop] = self._compute_pair(x, name, p)
        states = {}
        for p, x in xs.items():
            asks = (query_states or {}).get(p, x)
            query = self._project_heads(self._norm(asks, name + "attention_norm.weight"), name, "q", p)
            first = max(0, p + 1 - (self.config.sliding_window or p + 1))
            pairs = [self._select_pair(name + cycle, q, loop, q >= self.length) for q in range(first, p + 1)]
            outputs = []
            for head in range(len(query)):
                of = head // (len(query) // len(pairs[0][0]))
                keys, values = (torch.stack([pair[side][of] for pair in pairs]) for side in (0, 1))
                outputs.append((keys @ query[head] / math.sqrt(query.shape[1])).softmax(0) @ values)
            heads = torch.cat(outputs)
            if (gate := self.w.get(f"{name}self_attn.gate_proj.weight")) is not None:
                heads = heads * torch.sigmoid(gate @ self._norm(x, name + "attention_norm.weight"))
            a = self.w[f"{name}self_attn.o_proj.weight"] @ heads
            y = self._add(x, a, name + "attention_post_norm.weight")
            parts = (self.w[f"{name}mlp.{part}_proj.weight"] for part in ("gate", "up", "down"))
            m = apply_swiglu(self._norm(y, name + "mlp_norm.weight").unsqueeze(0), *parts)[0]
            states[p] = self._add(y, m, name + "mlp_post_norm.weight")
        return states

    def _compute_pair(self, x: Tensor, name: str, position: int) -> Pair:
        u = self._norm(x, name + "attention_norm.weight")
        return self._project_heads(u, name, "k", position), self._project_heads(u, name, "v", position)

    def _project_heads(self, u: Tensor, name: str, letter: str, position: int) -> Tensor:
        config = self.config
        width = config.head_dim or config.hidden_size // config.num_attention_heads
        projected = self.w[f"{name}self_attn.{letter}_proj.weight"] @ u
        if (bias := self.w.get(f"{name}self_attn.{letter}_proj.bias")) is not None:
            projected = projected + bias
        heads = projected.view(-1, width)
        if letter == "v":
            return heads
        angles = position * config.rope_theta ** (-2 * torch.arange(width // 2, dtype=torch.float64) / width)
        first, second = (heads[:, 0::2], heads[:, 1::2]) if config.rope_pairs else heads.chunk(2, dim=1)
        turned = torch.complex(first.contiguous(), second.contiguous()) * torch.polar(torch.ones_like(angles), angles)
        both = turned.real, turned.imag
        return torch.stack(both, dim=-1).flatten(1) if config.rope_pairs else torch.cat(both, dim=1)

    def _norm(self, u: Tensor, name: str) -> Tensor:
        return apply_rms_norm(u, self.w.get(name, torch.ones_like(u)), self.config.rms_norm_eps)

    def _add(self, u: Tensor, branch: Tensor, name: str) -> Tensor:
        if self.config.norms == "pre":
            return u + branch
        return self._norm(u + branch, name) if self.config.norms == "sandwich" else u + self._norm(branch, name)

    def _add_input(self, s: Tensor, e: Tensor) -> Tensor:
        match self.config.injection:
            case "add":
                return s + e
            case "linear":
                return self.w["model.adapter.weight"] @ torch.cat([s, e])
            case "restart":
                return e
        return s

    def _start(self, e: Tensor, position: int) -> Tensor:
        if self.states is not None:
            return self.states[position].double()
        return torch.zeros_like(e) if self.config.start == "zeros" else e


def parse_plain_rule(rule: str) -> Exits:
    """Return the definition of a rule: a loop, the gap of the two largest probabilities, or a halting mass above q."""
    name, _, number = rule.partition(":")
    value = float(number)

    def decide(loop: int, logits: Tensor, halting: list[float]) -> bool:
        if name == "fixed":
            return loop >= value
        if name == "margin":
            likeliest = logits.softmax(0).topk(2).values
            return bool(likeliest[0] - likeliest[1] >= value)
        remaining = 1.0
        for z in halting:
            remaining *= 1 - 1 / (1 + math.exp(-z))
        return value < 1 and 1 - remaining > value

    return decide


def generate_plainly(
    config: Any, weights: Mapping[str, Tensor], prompt: list[int], new: int, rule: str, policy: str,
    states: Tensor | None = None,
) -> tuple[list[int], list[int]]:  # fmt: skip
    """Return the most probable tokens after a prompt and the exit loop of each."""
    text = PlainCache(config, weights, policy, states)
    ids, tokens, steps = prompt, list[int](), list[int]()
    for _ in range(new):
        logits, exits = text.call(ids, parse_plain_rule(rule))
        tokens.append(int(logits[-1].argmax()))
        steps.append(exits[-1])
        ids = tokens[-1:]
    return tokens, steps


def decode_in_calls(model: Any, ids: Tensor, policy: str, **options: Any) -> tuple[Tensor, Tensor]:
    cache, logits, exits = None, [], []
    with torch.no_grad():
        for first, last in CALLS:
            output = model(ids[:, first:last], past_key_values=cache, use_cache=True, cache_policy=policy, **options)
            cache = output.past_key_values
            logits.append(output.logits)
            exits.append(output.exit_steps)
    return torch.cat(logits, dim=1), torch.cat(exits, dim=1)


def decode_plainly_in_calls(
    config: Any, weights: Any, row: Tensor, policy: str, rule: str, states: Tensor | None
) -> Any:
    text, logits, exits = PlainCache(config, weights, policy, states), [], []
    for first, last in CALLS:
        new_logits, steps = text.call(row[first:last].tolist(), parse_plain_rule(rule))
        logits += new_logits
        exits += steps
    return torch.stack(logits), exits
