"""ACT-ALBERT: the base model and its pretraining heads. Task heads are in `heads.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.masking_utils import create_bidirectional_mask
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from adadepth.budget.depth import smooth_depth
from adadepth.budget.fit import DepthKnob
from adadepth.families.albert_act.configuration import FREEZING_RULES, AlbertActConfig
from adadepth.families.albert_act.encoder import AlbertActTransformer
from adadepth.families.albert_act.loops import StateRecord, ragged_kernel
from adadepth.families.albert_act.outputs import AlbertActOutput, MaskedPredictionOutput
from adadepth.families.albert_act.readouts import ran_steps, readout_term, slots_of
from adadepth.families.contract import DepthUnit
from adadepth.families.shared.albert.block import (
    AlbertAttention,
    AlbertEmbeddings,
    PositionEmbedding,
    SharedBlockModel,
    TypeEmbedding,
    activation,
    sinusoids,
    words_of,
)
from adadepth.families.shared.albert.packed_attention import Kernel
from adadepth.families.shared.albert.pricing import price_tokens
from adadepth.families.shared.losses import LossTerm, combine_terms, sum_cross_entropy
from adadepth.halting.trace import DepthTrace, Execution, Halting, Work


class AlbertActPreTrainedModel(DepthKnob, SharedBlockModel):
    """Loading, initialisation and accounting shared by all ACT-ALBERT models."""

    config: AlbertActConfig
    config_class = AlbertActConfig
    _can_record_outputs = {
        "hidden_states": OutputRecorder(StateRecord),
        "attentions": OutputRecorder(AlbertAttention, index=1),
    }
    # Checkpoints of old transformers releases carry this buffer.
    _keys_to_ignore_on_load_unexpected = [r"embeddings\.position_ids"]
    depth_unit: DepthUnit = "token"
    shows_states = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, AlbertActMLMHead):
            init.zeros_(module.bias)
        elif self.config.position_init == "sinusoidal" and isinstance(module, PositionEmbedding | TypeEmbedding):
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
        count = trace.valid.sum() if self.config.penalty_reduction == "mean_tokens" else trace.valid.any(dim=1).sum()
        return LossTerm((trace.updates + outputs.remainders).sum(), count, self.config.act_penalty)

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

    depth_knob = "halting threshold 1 - act_epsilon"

    def set_depth_level(self, level: float) -> None:
        """Halt a token when its halting sum exceeds `level`, in (0, 1)."""
        self.config.act_epsilon = 1.0 - level

    def force_depth(self, depth: int | None) -> None:
        """Give every token this many updates from now on, and nobody halts; None: as the configuration says."""
        for module in self.modules():
            if isinstance(module, AlbertActTransformer):
                module.forced_depth = depth

    @property
    def one_depth(self) -> int | None:
        """The updates of every token now; None where they halt."""
        encoders = (module for module in self.modules() if isinstance(module, AlbertActTransformer))
        forced = next((encoder.forced_depth for encoder in encoders), None)
        return self.config.fixed_depth if forced is None else forced

    def halting_fields(self, outputs: AlbertActOutput) -> dict[str, Any]:
        """The fields of a base output that every head passes on."""
        names = ("ponder_cost", "hidden_states", "attentions", "trace")
        return {name: outputs[name] for name in names if outputs.get(name) is not None}

    def price(self, trace: DepthTrace) -> Work:
        """Multiply-accumulates of one traced batch; see `price_tokens`."""
        return price_tokens(self.config, trace)


class Start(NamedTuple):
    """Embeddings (B, T, E), the mask in the form that attention wants, and where the tokens are, (B, T)."""

    embedded: Tensor
    mask: Any
    valid: Tensor


class AlbertActModel(AlbertActPreTrainedModel):
    """ALBERT whose shared layer updates every token until the token halts.

    The recurrence of Simoulin & Crabbé 2021 (ACL SRW, pp. 221-228); see `adadepth.halting.act`.
    """

    def __init__(self, config: AlbertActConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        self.embeddings = AlbertEmbeddings(config)
        self.encoder = AlbertActTransformer(config)
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size) if add_pooling_layer else None
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        """The word embeddings."""
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replace the word embeddings."""
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
        embedded, mask, valid = self.start(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        state, halting, probabilities, computed, readouts = self.encoder(
            embedded,
            mask,
            valid,
            kernel=None if self._records("attentions", kwargs) else self.ragged_kernel(valid),
            wants_states=self._records("hidden_states", kwargs),
            readout_slots=readout_slots,
            **kwargs,
        )
        trace = DepthTrace(
            unit="token",
            updates=halting.updates,
            valid=valid,
            max_depth=self.config.num_hidden_layers,
            execution=Execution(probabilities.shape[-1], computed=computed),
            halting=Halting(probabilities, halting.remainders),
        )
        outputs = AlbertActOutput(
            last_hidden_state=state,
            pooler_output=None if self.pooler is None else self.pooled(state[:, 0]),
            trace=trace,
            readout_states=readouts,
        )
        cost = self.ponder_term(outputs)
        outputs.ponder_cost = cost.total / cost.count.clamp(min=1)
        return outputs

    def pooled(self, state: Tensor) -> Tensor:
        """tanh(W h) of first tokens, (..., H) to (..., H)."""
        assert self.pooler is not None
        return torch.tanh(self.pooler(state))

    def start(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Start:
        """What the encoder begins with; the arguments are those of the forward pass."""
        words = words_of(input_ids, inputs_embeds, attention_mask)
        embedded = self.embeddings(words, token_type_ids, position_ids)
        valid = (
            torch.ones(words.shape[:2], dtype=torch.bool, device=words.device)
            if attention_mask is None
            else attention_mask.bool()
        )
        mask = create_bidirectional_mask(config=self.config, inputs_embeds=embedded, attention_mask=attention_mask)
        return Start(embedded, mask, valid)

    def ragged_kernel(self, valid: Tensor) -> Kernel | None:
        """The attention kernel of the ragged execution of a batch, (B, T); None where it runs dense."""
        return ragged_kernel(self.config, valid.numel(), valid.device, self.dtype, training=self.training)

    def _records(self, name: str, options: Mapping[str, Any]) -> bool:
        """Whether a call asks for `hidden_states` or `attentions`; attentions are those of all tokens."""
        return bool(options.get(f"output_{name}", getattr(self.config, f"output_{name}", False)))


class AlbertActMLMHead(nn.Module):
    """Vocabulary scores: LN(act(W h)) times the word embeddings, (..., H) to (..., V)."""

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.embedding_size)
        self.activation = activation(config.hidden_act)
        self.LayerNorm = nn.LayerNorm(config.embedding_size, eps=config.layer_norm_eps)
        self.decoder = nn.Linear(config.embedding_size, config.vocab_size)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, state: Tensor) -> Tensor:
        """Score."""
        return self.decoder(self.LayerNorm(self.activation(self.dense(state))))


class AlbertActSOPHead(nn.Module):
    """Sentence order from the pooled first token: two classes, and no dropout, as the published model was trained."""

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__()
        self.classifier = nn.Linear(config.hidden_size, 2)

    def forward(self, pooled: Tensor) -> Tensor:
        """(B, H) to (B, 2)."""
        return self.classifier(pooled)


class AlbertActForPreTraining(AlbertActPreTrainedModel):
    """Masked language model and sentence order, with the ponder cost: L = MLM + SOP + tau (N + R)."""

    _tied_weights_keys = {
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    }
    has_sentence_order = True

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__(config)
        self.albert = AlbertActModel(config, add_pooling_layer=self.has_sentence_order)
        self.predictions = AlbertActMLMHead(config)
        if self.has_sentence_order:
            self.sop_classifier = AlbertActSOPHead(config)
        self.post_init()

    def get_output_embeddings(self) -> nn.Linear:
        """The decoder, tied to the word embeddings."""
        return self.predictions.decoder

    def set_output_embeddings(self, value: nn.Linear) -> None:
        """Replace the decoder; its bias is the head's."""
        self.predictions.decoder = value
        self.predictions.bias = value.bias

    def count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What each loss part of a batch is divided by; the trainer adds it up over an optimiser step."""
        mask = batch["attention_mask"]
        counts = {"ponder": mask.sum() if self.config.penalty_reduction == "mean_tokens" else mask.any(dim=1).sum()}
        if "labels" in batch:
            counts["mlm"] = (batch["labels"] >= 0).sum()
            if self.config.readout_weight:
                counts["readouts"] = counts["mlm"]
        if self.has_sentence_order and "sentence_order_label" in batch:
            counts["sop"] = (batch["sentence_order_label"] >= 0).sum()
        return counts

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        sentence_order_label: Tensor | None = None,
        num_targets: Mapping[str, Tensor] | None = None,
        **kwargs: Any,
    ) -> MaskedPredictionOutput:
        """Predict, and with labels compute the loss.

        Args:
            input_ids: This and the next four as in `AlbertActModel`.
            attention_mask: See there.
            token_type_ids: See there.
            position_ids: See there.
            inputs_embeds: See there.
            labels: Original ids at the positions to predict, -100 elsewhere, (B, T). With labels the vocabulary is
                scored at those positions only.
            sentence_order_label: 0 original order, 1 swapped, negative for none, (B,).
            num_targets: Counts that normalise the loss parts instead of this batch's own; see `combine_terms`.
            **kwargs: As in `AlbertActModel`.
        """
        if labels is not None and self.config.readout_weight:
            kwargs["readout_slots"] = slots_of(labels >= 0)
        outputs = self.albert(
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **(kwargs | {"return_dict": True})
        )
        result = MaskedPredictionOutput(**self.halting_fields(outputs))
        terms: dict[str, LossTerm] = {}
        state = outputs.last_hidden_state
        if labels is not None:
            chosen = labels >= 0
            state, targets = state[chosen], labels[chosen]
        result.prediction_logits = self.predictions(state)
        if labels is not None:
            losses = nn.functional.cross_entropy(result.prediction_logits.float(), targets, reduction="none")
            result.token_losses = losses.detach()
            terms["mlm"] = LossTerm(losses.sum(), chosen.sum())
            if (states := outputs.readout_states) is not None:
                ran = ran_steps(outputs.trace, kwargs["readout_slots"], states.shape[1])
                weight = self.config.readout_weight
                terms["readouts"] = readout_term(states, ran, targets, self.predictions, weight=weight)
        if not self.has_sentence_order:
            result.logits = result.prediction_logits
        else:
            result.sop_logits = self.sop_classifier(outputs.pooler_output)
            if sentence_order_label is not None:
                terms["sop"] = sum_cross_entropy(result.sop_logits, sentence_order_label)
        if terms:
            terms["ponder"] = self.ponder_term(outputs)
            result.loss, result.loss_parts = combine_terms(terms, num_targets)
        return result


class AlbertActForMaskedLM(AlbertActForPreTraining):
    """Masked language model alone: L = MLM + tau (N + R)."""

    has_sentence_order = False
