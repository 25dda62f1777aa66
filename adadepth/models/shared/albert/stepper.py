"""ALBERT encoder run step by step, so that finished sequences can leave the batch.

`AlbertStepper` applies the layer and the heads, and drops the sequences that exit. Two classes store the states of the
running sequences. `PaddedRows` stores them with padding. `PackedRows` stores only the real tokens, which gives the same
states with less compute. Shape legend: B batch, A rows that still run, T tokens, P real tokens of the running rows, E
embedding width, H hidden width, C classes, N steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.utils.generic import can_return_tuple

from adadepth.halting.active_set import ActiveSet, pack, take
from adadepth.halting.exit_rules import ExitRule
from adadepth.models.depth.engine import resolve_exit_rule, run_steps, runs_all
from adadepth.models.depth.outputs import StepwiseOutput, choose_states, requested_states, stepwise_output
from adadepth.models.shared.albert.block import (
    AlbertEmbeddings,
    AlbertLayer,
    SharedBlockModel,
    build_attention_mask,
    may_wait,
    select_inputs,
)
from adadepth.models.shared.albert.configuration import AlbertShape, StepwiseAlbertShape
from adadepth.models.shared.albert.convert import FromAnyAlbert
from adadepth.models.shared.albert.packed_attention import Refresh, count_pairs
from adadepth.models.shared.layers import Product

# Collators pad to a multiple of this width, with which accelerators are fastest; narrowing a batch keeps the multiple.
_WIDTH_MULTIPLE = 8


class SharedLayer(nn.Module):
    """Parameters of an ALBERT encoder: the projection from embeddings to hidden states, and the shared layer."""

    def __init__(self, config: AlbertShape) -> None:
        super().__init__()
        self.config = config
        self.embedding_hidden_mapping_in = Product(config.embedding_size, config.hidden_size)
        self.albert_layer = AlbertLayer(config)


class Reading(NamedTuple):
    """Outputs of a model's heads after one step: task logits, halting logits and recurrent state.

    Attributes:
        logits: Logits of the task, (A, C).
        halting_logits: Halting logits, (A,), or None.
        memory: State of a recurrent head, which it reads again after the next step, (A, H), or None.
    """

    logits: Tensor
    halting_logits: Tensor | None = None
    memory: Tensor | None = None


# Heads of a model, a function of the states of each row's first two tokens or more, (A, 2..T, H), the memory of the
# previous step's reading, and the step, counted from 1.
ReadStates = Callable[[Tensor, Tensor | None, int], Reading]


class AlbertStepper:
    """Runs an ALBERT encoder step by step on a batch whose sequences exit one by one; implements `Stepper`.

    Args:
        encoder: Parameters of the encoder.
        read: Function that applies the heads of the model to the states of a step.
        embedded: Embedded words, (B, T, E).
        attention_mask: 1 at real tokens, (B, T), or None if all tokens are real.
        options: `output_hidden_states`, `output_attentions`, and options of the attention. No row may leave the batch
            if one of the two outputs is requested.

    Attributes:
        rows: Number of rows B.
        device: Device of the batch.
        tokens: Number of real tokens of every row at the start, int64, (B,).
    """

    def __init__(
        self,
        encoder: SharedLayer,
        read: ReadStates,
        embedded: Tensor,
        attention_mask: Tensor | None,
        options: Mapping[str, Any],
    ) -> None:
        self._layer, self._read = encoder.albert_layer, read
        self._step = 0
        self._memory: Tensor | None = None
        (self.rows, width), self.device = embedded.shape[:2], embedded.device
        if attention_mask is None:
            self.tokens = torch.full((self.rows,), width, device=self.device)
        else:
            self.tokens = attention_mask.ne(0).sum(dim=1)
        config, state = encoder.config, encoder.embedding_hidden_mapping_in(embedded)
        # Packing needs an attention that takes a dense mask, and a host that may wait for the device to count tokens.
        can_pack = may_wait(self.device, training=encoder.training) and config._attn_implementation in ("eager", "sdpa")
        layout = PackedRows if can_pack and not requested_states(config, options) else PaddedRows
        self._running: PaddedRows | PackedRows = layout(config, state, attention_mask, options, encoder.training)

    @property
    def width(self) -> int:
        """Number of tokens per row, including padding."""
        return self._running.width

    @property
    def computed(self) -> tuple[int, int, Tensor | int]:
        """Number of queries, keys and query-key pairs that the next step computes."""
        return self._running.computed

    @property
    def hidden_states(self) -> tuple[Tensor | None, ...] | None:
        """Hidden states before the first and after every step so far, (B, T, H) each, or None if not requested."""
        return self._running.hidden_states

    @property
    def attentions(self) -> tuple[Tensor, ...] | None:
        """Attention weights of every step so far, (B, heads, T, T) each, or None if unavailable or not requested."""
        return self._running.attentions

    def advance(self) -> tuple[Tensor, Tensor | None]:
        """Apply the layer once, and return the logits, (A, C), and the halting logits, (A,) or None."""
        self._step += 1
        state = self._running.update(self._layer)
        logits, halting_logits, self._memory = self._read(state, self._memory, self._step)
        return logits, halting_logits

    def keep(self, rows: Tensor) -> None:
        """Remove all sequences from the batch except those at positions `rows`, int64 (A',), on the CPU."""
        if self._memory is not None:
            self._memory = self._memory[rows.to(self.device, non_blocking=True)]
        self._running.keep(rows)


class PaddedRows:
    """Hidden states of the running sequences with padding, (A, T, H), and their attention mask.

    Args:
        config: Configuration of the model, for the attention implementation.
        state: States before the first step, (B, T, H).
        attention_mask: 1 at real tokens, (B, T), or None if all tokens are real.
        options: Options of `AlbertStepper`.
        training: Whether the model is in training mode.
    """

    def __init__(
        self,
        config: AlbertShape,
        state: Tensor,
        attention_mask: Tensor | None,
        options: Mapping[str, Any],
        training: bool,
    ) -> None:
        self._config, self._training = config, training
        self._state, self._valid = state, attention_mask
        self._mask = build_attention_mask(config, state, attention_mask, training=training)
        self._requested = requested_states(config, options)
        self._options = {**options, "output_attentions": "attentions" in self._requested}
        self._states = [state]
        self._weights: list[Tensor] = []

    @property
    def width(self) -> int:
        """Number of tokens per row, T, including padding."""
        return self._state.shape[1]

    @property
    def computed(self) -> tuple[int, int, int]:
        """Number of queries, keys and query-key pairs of the next step, including padding."""
        rows, width = self._state.shape[:2]
        return rows * width, rows * width, rows * width**2

    def update(self, layer: AlbertLayer) -> Tensor:
        """Apply the layer once, and return the new hidden states, (A, T, H)."""
        self._state, weights, *_ = layer(self._state, self._mask, **self._options)
        if "hidden_states" in self._requested:
            self._states.append(self._state)
        if weights is not None:
            self._weights.append(weights)
        return self._state

    @property
    def hidden_states(self) -> tuple[Tensor | None, ...] | None:
        """Hidden states before the first and after every step so far, or None if not requested."""
        choice = self._requested.get("hidden_states")
        return None if choice is None else choose_states(self._states, choice)

    @property
    def attentions(self) -> tuple[Tensor, ...] | None:
        """Attention weights of every step so far, or None if unavailable or not requested."""
        return tuple(self._weights) if self._weights else None

    def keep(self, rows: Tensor) -> None:
        """Remove all sequences except those at positions `rows`, int64 (A',), and columns that are all padding.

        The call synchronises with the device.
        """
        width, rows = self.width, rows.to(self._state.device, non_blocking=True)
        if self._valid is not None:
            valid = self._valid[rows]
            columns = torch.arange(1, width + 1, device=valid.device)
            used = max(1, int((columns * valid.ne(0)).amax()))
            width = min(width, -(-used // _WIDTH_MULTIPLE) * _WIDTH_MULTIPLE)
            self._valid = valid[:, :width]
        self._state = self._state[rows, :width]
        self._mask = build_attention_mask(self._config, self._state, self._valid, training=self._training)


class PackedRows:
    """Hidden states of the real tokens of the running sequences, concatenated without padding, (P, H).

    Either all tokens of a row run or none does. So attention needs only the keys and values of the running tokens, and
    none are stored between steps. The arguments are those of `PaddedRows`.
    """

    hidden_states, attentions = None, None  # a request for them selects padded rows

    def __init__(
        self,
        config: AlbertShape,
        state: Tensor,
        attention_mask: Tensor | None,
        options: Mapping[str, Any],
        training: bool,
    ) -> None:
        self._config, self._options, self._training = config, options, training
        valid = state.new_ones(state.shape[:2]) if attention_mask is None else attention_mask
        active = pack(valid.bool())
        self.width = state.shape[1]
        self._state = take(state.flatten(0, 1), active.slots)
        if not len(self._state):
            raise ValueError("attention_mask: all sequences are empty")
        self._align(active.counts.cpu())

    @property
    def computed(self) -> tuple[int, int, Tensor | int]:
        """Number of queries, keys and query-key pairs of the next step; attention pads rows to the longest one."""
        return len(self._state), len(self._state), count_pairs("padded", self._active, self._active)

    def update(self, layer: AlbertLayer) -> Tensor:
        """Apply the layer once, and return the hidden states of the first two tokens of each row, (A, 2, H).

        In a row with one token, this token is repeated.
        """
        active = self._active
        refresh = Refresh("padded", active, active, active)
        self._state, *_ = layer(self._state, self._mask, refresh, self._state, **self._options)
        first = active.starts[:-1].clamp(max=len(self._state) - 1)  # a last row without tokens starts past the end
        second = first + (active.counts > 1).to(first.dtype)
        return self._state[torch.stack([first, second], dim=1)]

    def keep(self, rows: Tensor) -> None:
        """Remove all sequences except those at positions `rows`, int64 (A',), on the CPU."""
        stays = torch.zeros_like(self._counts, dtype=torch.bool).index_fill(0, rows, True)
        packed = stays.repeat_interleave(self._counts).nonzero().squeeze(1)
        self._state = take(self._state, packed.to(self._state.device, non_blocking=True))
        self._align(self._counts[rows])
        self.width = self._active.shape[1]

    def _align(self, counts: Tensor) -> None:
        """Compute the positions and the mask of packed tokens, as if every sequence started in the first column.

        The host plans them, and does not wait for the device.

        Args:
            counts: Number of tokens of every row, int64, (A,), on the CPU.
        """
        self._counts, device = counts, self._state.device
        valid = torch.arange(int(counts.max())) < counts.unsqueeze(1)
        slots = valid.flatten().nonzero().squeeze(1).to(device, non_blocking=True)
        self._active = ActiveSet(slots, (valid.shape[0], valid.shape[1]))
        valid = valid.to(device, non_blocking=True)
        shaped = self._state.new_empty(*valid.shape, 1)
        self._mask = build_attention_mask(self._config, shaped, valid, training=self._training)


class SteppedAlbert(SharedBlockModel):
    """ALBERT encoder without halting, as a part of models with heads; parameters are named as in ACT-ALBERT.

    The encoder has no forward pass. The model with heads initialises all weights together.

    Args:
        config: Configuration of the model.
        add_pooling_layer: Whether the encoder has a pooler of the first token.
    """

    def __init__(self, config: AlbertShape, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        self.embeddings = AlbertEmbeddings(config)
        self.encoder = SharedLayer(config)
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size) if add_pooling_layer else None
        self.post_init()

    def init_weights(self) -> None:
        """Do nothing, because the model that contains the encoder initialises its weights."""

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the table of word embeddings."""
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replace the word embeddings."""
        self.embeddings.word_embeddings = value

    def pooled(self, state: Tensor) -> Tensor:
        """Return the pooled first token, tanh(W h_0), (A, T, H) to (A, H)."""
        assert self.pooler is not None
        return torch.tanh(self.pooler(state[:, 0]))


class SteppedAlbertModel(SteppedAlbert):
    """Stand-alone ALBERT encoder, which initialises its own weights and is not part of a model with heads."""

    draws_alone = True

    def init_weights(self) -> None:
        """Initialise the weights of the encoder."""
        SharedBlockModel.init_weights(self)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPooling:
        """Run all N steps of the encoder. No sequence exits early, because there are no heads.

        Args:
            input_ids: Token ids, (B, T); exclusive with `inputs_embeds`.
            attention_mask: 1 at real tokens, 0 at padding, (B, T).
            token_type_ids: Segment of each token, (B, T).
            position_ids: Position of each token, (B, T) or (1, T).
            inputs_embeds: Word embeddings instead of ids, (B, T, E).
            **kwargs: `output_hidden_states`, `output_attentions`, `return_dict`, and options of the attention.
        """
        words = select_inputs(input_ids, inputs_embeds, attention_mask, self.get_input_embeddings())
        embedded = self.embeddings(words, token_type_ids, position_ids)
        state = self.encoder.embedding_hidden_mapping_in(embedded)
        rows = PaddedRows(self.config, state, attention_mask, kwargs, self.training)
        for _ in range(self.max_updates):
            state = rows.update(self.encoder.albert_layer)
        return BaseModelOutputWithPooling(
            last_hidden_state=state,
            pooler_output=None if self.pooler is None else self.pooled(state),
            hidden_states=rows.hidden_states,  # type: ignore[arg-type]  # None unless requested
            attentions=rows.attentions,
        )


class SteppedAlbertPreTrainedModel(FromAnyAlbert, SharedBlockModel):
    """Base class of ALBERT models that predict after every step; subclasses add heads and a loss."""

    config: StepwiseAlbertShape
    albert: SteppedAlbert
    depth_unit = "sequence"

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the table of word embeddings."""
        return self.albert.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replace the table of word embeddings."""
        self.albert.embeddings.word_embeddings = value

    def read(self, state: Tensor, memory: Tensor | None, step: int) -> Reading:
        """Apply the heads to the hidden states of a step, and return their outputs."""
        raise NotImplementedError

    def take_steps(
        self,
        inputs: Sequence[Tensor | None],
        labels: Tensor | None,
        exit_rule: str | ExitRule | None,
        run_all_steps: bool | None,
        generator: torch.Generator | None,
        options: Mapping[str, Any],
    ) -> tuple[StepwiseOutput, bool]:
        """Run steps until every sequence has exited, and return their predictions.

        Args:
            inputs: First five arguments of the forward pass: token ids, (B, T); attention mask, 1 at real tokens,
                (B, T); segments, (B, T); positions, (B, T) or (1, T); word embeddings instead of ids, (B, T, E).
            labels: Targets, or None. With targets all steps run, because the loss needs every step.
            exit_rule: Exit rule, or None for that of the configuration.
            run_all_steps: Whether sequences continue to run after their exit; see `runs_all`.
            generator: Random generator for stochastic rules.
            options: `output_hidden_states`, `output_attentions`, and options of the attention.

        Returns:
            The output without halting distribution and loss, and whether all steps ran.
        """
        input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds = inputs
        words = select_inputs(input_ids, inputs_embeds, attention_mask, self.get_input_embeddings())
        rule, returns_states = resolve_exit_rule(self, exit_rule), bool(requested_states(self.config, options))
        run_all = runs_all(run_all_steps, labels, training=self.training, shows=returns_states)
        embedded = self.albert.embeddings(words, token_type_ids, position_ids)
        stepper = AlbertStepper(self.albert.encoder, self.read, embedded, attention_mask, dict(options))
        steps = run_steps(stepper, rule, max_updates=self.max_updates, run_all=run_all, generator=generator)
        output = stepwise_output(steps, rule, stepper.tokens)
        output.hidden_states, output.attentions = stepper.hidden_states, stepper.attentions
        return output, run_all
