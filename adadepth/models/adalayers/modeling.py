"""Adalayers: a learned average over the layers of a frozen base model, the base class of its heads, and MAC counts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers import initialization as init
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple

from adadepth.budget.controller import smooth_depth
from adadepth.budget.fit import Fit
from adadepth.errors import ConfigError, DataError
from adadepth.halting.layer_mixing import compute_tail_masses, layer_weights
from adadepth.halting.trace import DepthTrace, Execution, Work
from adadepth.models.adalayers.base import OnBaseModel, stream_states
from adadepth.models.adalayers.configuration import AdaLayersConfig
from adadepth.models.adalayers.head_layers import build_zero, distribution_terms, project
from adadepth.models.contract import DepthKnob, HoldsBudget, MixesLayers, ReadsCachedStates
from adadepth.models.depth.outputs import choose_states, requested_states
from adadepth.models.shared.encoders import (
    check_words,
    compute_block_macs,
    compute_entry_macs,
    select_accepted_inputs,
)
from adadepth.models.shared.layers import Dropout, sinusoidal_positions, whole
from adadepth.models.shared.losses import LossTerm, combine_terms, count_head_classes
from adadepth.models.shared.weights_digest import weights_digest


def price_layers(config: AdaLayersConfig, trace: DepthTrace, tokens_are_classified: bool) -> Work:
    """Return the MACs of a batch from its depth trace, without lookups, norms and activations.

    For each token of a sequence of S tokens, a block takes 4 K^2 + 2 S K + 2 K F. The projections of all mixed layers
    and the head are added. `executed` and `dense` count what ran, including padding; blocks are not counted if the
    states came from a cache. `adaptive` counts the blocks up to the deepest mixed layer and the mixed layers. `full`
    counts all N blocks and all layers.

    Args:
        config: Configuration with the widths K and F.
        trace: Trace with `layer_weights` and `execution`, which has `tokens` and `width`.
        tokens_are_classified: Whether the head predicts for every token, instead of once per sequence.
    """
    ran = trace.executed
    assert ran.tokens is not None
    assert isinstance(ran.width, int)
    assert trace.layer_weights is not None
    base = config.base_config
    assert isinstance(base, PreTrainedConfig)
    tokens = ran.tokens.double()
    width = torch.full_like(tokens, ran.width)
    mixed = trace.layer_weights.ne(0).sum()

    def work(length: Tensor, blocks: Any, layers: Any) -> Tensor:
        read = (blocks != 0) * compute_entry_macs(base) + blocks * compute_block_macs(base, length)
        return length * (read + _mix_work(config, layers)) + _head_work(config, length, tokens_are_classified)

    adaptive = work(tokens, trace.updates.double(), mixed)
    full = work(tokens, trace.max_updates, len(config.layer_states))
    executed = work(width, ran.steps, mixed).sum()
    return Work(executed, executed, adaptive.sum(), full.sum())


def _mix_work(config: AdaLayersConfig, layers: Any) -> Tensor | float:
    """Return the MACs per token of projecting and averaging the layers."""
    states, projected = config.state_width, config.project_dim
    if config.mix == "projected":
        return layers * float(states * projected + projected)
    return layers * float(states) + (states * projected if config.head == "attention" else 0.0)


def _head_work(config: AdaLayersConfig, length: Tensor, tokens_are_classified: bool) -> Tensor:
    """Return the MACs of the head for one sequence of the given length."""
    width = config.mixed_width
    output = width * count_head_classes(config) * (length if tokens_are_classified else 1.0)
    if config.head == "linear":
        return torch.zeros_like(length) + output
    layer = 4 * width**2 + 2 * length * width
    if tokens_are_classified:
        layer = config.attention_layers_num * (layer + 2 * width * config.dim_feedforward)
    return length * layer + output


@dataclass
class AdaLayersOutput(ModelOutput):
    """Output of an Adalayers model: loss, logits, (B, C) or (B, T, C), and depth trace.

    `distribution` contains the weights of the layers before any layer is cut, float32, (L,), differentiable. If
    requested, `hidden_states` are the N + 1 states of the base, (B, T, K) each, and `attentions` are the attention
    weights of its N blocks, (B, heads, T, T) each.
    """

    loss: Tensor | None = None
    loss_parts: dict[str, Tensor] | None = None
    logits: Tensor | None = None
    trace: DepthTrace | None = None
    distribution: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class AdaLayersModel(DepthKnob, HoldsBudget, ReadsCachedStates, MixesLayers, OnBaseModel):
    """Base class of Adalayers models: a learned average over the layers of a base model. Subclasses add a head."""

    # Its losses are normalised by `num_targets`, never by the trainer's count of items.
    accepts_loss_kwargs = False
    classifies_tokens = False
    depth_unit = "task"
    depth_knob = "deepest state with weight"

    @property
    def max_updates(self) -> int:
        """Maximum number of updates, which is the number of blocks of the base model."""
        return self.config.depth

    def __init__(self, config: AdaLayersConfig, build_base: bool = True) -> None:
        super().__init__(config, build_base)
        width, start = config.state_width, torch.ones(len(config.layer_states))
        self.distribution = nn.Parameter(start) if config.learns_distribution else nn.Buffer(start)
        if config.mix == "projected":
            self.projectors = nn.ModuleDict(
                {str(layer): nn.Linear(width, config.project_dim, bias=False) for layer in config.layers}
            )
            if config.seed_compat and not config.learns_distribution:
                self.projectors.requires_grad_(False)
        elif config.head == "attention":
            self.projector = nn.Linear(width, config.project_dim, bias=False)
        if config.mix == "scalar" and config.learns_distribution:
            self.gamma = nn.Parameter(torch.ones(()))
        self.dropout = Dropout(config.attention_dropout_prob or 0.0)
        self.cutoff_is_on = True
        self._trained_limit: int | None = None
        self._active: tuple[Any, tuple[int, ...]] | None = None
        self.build_head(config)
        self.post_init()

    def build_head(self, config: AdaLayersConfig) -> None:
        """Create the modules of the head, which predict from the averaged states."""
        raise NotImplementedError

    def classify(self, features: Tensor, mask: Tensor | None) -> Tensor:
        """Return the logits of the head for averaged states, (B, T, k or K).

        The mask is 1 at real tokens, (B, T), or None if all tokens are real.
        """
        raise NotImplementedError

    def task_loss(self, logits: Tensor, labels: Tensor) -> LossTerm:
        """Compute the loss of the task from logits and labels."""
        raise NotImplementedError

    def count_labels(self, labels: Tensor) -> Tensor:
        """Return the number of labels, the divisor of the task's loss."""
        raise NotImplementedError

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialise linear layers as torch does, and the layer weights uniformly."""
        if module is self:
            init.ones_(self.distribution)
            if hasattr(self, "gamma"):
                init.ones_(self.gamma)
        elif isinstance(module, nn.Linear):
            bound = module.in_features**-0.5
            init.uniform_(module.weight, -bound, bound)
            if module.bias is not None:
                init.uniform_(module.bias, -bound, bound)
        else:
            super()._init_weights(module)

    @property
    def layer_states(self) -> tuple[int, ...]:
        """Index of the base model's hidden state that each layer of the average reads."""
        return self.config.layer_states

    @property
    def state_width(self) -> int:
        """Width K of the base model's hidden states."""
        return self.config.state_width

    @property
    def states_key(self) -> str:
        """Text that identifies the base model's weights and the activation in the cache key of hidden states.

        If the checkpoint contains the base, its weights are hashed again, because they may have been trained further.
        `base_hash` is the hash of the pretrained base.
        """
        weights = weights_digest(self.model.state_dict().values()) if self.config.base_saved else self.config.base_hash
        return f"{weights} gelu" if self.config.mix == "projected" else str(weights)

    def learning_rate_multipliers(self) -> dict[str, float]:
        """Return the learning-rate multiplier of the layer weights, by parameter name."""
        return {"distribution": self.config.distribution_lr_multiplier}

    def no_weight_decay(self) -> set[str]:
        """Return the name of the layer weights, which decay would pull towards a uniform distribution."""
        return {"distribution"}

    def set_step(self, step: int, total: int | None = None) -> None:
        """Set the number of completed optimiser steps, on which the setting `cutoff_warmup_steps` depends.

        In a loaded model, the warm-up is over. `total`, the number of steps of the whole training, is not used.
        """
        self.cutoff_is_on = step >= self.config.cutoff_warmup_steps

    def layer_distribution(self) -> Tensor:
        """Return the weight of every layer in the average, float32, (L,), differentiable; 0 for removed layers."""
        config = self.config
        return layer_weights(
            self.distribution, config.alpha_distribution, self._cutoff, config.topk_distribution, self.mixed_layers
        )

    @property
    def mixed_layers(self) -> tuple[int, ...]:
        """Indices of the layers that may have a positive weight: those up to the deepest allowed state."""
        deepest = self.config.deepest_state
        states, layers = self.config.layer_states, self.config.layers
        return layers if deepest is None else tuple(layer for layer in layers if states[layer] <= deepest)

    def limit_depth(self, depth: int) -> None:
        """Set the weights of hidden states deeper than `depth` blocks to 0, and renormalise the others.

        Raises:
            ConfigError: If no layer would remain.
        """
        previous, self.config.deepest_state = self.config.deepest_state, depth
        if not self.mixed_layers:
            self.config.deepest_state = previous
            shallowest = self.config.layer_states[self.config.layers[0]]
            raise ConfigError(f"budget={depth}: the shallowest state of this model comes after {shallowest} blocks")

    def fit_depth(self, target: float, measure: Callable[[], float]) -> Fit:
        """Limit the average to hidden states after at most `target` blocks, unless a lower limit is already set."""
        if self._trained_limit is None:
            self._trained_limit = self.config.depth if self.config.deepest_state is None else self.config.deepest_state
        self.limit_depth(min(int(target), self._trained_limit))
        depth = measure()
        return Fit(target, depth, depth <= target)

    def count_units(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the number of sequences in a batch.

        All sequences of a task have the same depth, and a budget counts it once for each.
        """
        return torch.full((), len(batch["labels"]), device=batch["labels"].device)

    def soft_depth(self, outputs: AdaLayersOutput) -> LossTerm:
        """Return a differentiable depth, sum_n t_n^a over tail masses t_n of the layer weights, summed over sequences.

        The value is close to the deepest state with weight; see `smooth_depth`.
        """
        return self._count_per_sequence(smooth_depth(self._compute_tails(outputs)), outputs)

    def expected_depth(self, outputs: AdaLayersOutput) -> LossTerm:
        """Return the mean depth under the layer weights, summed over sequences."""
        return self._count_per_sequence(self._compute_tails(outputs).sum(), outputs)

    def _compute_tails(self, outputs: AdaLayersOutput) -> Tensor:
        """Return the tail masses of the layer weights, before small weights are removed.

        Because these weights are used, gradients reach a layer that was cut.
        """
        assert outputs.distribution is not None
        return compute_tail_masses(outputs.distribution, self.config.layer_states[0], self.config.depth)

    def _count_per_sequence(self, depth: Tensor, outputs: AdaLayersOutput) -> LossTerm:
        assert outputs.logits is not None
        count = torch.full((), len(outputs.logits), device=depth.device)
        return LossTerm(depth * count, count)

    @property
    def _cutoff(self) -> float:
        return self.config.distribution_cutoff if self.cutoff_is_on else 0.0

    def active_states(self) -> tuple[int, ...]:
        """Return the indices of the hidden states with nonzero weight, in increasing order.

        Reading the weights synchronises with the device, which in inference happens once. In training without cutoff
        and top-k, no weight can be 0, and none is read.
        """
        if torch.compiler.is_exporting() and self._active is not None:
            return self._active[1]  # a program has no weights to read; those of the last call before are its constants
        learning = torch.is_grad_enabled() and self.distribution.requires_grad
        cuts = self._cutoff > 0.0 or self.config.topk_distribution is not None
        if learning:
            # A fused optimiser changes the scores without raising their version: no result outlives a training step.
            self._active = None
            return self._find_active() if cuts or not self.training else self._number_states(self.mixed_layers)
        key = self.distribution._version, self._cutoff, self.mixed_layers
        if self._active is None or self._active[0] != key:
            self._active = key, self._find_active()
        return self._active[1]

    def _find_active(self) -> tuple[int, ...]:
        weights = whole(self.layer_distribution()).tolist()
        return self._number_states(layer for layer in self.mixed_layers if weights[layer] != 0.0)

    def _number_states(self, layers: Iterable[int]) -> tuple[int, ...]:
        return tuple(self.config.layer_states[layer] for layer in layers)

    def states_to_read(self) -> tuple[int, ...]:
        """Return the indices of the base model's hidden states that the next forward pass needs."""
        return self._select_states(self.active_states())

    def _select_states(self, active: tuple[int, ...]) -> tuple[int, ...]:
        # With top-k a layer without weight needs a gradient to regain it, see `layer_weights`.
        explores = self.training and self.config.topk_distribution is not None
        return self._number_states(self.mixed_layers) if explores else active

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        states: Mapping[int, Tensor] | None = None,
        num_targets: Mapping[str, Tensor] | None = None,
        **kwargs: Any,
    ) -> AdaLayersOutput:
        """Average the layers of the base model, and compute the logits and, with labels, the loss.

        Args:
            input_ids: Token ids of the base, (B, T).
            attention_mask: 1 at real tokens, (B, T), or None if all tokens are real.
            token_type_ids: Segment ids, if the base takes this input.
            position_ids: Position ids, if the base takes this input.
            inputs_embeds: Embeddings instead of `input_ids`, (B, T, K).
            labels: For sequences, classes, (B,), values, (B,) or (B, 1), or multi-hot rows, (B, C). For tokens,
                classes, (B, T), negative where there is no target.
            states: States by index from `base_states`, (B, T, K) each, with which the base does not run. All active
                states must be included.
            num_targets: Counts that normalise the loss parts; see `combine_terms`.
            **kwargs: Other arguments of the base. With `output_hidden_states` or `output_attentions`, all blocks of the
                base run, whatever their weights.

        Raises:
            DataError: If an active state is missing from `states`.
            ConfigError: If hidden states or attentions are requested of a truncated base.
        """
        if (words := input_ids if inputs_embeds is None else inputs_embeds) is not None:
            check_words(words, self.get_input_embeddings())
        weights, active = self.layer_distribution(), self.active_states()
        inputs = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "token_type_ids": token_type_ids,
            "position_ids": position_ids,
            "inputs_embeds": inputs_embeds,
        }
        run_outputs: Mapping[str, Any] = {} if states is not None else self._run_all_blocks(inputs, kwargs)
        if run_outputs:
            states = {number: self._activate(run_outputs["states"][number]) for number in self._select_states(active)}
        mixed, blocks = self._mix(weights, active, inputs | kwargs, states, self.config.depth if run_outputs else 0)
        logits = self.classify(self._prepare_features(mixed), attention_mask)
        trace = self._trace(weights, active, mixed, attention_mask, blocks)
        uncut = layer_weights(self.distribution, self.config.alpha_distribution, active=self.mixed_layers)
        result = AdaLayersOutput(logits=logits, trace=trace, distribution=uncut)
        result.hidden_states, result.attentions = run_outputs.get("hidden_states"), run_outputs.get("attentions")
        if labels is not None:
            task = self.task_loss(logits, labels)
            terms = {"task": task, **distribution_terms(self.config, weights, task.count)}
            result.loss, result.loss_parts = combine_terms(terms, num_targets)
        return result

    def count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the number of targets in a batch for each part of the loss."""
        count = self.count_labels(batch["labels"])
        return {"task": count} | dict.fromkeys(distribution_terms(self.config, self.layer_distribution(), count), count)

    def _run_all_blocks(self, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Run all blocks of the base model, as needed to output its hidden states or attentions.

        Without a request, return an empty mapping.
        """
        requests = requested_states(self.config, options)
        if not requests:
            return {}
        arguments = select_accepted_inputs(self.model, {**inputs, **options})
        arguments |= {"output_hidden_states": True, "output_attentions": "attentions" in requests}
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.config.freeze_base_model):
            outputs = self.model(**arguments)
        run_outputs = {"states": outputs.hidden_states, "attentions": outputs.attentions}
        if "hidden_states" in requests:
            run_outputs["hidden_states"] = choose_states(outputs.hidden_states, requests["hidden_states"])
        return run_outputs

    def _mix(
        self,
        weights: Tensor,
        active: tuple[int, ...],
        inputs: Mapping[str, Any],
        states: Mapping[int, Tensor] | None,
        blocks: int,
    ) -> tuple[Tensor, int]:
        """Return the weighted average over layers, (B, T, k or K), and the number of blocks that ran.

        `blocks` is the number of blocks that had run before.
        """
        config, first = self.config, self.config.layer_states[0]
        total: Tensor | None = None

        def add(number: int, state: Tensor) -> None:
            nonlocal total
            layer = number - first
            term = weights[layer] * self._transform(layer, state)
            total = term if total is None else total + term

        numbers = self._select_states(active)
        if states is None:
            blocks = stream_states(
                self.model,
                select_accepted_inputs(self.model, inputs),
                numbers,
                lambda number, state: add(number, self._activate(state)),
                trainable=not config.freeze_base_model,
            )
        else:
            if missing := set(active) - set(states):
                raise DataError(f"states: hidden state {min(missing)} is missing; given are {sorted(states)}")
            numbers = tuple(number for number in numbers if number in states)
            for number in numbers:
                add(number, states[number].to(self.dtype))
        assert total is not None
        if self.training:
            total = total + build_zero(self._find_unread({number - first for number in numbers}, blocks))
        return total, blocks

    def _activate(self, state: Tensor) -> Tensor:
        """Apply GELU to a hidden state if layers are projected before they are averaged.

        The result does not depend on weights of the head, so it can be cached.
        """
        return nn.functional.gelu(state) if self.config.mix == "projected" else state

    def _transform(self, layer: int, state: Tensor) -> Tensor:
        if self.config.mix == "scalar":
            return state
        return self.dropout(project(self.projectors[str(layer)], state))

    def _find_unread(self, layers: Collection[int], blocks: int) -> Iterator[nn.Parameter]:
        """Yield the parameters that get no gradient in this forward pass, given the layers read and the blocks run."""
        for name, projector in getattr(self, "projectors", {}).items():
            if int(name) not in layers:
                yield from projector.parameters()
        if blocks < self.config.depth:
            yield from self.model.parameters()

    def _prepare_features(self, mixed: Tensor) -> Tensor:
        """Return the input of the head, (B, T, k or K): scaled, projected averages with position embeddings."""
        features = self.gamma * mixed if hasattr(self, "gamma") else mixed
        if hasattr(self, "projector"):
            features = self.dropout(project(self.projector, nn.functional.gelu(features)))
        if not self.config.reads_raw_states:
            features = nn.functional.gelu(features)
        if self.config.add_pos_embeddings:
            features = self.dropout(features + sinusoidal_positions(features.shape[1], features))
        return features

    def _trace(
        self, weights: Tensor, active: tuple[int, ...], mixed: Tensor, mask: Tensor | None, blocks: int
    ) -> DepthTrace:
        (rows, width), depth, first = mixed.shape[:2], self.config.depth, self.config.layer_states[0]
        full = torch.full((rows,), width, device=mixed.device)
        return DepthTrace(
            unit="task",
            updates=torch.full((rows,), float(active[-1]), device=mixed.device),
            valid=torch.ones_like(full, dtype=torch.bool),
            max_updates=depth,
            execution=Execution(blocks, tokens=full if mask is None else mask.ne(0).sum(dim=1), width=width),
            layer_weights=nn.functional.pad(weights.detach(), (first, depth + 1 - first - len(weights))),
        )

    def price(self, trace: DepthTrace) -> Work:
        """Return the MACs of a batch from its depth trace."""
        return price_layers(self.config, trace, self.classifies_tokens)

    @torch.no_grad()
    def base_states(self, wanted: Collection[int], **inputs: Any) -> dict[int, Tensor]:
        """Compute hidden states of the base model by index, (B, T, K) each.

        If states are projected, the result is GELU(Z).
        """
        states: dict[int, Tensor] = {}

        def keep(number: int, state: Tensor) -> None:
            states[number] = self._activate(state)

        stream_states(self.model, select_accepted_inputs(self.model, inputs), wanted, keep)
        return states

    def truncate(self, min_weight: float = 0.0) -> None:
        """Remove the layers whose weight in the average is at most `min_weight`.

        Their projections and the blocks above the deepest remaining layer are removed, too.

        With `min_weight=0`, the predictions stay the same. The truncated model can be saved and loaded, but is not
        intended for further training.

        Raises:
            ConfigError: If no layer would remain.
        """
        weights = whole(self.layer_distribution()).tolist()
        layers = [layer for layer in self.config.layers if weights[layer] > min_weight]
        if not layers:
            raise ConfigError(f"min_weight={min_weight} leaves no layer; the largest weight is {max(weights):.4f}")
        for name in list(getattr(self, "projectors", ())):
            if int(name) not in layers:
                del self.projectors[name]
        self.config.kept_layers = layers
        self.attach_base(self.model, referenced=bool(self._keys_to_ignore_on_save))

    @property
    def learns_distribution(self) -> bool:
        """Whether the layer weights are trained."""
        return self.config.learns_distribution

    def added_parameters(self) -> int:
        """Return the number of parameters that do not belong to the base model."""
        return sum(weight.numel() for name, weight in self.named_parameters() if not name.startswith("model."))

    def base_parameters(self) -> int:
        """Return the number of parameters of the base model."""
        return sum(weight.numel() for weight in self.model.parameters())
