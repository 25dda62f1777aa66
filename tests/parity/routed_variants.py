"""Routed Llamas with every router, source of keys and values, and gating, in float64, on the layers of the reference.

A token's state is an entry of a list, and what a token does not attend to is left out of a dictionary of keys and
values, not masked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from adadepth.models.routed.reference import make_keys_and_values, normalise, read, run_layer


@dataclass
class PlainRow:
    """What a row computes: last states, the tokens that ran each routed part, and the routers' losses."""

    states: list = field(default_factory=list)
    selected: list = field(default_factory=list)
    choice_losses: list = field(default_factory=list)  # mean over the candidates, one a part
    z_losses: list = field(default_factory=list)
    probabilities: list = field(default_factory=list)  # of the depths, one a token
    depths: list = field(default_factory=list)
    gates: list = field(default_factory=list)  # of threshold routers, one list a part


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
                selected = [t for t in range(len(ids)) if row.depths[t] >= router]
                computed = self.run_part(start, stop, row.states, selected, memories)
                for t in selected:
                    leaves = row.depths[t] == router
                    weight = row.probabilities[t][router]
                    row.states[t] = self.combine(first[t], computed[t], weight) if leaves else computed[t]
                row.selected.append(selected)
            else:
                selected = self.run_routed(row, start, stop, router, candidates, memories, largest)
                if self.leaves:
                    candidates = selected
        return row

    def run_routed(self, row, start, stop, router, candidates, memories, largest):
        """Let a router choose among the candidates, run them, and return them."""
        scores = {t: self.compute_score(router, row.states[t]) for t in candidates}
        row.z_losses.append(sum(z**2 for z in scores.values()) / max(len(candidates), 1))
        if self.router == "threshold":
            selected = [t for t in candidates if scores[t] + self.bias > 0]
            gates = [torch.sigmoid(scores[t]) if self.adapters else float(t in selected) for t in candidates]
            row.gates.append(gates)
        else:
            number = min(max(1, math.floor(self.capacities[router] * len(row.states) + 1e-9)), len(row.states))
            best = sorted(candidates, key=lambda t: (-float(scores[t]), t))[:number]
            # A predictor is trained and decides in place of the router, whose scores are still the gates.
            predicts = "predictors.0.output.weight" in self.weights
            causal = (
                {t: self.compute_score(router, row.states[t], "predictors") for t in candidates} if predicts else scores
            )
            losses = [F.softplus(-causal[t] if t in best else causal[t]) for t in candidates]
            row.choice_losses.append(sum(losses) / max(len(candidates), 1))
            selects_all = self.capacities[router] == 1 and (router == 0 or not self.leaves)
            decided = [t for t in candidates if selects_all or causal[t] + self.bias > 0]
            selected = sorted(best) if largest else decided
            gates = [self.gate_scale * torch.sigmoid(scores[t]) for t in candidates]
        computed = self.run_part(start, stop, row.states, selected, memories)
        for t, gate in zip(candidates, gates, strict=True):
            if t in selected and self.router == "threshold":
                row.states[t] = row.states[t] + gate * (computed[t] - row.states[t])
            elif t in selected:
                row.states[t] = self.combine(row.states[t], computed[t], gate)
            elif self.router == "threshold" and self.adapters:
                row.states[t] = row.states[t] + (1 - gate) * self.apply_adapter(router, row.states[t])
        row.selected.append(selected)
        return selected

    def choose_depths(self, row):
        for state in row.states:
            scores = self.weights["routers.0.output.weight"] @ state
            scores = scores + self.bias * torch.arange(len(scores))
            row.probabilities.append(torch.softmax(scores, 0))
            best = row.probabilities[-1] + self.weights["depth_bias"]
            row.depths.append(max(range(len(best)), key=lambda r: (float(best[r]), -r)))
            row.z_losses.append(torch.logsumexp(scores, 0) ** 2)

    def compute_score(self, router, state, room="routers"):
        if self.router == "threshold":
            state = state / torch.sqrt((state * state).mean() + 1e-6)
        bias = self.weights.get(f"{room}.{router}.output.bias", 0.0)
        return (self.weights[f"{room}.{router}.output.weight"] @ state + bias).squeeze()

    def apply_adapter(self, number, state):
        name = f"adapters.{number}"
        normed = normalise(self.weights[f"{name}.norm.weight"], state, 1e-6)
        return self.weights[f"{name}.down_proj.weight"] @ F.silu(self.weights[f"{name}.up_proj.weight"] @ normed)

    def combine(self, state, computed, gate):
        if self.gate == "none":
            return computed
        return state + gate * (computed if self.gate == "output" else computed - state)

    def run_part(self, start, stop, states, candidates, memories):
        """Return the states after the layers of a part for some tokens; others keep theirs."""
        states, sizes = list(states), (self.heads, self.epsilon)
        for layer in range(start, stop):
            module = self.order[layer]
            reads = self.order.index(module) if self.sources == "first" else layer
            if reads == layer:
                stored = range(len(states)) if self.sources == "all" else candidates
                memories[layer] = {t: make_keys_and_values(self.weights, module, states[t], t, *sizes) for t in stored}
            updated = {t: run_layer(self.weights, module, states[t], t, memories[reads], *sizes) for t in candidates}
            for t, state in updated.items():
                states[t] = state
        return states

    def read(self, state):
        return read(self.weights, state, self.epsilon)


def compute_plain_balance(rows):
    """Return R sum_r f_r P_r of all tokens."""
    probabilities = [p for row in rows for p in row.probabilities]
    depths = [d for row in rows for d in row.depths]
    number = len(probabilities[0])
    shares = [depths.count(r) / len(depths) for r in range(number)]
    means = [sum(p[r] for p in probabilities) / len(depths) for r in range(number)]
    return number * sum(share * mean for share, mean in zip(shares, means, strict=True))
