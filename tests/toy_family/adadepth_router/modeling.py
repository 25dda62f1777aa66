"""A router over one shared ALBERT block, which selects the tokens that the block updates in each of N steps.

    p_n = sigmoid(v tanh(W h_{n-1} + b) + c),   r_n = 1[p_n > threshold]
    h_n = h_{n-1} + r_n (block(h_{n-1}) - h_{n-1})

A token may be skipped in any or all steps. The gradient of r_n is passed to p_n (straight-through). One linear head
reads every token after every step. Shape legend: B rows, T tokens, H hidden width, N steps, C tags, K real tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.masking_utils import create_bidirectional_mask
from transformers.utils import ModelOutput

from adadepth.halting.exit_rules import ExitRule
from adadepth.halting.trace import DepthTrace, Execution, Work
from adadepth.models.contract import DepthKnob, HoldsBudget
from adadepth.models.depth.engine import resolve_exit_rule, run_steps, runs_all
from adadepth.models.depth.outputs import build_unit_fields
from adadepth.models.shared.albert.heads import PretrainingHeads
from adadepth.models.shared.albert.pricing import update_work
from adadepth.models.shared.albert.stepper import SteppedAlbert
from adadepth.models.shared.losses import LossTerm, class_losses, combine_terms, count_head_classes
from adadepth_router.configuration import RouterConfig


@dataclass
class RouterOutput(ModelOutput):
    """Output of the tagger; see `adadepth.models.head_outputs` and `adadepth.models.depth.outputs.build_unit_fields`.

    `probabilities` are the router's, (B, T, executed steps).
    """

    loss: Tensor | None = None
    loss_parts: dict[str, Tensor] | None = None
    logits: Tensor | None = None
    trace: DepthTrace | None = None
    probabilities: Tensor | None = None
    unit_slots: Tensor | None = None
    step_logits: Tensor | None = None
    halting_logits: Tensor | None = None
    exit_steps: Tensor | None = None


@dataclass
class RouterPreTrainingOutput(ModelOutput):
    """Output of the pretraining model, with the fields of its heads; see `adadepth.models.head_outputs`."""

    loss: Tensor | None = None
    loss_parts: dict[str, Tensor] | None = None
    prediction_logits: Tensor | None = None
    token_losses: Tensor | None = None
    sop_logits: Tensor | None = None
    trace: DepthTrace | None = None
    probabilities: Tensor | None = None


class Router(nn.Sequential):
    """The router network v tanh(W h + b) + c, (..., H) to (..., 1)."""

    def __init__(self, config: RouterConfig) -> None:
        hidden = nn.Linear(config.hidden_size, config.router_size)
        super().__init__(hidden, nn.Tanh(), RouterLogit(config.router_size, 1))


class RouterLogit(nn.Linear):
    """The last linear layer of the router, a separate class for its initialisation."""


class RouterPreTrainedModel(DepthKnob, HoldsBudget, PreTrainedModel):
    """Common members of the router's heads: loss and compute of updates."""

    config: RouterConfig
    config_class = RouterConfig
    base_model_prefix = "albert"
    _supports_sdpa = True
    accepts_loss_kwargs = False  # its losses are normalised by `num_targets`
    depth_unit = "token"
    depth_knob = "threshold of the router"

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, RouterLogit):
            init.constant_(module.bias, self.config.router_bias_init)

    def compute_router_terms(self, output: RouterOutput | RouterPreTrainingOutput) -> dict[str, LossTerm]:
        """Return the loss term of the updates of real tokens."""
        if not self.config.update_price:
            return {}
        depth = self.soft_depth(output)
        return {"router": LossTerm(depth.total, depth.count, self.config.update_price)}

    def count_units(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the number of real tokens, the units of a budget."""
        return batch["attention_mask"].sum()

    def soft_depth(self, outputs: RouterOutput) -> LossTerm:
        """Return sum_n p_n over real tokens, which approximates their number of updates."""
        valid = outputs.trace.valid
        return LossTerm((outputs.probabilities.sum(dim=-1) * valid).sum(), valid.sum())

    def set_depth_level(self, level: float) -> None:
        """Set the threshold to 1 - level; a step updates tokens of a higher router probability."""
        self.config.threshold = 1.0 - level

    def price(self, trace: DepthTrace) -> Work:
        """Return multiply-accumulates: `update_work` for each update of a token, and the router in every step."""
        config, real = self.config, trace.valid.sum(dim=1).double()
        hidden, steps = config.hidden_size, trace.max_updates
        seen = real if trace.executed.tokens is None else trace.executed.tokens.double()
        update = update_work(config, seen)
        around = config.embedding_size * hidden + steps * config.router_size * (hidden + 1)

        rows, width = trace.valid.shape
        padded = update_work(config, width)
        executed = real.new_tensor(float(rows * width * (trace.executed.steps * padded + around)))
        depths = trace.updates.double().sum(dim=1)
        adaptive, full = ((number * update + real * around).sum() for number in (depths, steps * real))
        return Work(executed, executed, adaptive, full)

    @property
    def max_updates(self) -> int:
        """Return the number of steps N."""
        return self.config.num_hidden_layers

    @property
    def longest_sequence(self) -> int:
        """Return the number of positions."""
        return self.config.max_position_embeddings

    @property
    def vocabulary_size(self) -> int:
        """Return the number of word pieces."""
        return self.config.vocab_size


class RouterForTokenClassification(RouterPreTrainedModel):
    """Token classification with a router; under an exit rule, each token exits after a step of its own."""

    exit_signals = frozenset({"logits"})

    def __init__(self, config: RouterConfig) -> None:
        super().__init__(config)
        self.albert = SteppedAlbert(config, add_pooling_layer=False)
        self.router = Router(config)
        self.dropout = nn.Dropout(config.classifier_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, count_head_classes(config))
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        num_targets: Mapping[str, Tensor] | None = None,
        exit_rule: str | ExitRule | None = None,
        run_all_steps: bool | None = None,
        generator: torch.Generator | None = None,
        **kwargs: Any,
    ) -> RouterOutput:
        """Tag tokens, and with labels (B, T), negative where there is none, compute the loss.

        Under an exit rule, tokens exit early unless `run_all_steps`. The loss needs all steps.
        """
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        rule = resolve_exit_rule(self, exit_rule or f"fixed:{self.max_updates}")
        run_all = runs_all(run_all_steps, None if exit_rule else labels, training=self.training)

        embedded = self.albert.embeddings(input_ids, token_type_ids, position_ids)
        stepper = RouterStepper(self, self.albert.encoder.embedding_hidden_mapping_in(embedded), mask.bool())
        steps = run_steps(stepper, rule, max_updates=self.max_updates, run_all=run_all, generator=generator)

        fields = build_unit_fields(steps, rule, stepper.slots, tuple(mask.shape))
        output = RouterOutput(trace=stepper.trace(), probabilities=stepper.stack_probabilities(), **fields)
        if labels is not None and run_all:
            terms = self.compute_terms(output, labels.flatten()[stepper.slots])
            output.loss, output.loss_parts = combine_terms(terms, num_targets)
        return output

    def compute_terms(self, output: RouterOutput, labels: Tensor) -> dict[str, LossTerm]:
        """Return the mean loss of all steps at tokens with a label, (K,), and the loss term of updates."""
        losses, counted = class_losses(output.step_logits, labels)
        return {"task": LossTerm(losses.mean(dim=1)[counted].sum(), counted.sum()), **self.compute_router_terms(output)}

    def count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the counts that divide the loss parts."""
        return {"task": (batch["labels"] >= 0).sum(), "router": self.count_units(batch)}

    @property
    def readout_work(self) -> float:
        """Return the multiply-accumulates of one prediction."""
        return float(self.classifier.weight.numel())


class RouterForPreTraining(PretrainingHeads, RouterPreTrainedModel):
    """Pretraining on masked words and sentence order with the heads of ALBERT, after the last step."""

    def __init__(self, config: RouterConfig) -> None:
        super().__init__(config)
        self.albert = SteppedAlbert(config)
        self.router = Router(config)
        self.make_heads(config)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        sentence_order_label: Tensor | None = None,
        num_targets: Mapping[str, Tensor] | None = None,
        **kwargs: Any,
    ) -> RouterPreTrainingOutput:
        """Predict masked words, (B, T), and the order of two sentences, (B,); with labels compute the loss."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        embedded = self.albert.embeddings(input_ids, token_type_ids, position_ids)
        stepper = RouterStepper(self, self.albert.encoder.embedding_hidden_mapping_in(embedded), mask.bool())
        for _ in range(self.max_updates):
            stepper.update()

        output = RouterPreTrainingOutput(trace=stepper.trace(), probabilities=stepper.stack_probabilities())
        terms = self.predict_words(output, stepper.state, labels)
        terms |= self.predict_order(output, self.albert.pooled(stepper.state), sentence_order_label)
        if terms:
            output.loss, output.loss_parts = combine_terms(terms | self.compute_router_terms(output), num_targets)
        return output

    def count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the counts that divide the loss parts."""
        return {**self.count_predicted(batch), "router": self.count_units(batch)}


class RouterStepper:
    """Running tokens of a batch between steps; see `adadepth.models.depth.engine.Stepper`.

    The state of a token that has exited stays constant, and other tokens still attend to it.

    Args:
        model: Model with router, block and classifier.
        state: Hidden states, (B, T, H).
        valid: Mask of real tokens, (B, T).
    """

    width, computed = 1, None

    def __init__(self, model: Any, state: Tensor, valid: Tensor) -> None:
        self._model, self.state, self._valid = model, state, valid
        self._mask = create_bidirectional_mask(config=model.config, inputs_embeds=state, attention_mask=valid)
        self._probabilities: list[Tensor] = []
        self._ran: list[Tensor] = []
        self.slots = self._running = valid.flatten().nonzero().squeeze(1)
        self.rows, self.device = len(self.slots), state.device

    def advance(self) -> tuple[Tensor, None]:
        """Update the tokens that the router selects, and return logits of all running tokens."""
        self.update()
        return self._model.classifier(self._model.dropout(self.state.flatten(0, 1)[self._running])), None

    def update(self) -> None:
        """Update the tokens that the router selects."""
        model, state = self._model, self.state
        runs = torch.zeros_like(self._valid).flatten().index_fill(0, self._running, True).view_as(self._valid)
        probability = model.router(state).squeeze(-1).sigmoid()
        ran = runs & (probability > model.config.threshold)
        gate = ran + runs * (probability - probability.detach())
        updated = model.albert.encoder.albert_layer(state, self._mask)[0]
        self.state = state + gate.unsqueeze(-1) * (updated - state)
        self._probabilities.append(probability)
        self._ran.append(ran)

    def keep(self, rows: Tensor) -> None:
        """Keep these of the running tokens."""
        self._running = self._running[rows.to(self.device)]

    def stack_probabilities(self) -> Tensor:
        """Stack the router probabilities of all steps so far, (B, T, steps)."""
        return torch.stack(self._probabilities, dim=-1)

    def trace(self) -> DepthTrace:
        """Return the depth of every token: the number of steps, not necessarily the first ones, that updated it."""
        ran = torch.stack(self._ran, dim=-1)
        execution = Execution(ran.shape[-1], width=self._valid.shape[1])
        most = self._model.max_updates
        return DepthTrace("token", ran.sum(dim=-1).float(), self._valid, most, ran=ran, execution=execution)
