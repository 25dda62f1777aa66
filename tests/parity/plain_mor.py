"""Routed Llamas written as plainly as possible: one row, one token and one key at a time, nothing packed or masked.

The independent truth for routed models, in float64. A token's state is an entry of a list, and what a token does not
attend to is left out of a dictionary of keys and values, not masked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F


@dataclass
class PlainRow:
    """What a row computes: last states, the tokens that ran each routed part, and the routers' losses."""

    states: list = field(default_factory=list)
    chosen: list = field(default_factory=list)
    choice_losses: list = field(default_factory=list)  # mean over the candidates, one a part
    z_losses: list = field(default_factory=list)
    probabilities: list = field(default_factory=list)  # of the depths, one a token
    depths: list = field(default_factory=list)
    gates: list = field(default_factory=list)  # of threshold routers, one list a part


def plain_norm(weight, state, epsilon):
    return weight * state / torch.sqrt((state * state).mean() + epsilon)


def plain_rotate(vector, position, base=10000.0):
    """Rotate the pairs (i, i + d/2) of a head by position / base^(2i/d)."""
    half = len(vector) // 2
    angles = [position * base ** (-2 * i / len(vector)) for i in range(half)]
    cosines = vector.new_tensor([math.cos(angle) for angle in angles])
    sines = vector.new_tensor([math.sin(angle) for angle in angles])
    first, second = vector[:half], vector[half:]
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines])


class PlainModel:
    """A routed Llama.

    Args:
        weights: Weights by name, float64.
        settings: `heads`, `epsilon`, `order` (the module of every layer that a token passes), `parts` (first and last
            layer of every part, and its router or None), `router`, `capacities`, `leaves`, `gate`, `gate_scale`,
            `sources`, `bias` and `adapters`.
    """

    def __init__(self, weights, **settings):
        self.weights, self.__dict__ = weights, {**settings, "weights": weights}

    def run(self, ids, *, largest):
        """Run one row; `largest`: expert choice by the largest scores instead of by z > 0."""
        row = PlainRow(states=[self.weights["model.embed_tokens.weight"][i] for i in ids])
        memories = {}  # of every layer that a token passes: token -> (keys, values)
        candidates = list(range(len(ids)))
        first = None
        for start, stop, router in self.parts:
            if router is None:
                row.states = self.run_part(start, stop, row.states, candidates=range(len(ids)), memories=memories)
            elif self.router == "token":
                if first is None:
                    first = list(row.states)
                    self.choose_depths(row)
                chosen = [t for t in range(len(ids)) if row.depths[t] >= router]
                computed = self.run_part(start, stop, row.states, chosen, memories)
                for t in chosen:
                    leaves = row.depths[t] == router
                    weight = row.probabilities[t][router]
                    row.states[t] = self.combine(first[t], computed[t], weight) if leaves else computed[t]
                row.chosen.append(chosen)
            else:
                chosen = self.run_routed(row, start, stop, router, candidates, memories, largest)
                if self.leaves:
                    candidates = chosen
        return row

    def run_routed(self, row, start, stop, router, candidates, memories, largest):
        """Let a router choose among the candidates, run them, and return them."""
        scores = {t: self.score(router, row.states[t]) for t in candidates}
        row.z_losses.append(sum(z**2 for z in scores.values()) / max(len(candidates), 1))
        if self.router == "threshold":
            chosen = [t for t in candidates if scores[t] + self.bias > 0]
            gates = [torch.sigmoid(scores[t]) if self.adapters else float(t in chosen) for t in candidates]
            row.gates.append(gates)
        else:
            number = min(max(1, math.floor(self.capacities[router] * len(row.states) + 1e-9)), len(row.states))
            best = sorted(candidates, key=lambda t: (-float(scores[t]), t))[:number]
            # A predictor learns and decides in place of the router, whose scores still gate.
            predicts = "predictors.0.output.weight" in self.weights
            causal = {t: self.score(router, row.states[t], "predictors") for t in candidates} if predicts else scores
            losses = [F.softplus(-causal[t] if t in best else causal[t]) for t in candidates]
            row.choice_losses.append(sum(losses) / max(len(candidates), 1))
            everyone = self.capacities[router] == 1 and (router == 0 or not self.leaves)
            decided = [t for t in candidates if everyone or causal[t] + self.bias > 0]
            chosen = sorted(best) if largest else decided
            gates = [self.gate_scale * torch.sigmoid(scores[t]) for t in candidates]
        computed = self.run_part(start, stop, row.states, chosen, memories)
        for t, gate in zip(candidates, gates, strict=True):
            if t in chosen and self.router == "threshold":
                row.states[t] = row.states[t] + gate * (computed[t] - row.states[t])
            elif t in chosen:
                row.states[t] = self.combine(row.states[t], computed[t], gate)
            elif self.router == "threshold" and self.adapters:
                row.states[t] = row.states[t] + (1 - gate) * self.adapt(router, row.states[t])
        row.chosen.append(chosen)
        return chosen

    def choose_depths(self, row):
        for state in row.states:
            scores = self.weights["routers.0.output.weight"] @ state
            scores = scores + self.bias * torch.arange(len(scores))
            row.probabilities.append(torch.softmax(scores, 0))
            best = row.probabilities[-1] + self.weights["depth_bias"]
            row.depths.append(max(range(len(best)), key=lambda r: (float(best[r]), -r)))
            row.z_losses.append(torch.logsumexp(scores, 0) ** 2)

    def score(self, router, state, room="routers"):
        if self.router == "threshold":
            state = state / torch.sqrt((state * state).mean() + 1e-6)
        bias = self.weights.get(f"{room}.{router}.output.bias", 0.0)
        return (self.weights[f"{room}.{router}.output.weight"] @ state + bias).squeeze()

    def adapt(self, number, state):
        name = f"adapters.{number}"
        normed = plain_norm(self.weights[f"{name}.norm.weight"], state, 1e-6)
        return self.weights[f"{name}.down_proj.weight"] @ F.silu(self.weights[f"{name}.up_proj.weight"] @ normed)

    def combine(self, state, computed, gate):
        if self.gate == "none":
            return computed
        return state + gate * (computed if self.gate == "output" else computed - state)

    def run_part(self, start, stop, states, candidates, memories):
        """Return the states after the layers of a part for some tokens; others keep theirs."""
        states = list(states)
        for layer in range(start, stop):
            module = self.order[layer]
            reads = self.order.index(module) if self.sources == "first" else layer
            if reads == layer:
                stored = range(len(states)) if self.sources == "all" else candidates
                memories[layer] = {t: self.make_keys_and_values(module, states[t], t) for t in stored}
            updated = {t: self.run_layer(module, states[t], t, memories[reads]) for t in candidates}
            for t, state in updated.items():
                states[t] = state
        return states

    def project(self, module, name, state):
        return self.weights[f"model.layers.{module}.{name}.weight"] @ state

    def norm(self, module, name, state):
        return plain_norm(self.weights[f"model.layers.{module}.{name}.weight"], state, self.epsilon)

    def make_keys_and_values(self, module, state, position):
        normed = self.norm(module, "input_layernorm", state)
        keys = self.project(module, "self_attn.k_proj", normed).view(-1, len(state) // self.heads)
        values = self.project(module, "self_attn.v_proj", normed).view(-1, len(state) // self.heads)
        return [plain_rotate(key, position) for key in keys], list(values)

    def run_layer(self, module, state, position, memory):
        """Run a Llama layer for one token, which attends to the tokens of a memory up to itself."""
        normed = self.norm(module, "input_layernorm", state)
        queries = self.project(module, "self_attn.q_proj", normed).view(self.heads, -1)
        seen = [t for t in sorted(memory) if t <= position]
        outputs = []
        for head, query in enumerate(queries):
            rotated = plain_rotate(query, position)
            shared = head * len(memory[seen[0]][0]) // self.heads
            scores = torch.stack([rotated @ memory[t][0][shared] for t in seen]) / math.sqrt(len(query))
            shares = torch.softmax(scores, 0)
            outputs.append(sum(share * memory[t][1][shared] for share, t in zip(shares, seen, strict=True)))
        state = state + self.project(module, "self_attn.o_proj", torch.cat(outputs))
        normed = self.norm(module, "post_attention_layernorm", state)
        gated = F.silu(self.project(module, "mlp.gate_proj", normed)) * self.project(module, "mlp.up_proj", normed)
        return state + self.project(module, "mlp.down_proj", gated)

    def read(self, state):
        normed = plain_norm(self.weights["head.model.norm.weight"], state, self.epsilon)
        return self.weights["head.lm_head.weight"] @ normed


def plain_balance(rows):
    """R sum_r f_r P_r of all tokens."""
    probabilities = [p for row in rows for p in row.probabilities]
    depths = [d for row in rows for d in row.depths]
    number = len(probabilities[0])
    shares = [depths.count(r) / len(depths) for r in range(number)]
    means = [sum(p[r] for p in probabilities) / len(depths) for r in range(number)]
    return number * sum(share * mean for share, mean in zip(shares, means, strict=True))
