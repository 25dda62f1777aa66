"""Routed models: routers choose the tokens that parts of a network of transformers process.

    x_0 = embed(tokens)
    x_s = B_s(x_{s-1})                              a span that all tokens run
    x_s = x_{s-1} + g B_s(x_{s-1})                  a routed span, `gating=output` (MoR, arXiv 2507.10524)
    x_s = x_{s-1} + g (B_s(x_{s-1}) - x_{s-1})      `gating=update` (MoD, arXiv 2404.02258)
    x_s = x_{s-1}                                   a token that skips the span, g = 0

A span is one layer or several, with their residual connections. With `router=token`, a token runs the recursions up to
the depth that it chose, and its output is x + g B(...B(x)), where x is its state before the first recursion. The unit
of depth is a token, and its updates are the routed spans that it ran.

Shape legend: B rows, T tokens, D width, S routed spans, R recursions, V pieces, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache

from adadepth.errors import ConfigError
from adadepth.halting.routing import count_chosen, count_depths, nudge_bias
from adadepth.halting.trace import ComputedSteps, DepthTrace, DepthUnit, Execution, Work
from adadepth.models.contract import DepthKnob
from adadepth.models.depth.outputs import Choice, choose_states, requested_states
from adadepth.models.depth.runner import begin_texts, count_layer_macs, count_pair_macs, count_projection_macs
from adadepth.models.routed.cache import RoutedCache
from adadepth.models.routed.configuration import RoutedConfig
from adadepth.models.routed.routers import (
    Router,
    RouterChoice,
    Routing,
    SkipAdapter,
    choose_at_random,
    choose_by_experts,
    choose_by_threshold,
    choose_depths,
)
from adadepth.models.routed.spans import RoutedSpan, SpanRunner, has_fixed_shapes
from adadepth.models.shared.encoders import find_real_tokens
from adadepth.models.shared.generation import CACHE_ARGUMENT, CacheOutput
from adadepth.models.shared.losses import LossTerm
from adadepth.models.shared.network_model import NetworkModel
from adadepth.runtime.distributed import all_reduce_sum

ROUTINGS = ("causal", "topk")


@dataclass
class RoutedOutput(CacheOutput):
    """Predictions of a routed model.

    Attributes:
        loss: Sum of `loss_parts`, with labels.
        loss_parts: Weighted and normalised parts by name.
        logits: Predictions: (B, T, V) of a language model, which leaves them out in training, or (B, T, C) of tokens.
        cache: Cache of a language model.
        hidden_states: States before the first span and after every span, (B, T, D) each, on request; None in place of
            those that are not requested.
        router_logits: Logits of the routers, (B, T, S), or of the depths with router=token, (B, T, R).
        trace: Spans that every token ran.
        token_losses: Cross-entropy in nats of a language model's P tokens with a label, detached, (P,).
        measures: Sums over tokens and their number, in evaluation with labels: tokens that each span processed
            (`routing/load_N`), that no span did (`routing/dead`), for which the choice without later tokens is that of
            the largest scores (`routing/agreement`), and, with `measure_leak`, the loss of that choice
            (`routing/topk_loss`).
    """

    loss: Tensor | None = None
    loss_parts: dict[str, Tensor] | None = None
    logits: Tensor | None = None
    cache: Cache | None = None
    hidden_states: tuple[Tensor | None, ...] | None = None
    router_logits: Tensor | None = None
    trace: DepthTrace | None = None
    token_losses: Tensor | None = None
    measures: dict[str, LossTerm] | None = None


class RoutedModel(DepthKnob, NetworkModel):
    """The base class of all heads: a network of transformers, its head, routers, and adapters for tokens that skip."""

    config: RoutedConfig
    config_class = RoutedConfig
    depth_unit: DepthUnit = "token"
    depth_bias: Tensor
    depth_load: Tensor

    def __init__(self, config: RoutedConfig) -> None:
        super().__init__(config)
        self.build_network()
        routed = [span for span in config.spans if span.router is not None]
        normed = config.router == "threshold"
        self.routers, self.predictors, self.adapters = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        if config.router == "token":
            self.routers.append(Router(config, len(routed)))
            self.register_buffer("depth_bias", torch.zeros(len(routed)))
            self.register_buffer("depth_load", torch.zeros(len(routed), dtype=torch.long))
        elif config.router != "random":
            self.routers.extend(Router(config, 1, normed=normed) for _ in routed)
        if config.causal_choice == "predictor":
            self.predictors.extend(Router(config, 1) for _ in routed)
        if config.adapter_size is not None:
            self.adapters.extend(SkipAdapter(config) for _ in routed)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Initialise a module with weights of its own; transformers passes no other modules of a custom model."""
        std = self.config.initializer_range
        std = getattr(self.config.base_config, "initializer_range", 0.02) if std is None else std
        new_parts: list[Any] = [*self.routers, *self.predictors, *self.adapters]  # no network of transformers has them
        owner = next((part for part in new_parts if module in part.modules()), None)
        if owner is not None:
            owner.init_layer(module, std)
        elif module is self:
            if self.config.router == "token":
                nn.init.zeros_(self.depth_bias)
                nn.init.zeros_(self.depth_load)
        else:
            super()._init_weights(module)

    # ---- What the rest of the package asks

    @property
    def max_updates(self) -> int:
        """The number of routed spans."""
        return len(self.config.routed_capacities)

    @property
    def supports_gradient_checkpointing(self) -> bool:
        """Whether layers can be computed again in the backward pass; not if they read stored keys and values."""
        return self.config.keys_and_values == "selected"

    @property
    def depth_knob(self) -> str:
        """Name of the bias of choices, for tables."""
        return "model.choice_bias"

    def set_depth_level(self, level: float) -> None:
        """Set the bias of choices in evaluation to log(level / (1 - level)), for a level in (0, 1)."""
        self.config.choice_bias = math.log(level / (1.0 - level))

    def set_step(self, step: int, total: int) -> None:
        """Move the bias of depths by the load of the optimiser step before, with balance=bias."""
        if self.config.router == "token" and self.config.balance == "bias":  # without a load the bias stays the same
            self.depth_bias.copy_(nudge_bias(self.depth_bias, self.depth_load, self.config.bias_step))
            self.depth_load.zero_()

    def count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Count the tokens with a label, for every part of the loss."""
        return dict.fromkeys(("task", "routing", "z"), self.count_labels(batch["labels"]))

    def count_labels(self, labels: Tensor) -> Tensor:
        """Count the tokens with a label."""
        raise NotImplementedError

    # ---- The forward pass

    def run(
        self,
        inputs: Mapping[str, Any],
        attention_mask: Tensor | None,
        *,
        has_losses: bool,
        routing: str | None,
        output_hidden_states: Choice | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Routing, RoutedOutput]:
        """Run the network, and return its last states, (B, T, D), the routing, and an output without predictions.

        Args:
            inputs: Arguments of the network. For rows of several documents, they have no attention mask.
            attention_mask: 1 at real tokens, those in the cache included, (B, M + T); None: there is no padding.
            has_losses: Whether the losses of routers are computed.
            routing: `topk`: spans choose the tokens with the largest scores of a whole row; `causal`: choices depend
                on no later token. None: `topk` in training, else `causal`.
            output_hidden_states: States to return; None: those of the configuration.
            generator: Random generator of router=random.

        Raises:
            ConfigError: If there is no such routing.
        """
        if routing not in (None, *ROUTINGS):
            raise ConfigError(f"routing={routing}: must be one of {', '.join(ROUTINGS)}")
        words = self.check_words(inputs)
        real = find_real_tokens(attention_mask, words.shape[:2], words.device)
        cache = inputs.get(CACHE_ARGUMENT)
        if cache is not None:
            cache.open(*words.shape[:2])
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.trains_network):
            running = begin_texts(self.model, self.layers, inputs, cache is not None)
        uses_largest = (self.training if routing is None else routing == "topk") and self.config.router in (
            "expert",
            "random",
        )
        choices = Routing(real, attention_mask is not None, uses_largest, has_losses)
        runner = SpanRunner(
            self.layers, self.config.spans, running, real,
            is_causal=self.is_causal, cache=cache, keys_and_values=self.config.keys_and_values,
        )  # fmt: skip
        requested = requested_states(self.config, {"output_hidden_states": output_hidden_states}).get("hidden_states")
        states = running.states
        returned = [states]
        for states in self._run_spans(runner, running.states, choices, generator):
            if requested is not None:
                returned.append(states)
        if cache is not None:
            cache.close()
        if self.training and choices.depths is not None and self.config.balance == "bias":
            load = count_depths(choices.depths, real, self.max_updates)
            all_reduce_sum([load])
            self.depth_load += load
        output = self._build_output(choices, runner, cache)
        if requested is not None:
            output.hidden_states = choose_states(returned, requested)
        return states, choices, output

    def _run_spans(
        self, runner: SpanRunner, states: Tensor, routing: Routing, generator: torch.Generator | None
    ) -> Iterator[Tensor]:
        """Yield the states after every span."""
        embedded: Tensor | None = None  # states before the first recursion
        for span in runner.spans:
            if span.router is None:
                states = runner.run_all(span, states)
            elif self.config.router == "token":
                if embedded is None:
                    embedded = states
                    logits = self.routers[0](states)
                    routing.logits.append(logits)
                    choose_depths(self.config, routing, logits, self.depth_bias, training=self.training)
                states = self._run_recursion(runner, span, states, embedded, routing)
            else:
                states = self._run_routed(runner, span, states, routing, generator)
            yield states

    def _run_recursion(
        self, runner: SpanRunner, span: RoutedSpan, states: Tensor, embedded: Tensor, routing: Routing
    ) -> Tensor:
        """Run a recursion for the tokens that chose it or a later one; those that chose it get their output."""
        assert routing.depths is not None
        assert routing.weights is not None
        assert span.router is not None
        chosen = routing.real & (routing.depths >= span.router)
        routing.record(chosen, leaves=True)
        counts = None if has_fixed_shapes(chosen) else routing.depth_counts[span.router]
        computed = runner.run_chosen(span, states, chosen, counts)
        ends = (chosen & (routing.depths == span.router)).unsqueeze(-1)
        weights = routing.weights.unsqueeze(-1).to(states)
        return torch.where(ends, self._combine(embedded, computed, weights), computed)

    def _run_routed(
        self, runner: SpanRunner, span: RoutedSpan, states: Tensor, routing: Routing, generator: torch.Generator | None
    ) -> Tensor:
        """Run a span for the tokens that its router chooses."""
        assert span.router is not None
        choice = self._choose(span.router, states, routing, generator)
        routing.record(choice.chosen, leaves=self.config.recursions is not None)
        # The gradient of a straight-through gate needs the update of tokens that skip, too.
        runs_all = self.training and self.config.router == "threshold" and self.config.adapter_size is None
        run = choice.chosen | routing.real if runs_all else choice.chosen
        counts = None
        if not has_fixed_shapes(run) and (runs_all or routing.uses_largest):
            counts = routing.lengths if runs_all else self._count_largest(span.router, routing.lengths)
        computed = runner.run_chosen(span, states, run, counts)
        gate, is_run = choice.gate.unsqueeze(-1).to(states), run.unsqueeze(-1)
        if self.config.router == "threshold":
            is_step = not self.training and not len(self.adapters)  # 1 (B(x) - x) + x has another rounding than B(x)
            changed = computed if is_step else states + gate * (computed - states)
        else:
            changed = self._combine(states, computed, gate)
        if not len(self.adapters):
            return torch.where(is_run, changed, states)
        skipped = states + (1 - gate) * self.adapters[span.router](states).to(states)
        return torch.where(is_run, changed, torch.where(routing.real.unsqueeze(-1), skipped, states))

    def _count_largest(self, number: int, lengths: Tensor) -> Tensor:
        """Return how many tokens of each row with a number of real tokens, (B,), a span of the largest scores runs."""
        capacities = self.config.routed_capacities
        leaves = self.config.recursions is not None  # a recursion chooses among the tokens of the one before
        return count_chosen(min(capacities[: number + 1]) if leaves else capacities[number], lengths)

    def _combine(self, states: Tensor, computed: Tensor, gate: Tensor) -> Tensor:
        """Combine the states before a span with its output B(x); see `gating` of the configuration."""
        if self.config.gating == "none":
            return computed
        update = computed if self.config.gating == "output" else computed - states
        return states + gate * update

    def _choose(self, number: int, states: Tensor, routing: Routing, generator: torch.Generator | None) -> RouterChoice:
        if self.config.router == "random":
            return choose_at_random(self.config, routing, number, generator)
        logits = self.routers[number](states).squeeze(-1)
        routing.logits.append(logits)
        if self.config.router == "threshold":
            return choose_by_threshold(self.config, routing, number, logits, training=self.training)
        causal = logits
        if len(self.predictors):
            causal = self.predictors[number](states.detach()).squeeze(-1)
        return choose_by_experts(self.config, routing, number, logits, causal)

    def _build_output(self, routing: Routing, runner: SpanRunner, cache: RoutedCache | None) -> RoutedOutput:
        ran = torch.stack(routing.ran, dim=-1)
        before = 0 if cache is None else cache.get_seq_length() - routing.real.shape[1]
        execution = Execution(
            len(runner.counts),
            width=routing.real.shape[1],
            computed=None if torch.compiler.is_exporting() else ComputedSteps.from_counts(runner.counts),
            memory_length=before,
        )
        logits = None
        if routing.logits:
            stacked = routing.logits[0] if routing.depths is not None else torch.stack(routing.logits, dim=-1)
            logits = stacked.detach()
        return RoutedOutput(
            cache=cache,
            router_logits=logits,
            trace=DepthTrace(
                "token", ran.sum(dim=-1).float(), routing.real, self.max_updates, ran=ran, execution=execution
            ),
        )

    def measure(self, routing: Routing, inputs: Mapping[str, Any], targets: Tensor) -> dict[str, LossTerm]:
        """Return the measures of an evaluated batch; see `RoutedOutput`."""
        ran, real = torch.stack(routing.ran, dim=-1), routing.real
        tokens = real.sum()
        measures = {f"routing/load_{number}": LossTerm(load, tokens) for number, load in enumerate(ran.sum((0, 1)), 1)}
        measures["routing/dead"] = LossTerm((real & ~ran.any(dim=-1)).sum(), tokens)
        if routing.agreed:
            agreed, candidates = (torch.stack(counts).sum() for counts in zip(*routing.agreed, strict=True))
            measures["routing/agreement"] = LossTerm(agreed, candidates)
        if self.config.measure_leak and self.config.router == "expert" and inputs.get(CACHE_ARGUMENT) is None:
            with torch.no_grad():
                states = self.run(inputs, real, has_losses=False, routing="topk")[0]
                measures["routing/topk_loss"] = self.compute_task_loss(states, targets)[0]
        return measures

    def compute_task_loss(self, states: Tensor, targets: Tensor) -> tuple[LossTerm, Tensor]:
        """Return the loss of the task from the last states, (B, T, D), and its losses or logits.

        Args:
            states: Last states.
            targets: Class or next token of every token, negative where there is none, (B, T).
        """
        raise NotImplementedError

    def build_terms(self, task: LossTerm, labels: Tensor, routing: Routing) -> dict[str, LossTerm]:
        """Return the parts of the loss: the task's, and those of the routers.

        The routers' losses are means over the tokens of a row, and rows count as many times as they have labels. With
        adapters the loss is the mean of (sum_s g_s)^2 (FlexiDepth).

        Args:
            task: Loss of the task.
            labels: Number of labels of each row, (B,).
            routing: Routing of the forward pass.
        """
        config = self.config
        terms = {"task": task}
        losses = dict(routing.losses)
        if config.adapter_size is not None:
            gates = torch.stack([logits.sigmoid() for logits in routing.logits], dim=-1).sum(dim=-1)
            tokens = routing.real.sum(dim=1).clamp(min=1)
            losses["routing"] = [(gates.square() * routing.real).sum(dim=1) / tokens]
        for part, weight in (("routing", config.weight_of_routing), ("z", float(config.z_weight))):
            if weight and part in losses:
                terms[part] = LossTerm((torch.stack(losses[part]).sum(dim=0) * labels).sum(), task.count, weight)
        return terms

    def read(self, states: Tensor) -> Tensor:
        """Return the predictions of the head, (..., V) or (..., C), for states of tokens, (..., D)."""
        normed = self.head.base_model.norm(states.to(self.dtype).flatten(0, -2))
        return self.predict(self.head, normed).unflatten(0, states.shape[:-1])

    # ---- Multiply-accumulates

    @property
    def readout_work(self) -> float:
        """Multiply-accumulates of a prediction: the weights of the head."""
        return float(count_layer_macs(self.head))

    def price(self, trace: DepthTrace) -> Work:
        """Return the multiply-accumulates of a traced batch, without predictions; see `readout_work`.

        A layer takes its weights a token, and 2 D_q a pair of query and key, where D_q is the width of all queries.
        """
        ran, valid, execution = trace.iterations_run, trace.valid, trace.executed
        spans, costs = self.config.spans, self._span_macs.to(valid.device)
        deepest = ran.flatten(0, 1).any(dim=0)
        everyone = torch.ones_like(valid)
        assert execution.computed is not None
        queries, keys, pairs = (counts.to(costs) for counts in execution.computed)
        executed = (costs * torch.stack([queries, pairs, keys - queries], dim=1)).sum()
        dense, adaptive, full = costs.new_zeros(3).unbind()
        for span, macs in zip(spans, costs, strict=True):
            count = partial(self._count_macs, span, macs, execution.memory_length)
            macs_of_everyone = count(everyone, everyone)
            dense = dense + (macs_of_everyone if span.router is None else macs_of_everyone * deepest[span.router])
            adaptive = adaptive + count(valid if span.router is None else valid & ran[..., span.router], valid)
            full = full + count(valid, valid)
        everywhere, real = self._router_macs * valid.numel(), self._router_macs * valid.sum()
        adapted = self._adapter_macs * valid.numel()
        skipped = self._adapter_macs / ran.shape[-1] * (valid.unsqueeze(-1) & ~ran).sum()
        return Work(
            executed + everywhere + adapted, dense + everywhere + adapted, adaptive + real + skipped, full + real
        )

    def _count_macs(self, span: RoutedSpan, macs: Tensor, memory: int, mask: Tensor, valid: Tensor) -> Tensor:
        """Count the multiply-accumulates of a span for the tokens of a mask, (B, T), of which `valid` are there."""
        keys = valid if self.config.keys_and_values == "all" or span.router is None else mask
        seen = keys.double().cumsum(dim=1) if self.is_causal else keys.double().sum(dim=1, keepdim=True)
        share = keys.sum() / valid.sum().clamp(min=1)
        stored = valid.sum() - mask.sum() if self.config.keys_and_values == "all" else 0
        return macs[0] * mask.sum() + macs[1] * (mask * (seen + memory * share)).sum() + macs[2] * stored

    @cached_property
    def _span_macs(self) -> Tensor:
        """Multiply-accumulates of a token, a pair, and a token's keys and values in each span, float64 (n, 3)."""
        pair = count_pair_macs(self.config.base_config)
        rows = []
        for span in self.config.spans:
            layers = [self.layers.get_layer(module) for module in span.modules]
            token = sum(count_layer_macs(layer) for layer in layers)
            projections = sum(count_projection_macs(layer) for layer in layers)
            rows.append([float(token), pair * len(layers), float(projections)])
        return torch.tensor(rows, dtype=torch.float64)

    @cached_property
    def _adapter_macs(self) -> float:
        """Multiply-accumulates of all adapters for a token."""
        return float(sum(count_layer_macs(adapter) for adapter in self.adapters))

    @cached_property
    def _router_macs(self) -> float:
        """Multiply-accumulates of all routers for a token."""
        return float(sum(count_layer_macs(router) for router in (*self.routers, *self.predictors)))
