"""ACT-ALBERT, the base model: its embeddings, its outputs, and what depth costs, as a loss and as work.

    x_0 = W LN(word + segment + position)
    x, N, R of every token                          the recurrence, in `recurrence.py`
    ponder cost = sum or mean over tokens of N + R  as `penalty_reduction` says

Its heads are in `heads.py`. Shape legend: B batch, T tokens, K wanted tokens, E embedding width, H hidden width, N
iterations that ran, A heads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.utils import ModelOutput
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from adadepth.budget.controller import smooth_depth
from adadepth.errors import ConfigError
from adadepth.families.albert_act.configuration import FREEZING_RULES, AlbertActConfig, refuse_ragged
from adadepth.families.albert_act.ragged import PackedPositions, build_positions, run_ragged
from adadepth.families.albert_act.readouts import ReadoutStates
from adadepth.families.albert_act.recurrence import AlbertActTransformer, StateRecord
from adadepth.families.contract import DepthKnob, HoldsBudget, ReplaysHalting
from adadepth.families.shared.albert.block import (
    AlbertAttention,
    AlbertEmbeddings,
    PositionEmbedding,
    SharedBlockModel,
    TypeEmbedding,
    attention_mask_for,
    sinusoids,
    words_of,
)
from adadepth.families.shared.albert.packed_attention import Kernel, choose_kernel
from adadepth.families.shared.albert.pricing import computed_work, update_work
from adadepth.families.shared.losses import LossTerm
from adadepth.halting.trace import DepthTrace, Work

# Multiply-accumulates that one iteration of the whole batch must have for `auto` to run ragged, by kind of device: what
# has been measured (docs/ragged_execution.md). A device that has not been measured runs dense.
_BATCH_NEEDS = {"cpu": 5e7}


class TracedOutput(ModelOutput):
    """The halting facts of an output's trace under their own names: one tensor each, whichever way it is read."""

    trace: DepthTrace | None

    @property
    def updates(self) -> Tensor | None:
        """Updates every token received, float32, 0 at padding, (B, T)."""
        return None if self.trace is None else self.trace.updates

    @property
    def remainders(self) -> Tensor | None:
        """What was left to reach a halting sum of one, float32, 0 at padding, (B, T); differentiable."""
        return None if self.trace is None or self.trace.halting is None else self.trace.halting.remainders

    @property
    def halting_probabilities(self) -> Tensor | None:
        """Probability of every iteration, 0 once a token has halted, float32, (B, T, N); differentiable."""
        return None if self.trace is None or self.trace.halting is None else self.trace.halting.probabilities


@dataclass
class AlbertActOutput(TracedOutput):
    """States and halting of one pass.

    Attributes:
        last_hidden_state: (B, T, H).
        pooler_output: tanh of the pooled first token, (B, H); None without a pooler.
        ponder_cost: The cost N + R reduced as `penalty_reduction` says, before its weight; a scalar.
        hidden_states: The states x_0 to x_N, N + 1 tensors (B, T, H), on request.
        attentions: Attention weights per iteration, N tensors (B, A, T, T), on request (eager attention).
        trace: The halting facts; `updates`, `remainders` and `halting_probabilities` are read off it.
        readout_states: The states of the tokens that `readout_slots` names after every iteration, (K, N, H).
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
    """What every head adds to its logits.

    Attributes:
        loss: Sum of `loss_parts`, when labels are given.
        loss_parts: Weighted and normalised parts by name, `ponder` among them.

    The other fields are those of `AlbertActOutput`.
    """

    loss: Tensor | None = None
    loss_parts: dict[str, Tensor] | None = None
    ponder_cost: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    trace: DepthTrace | None = None

    @classmethod
    def of(cls, outputs: AlbertActOutput, **own: Any) -> Self:
        """A head's output: what it passes on of the base model's, and its own."""
        names = ("ponder_cost", "hidden_states", "attentions", "trace")
        passed_on: dict[str, Any] = {name: outputs.get(name) for name in names}
        return cls(**passed_on, **own)


class AlbertActPreTrainedModel(DepthKnob, HoldsBudget, ReplaysHalting, SharedBlockModel):
    """Loading, initialisation and accounting shared by all ACT-ALBERT models."""

    config: AlbertActConfig
    config_class = AlbertActConfig
    _can_record_outputs = {
        "hidden_states": OutputRecorder(StateRecord),
        "attentions": OutputRecorder(AlbertAttention, index=1),
    }
    # Checkpoints of old transformers releases carry this buffer.
    _keys_to_ignore_on_load_unexpected = [r"embeddings\.position_ids"]
    depth_unit = "token"
    depth_knob = "halting threshold 1 - act_epsilon"
    shows_states = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if self.config.position_init == "sinusoidal" and isinstance(module, PositionEmbedding | TypeEmbedding):
            self._init_positions(module)

    def _init_positions(self, module: nn.Embedding) -> None:
        """Sinusoids; where there are columns, rows fill the first half of the width and columns the second."""
        config, has_columns = self.config, self.config.type_vocab_size > 2
        if isinstance(module, TypeEmbedding) and not has_columns:
            return
        width = 2 * (config.embedding_size // (4 if has_columns else 2))
        waves = sinusoids(module.num_embeddings, width, config.initializer_range)
        room = config.embedding_size - width
        padding = (room, 0) if isinstance(module, TypeEmbedding) else (0, room)
        init.copy_(module.weight, nn.functional.pad(waves, padding))

    def ponder_term(self, outputs: AlbertActOutput) -> LossTerm:
        """The penalty tau (N + R) as a loss term: summed over tokens, counted in sequences or in tokens."""
        trace = outputs.trace
        assert trace is not None
        assert outputs.remainders is not None
        total = (trace.updates + outputs.remainders).sum()
        return LossTerm(total, self.count_payers(trace.valid), self.config.act_penalty)

    def count_payers(self, mask: Tensor) -> Tensor:
        """What the penalty is divided by, of a mask of real tokens, (B, T): their number, or that of their rows."""
        return mask.sum() if self.config.penalty_reduction == "mean_tokens" else mask.any(dim=1).sum()

    def count_units(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Tokens of a batch whose depth a budget counts: the real ones."""
        return batch["attention_mask"].sum()

    def soft_depth(self, outputs: Any) -> LossTerm:
        """The smooth depth of every real token: survival 1 - h_n after the updates that were not its last."""
        trace: DepthTrace = outputs.trace
        survival = 1.0 - outputs.halting_probabilities.cumsum(dim=-1)
        steps = torch.arange(1, survival.shape[-1] + 1, device=survival.device)
        depth = 1.0 + smooth_depth(survival, steps < trace.updates.unsqueeze(-1))
        return LossTerm((depth * trace.valid).sum(), trace.valid.sum())

    @property
    def executions(self) -> tuple[str, ...]:
        """The executions that give the same results; one alone where nobody halts, or halted states keep moving."""
        adapts = self.config.fixed_depth is None and self.config.state_rule in FREEZING_RULES
        return ("dense", "ragged") if adapts else ("dense",)

    def set_depth_level(self, level: float) -> None:
        """Halt a token when its halting sum exceeds `level`, in (0, 1)."""
        self.config.act_epsilon = 1.0 - level

    @property
    def halting_bias(self) -> Tensor:
        """The bias b of the halting unit sigmoid(w y + b), (1,)."""
        return self._encoder.albert_layer.act.dense.bias

    def force_depth(self, depth: int | None) -> None:
        """Give every token this many updates from now on, and nobody halts; None: as the configuration says."""
        self._encoder.forced_depth = depth

    @property
    def halts_by_sequence(self) -> bool:
        """Whether all tokens of a sequence halt together."""
        return self.config.halting_scope == "sequence"

    def replay_halting(self, masses: Tensor | None) -> None:
        """Let tokens halt by these masses, (B, T, N), instead of their halting unit's; None: by their unit."""
        self._encoder.replayed_masses = masses

    @property
    def one_depth(self) -> int | None:
        """The updates of every token now; None where they halt."""
        return self._encoder.fixed_depth

    @property
    def _encoder(self) -> AlbertActTransformer:
        base: Any = self.base_model  # itself, or what a head has at `albert`
        return base.encoder

    def price(self, trace: DepthTrace) -> Work:
        """Multiply-accumulates of one traced batch; see `price_tokens`."""
        return price_tokens(self.config, trace)


class Start(NamedTuple):
    """x_0 (B, T, H), the mask in the form that attention wants, and where the tokens are, (B, T)."""

    state: Tensor
    mask: Any
    valid: Tensor


class AlbertActModel(AlbertActPreTrainedModel):
    """ALBERT whose shared layer updates every token until the token halts."""

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
        """Put another table of word embeddings in the place of this one."""
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
        """Encode a batch.

        Args:
            input_ids: Token ids (B, T); or give `inputs_embeds` (B, T, E).
            attention_mask: 1 at real tokens, 0 at padding, (B, T). Padding starts halted and is never a key.
            token_type_ids: Segment of each token, (B, T).
            position_ids: (B, T) or (1, T).
            inputs_embeds: Word embeddings instead of ids.
            readout_slots: b T + t of the tokens whose states after every iteration are returned, int64, each once,
                (K,).
            **kwargs: `output_hidden_states`, `output_attentions`, `return_dict`, and the attention's own.

        Raises:
            ValueError: If not exactly one of ids and embeddings is given, if the mask is not (B, T), or if the
                sequence is longer than the positions.
        """
        state, mask, valid = self.start(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        readouts = None if readout_slots is None else ReadoutStates(readout_slots, state)
        # Attention maps are those of all tokens.
        kernel = None if self._records("attentions", kwargs) else self.ragged_kernel(valid)
        positions = build_positions(self.config, valid, mask, kwargs, kernel)
        if isinstance(positions, PackedPositions):
            records = self._records("hidden_states", kwargs)
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
        """What the encoder begins with; the arguments are those of the forward pass."""
        words = words_of(input_ids, inputs_embeds, attention_mask, self.get_input_embeddings())
        embedded = self.embeddings(words, token_type_ids, position_ids)
        valid = (
            torch.ones(words.shape[:2], dtype=torch.bool, device=words.device)
            if attention_mask is None
            else attention_mask.bool()
        )
        mask = attention_mask_for(self.config, embedded, attention_mask, training=self.training)
        return Start(self.encoder.embedding_hidden_mapping_in(embedded), mask, valid)

    def pooled(self, state: Tensor) -> Tensor:
        """tanh(W h) of first tokens, (..., H) to (..., H)."""
        assert self.pooler is not None
        return torch.tanh(self.pooler(state))

    def ragged_kernel(self, valid: Tensor) -> Kernel | None:
        """The attention kernel of the ragged execution of a batch, (B, T); None where it runs dense."""
        return ragged_kernel(self.config, valid.numel(), valid.device, self.dtype, training=self.training)

    def _records(self, name: str, options: Mapping[str, Any]) -> bool:
        """Whether a call asks for `hidden_states` or `attentions`."""
        return bool(options.get(f"output_{name}", getattr(self.config, f"output_{name}", False)))


def ragged_kernel(
    config: AlbertActConfig, positions: int, device: torch.device, dtype: torch.dtype, *, training: bool
) -> Kernel | None:
    """The attention kernel of a ragged execution, or None where the dense one runs.

    Args:
        config: With `execution`.
        positions: Of the batch, padding included.
        device: Of the batch.
        dtype: Of the weights.
        training: Whether attention weights are dropped.

    Raises:
        ConfigError: If `execution="ragged"` cannot be had with this state rule or attention implementation.
    """
    if config.execution == "dense":
        return None
    if config.execution == "auto":
        pays = positions * update_work(config, 0) >= _BATCH_NEEDS.get(device.type, math.inf)
        if not pays or config.state_rule not in FREEZING_RULES:
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


def price_tokens(config: AlbertActConfig, trace: DepthTrace) -> Work:
    """Multiply-accumulates of the encoder for one traced batch; heads and embeddings' lookups are not counted.

    An update of a token costs `update_work`, and H to halt. The adaptive count refreshes a token's keys and values,
    2 H^2 of it, once more after its last update if others still run.

    Args:
        config: Widths E, H, F.
        trace: With `execution`. With its `tokens`, the units are some of so many tokens of each row. Without its
            `computed`, every row is taken to have run in every iteration.
    """
    ran = trace.executed
    hidden = config.hidden_size
    updates, valid = trace.updates.double(), trace.valid.double()
    tokens = valid.sum(dim=1, keepdim=True) if ran.tokens is None else ran.tokens.double().unsqueeze(1)
    deepest = updates.amax(dim=1, keepdim=True)
    key_side = 2 * hidden**2
    query_side = update_work(config, tokens) - key_side + hidden
    entry = config.embedding_size * hidden

    adaptive = updates * query_side + torch.minimum(updates + 1, deepest) * key_side + entry
    full = trace.max_updates * (query_side + key_side) + entry
    rows, length = updates.shape
    update = update_work(config, length) + hidden
    dense = updates.new_tensor(rows * length * (ran.steps * update + entry))
    executed = dense
    if ran.computed is not None:
        halting = hidden * ran.computed.queries.double().sum()
        executed = (computed_work(config, ran.computed) + halting + rows * length * entry).to(dense)
    return Work(executed, dense, (adaptive * valid).sum(), (full * valid).sum())
