"""Routers of routed models: what they compute from states, and their choices in training and without later tokens.

Shape legend: B rows, T tokens, D width, R recursions, S routed spans.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from adadepth.halting.routing import (
    balance_loss,
    choice_losses,
    count_chosen,
    pass_gradient,
    select_largest,
    squared_logits,
)

# The logit with which routers of a pretrained network begin: nearly all tokens run its layers.
_FIRST_LOGIT = 2.0


class RouterLayer(nn.Linear):
    """Linear layer of a router, computed in the dtype of its input whatever its own.

    Quantizers leave it as it is, because they replace layers of the class `nn.Linear`. PEFT can add an adapter to it.
    """

    def forward(self, states: Tensor) -> Tensor:
        """Return W x + b, (..., outputs), in the dtype of the states x."""
        bias = None if self.bias is None else self.bias.to(states)
        return nn.functional.linear(states, self.weight.to(states), bias)


class Router(nn.Module):
    """Function z = w h, or w_2 gelu(w_1 h), from states (B, T, D) to logits (B, T, outputs) in float32.

    With `normed` it reads states of a root mean square of 1, and has a bias, as suits a pretrained network.
    """

    def __init__(self, config: Any, outputs: int, *, normed: bool = False) -> None:
        super().__init__()
        width, self.normed = config.hidden_size, normed
        self.hidden = RouterLayer(width, 2 * width, bias=False) if config.router_network == "mlp" else None
        self.output = RouterLayer(width if self.hidden is None else 2 * width, outputs, bias=normed)

    def forward(self, states: Tensor) -> Tensor:
        """Return the logits."""
        with torch.autocast(states.device.type, enabled=False):
            states = states.float() if states.dtype in (torch.bfloat16, torch.float16) else states
            if self.normed:
                states = states * (states.square().mean(dim=-1, keepdim=True) + 1e-6).rsqrt()
            if self.hidden is not None:
                states = nn.functional.gelu(self.hidden(states))
            logits: Tensor = self.output(states)
            return logits

    def init_layer(self, layer: nn.Module, std: float) -> None:
        """Draw new weights of one of its layers; a bias begins at a logit with which nearly all tokens are chosen."""
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=std)
            if layer.bias is not None:
                nn.init.constant_(layer.bias, _FIRST_LOGIT)


class SkipAdapter(nn.Module):
    """Update W_2 silu(W_1 rms(h)) of a token that skips a layer (FlexiDepth, arXiv 2503.23798); 0 at first."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(config.hidden_size, eps=1e-6)
        self.up_proj = nn.Linear(config.hidden_size, config.adapter_size, bias=False)
        self.down_proj = nn.Linear(config.adapter_size, config.hidden_size, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        """Map states (..., D) to updates (..., D)."""
        update: Tensor = self.down_proj(nn.functional.silu(self.up_proj(self.norm(states))))
        return update

    def init_layer(self, layer: nn.Module, std: float) -> None:
        """Draw new weights of one of its layers, so that the update is 0."""
        if layer is self.up_proj:
            nn.init.normal_(self.up_proj.weight, std=std)
        elif layer is self.down_proj:
            nn.init.zeros_(self.down_proj.weight)
        elif layer is self.norm:
            nn.init.ones_(self.norm.weight)


class RouterChoice(NamedTuple):
    """Tokens that a router chose, and their gates.

    Attributes:
        chosen: Mask of the tokens that run the span, boolean (B, T).
        gate: Factor of the span's output or update, (B, T).
    """

    chosen: Tensor
    gate: Tensor


@dataclass
class Routing:
    """Routing of a forward pass: the choices so far, and what their losses need.

    Attributes:
        real: Mask of the tokens that are not padding, boolean (B, T).
        has_padding: Whether some tokens may be padding.
        uses_largest: Whether spans choose the tokens with the largest scores, which depend on later tokens.
        has_losses: Whether losses are computed.
        candidates: Mask of the tokens that the next span may choose, boolean (B, T).
        depths: Depth that each token chose, counted from 0, int64 (B, T), with router=token.
        weights: Gate of this depth, (B, T).
        ran: Choices of the spans, boolean (B, T) each.
        logits: Logits of the spans' routers, (B, T) each, or of the depths.
        losses: Loss of each row by part and span, (B,) each.
        agreed: Tokens for which choices with and without later tokens agree, and all candidates, of every span.
    """

    real: Tensor
    has_padding: bool
    uses_largest: bool
    has_losses: bool
    candidates: Tensor = field(init=False)
    depths: Tensor | None = None
    weights: Tensor | None = None
    ran: list[Tensor] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    losses: dict[str, list[Tensor]] = field(default_factory=dict)
    agreed: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.candidates = self.real

    @cached_property
    def lengths(self) -> Tensor:
        """Number of real tokens of each row on the host, int64 (B,). The host waits for the mask if there is one."""
        rows, width = self.real.shape
        return self.real.sum(dim=1).cpu() if self.has_padding else torch.full((rows,), width)

    @cached_property
    def depth_counts(self) -> Tensor:
        """Number of real tokens of each row that chose a depth or a deeper one, int64 (R, B), on the host."""
        assert self.depths is not None
        numbers = torch.arange(self.logits[0].shape[-1], device=self.depths.device).view(-1, 1, 1)
        return (self.real & (self.depths >= numbers)).sum(dim=-1).cpu()

    def add_loss(self, part: str, rows: Tensor) -> None:
        """Add the loss of every row, (B,), to a part."""
        self.losses.setdefault(part, []).append(rows)

    def record(self, chosen: Tensor, *, leaves: bool) -> None:
        """Record a choice; with `leaves`, tokens that were not chosen cannot be chosen again."""
        self.ran.append(chosen)
        if leaves:
            self.candidates = chosen


def choose_by_experts(config: Any, routing: Routing, number: int, logits: Tensor, causal: Tensor) -> RouterChoice:
    """Choose the tokens of a span with the largest logits, or those whose causal logit is above 0.

    Args:
        config: Configuration.
        routing: Routing so far.
        number: Number of the span's router.
        logits: Logits z of the router, (B, T).
        causal: Logits of the causal choice, (B, T): those of the router, or of its predictor.
    """
    capacity, candidates = config.routed_capacities[number], routing.candidates
    decided = candidates & ((causal + config.choice_bias) > 0)
    if capacity == 1 and (config.recursions is None or number == 0):
        decided = candidates  # there is nothing to choose
    gate = config.gate_scale * logits.sigmoid()
    if not (routing.uses_largest or routing.has_losses):
        return RouterChoice(decided, gate)
    with torch.no_grad():
        largest = select_largest(logits, candidates, count_chosen(capacity, routing.real.sum(dim=1)))
    if routing.has_losses:
        routing.add_loss("routing", choice_losses(causal, largest, candidates))
        routing.add_loss("z", squared_logits(logits, candidates))
    routing.agreed.append((((decided == largest) & candidates).sum(), candidates.sum()))
    return RouterChoice(largest if routing.uses_largest else decided, gate)


def choose_at_random(config: Any, routing: Routing, number: int, generator: torch.Generator | None) -> RouterChoice:
    """Choose tokens of a span at random, as many as its capacity says: exactly in training, else on average."""
    real, capacity = routing.real, config.routed_capacities[number]
    scores = torch.rand(real.shape, generator=generator, device=real.device)
    if routing.uses_largest:
        chosen = select_largest(scores, routing.candidates, count_chosen(capacity, real.sum(dim=1)))
    else:
        before = 1.0 if number == 0 or config.recursions is None else config.routed_capacities[number - 1]
        chosen = routing.candidates & (scores < capacity / before)
    return RouterChoice(chosen, torch.full_like(scores, config.gate_scale))


def choose_by_threshold(config: Any, routing: Routing, number: int, logits: Tensor, *, training: bool) -> RouterChoice:
    """Choose the tokens of a span whose logit is above 0.

    The gate is 0 or 1 with the gradient of sigmoid(z) (Router-Tuning), or sigmoid(z) with adapters (FlexiDepth).
    """
    bias = 0.0 if training else config.choice_bias
    chosen, probabilities = routing.real & (logits + bias > 0), logits.sigmoid()
    if config.adapter_size is not None:
        gate = probabilities
    else:
        gate = pass_gradient(chosen, probabilities) * routing.real if training else chosen.to(probabilities)
    if routing.has_losses:
        routing.add_loss("z", squared_logits(logits, routing.real))
        if config.adapter_size is None:
            share = (gate * routing.real).sum() / routing.real.sum().clamp(min=1)
            excess = (share - config.routed_capacities[number]).relu()
            routing.add_loss("routing", excess.expand(len(logits)))
    return RouterChoice(chosen, gate)


def choose_depths(config: Any, routing: Routing, logits: Tensor, bias: Tensor, *, training: bool) -> None:
    """Let every token choose its depth: argmax_r of softmax(z)_r + b_r, with the gate softmax(z)_r.

    Args:
        config: Configuration.
        routing: Routing, which gets the depths and their gates.
        logits: Logits z of the depths, (B, T, R).
        bias: Bias b of the choice, (R,), which balances the loads.
        training: Whether the choice is that of training; else deeper tokens get `choice_bias` more for every recursion.
    """
    if not training:
        logits = logits + config.choice_bias * torch.arange(logits.shape[-1], device=logits.device)
    probabilities = logits.softmax(dim=-1)
    routing.depths = (probabilities + bias.to(probabilities)).argmax(dim=-1)
    routing.weights = probabilities.gather(-1, routing.depths.unsqueeze(-1)).squeeze(-1)
    if routing.has_losses:
        rows = len(logits)
        if config.balance == "loss":
            routing.add_loss("routing", balance_loss(probabilities, routing.depths, routing.real).expand(rows))
        routing.add_loss("z", squared_logits(logits, routing.real))
