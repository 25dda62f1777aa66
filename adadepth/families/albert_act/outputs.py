"""What the ACT-ALBERT models return."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from transformers.utils import ModelOutput

from adadepth.halting.trace import DepthTrace


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
    """States and halting of one pass. Shape legend: B batch, T tokens, H width, N iterations that ran, A heads.

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


@dataclass
class MaskedPredictionOutput(HaltingOutput):
    """Masked-language-model and sentence-order predictions.

    Attributes:
        prediction_logits: Vocabulary logits: (B, T, V) without labels; with labels only at the P positions that have
            one, (P, V), in row-major order of `labels != -100`.
        token_losses: Cross-entropy of each of those P positions in nats, float32, detached.
        sop_logits: Sentence-order logits, (B, 2): original order, swapped. None without that head.
        logits: The vocabulary logits again where the masked language model is the only head, under the name that
            pipelines read.
    """

    prediction_logits: Tensor | None = None
    token_losses: Tensor | None = None
    sop_logits: Tensor | None = None
    logits: Tensor | None = None


@dataclass
class TaskOutput(HaltingOutput):
    """Predictions of a classification head: (B, C) for sequences, (B, T, C) for tokens, (B, choices) for choices.

    Where an exit rule decides, or all steps run, there are also those of the K units, tokens or sequences, float32:

    Attributes:
        unit_slots: b T + t of the token at which each unit is read, int64, (K,).
        step_logits: After every step, (K, N, C), NaN where a unit did not run it.
        halting_logits: z_n, (K, N): 1 - prod (1 - sigmoid(z_j)) over j <= n is the halting sum after step n.
        exit_steps: First step is 1, int64, (K,).
    """

    logits: Tensor | None = None
    unit_slots: Tensor | None = None
    step_logits: Tensor | None = None
    halting_logits: Tensor | None = None
    exit_steps: Tensor | None = None


@dataclass
class SpanOutput(HaltingOutput):
    """Predictions of the question-answering head: start and end logits, each (B, T)."""

    start_logits: Tensor | None = None
    end_logits: Tensor | None = None
