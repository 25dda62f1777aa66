"""ACT-ALBERT without task heads: the encoder model, its outputs, the ponder cost, and MAC counts.

    x_0 = W LN(word + segment + position)
    x, N, R of every token                          the recurrence, in `recurrence.py`
    ponder cost = sum or mean over tokens of N + R  reduced as set by `penalty_reduction`

The heads are in `heads.py`. Shape legend: B batch, T tokens, K recorded tokens, E embedding width, H hidden width, N
iterations that ran, A attention heads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.utils import ModelOutput
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from adadepth.budget.controller import smooth_depth
from adadepth.errors import ConfigError
from adadepth.halting.act import update_stream
from adadepth.halting.trace import DepthTrace, StateMaps, Work
from adadepth.halting.units import count_unit_macs
from adadepth.models.albert_act.configuration import FREEZING_RULES, AlbertActConfig, refuse_ragged
from adadepth.models.albert_act.ragged import PackedPositions, build_positions, run_ragged
from adadepth.models.albert_act.readouts import ReadoutStates
from adadepth.models.albert_act.recurrence import AlbertActTransformer, StateRecord
from adadepth.models.albert_act.tf_weights import find_tf_weights, read_tf_weights
from adadepth.models.contract import DepthKnob, HoldsBudget, ReplaysHalting
from adadepth.models.loading import take_config_fields
from adadepth.models.shared.albert.block import (
    AlbertAttention,
    AlbertEmbeddings,
    PositionEmbedding,
    SharedBlockModel,
    TypeEmbedding,
    build_attention_mask,
    select_inputs,
    sinusoids,
)
from adadepth.models.shared.albert.packed_attention import Kernel, choose_kernel
from adadepth.models.shared.albert.pricing import computed_work, update_work
from adadepth.models.shared.losses import LossTerm

# Multiply-accumulates of one iteration of the whole batch for every thread from which on `auto` runs ragged, by device
# type, as measured in docs/ragged_execution.md. Threads speed up products, but not the calls that packing adds. A
# device type without a measurement runs dense.
_THREAD_NEEDS = {"cpu": 5e7}


class TracedOutput(ModelOutput):
    """Base class of model outputs, with updates, remainders and halting probabilities taken from the depth trace."""

    trace: DepthTrace | None

    @property
    def updates(self) -> Tensor | None:
        """Number of updates of every token, float32, 0 at padding, (B, T)."""
        return None if self.trace is None else self.trace.updates

    @property
    def remainders(self) -> Tensor | None:
        """Remainder R of every token (see `adadepth.halting.act`), float32, 0 at padding, (B, T); differentiable."""
        return None if self.trace is None or self.trace.halting is None else self.trace.halting.remainders

    @property
    def halting_probabilities(self) -> Tensor | None:
        """Halting probability of every iteration, 0 once a token has halted, float32, (B, T, N); differentiable."""
        return None if self.trace is None or self.trace.halting is None else self.trace.halting.probabilities


@dataclass
class AlbertActOutput(TracedOutput):
    """Output of the ACT-ALBERT encoder: hidden states and halting of one forward pass.

    Attributes:
        last_hidden_state: Results of the recurrence, (B, T, H).
        pooler_output: Pooled first token after tanh, (B, H), or None without a pooler.
        ponder_cost: Ponder cost N + R without its weight, reduced as `penalty_reduction` sets, a scalar.
        hidden_states: States x_0 to x_N, N + 1 tensors (B, T, H), if requested.
        attentions: Attention weights of every iteration, N tensors (B, A, T, T), if requested. They need eager
            attention.
        trace: Trace with `updates`, `remainders` and `halting_probabilities`.
        readout_states: States of the tokens at `readout_slots` after every iteration, (K, N, H).
    """

    last_hidden_state: Tensor | None = None
    pooler_output: Tensor | None = None
    ponder_cost: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    trace: DepthTrace | None = None
    readout_states: Tensor | None = None


@dataclass
class HaltingOutput(TracedOutput):
    """Base class of the outputs of models with task heads, with the fields on halting.

    Attributes:
        loss: Sum of `loss_parts`, or None without labels.
        loss_parts: Weighted and normalised parts by name, including `ponder`.
    """

    loss: Tensor | None = None
    loss_parts: dict[str, Tensor] | None = None
    ponder_cost: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    trace: DepthTrace | None = None

    @classmethod
    def from_base(cls, outputs: AlbertActOutput, **predictions: Any) -> Self:
        """Build a head's output from its predictions and the encoder's output."""
        names = ("ponder_cost", "hidden_states", "attentions", "trace")
        shared: dict[str, Any] = {name: outputs.get(name) for name in names}
        return cls(**shared, **predictions)


class AlbertActPreTrainedModel(DepthKnob, HoldsBudget, ReplaysHalting, SharedBlockModel):
    """Base class of all ACT-ALBERT models: weight initialisation, ponder cost, depth control and MAC counts."""

    config: AlbertActConfig
    config_class = AlbertActConfig
    _can_record_outputs = {
        "hidden_states": OutputRecorder(StateRecord),
        "attentions": OutputRecorder(AlbertAttention, index=1),
    }
    # Checkpoints of old transformers releases carry this buffer.
    _keys_to_ignore_on_load_unexpected = [r"embeddings\.position_ids"]
    depth_unit = "token"
    depth_knob = "halting sum at which a token stops (1 minus model.act_epsilon)"
    shows_states = True

    @classmethod
    def read_published(cls, path: Any, stored: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any] | None:
        """Load a published model whose only weights are those of TensorFlow, `tf_model.h5`."""
        if path is None or stored.get("model_type") != cls.config_class.model_type:
            return None
        file = find_tf_weights(path, options)
        if file is None:
            return None
        more = dict(options)
        config = more.pop("config", None) or cls.config_class.from_dict(dict(stored))
        return take_config_fields(config, more) | {"config": config, "state_dict": read_tf_weights(path, file)}

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if self.config.position_init == "sinusoidal" and isinstance(module, PositionEmbedding | TypeEmbedding):
            self._init_positions(module)

    def _init_positions(self, module: nn.Embedding) -> None:
        """Initialise position embeddings with sines and cosines.

        On grids, rows use the first half of the width and columns the second.
        """
        config = self.config
        if isinstance(module, TypeEmbedding) and not config.has_columns:
            return
        width = 2 * (config.embedding_size // (4 if config.has_columns else 2))
        waves = sinusoids(module.num_embeddings, width, config.initializer_range)
        missing = config.embedding_size - width
        padding = (missing, 0) if isinstance(module, TypeEmbedding) else (0, missing)
        init.copy_(module.weight, nn.functional.pad(waves, padding))

    def ponder_term(self, outputs: AlbertActOutput) -> LossTerm:
        """Return the ponder cost tau (N + R) as a part of the loss, summed over tokens."""
        trace = outputs.trace
        assert trace is not None
        assert outputs.remainders is not None
        total = (trace.updates + outputs.remainders).sum()
        return LossTerm(total, self.count_ponder_targets(trace.valid), self.config.act_penalty)

    def count_ponder_targets(self, mask: Tensor) -> Tensor:
        """Return the divisor of the ponder cost: the number of real tokens, or of nonempty sequences.

        Args:
            mask: Mask of the real tokens, (B, T).
        """
        return mask.sum() if self.config.penalty_reduction == "mean_tokens" else mask.any(dim=1).sum()

    def count_units(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the number of real tokens in a batch, over which the mean depth is taken."""
        return batch["attention_mask"].sum()

    def soft_depth(self, outputs: Any) -> LossTerm:
        """Return a differentiable approximation of the depth, summed over real tokens; see `adadepth.budget`.

        The smooth depth is computed from the survivals 1 - h_n after all updates before the last; see `smooth_depth`.
        """
        trace: DepthTrace = outputs.trace
        survival = 1.0 - outputs.halting_probabilities.cumsum(dim=-1)
        steps = torch.arange(1, survival.shape[-1] + 1, device=survival.device)
        depth = 1.0 + smooth_depth(survival, steps < trace.updates.unsqueeze(-1))
        return LossTerm((depth * trace.valid).sum(), trace.valid.sum())

    @property
    def executions(self) -> tuple[str, ...]:
        """Execution modes that the model supports, with equal results.

        This is only `dense` if the depth is fixed or halted states keep changing.
        """
        adapts = self.config.fixed_depth is None and self.config.state_rule in FREEZING_RULES
        return ("dense", "ragged") if adapts else ("dense",)

    def set_depth_level(self, level: float) -> None:
        """Set the halting threshold: a token halts when its halting sum exceeds `level`, in (0, 1)."""
        self.config.act_epsilon = 1.0 - level

    @property
    def halting_bias(self) -> Tensor | None:
        """Bias b of the halting unit sigmoid(w y + b), (1,), or None if another unit has none."""
        return getattr(self._encoder.albert_layer.act.dense, "bias", None)

    def list_heads(self) -> set[str]:
        """Return the names of the task heads and of the halting unit."""
        return super().list_heads() | {f"{self.base_model_prefix}.encoder.albert_layer.act"}

    def freeze_untrained(self) -> None:
        """Freeze the halting unit at a fixed depth, at which no loss reads it."""
        if self.config.fixed_depth is not None:
            self._encoder.albert_layer.act.requires_grad_(False)

    def force_depth(self, depth: int | None) -> None:
        """Give every token `depth` updates instead of halting, or restore the configured depth if None."""
        self._encoder.forced_depth = depth

    @property
    def halts_by_sequence(self) -> bool:
        """Whether all tokens of a sequence halt together."""
        return self.config.halting_scope == "sequence"

    def replay_halting(self, masses: Tensor | None) -> None:
        """Make tokens halt by given halting masses, (B, T, N), instead of the halting unit.

        None restores the unit.
        """
        self._encoder.replayed_masses = masses

    @property
    def one_depth(self) -> int | None:
        """Number of updates of every token if halting is disabled, or None if tokens halt."""
        return self._encoder.fixed_depth

    @property
    def _encoder(self) -> AlbertActTransformer:
        base: Any = self.base_model  # this model, or a head's attribute `albert`
        return base.encoder

    def build_state_maps(self, batch: Mapping[str, Tensor]) -> StateMaps:
        """Return x_0 and the map x_{n-1} -> x_n of every update, with the halting probability as weight if it is read.

        A halting unit with a memory reads that before its first update.
        """
        names = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
        base: Any = self.base_model
        inputs = (batch[name].flatten(0, -2) if name in batch else None for name in names)
        start, encoder = base.start(*inputs), self._encoder
        positions = build_positions(self.config, start.valid, start.mask, {}, None)
        first, memory = positions.enter(start.state), encoder.albert_layer.act.start(start.state)

        def update(step: int, state: Tensor) -> Tensor:
            output, probability, _ = encoder.propose(state, memory, positions, step)
            return update_stream(encoder.state_rule, state, output, probability, start.valid)

        return StateMaps(first, start.valid, [partial(update, step) for step in range(1, self.max_updates + 1)])

    def price(self, trace: DepthTrace) -> Work:
        """Return the MACs of a batch from its depth trace. With a fixed depth, the halting unit does not run."""
        unit = count_unit_macs(self._encoder.albert_layer.act.dense, self.config.hidden_size)
        return price_tokens(self.config, trace, unit if self.one_depth is None else 0)


class Start(NamedTuple):
    """Embedded input of the encoder's first iteration, with masks.

    Attributes:
        state: x_0, (B, T, H).
        mask: Attention mask in the form of the attention implementation.
        valid: Mask of the real tokens, boolean, (B, T).
    """

    state: Tensor
    mask: Any
    valid: Tensor


class AlbertActModel(AlbertActPreTrainedModel):
    """ACT-ALBERT encoder, whose shared layer updates every token until that token halts."""

    def __init__(self, config: AlbertActConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        self.embeddings = AlbertEmbeddings(config)
        self.encoder = AlbertActTransformer(config)
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size) if add_pooling_layer else None
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the table of word embeddings."""
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replace the table of word embeddings."""
        self.embeddings.word_embeddings = value

    @merge_with_config_defaults
    @capture_outputs(tie_last_hidden_states=False)
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        readout_slots: Tensor | None = None,
        **kwargs: Any,
    ) -> AlbertActOutput:
        """Encode a batch of token ids or embeddings: apply the shared layer until every token has halted.

        Args:
            input_ids: Token ids, (B, T); exclusive with `inputs_embeds`.
            attention_mask: 1 at real tokens, 0 at padding, (B, T). Padding starts halted and is never a key.
            token_type_ids: Segment of each token, (B, T).
            position_ids: Position of each token, (B, T) or (1, T).
            inputs_embeds: Word embeddings instead of ids, (B, T, E).
            readout_slots: Distinct indices b T + t of the tokens for which the states after every iteration are
                returned, int64, (K,).
            **kwargs: `output_hidden_states`, `output_attentions`, `return_dict`, and options of the attention.

        Raises:
            ValueError: If not exactly one of ids and embeddings is given, if the mask is not (B, T), or if the sequence
                is longer than the number of positions.
        """
        state, mask, valid = self.start(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        readouts = None if readout_slots is None else ReadoutStates(readout_slots, state)
        # Only dense execution computes the attention weights of all tokens.
        kernel = None if self._should_record("attentions", kwargs) else self.ragged_kernel(valid)
        positions = build_positions(self.config, valid, mask, kwargs, kernel)
        if isinstance(positions, PackedPositions):
            records = self._should_record("hidden_states", kwargs)
            result, trace = run_ragged(self.encoder, state, positions, readouts, records=records)
        else:
            result, trace = self.encoder(state, positions, readouts)
        outputs = AlbertActOutput(
            last_hidden_state=result,
            pooler_output=None if self.pooler is None else self.pooled(result[:, 0]),
            trace=trace,
            readout_states=None if readouts is None else readouts.stack(),
        )
        cost = self.ponder_term(outputs)
        outputs.ponder_cost = cost.total / cost.count.clamp(min=1)
        return outputs

    def start(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Start:
        """Embed the inputs of a batch and build its masks. The arguments are those of the forward pass."""
        words = select_inputs(input_ids, inputs_embeds, attention_mask, self.get_input_embeddings())
        embedded = self.embeddings(words, token_type_ids, position_ids)
        valid = (
            torch.ones(words.shape[:2], dtype=torch.bool, device=words.device)
            if attention_mask is None
            else attention_mask.bool()
        )
        mask = build_attention_mask(self.config, embedded, attention_mask, training=self.training)
        return Start(self.encoder.embedding_hidden_mapping_in(embedded), mask, valid)

    def pooled(self, state: Tensor) -> Tensor:
        """Return the pooled state tanh(W h), (..., H), of first tokens' states h, (..., H)."""
        assert self.pooler is not None
        return torch.tanh(self.pooler(state))

    def ragged_kernel(self, valid: Tensor) -> Kernel | None:
        """Return the attention kernel for ragged execution (skipping halted tokens), or None for dense execution.

        `valid` is the mask of the real tokens, (B, T).
        """
        return ragged_kernel(self.config, valid.numel(), valid.device, self.dtype, training=self.training)

    def _should_record(self, name: str, options: Mapping[str, Any]) -> bool:
        """Return whether the output `name` is requested, by the call or the configuration."""
        return bool(options.get(f"output_{name}", getattr(self.config, f"output_{name}", False)))


def ragged_kernel(
    config: AlbertActConfig, positions: int, device: torch.device, dtype: torch.dtype, *, training: bool
) -> Kernel | None:
    """Return the attention kernel for ragged execution, or None for dense execution.

    Args:
        config: Configuration with `execution`, the state rule and the widths.
        positions: Number of positions of the batch, padding included.
        device: Device of the batch.
        dtype: Dtype of the weights.
        training: Whether the model is in training mode, which applies dropout to attention weights.

    Raises:
        ConfigError: If `execution="ragged"` does not work with the state rule or the attention implementation.
    """
    if config.execution == "dense":
        return None
    if config.execution == "auto":
        if config.state_rule not in FREEZING_RULES or torch.compiler.is_compiling():
            return None
        if positions * update_work(config, 0) < torch.get_num_threads() * _THREAD_NEEDS.get(device.type, math.inf):
            return None
    else:
        refuse_ragged(config)
    kernel = choose_kernel(config, device, dtype, training=training)
    if kernel is None and config.execution == "ragged" and not torch.compiler.is_compiling():
        raise ConfigError(
            f"execution='ragged' needs attn_implementation eager, sdpa or flash_attention_*, "
            f"not {config._attn_implementation!r}"
        )
    return kernel


def price_tokens(config: AlbertActConfig, trace: DepthTrace, unit: int | None = None) -> Work:
    """Return the MACs of the encoder for a batch, from its depth trace, without heads and embedding lookups.

    An update of a token costs `update_work`, plus the halting unit, H if it is linear. If other tokens of the sequence
    still run after the last update of a token, the adaptive count includes one more refresh of its keys and values,
    2 H^2.

    Args:
        config: Configuration with the widths E, H, F.
        trace: Trace with `execution`. If the traced units are only some of the tokens, `execution.tokens` is the number
            of tokens per row. Without `execution.computed`, all rows are counted in every iteration.
        unit: MACs of the halting unit for one state, or None for H.
    """
    ran = trace.executed
    hidden = config.hidden_size
    unit = hidden if unit is None else unit
    updates, valid = trace.updates.double(), trace.valid.double()
    tokens = valid.sum(dim=1, keepdim=True) if ran.tokens is None else ran.tokens.double().unsqueeze(1)
    deepest = updates.amax(dim=1, keepdim=True)
    key_side = 2 * hidden**2
    query_side = update_work(config, tokens) - key_side + unit
    entry = config.embedding_size * hidden

    adaptive = updates * query_side + torch.minimum(updates + 1, deepest) * key_side + entry
    full = trace.max_updates * (query_side + key_side) + entry
    rows, length = updates.shape
    update = update_work(config, length) + unit
    dense = updates.new_full((), rows * length * (ran.steps * update + entry))
    executed = dense
    if ran.computed is not None:
        halting = unit * ran.computed.queries.double().sum()
        executed = (computed_work(config, ran.computed) + halting + rows * length * entry).to(dense)
    return Work(executed, dense, (adaptive * valid).sum(), (full * valid).sum())
