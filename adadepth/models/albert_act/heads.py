"""ACT-ALBERT models with task heads: classification, question answering, multiple choice, and pretraining.

Every head trains with loss = task + tau (N + R), in pretraining L = MLM + SOP + tau (N + R). `act_penalty=0` in the
configuration disables the ponder cost, and a `readout_weight` adds the part `readouts` (see `readout_term`).
`exiting.py` predicts sequences and tokens after every step. Shape legend: B batch, T tokens, K units, P predicted
positions, N steps, H hidden width, C classes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers.utils.generic import can_return_tuple

from adadepth.errors import ConfigError
from adadepth.halting.exit_rules import ExitRule
from adadepth.models.albert_act.configuration import AlbertActConfig
from adadepth.models.albert_act.exiting import SIGNALS, find_exit_problem, predict_steps
from adadepth.models.albert_act.modeling import (
    AlbertActModel,
    AlbertActOutput,
    AlbertActPreTrainedModel,
    HaltingOutput,
)
from adadepth.models.albert_act.readouts import TargetUnits, labelled_tokens, readout_term, refuse_readouts
from adadepth.models.shared.albert.heads import PretrainingHeads
from adadepth.models.shared.encoders import mean_of_tokens
from adadepth.models.shared.losses import (
    CLASSES,
    IGNORED_LABEL,
    LossTerm,
    class_loss,
    combine_terms,
    count_head_classes,
    count_sequences,
    infer_problem_type,
    sequence_loss,
    sum_cross_entropy,
    target_weights,
)

Output = TypeVar("Output", bound=HaltingOutput)


def refuse_mean_pooling(config: AlbertActConfig) -> None:
    """Raise an error if mean pooling is combined with predictions at every step, which read the first token.

    Raises:
        ConfigError: If `pooling` is `mean`.
    """
    if config.pooling == "mean":
        raise ConfigError("pooling=mean: exit rules and readouts need pooling=first, because they read the first token")


@dataclass
class TaskOutput(HaltingOutput):
    """Output of a classification head: logits (B, C) for sequences, (B, T, C) for tokens, (B, choices) for choices.

    With an exit rule, or if all steps run, the output also has the predictions of the K units (tokens or sequences).

    Attributes:
        logits: Logits of the task, in the shape given above, or None with an exit rule or if all steps run.
        unit_slots: Index b T + t of the token from which each unit is predicted, int64, (K,).
        step_logits: Logits after every step, float32, (K, N, C), with NaN for steps that a unit did not run.
        halting_logits: Halting logits z_n, float32, (K, N). The halting sum after step n is 1 - prod (1 - sigmoid(z_j))
            over j <= n.
        exit_steps: Step at which each unit exits, counted from 1, int64, (K,).
    """

    logits: Tensor | None = None
    unit_slots: Tensor | None = None
    step_logits: Tensor | None = None
    halting_logits: Tensor | None = None
    exit_steps: Tensor | None = None


@dataclass
class SpanOutput(HaltingOutput):
    """Output of the question-answering head: logits of answer starts and ends, (B, T) each."""

    start_logits: Tensor | None = None
    end_logits: Tensor | None = None


@dataclass
class MaskedPredictionOutput(HaltingOutput):
    """Output of the pretraining heads: masked-word and sentence-order predictions.

    Attributes:
        prediction_logits: Vocabulary logits, (B, T, V) without labels. With labels, they exist only at the P positions
            that have a label, (P, V), in row-major order of `labels != -100`.
        token_losses: Cross-entropy at each of the P positions in nats, float32, detached, (P,).
        sop_logits: Sentence-order logits for original and swapped order, (B, 2), or None without that head.
        logits: The same as `prediction_logits` in a model without sentence order. Pipelines read this name.
    """

    prediction_logits: Tensor | None = None
    token_losses: Tensor | None = None
    sop_logits: Tensor | None = None
    logits: Tensor | None = None


class AlbertActTaskModel(AlbertActPreTrainedModel):
    """Base class of ACT-ALBERT models with task heads: encoder, dropout and loss."""

    needs_pooler: bool = True

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__(config)
        self.albert = AlbertActModel(config, add_pooling_layer=self.needs_pooler)
        self.dropout = nn.Dropout(config.classifier_dropout_prob)

    def encode(
        self, inputs: Sequence[Tensor | None], options: Mapping[str, Any], units: TargetUnits | None = None
    ) -> Any:
        """Run the encoder and, if `units` are given, record the states of these tokens after every iteration."""
        readouts = {} if units is None else {"readout_slots": units.slots}
        return self.albert(*inputs, **{**options, **readouts, "return_dict": True})

    def select_units(self, labels: Tensor | None, shape: torch.Size) -> TargetUnits | None:
        """Return the tokens or sequences to predict after every iteration, or None if none are.

        Args:
            labels: Labels of the batch, or None.
            shape: Shape of the inputs, (B, T) or (B, choices, T).
        """
        return None if labels is None or not self.config.readout_weight else self.labelled_units(labels, shape)

    def labelled_units(self, labels: Tensor, shape: torch.Size) -> TargetUnits:
        """Return the tokens or sequences that have a label, for predictions after every iteration."""
        raise NotImplementedError

    def read(self, state: Tensor) -> Tensor:
        """Apply the head to states, (K, H), and return the logits, (K, C)."""
        raise NotImplementedError

    def with_loss(
        self,
        result: Output,
        outputs: AlbertActOutput,
        task: LossTerm | None,
        num_targets: Mapping[str, Tensor] | None,
        units: TargetUnits | None = None,
    ) -> Output:
        """Compute the loss of a model output, set `loss` and `loss_parts`, and return the output."""
        if task is not None:
            terms = {"task": task, "ponder": self.ponder_term(outputs)}
            if units is not None:
                terms["readouts"] = readout_term(self.config, outputs, units, self.read)
            result.loss, result.loss_parts = combine_terms(terms, num_targets)
        return result

    def count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the number of targets in a batch for each part of the loss."""
        mask = batch["attention_mask"].flatten(0, -2)
        counts = {"ponder": self.count_ponder_targets(mask), "task": self.count_labels(batch)}
        return counts | ({"readouts": counts["task"]} if self.config.readout_weight else {})

    def count_labels(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the number of labels that are not ignored, or the sum of their class weights."""
        return target_weights(self.config, batch["labels"]).sum()


class AlbertActForSequenceClassification(AlbertActTaskModel):
    """ACT-ALBERT for classification, regression (`num_labels` = 1) or multi-label tagging of sequences.

    The classifier reads the pooled first token. With `pooling=mean`, it reads the mean of the last states of all real
    tokens.
    """

    @property
    def needs_pooler(self) -> bool:
        """Whether the model has a pooler, needed if the classifier reads the pooled first token."""
        return self.config.pooling == "first"

    @property
    def exit_signals(self) -> frozenset[str]:
        """Signals that the model provides to exit rules; there are none if `exit_rule_problem` names a reason."""
        return SIGNALS if self.exit_rule_problem is None else frozenset()

    @property
    def exit_rule_problem(self) -> str | None:
        """Reason why there are no exit rules, such as mean pooling: predictions after steps read the first token."""
        if self.config.pooling != "first":
            return f"pooling={self.config.pooling!r}: exit rules need first, whose prediction reads the first token"
        return find_exit_problem(self.config)

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__(config)
        self.classifier = nn.Linear(config.hidden_size, count_head_classes(config))
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
        """Compute the logits of sequences, (B, C), and the loss if there are labels.

        Labels are classes, (B,), values, (B,) or (B, 1), or multi-hot rows, (B, C).

        With an exit rule, or if all steps run, the output is that of `predict_steps` with sequences as units, without a
        loss.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        if exit_rule is not None or run_all_steps:
            steps = predict_steps(self, inputs, exit_rule, run_all_steps, generator, kwargs, by_sequence=True)
            return TaskOutput(**steps)
        units = self.select_units(labels, get_shape(inputs))
        outputs = self.encode(inputs, kwargs, units)
        logits = self.classifier(self.dropout(self._select_class_state(outputs)))
        task = None if labels is None else sequence_loss(self.config, logits, labels)
        return self.with_loss(TaskOutput.from_base(outputs, logits=logits), outputs, task, num_targets, units)

    def _select_class_state(self, outputs: AlbertActOutput) -> Tensor:
        """Return the pooled state that the classifier reads, (B, H)."""
        if self.config.pooling == "first":
            assert outputs.pooler_output is not None
            return outputs.pooler_output
        assert outputs.trace is not None
        assert outputs.last_hidden_state is not None
        return mean_of_tokens(outputs.last_hidden_state, outputs.trace.valid)

    def read(self, state: Tensor) -> Tensor:
        """Return the logits, (K, C), for the states of first tokens, (K, H)."""
        refuse_mean_pooling(self.config)
        return self.classifier(self.dropout(self.albert.pooled(state)))

    @property
    def readout_work(self) -> float:
        """MACs of one prediction: H^2 for the pooler and H C for the classifier."""
        return self.config.hidden_size * (self.config.hidden_size + count_head_classes(self.config))

    def count_labels(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the number of sequences with a label that is not ignored, or the sum of their class weights."""
        return count_sequences(self.config, batch["labels"])

    def labelled_units(self, labels: Tensor, shape: torch.Size) -> TargetUnits:
        """Return the labelled sequences, which are predicted from their first tokens."""
        kind = infer_problem_type(self.config, labels)
        if kind == CLASSES:
            rows = (labels >= 0).nonzero().squeeze(1)
        else:
            rows = torch.arange(len(labels), device=labels.device)
        return TargetUnits(rows * shape[1], labels[rows], kind)


class AlbertActForTokenClassification(AlbertActTaskModel):
    """ACT-ALBERT that classifies every token."""

    needs_pooler = False

    @property
    def exit_signals(self) -> frozenset[str]:
        """Signals that the model provides to exit rules; there are none if `exit_rule_problem` names a reason."""
        return SIGNALS if self.exit_rule_problem is None else frozenset()

    @property
    def exit_rule_problem(self) -> str | None:
        """Reason why the model has no exit rules, such as a halting rule of a plug-in, or None if it has some."""
        return find_exit_problem(self.config)

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__(config)
        self.classifier = nn.Linear(config.hidden_size, count_head_classes(config))
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
        """Compute the logits of tokens, (B, T, C). Labels are classes, (B, T), or -100 for no label.

        With an exit rule, or if all steps run, the output is that of `predict_steps`, without a loss. Units are all
        real tokens. If all steps run and there are labels, units are the tokens with a label.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        if exit_rule is not None or run_all_steps:
            has_label = None if labels is None or not run_all_steps else labels >= 0
            steps = predict_steps(self, inputs, exit_rule, run_all_steps, generator, kwargs, selected=has_label)
            return TaskOutput(**steps)
        units = self.select_units(labels, get_shape(inputs))
        outputs = self.encode(inputs, kwargs, units)
        logits = self.read(outputs.last_hidden_state)
        task = None if labels is None else class_loss(self.config, logits, labels)
        return self.with_loss(TaskOutput.from_base(outputs, logits=logits), outputs, task, num_targets, units)

    def read(self, state: Tensor) -> Tensor:
        """Return the logits, (..., C), for states, (..., H)."""
        return self.classifier(self.dropout(state))

    @property
    def readout_work(self) -> float:
        """MACs of one prediction, H C for the classifier."""
        return self.config.hidden_size * count_head_classes(self.config)

    def labelled_units(self, labels: Tensor, shape: torch.Size) -> TargetUnits:
        """Return the tokens that have a label."""
        return labelled_tokens(labels)


class AlbertActForQuestionAnswering(AlbertActTaskModel):
    """ACT-ALBERT for question answering: predicts the start and the end of the answer in the text.

    The loss is the mean of the two cross-entropies.
    """

    needs_pooler = False

    def __init__(self, config: AlbertActConfig) -> None:
        refuse_readouts(config, "question answering")
        super().__init__(config)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

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
        """Compute the logits of answer starts and answer ends, (B, T) each, and the loss if there are labels.

        Target positions are token indices, (B,), ignored if they are outside the text.
        """
        outputs = self.encode((input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds), kwargs)
        start_logits, end_logits = self.qa_outputs(outputs.last_hidden_state).unbind(dim=-1)
        task = None
        if start_positions is not None and end_positions is not None:
            length = start_logits.shape[1]
            start = sum_cross_entropy(start_logits, _ignore_outside(start_positions, length))
            end = sum_cross_entropy(end_logits, _ignore_outside(end_positions, length))
            task = LossTerm((start.total + end.total) / 2, (start.count + end.count) / 2)
        result = SpanOutput.from_base(outputs, start_logits=start_logits, end_logits=end_logits)
        return self.with_loss(result, outputs, task, num_targets)

    def count_labels(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the number of answers inside the text; a start or end alone counts as half an answer."""
        length = batch["input_ids"].shape[-1]
        return (
            _is_inside(batch["start_positions"], length).sum() + _is_inside(batch["end_positions"], length).sum()
        ) / 2


def _is_inside(positions: Tensor, length: int) -> Tensor:
    return (positions >= 0) & (positions < length)


def _ignore_outside(positions: Tensor, length: int) -> Tensor:
    return positions.masked_fill(~_is_inside(positions, length), IGNORED_LABEL)


class AlbertActForMultipleChoice(AlbertActTaskModel):
    """ACT-ALBERT for multiple choice among texts, whose tokens can have different depths."""

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
        """Compute one logit per choice, (B, choices), and the loss if there are labels.

        Inputs are (B, choices, T), labels (B,), and halting fields (B*choices, T).
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        shape = get_shape(inputs)
        units = self.select_units(labels, shape)
        outputs = self.encode([None if x is None else x.flatten(0, 1) for x in inputs], kwargs, units)
        logits = self.classifier(self.dropout(outputs.pooler_output)).view(shape[:2])
        task = None if labels is None else sum_cross_entropy(logits, labels)
        return self.with_loss(TaskOutput.from_base(outputs, logits=logits), outputs, task, num_targets, units)

    def read(self, state: Tensor) -> Tensor:
        """Return the logits, (K, choices), for the first tokens of all choices, (K, choices, H)."""
        return self.classifier(self.dropout(self.albert.pooled(state))).squeeze(-1)

    def labelled_units(self, labels: Tensor, shape: torch.Size) -> TargetUnits:
        """Return the questions that have an answer.

        A question is predicted from the first tokens of all its choices.
        """
        rows, choices = (labels >= 0).nonzero().squeeze(1), shape[1]
        sequences = (rows.unsqueeze(1) * choices + torch.arange(choices, device=rows.device)).flatten()
        return TargetUnits(sequences * shape[2], labels[rows], sequences=choices)


class AlbertActForPreTraining(PretrainingHeads, AlbertActPreTrainedModel):
    """ACT-ALBERT for pretraining: masked words, sentence order and ponder cost, L = MLM + SOP + tau (N + R)."""

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__(config)
        self.albert = AlbertActModel(config, add_pooling_layer=self.has_sentence_order)
        self.make_heads(config)
        self.post_init()

    def count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the number of targets in a batch for each part of the loss."""
        counts = {"ponder": self.count_ponder_targets(batch["attention_mask"]), **self.count_predicted(batch)}
        return counts | ({"readouts": counts["mlm"]} if self.config.readout_weight and "mlm" in counts else {})

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
        """Compute the predictions, and the loss if there are labels.

        Args:
            input_ids: Token ids, (B, T); exclusive with `inputs_embeds`.
            attention_mask: 1 at real tokens, 0 at padding, (B, T).
            token_type_ids: Segment of each token, (B, T).
            position_ids: Position of each token, (B, T) or (1, T).
            inputs_embeds: Word embeddings instead of ids, (B, T, E).
            labels: Original ids at the positions to predict, -100 elsewhere, (B, T). If labels are given, vocabulary
                logits exist only at these positions.
            sentence_order_label: 0 for original order, 1 for swapped order, negative for no label, (B,).
            num_targets: Counts that normalise the loss parts, in place of this batch's counts; see `combine_terms`.
            **kwargs: Options of `AlbertActModel.forward`.
        """
        units = None if labels is None or not self.config.readout_weight else labelled_tokens(labels)
        if units is not None:
            kwargs["readout_slots"] = units.slots
        outputs = self.albert(
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **(kwargs | {"return_dict": True})
        )
        result = MaskedPredictionOutput.from_base(outputs)
        terms = self.predict_words(result, outputs.last_hidden_state, labels)
        if units is not None:
            terms["readouts"] = readout_term(self.config, outputs, units, self.predictions)
        if self.has_sentence_order:
            terms |= self.predict_order(result, outputs.pooler_output, sentence_order_label)
        else:
            result.logits = result.prediction_logits
        if terms:
            terms["ponder"] = self.ponder_term(outputs)
            result.loss, result.loss_parts = combine_terms(terms, num_targets)
        return result


class AlbertActForMaskedLM(AlbertActForPreTraining):
    """ACT-ALBERT as a masked language model without sentence order: L = MLM + tau (N + R)."""

    has_sentence_order = False

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
    ) -> MaskedPredictionOutput:
        """Predict masked words, as `AlbertActForPreTraining` does.

        The signature has only one kind of labels, because trainers read labels from it.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        return super().forward(*inputs, labels=labels, num_targets=num_targets, **kwargs)


def get_shape(inputs: Sequence[Tensor | None]) -> torch.Size:
    """Return the shape of the input ids or embeddings of a batch, (B, T) or (B, choices, T).

    Args:
        inputs: First five arguments of a forward pass, from token ids to embeddings.

    Raises:
        ValueError: If neither ids nor embeddings are given.
    """
    input_ids, *_, inputs_embeds = inputs
    if input_ids is not None:
        return input_ids.shape
    if inputs_embeds is None:
        raise ValueError("input_ids, inputs_embeds: give exactly one of them")
    return inputs_embeds.shape[:-1]
