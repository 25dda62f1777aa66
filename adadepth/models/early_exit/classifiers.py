"""Early-exit classifiers of texts and of tokens.

Shape legend: B texts, A texts that still run, T tokens, D width, L layers, N exits, K units that are read, k of them, C
classes or pieces, M targets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
)
from transformers.utils.generic import can_return_tuple

from adadepth.halting.exit_rules import ExitRule, select_predictions
from adadepth.halting.trace import DepthTrace, DepthUnit, Execution
from adadepth.models.depth.engine import fill_table, run_steps, runs_all
from adadepth.models.depth.outputs import Choice, Steps, build_unit_fields, choose_states, requested_states
from adadepth.models.early_exit.losses import combine_exits, divergences, exit_gate_losses, weigh_exits
from adadepth.models.early_exit.modeling import EarlyExitModel, EarlyExitOutput, ExitStepper
from adadepth.models.shared.encoders import find_last_tokens, find_real_tokens, mean_of_tokens
from adadepth.models.shared.losses import (
    class_losses,
    combine_terms,
    count_sequences,
    refuse_unknown,
    step_losses,
    target_weights,
)


class _Classifier(EarlyExitModel):
    """A classifier of texts or tokens, the base class of both."""

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        num_targets: Mapping[str, Tensor] | None = None,
        output_hidden_states: Choice | None = None,
        exit_rule: str | ExitRule | None = None,
        run_all_steps: bool | None = None,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> EarlyExitOutput:
        """Predict; the arguments are those of `EarlyExitForCausalLM.forward`, and segments of encoders.

        Labels of texts follow `infer_problem_type`, those of tokens are classes (B, T), negative where there is none.
        """
        refuse_unknown(options, type(self).__name__, allowed=())
        running = self.begin({
            "input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids,
            "position_ids": position_ids, "inputs_embeds": inputs_embeds,
        })  # fmt: skip
        self.draw_skipped_layers(running)
        rule = self.resolve_rule(exit_rule)
        requested = requested_states(self.config, {"output_hidden_states": output_hidden_states}).get("hidden_states")
        shows = requested is not None
        run_all = runs_all(run_all_steps, labels, training=self.training, shows=shows)
        real = find_real_tokens(attention_mask, running.states.shape[:2], running.states.device)
        slots = self._find_slots(real)
        stepper = ExitStepper(self, running, slots, self.get_reader(real), shows, self.get_picker(real))
        steps = run_steps(stepper, rule, max_updates=self.max_updates, run_all=run_all, generator=generator)
        output = self._build_output(steps, rule, slots, real)
        if requested is not None and stepper.states is not None:
            output.hidden_states = choose_states(stepper.states, requested)
        if labels is not None:
            losses, counted = self._compute_losses(steps.logits, labels, slots)
            by_exit, apart = _number_exits(losses), None
            weights = weigh_exits(self.config, self.exit_weights(), by_exit)
            total = (combine_exits(by_exit, weights) * counted).sum()
            if self.config.distillation:
                early, last = steps.logits[:, :-1], steps.logits[:, -1:]
                divergence = _number_exits(divergences(early, last, self.config.distillation_temperature))
                apart = (combine_exits(divergence, weights) * counted).sum()
            gate = None
            if steps.halting_logits is not None:
                is_right = steps.logits[:, :-1].argmax(dim=-1) == self._get_targets(labels, slots).unsqueeze(1)
                gate = (exit_gate_losses(steps.halting_logits[:, :-1], is_right) * counted).sum()
            terms = self.build_terms(total, apart, counted.sum(), gate)
            output.loss, output.loss_parts = combine_terms(terms, num_targets)
        return output

    def _find_slots(self, real: Tensor) -> Tensor | None:
        """Return the `slots` of `ExitStepper` from which tokens are no padding, (B, T)."""
        raise NotImplementedError

    def get_reader(self, real: Tensor) -> Callable[..., Tensor]:
        """Return the `read` of `ExitStepper`."""
        raise NotImplementedError

    def get_picker(self, real: Tensor) -> Callable[..., Tensor] | None:
        """Return the `pick` of `ExitStepper`."""
        return None

    def _get_targets(self, labels: Tensor, slots: Tensor | None) -> Tensor:
        """Return the class of every unit, (K,), negative where there is none."""
        return labels if slots is None else labels.flatten()[slots]

    def _build_output(self, steps: Steps, rule: ExitRule, slots: Tensor | None, real: Tensor) -> EarlyExitOutput:
        """Build the output without losses."""
        raise NotImplementedError

    def _compute_losses(self, logits: Tensor, labels: Tensor, slots: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the losses of all exits, (K, N), from logits (K, N, C), and the weights of the units, (K,)."""
        raise NotImplementedError


class EarlyExitForSequenceClassification(_Classifier):
    """A classifier or regressor of texts, which leave the batch once they have exited."""

    mapping = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    depth_unit: DepthUnit = "sequence"

    def _find_slots(self, real: Tensor) -> None:
        return None

    def get_reader(self, real: Tensor) -> Callable[..., Tensor]:
        """Return a function from the number of an exit, states, (A, T, D), and texts, (A,), to logits, (A, C)."""
        return partial(self._read_texts, real)

    def _read_texts(self, real: Tensor, step: int, states: Tensor, texts: Tensor) -> Tensor:
        """Return the state that classifies each text: the pooled state of an encoder, or a decoder's last token."""
        if not self._reads_last_token:
            return self.read(step, states, attention_mask=real[texts].long())
        return self.read(step, _pick_last_tokens(states, real[texts]))

    def get_picker(self, real: Tensor) -> Callable[..., Tensor]:
        """Return a function from states, (A, T, D), and texts, (A,), to the states that a gate reads, (A, D)."""
        return partial(self._pick_tokens, real)

    def _pick_tokens(self, real: Tensor, states: Tensor, texts: Tensor) -> Tensor:
        """Return the states of texts, (A, D), that a gate reads: those that classify them."""
        if self._reads_last_token:
            return _pick_last_tokens(states, real[texts])
        return mean_of_tokens(states, real[texts]) if self.config.pooling == "mean" else states[:, 0]

    @property
    def _reads_last_token(self) -> bool:
        return hasattr(self.head, "score")  # a matrix, or what adapters replace it with

    def predict(self, head: Any, states: Tensor, **options: Any) -> Tensor:
        """Return the logits (A, C) of a head for normed states, of last tokens (A, D) or whole texts (A, T, D)."""
        if states.dim() == 3 and self.config.pooling == "mean":  # a text of one token
            states = mean_of_tokens(states, options.pop("attention_mask").bool()).unsqueeze(1)
        logits: Tensor = head.score(states) if states.dim() == 2 else head(inputs_embeds=states, **options).logits
        return logits

    def _build_output(self, steps: Steps, rule: ExitRule, slots: Tensor | None, real: Tensor) -> EarlyExitOutput:
        exits = steps.exit_steps
        execution = Execution(len(steps.rows), real.sum(dim=1), steps.widths, steps.rows, steps.computed)
        valid = torch.ones_like(exits, dtype=torch.bool)
        trace = DepthTrace("sequence", exits.float(), valid, self.max_updates, execution=execution)
        logits = select_predictions(rule, steps.logits, None, exits)
        return EarlyExitOutput(
            logits=logits,
            step_logits=steps.logits,
            halting_logits=steps.halting_logits,
            exit_steps=exits,
            trace=trace,
        )

    def _compute_losses(self, logits: Tensor, labels: Tensor, slots: Tensor | None) -> tuple[Tensor, Tensor]:
        return step_losses(self.config, logits, labels)

    def count_labels(self, labels: Tensor) -> Tensor:
        """Count the texts with a label."""
        return count_sequences(self.config, labels)


class EarlyExitForTokenClassification(_Classifier):
    """A classifier of tokens."""

    mapping = MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING

    def _find_slots(self, real: Tensor) -> Tensor:
        return real.flatten().nonzero().squeeze(1)

    def get_reader(self, real: Tensor) -> Callable[..., Tensor]:
        """Return the function of an exit's predictions for tokens."""
        return self.read

    def _build_output(self, steps: Steps, rule: ExitRule, slots: Tensor | None, real: Tensor) -> EarlyExitOutput:
        assert slots is not None
        execution = Execution(len(steps.rows), width=real.shape[1], computed=steps.computed)
        fields = build_unit_fields(steps, rule, slots, None)
        fields["logits"] = fill_table(fields["logits"], slots, real.shape)
        updates = fill_table(steps.exit_steps, slots, real.shape).float()
        trace = DepthTrace("token", updates, real, self.max_updates, execution=execution)
        return EarlyExitOutput(trace=trace, **fields)

    def _compute_losses(self, logits: Tensor, labels: Tensor, slots: Tensor | None) -> tuple[Tensor, Tensor]:
        targets = self._get_targets(labels, slots)
        return class_losses(logits, targets)[0], target_weights(self.config, targets)

    def count_labels(self, labels: Tensor) -> Tensor:
        """Count the tokens with a label, each with the weight of its class."""
        return target_weights(self.config, labels).sum()


def _pick_last_tokens(states: Tensor, real: Tensor) -> Tensor:
    """Return the states of the last real token of every text, (A, D), from (A, T, D) and the mask (A, T)."""
    last = find_last_tokens(real)
    return states[torch.arange(last.shape[0], device=last.device), last]


def _number_exits(losses: Tensor) -> dict[int, Tensor]:
    """Return the losses of every exit, (K,), by its number, from those of all exits, (K, n)."""
    return dict(enumerate(losses.unbind(dim=1), start=1))
