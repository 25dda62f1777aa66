"""A router over one shared ALBERT block: in each of N steps it says which tokens the block updates.

    p_n = sigmoid(v tanh(W h_{n-1} + b) + c),   r_n = 1[p_n > threshold]
    h_n = h_{n-1} + r_n (block(h_{n-1}) - h_{n-1})

A token may be left out of some steps, or of all. r_n passes its gradient on to p_n. One linear map reads every token
after every step. Shape legend: B rows, T tokens, H hidden width, N steps, C tags, K real tokens.
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
    """See `adadepth.models.head_outputs` and `adadepth.models.depth.outputs.build_unit_fields`.

    `probabilities` are the router's, (B, T, steps that ran).
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
    """As `RouterOutput`, with what the pretraining heads say; see `adadepth.models.head_outputs`."""

    loss: Tensor | None = None
    loss_parts: dict[str, Tensor] | None = None
    prediction_logits: Tensor | None = None
    token_losses: Tensor | None = None
    sop_logits: Tensor | None = None
    trace: DepthTrace | None = None
    probabilities: Tensor | None = None


class Router(nn.Sequential):
    """v tanh(W h + b) + c, (..., H) to (..., 1)."""

    def __init__(self, config: RouterConfig) -> None:
        hidden = nn.Linear(config.hidden_size, config.router_size)
        super().__init__(hidden, nn.Tanh(), RouterLogit(config.router_size, 1))


class RouterLogit(nn.Linear):
    """The router's last map; a class of its own so that initialisation can find it."""


class RouterPreTrainedModel(DepthKnob, HoldsBudget, PreTrainedModel):
    """What the router's heads have in common: what their updates cost, as a loss and as work."""

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

    def router_terms(self, output: RouterOutput | RouterPreTrainingOutput) -> dict[str, LossTerm]:
        """The price of every real token's updates."""
        if not self.config.update_price:
            return {}
        depth = self.soft_depth(output)
        return {"router": LossTerm(depth.total, depth.count, self.config.update_price)}

    def count_units(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Real tokens, which are what a budget counts the depth of."""
        return batch["attention_mask"].sum()

    def soft_depth(self, outputs: RouterOutput) -> LossTerm:
        """sum_n p_n of all real tokens: near the number of updates where the router is sure."""
        valid = outputs.trace.valid
        return LossTerm((outputs.probabilities.sum(dim=-1) * valid).sum(), valid.sum())

    def set_depth_level(self, level: float) -> None:
        """Update tokens of which the router is surer than 1 - level."""
        self.config.threshold = 1.0 - level

    def price(self, trace: DepthTrace) -> Work:
        """An update costs its token `update_work`; every step runs the router."""
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
        """N."""
        return self.config.num_hidden_layers

    @property
    def longest_sequence(self) -> int:
        """Positions."""
        return self.config.max_position_embeddings

    @property
    def vocabulary_size(self) -> int:
        """Pieces."""
        return self.config.vocab_size


class RouterForTokenClassification(RouterPreTrainedModel):
    """Tags tokens; each can also exit, at the first step after which a rule trusts its tag."""

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

        Under an exit rule tokens really exit, unless all steps are to run: then there is no loss, which needs them all.
        """
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        rule = resolve_exit_rule(self, exit_rule or f"fixed:{self.max_updates}")
        run_all = runs_all(run_all_steps, None if exit_rule else labels, training=self.training)

        embedded = self.albert.embeddings(input_ids, token_type_ids, position_ids)
        stepper = RouterStepper(self, self.albert.encoder.embedding_hidden_mapping_in(embedded), mask.bool())
        steps = run_steps(stepper, rule, max_updates=self.max_updates, run_all=run_all, generator=generator)

        fields = build_unit_fields(steps, rule, stepper.slots, tuple(mask.shape))
        output = RouterOutput(trace=stepper.trace(), probabilities=stepper.probabilities(), **fields)
        if labels is not None and run_all:
            terms = self.terms(output, labels.flatten()[stepper.slots])
            output.loss, output.loss_parts = combine_terms(terms, num_targets)
        return output

    def terms(self, output: RouterOutput, labels: Tensor) -> dict[str, LossTerm]:
        """The mean loss of all steps at tokens with a label, (K,), and the price of every real token's updates."""
        losses, counted = class_losses(output.step_logits, labels)
        return {"task": LossTerm(losses.mean(dim=1)[counted].sum(), counted.sum()), **self.router_terms(output)}

    def count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the loss parts are divided by."""
        return {"task": (batch["labels"] >= 0).sum(), "router": self.count_units(batch)}

    @property
    def readout_work(self) -> float:
        """Multiply-accumulates of one prediction."""
        return float(self.classifier.weight.numel())


class RouterForPreTraining(PretrainingHeads, RouterPreTrainedModel):
    """Masked words and sentence order, read after the last step by the heads that every ALBERT has."""

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

        output = RouterPreTrainingOutput(trace=stepper.trace(), probabilities=stepper.probabilities())
        terms = self.predict_words(output, stepper.state, labels)
        terms |= self.predict_order(output, self.albert.pooled(stepper.state), sentence_order_label)
        if terms:
            output.loss, output.loss_parts = combine_terms(terms | self.router_terms(output), num_targets)
        return output

    def count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the loss parts are divided by."""
        return {**self.count_predicted(batch), "router": self.count_units(batch)}


class RouterStepper:
    """The tokens of a batch in the middle of their steps; see `adadepth.models.depth.engine.Stepper`.

    A token that has exited stays as it is, and the others go on seeing it.

    Args:
        model: Of the states.
        state: (B, T, H).
        valid: Real tokens, (B, T).
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
        """Update the tokens that the router chooses, and read all that still run."""
        self.update()
        return self._model.classifier(self._model.dropout(self.state.flatten(0, 1)[self._running])), None

    def update(self) -> None:
        """Update the tokens that the router chooses."""
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
        """Go on with these of the running tokens."""
        self._running = self._running[rows.to(self.device)]

    def probabilities(self) -> Tensor:
        """Of all steps so far."""
        return torch.stack(self._probabilities, dim=-1)

    def trace(self) -> DepthTrace:
        """The depth of every token: the number of steps that updated it, which need not be the first ones."""
        ran = torch.stack(self._ran, dim=-1)
        execution = Execution(ran.shape[-1], width=self._valid.shape[1])
        most = self._model.max_updates
        return DepthTrace("token", ran.sum(dim=-1).float(), self._valid, most, ran=ran, execution=execution)
