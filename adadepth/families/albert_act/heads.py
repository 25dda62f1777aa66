"""ACT-ALBERT with task heads: sequences, tokens, answer spans, multiple choice.

Every head trains with loss = task + tau (N + R); `act_penalty=0` in the configuration turns the second part off.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils.generic import can_return_tuple

from adadepth.families.albert_act.configuration import AlbertActConfig
from adadepth.families.albert_act.exiting import SIGNALS, exit_rule_of, predict_steps
from adadepth.families.albert_act.modeling import AlbertActModel, AlbertActPreTrainedModel
from adadepth.families.albert_act.outputs import AlbertActOutput, HaltingOutput, SpanOutput, TaskOutput
from adadepth.families.albert_act.pooling import mean_of_tokens, refuse_steps
from adadepth.families.albert_act.readouts import CLASSES, Read, ran_steps, readout_term, refuse_readouts, slots_of
from adadepth.families.shared.losses import (
    IGNORED_LABEL,
    LossTerm,
    combine_terms,
    count_sequences,
    label_count,
    problem_of,
    sequence_loss,
    sum_cross_entropy,
)
from adadepth.halting.exit_rules import ExitRule


class AlbertActTaskModel(AlbertActPreTrainedModel):
    """An encoder, dropout, and the arithmetic that all task heads share."""

    needs_pooler: bool = True

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__(config)
        self.albert = AlbertActModel(config, add_pooling_layer=self.needs_pooler)
        self.dropout = nn.Dropout(config.classifier_dropout_prob)

    def count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What each loss part of a batch is divided by; the trainer adds it up over an optimiser step."""
        mask = batch["attention_mask"].flatten(0, -2)
        by_token = self.config.penalty_reduction == "mean_tokens"
        counts = {"ponder": mask.sum() if by_token else mask.any(dim=1).sum(), "task": self.count_labels(batch)}
        return counts | ({"readouts": counts["task"]} if self.config.readout_weight else {})

    def count_labels(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Targets of the task itself: those that are not ignored."""
        return (batch["labels"] >= 0).sum()

    def readout_part(
        self,
        outputs: AlbertActOutput,
        slots: Tensor,
        labels: Tensor,
        read: Read,
        kind: str = CLASSES,
        sequences: int | None = None,
    ) -> LossTerm:
        """The loss part `readouts` of a batch.

        Args:
            outputs: Of the encoder, with `readout_states`.
            slots: Of the tokens that are read, (K,), or (K sequences,).
            labels: Of the K units.
            read: See `readout_term`.
            kind: See there.
            sequences: Of how many sequences a unit consists; it runs until the last of them has halted.
        """
        assert outputs.readout_states is not None
        assert outputs.trace is not None
        states = outputs.readout_states
        ran = ran_steps(outputs.trace, slots, states.shape[1])
        if sequences is not None:
            states = states.unflatten(0, (-1, sequences)).transpose(1, 2)
            ran = ran.unflatten(0, (-1, sequences)).any(dim=1)
        return readout_term(states, ran, labels, read, weight=self.config.readout_weight, kind=kind)

    @staticmethod
    def length_of(input_ids: Tensor | None, inputs_embeds: Tensor | None) -> int:
        """T of a batch (B, T) or (B, T, E)."""
        words = input_ids if input_ids is not None else inputs_embeds
        assert words is not None
        return words.shape[1]

    def add_loss(
        self,
        result: HaltingOutput,
        outputs: AlbertActOutput,
        task: LossTerm | None,
        num_targets: Mapping[str, Tensor] | None,
        readouts: LossTerm | None = None,
    ) -> None:
        """Set `loss` and `loss_parts` when the task has a loss."""
        if task is not None:
            terms = {"task": task, "ponder": self.ponder_term(outputs)}
            terms |= {} if readouts is None else {"readouts": readouts}
            result.loss, result.loss_parts = combine_terms(terms, num_targets)


class AlbertActForSequenceClassification(AlbertActTaskModel):
    """Classification (`num_labels` > 1), regression (`num_labels` = 1) or multi-label tagging of sequences.

    What is read is the pooled first token, or with `pooling=mean` the mean of the last states of all real tokens.
    """

    @property
    def needs_pooler(self) -> bool:
        """Whether the first token is read; one that nobody reads would have no gradient."""
        return self.config.pooling == "first"

    @property
    def exit_signals(self) -> frozenset[str]:
        """What exit rules can read: a sequence is read on its way at its first token only."""
        return SIGNALS if self.config.pooling == "first" else frozenset()

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__(config)
        self.classifier = nn.Linear(config.hidden_size, label_count(config))
        self.post_init()

    def count_labels(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Sequences, less those whose class is ignored."""
        return count_sequences(self.config, batch["labels"])

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
        exit_rule: str | ExitRule | None = None,
        run_all_steps: bool = False,
        generator: torch.Generator | None = None,
        **kwargs: Any,
    ) -> TaskOutput:
        """Classify; labels are classes (B,), values (B,) or (B, 1), or multi-hot rows (B, C). Logits are (B, C).

        With an exit rule, or all steps, see `predict_steps`; a unit is a sequence. There is no loss then.
        """
        if exit_rule is not None or run_all_steps:
            inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
            return predict_steps(
                self.albert,
                inputs,
                None,
                self._read,
                rule=exit_rule_of(self, exit_rule),
                run_all=run_all_steps,
                by_sequence=True,
                generator=generator,
                options=kwargs,
            )
        rows = None if labels is None or not self.config.readout_weight else self._labelled_rows(labels)
        if rows is not None:
            kwargs["readout_slots"] = rows * self.length_of(input_ids, inputs_embeds)
        outputs = self.albert(
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **(kwargs | {"return_dict": True})
        )
        logits = self.classifier(self.dropout(self._pooled(outputs)))
        result = TaskOutput(logits=logits, **self.halting_fields(outputs))
        if labels is not None:
            readouts = None
            if rows is not None:
                kind = problem_of(self.config, labels)
                readouts = self.readout_part(outputs, kwargs["readout_slots"], labels[rows], self._read, kind)
            task = sequence_loss(self.config, logits, labels)
            self.add_loss(result, outputs, task, num_targets, readouts)
        return result

    @property
    def readout_work(self) -> float:
        """Multiply-accumulates of one readout: H^2 for the pooler and H C."""
        return self.config.hidden_size * (self.config.hidden_size + label_count(self.config))

    def _pooled(self, outputs: AlbertActOutput) -> Tensor:
        """What the class is read from, (B, H)."""
        if self.config.pooling == "first":
            assert outputs.pooler_output is not None
            return outputs.pooler_output
        assert outputs.trace is not None
        assert outputs.last_hidden_state is not None
        return mean_of_tokens(outputs.last_hidden_state, outputs.trace.valid)

    def _read(self, state: Tensor) -> Tensor:
        """Logits from first tokens, (R, H) to (R, C)."""
        refuse_steps(self.config)
        return self.classifier(self.dropout(self.albert.pooled(state)))

    def _labelled_rows(self, labels: Tensor) -> Tensor:
        """Sequences with a target, int64 (K,): those that `count_labels` counts."""
        if problem_of(self.config, labels) == "single_label_classification":
            return (labels >= 0).nonzero().squeeze(1)
        return torch.arange(len(labels), device=labels.device)


class AlbertActForTokenClassification(AlbertActTaskModel):
    """A class for every token."""

    exit_signals = SIGNALS
    needs_pooler = False

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__(config)
        self.classifier = nn.Linear(config.hidden_size, label_count(config))
        self.post_init()

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
        exit_rule: str | ExitRule | None = None,
        run_all_steps: bool = False,
        generator: torch.Generator | None = None,
        **kwargs: Any,
    ) -> TaskOutput:
        """Tag; labels are classes (B, T), -100 where there is none. Logits are (B, T, C).

        With an exit rule, or all steps, see `predict_steps`; units are all real tokens, or, where all steps run, those
        with a label if there are labels. There is no loss then.
        """
        if exit_rule is not None or run_all_steps:
            inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
            return predict_steps(
                self.albert,
                inputs,
                None if labels is None or not run_all_steps else labels >= 0,
                self._read,
                rule=exit_rule_of(self, exit_rule),
                run_all=run_all_steps,
                generator=generator,
                options=kwargs,
            )
        slots = None if labels is None or not self.config.readout_weight else slots_of(labels >= 0)
        if slots is not None:
            kwargs["readout_slots"] = slots
        outputs = self.albert(
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **(kwargs | {"return_dict": True})
        )
        logits = self._read(outputs.last_hidden_state)
        result = TaskOutput(logits=logits, **self.halting_fields(outputs))
        if labels is not None:
            readouts = None
            if slots is not None:
                readouts = self.readout_part(outputs, slots, labels.flatten()[slots], self._read)
            self.add_loss(result, outputs, sum_cross_entropy(logits, labels), num_targets, readouts)
        return result

    @property
    def readout_work(self) -> float:
        """Multiply-accumulates of one readout, H C."""
        return self.config.hidden_size * label_count(self.config)

    def _read(self, state: Tensor) -> Tensor:
        """Logits from states, (..., H) to (..., C)."""
        return self.classifier(self.dropout(state))


class AlbertActForQuestionAnswering(AlbertActTaskModel):
    """Start and end of an answer in the text; the loss is the mean of both cross-entropies."""

    needs_pooler = False

    def __init__(self, config: AlbertActConfig) -> None:
        refuse_readouts(config, "question answering")
        super().__init__(config)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

    def count_labels(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Answer boundaries inside the text, counted in spans: a start and an end are half a target each."""
        length = batch["input_ids"].shape[-1]
        return (_inside(batch["start_positions"], length).sum() + _inside(batch["end_positions"], length).sum()) / 2

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        num_targets: Mapping[str, Tensor] | None = None,
        **kwargs: Any,
    ) -> SpanOutput:
        """Find the span; positions are token indices (B,), ignored where they lie outside the text."""
        outputs = self.albert(
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **(kwargs | {"return_dict": True})
        )
        start_logits, end_logits = self.qa_outputs(outputs.last_hidden_state).unbind(dim=-1)
        result = SpanOutput(start_logits=start_logits, end_logits=end_logits, **self.halting_fields(outputs))
        task = None
        if start_positions is not None and end_positions is not None:
            length = start_logits.shape[1]
            start = sum_cross_entropy(start_logits, _ignore_outside(start_positions, length))
            end = sum_cross_entropy(end_logits, _ignore_outside(end_positions, length))
            task = LossTerm((start.total + end.total) / 2, (start.count + end.count) / 2)
        self.add_loss(result, outputs, task, num_targets)
        return result


class AlbertActForMultipleChoice(AlbertActTaskModel):
    """One of several texts; each choice is a sequence of its own with its own depth."""

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__(config)
        self.classifier = nn.Linear(config.hidden_size, 1)
        self.post_init()

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
        **kwargs: Any,
    ) -> TaskOutput:
        """Choose; inputs are (B, choices, T), labels (B,). Logits are (B, choices), halting fields (B*choices, T)."""
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        choices = next((x.shape[1] for x in (input_ids, inputs_embeds) if x is not None), None)
        if choices is None:
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        flat = [None if x is None else x.flatten(0, 1) for x in inputs]
        rows = None
        if labels is not None and self.config.readout_weight:
            rows = (labels >= 0).nonzero().squeeze(1)
            sequences = (rows.unsqueeze(1) * choices + torch.arange(choices, device=rows.device)).flatten()
            kwargs["readout_slots"] = sequences * self.length_of(flat[0], flat[-1])
        outputs = self.albert(*flat, **(kwargs | {"return_dict": True}))
        logits = self.classifier(self.dropout(outputs.pooler_output)).view(-1, choices)
        result = TaskOutput(logits=logits, **self.halting_fields(outputs))
        if labels is not None:
            readouts = None
            if rows is not None:
                readouts = self.readout_part(
                    outputs, kwargs["readout_slots"], labels[rows], self._read, sequences=choices
                )
            self.add_loss(result, outputs, sum_cross_entropy(logits, labels), num_targets, readouts)
        return result

    def _read(self, state: Tensor) -> Tensor:
        """Logits from the first tokens of all choices, (R, choices, H) to (R, choices)."""
        return self.classifier(self.dropout(self.albert.pooled(state))).squeeze(-1)


def _inside(positions: Tensor, length: int) -> Tensor:
    return (positions >= 0) & (positions < length)


def _ignore_outside(positions: Tensor, length: int) -> Tensor:
    return positions.masked_fill(~_inside(positions, length), IGNORED_LABEL)
