"""Tiny recursive model for puzzles: network, training on slots of puzzles, loss and MAC counts.

    loss = 1/B sum_b ( mean over labelled cells of CE + w BCE(q_b, 1[all labelled cells of b are right now]) )

The cell losses are averaged per row first, so that a row with few labelled cells counts as much as any other. Shape
legend: B rows, L cells, V symbols.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.utils.generic import can_return_tuple

from adadepth.errors import DataError
from adadepth.halting.exit_rules import ExitRule
from adadepth.halting.trace import DepthTrace, Execution, StateMaps, Work
from adadepth.models.depth.engine import ExitRuleKnob, resolve_exit_rule, run_steps, runs_all
from adadepth.models.depth.outputs import StepwiseOutput, stepwise_output
from adadepth.models.loading import describe_place, take_config_fields
from adadepth.models.shared.losses import LossTerm, combine_terms
from adadepth.models.trm.configuration import TrmConfig
from adadepth.models.trm.convert import find_published_folder, read_weights
from adadepth.models.trm.network import Network, init_truncated_normal, rotations
from adadepth.runtime.devices import has_float64

logger = logging.getLogger(__name__)


def stablemax_log_probabilities(logits: Tensor) -> Tensor:
    """Return log(s(v) / sum s(v)), float64 (..., V), with s(v) = v + 1 if v >= 0, else 1 / (1 - v).

    This is equation 5 of Prieto et al. 2025 (arXiv 2501.04697). s grows linearly, so that it does not overflow. The
    result is float64 as in the published code, or float32 on devices without float64.
    """
    precise = logits.double() if has_float64(logits.device) else logits.float()
    # Each branch is clamped to its side of 0: the pole of the other would make the gradient NaN.
    scores = torch.where(precise < 0, 1.0 / (1.0 - precise.clamp(max=0.0)), precise.clamp(min=0.0) + 1.0)
    return scores.log() - scores.sum(dim=-1, keepdim=True).log()


def answer_losses(logits: Tensor, labels: Tensor, kind: str) -> Tensor:
    """Return each row's mean cross-entropy over its labelled cells, float32 (B,)."""
    log_probabilities = (
        stablemax_log_probabilities(logits) if kind == "stablemax" else logits.float().log_softmax(dim=-1)
    )
    labelled = labels >= 0
    losses = -log_probabilities.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    sums = (losses * labelled).sum(dim=-1)
    return (sums / labelled.sum(dim=-1).clamp(min=1)).float()


def is_answer_correct(logits: Tensor, labels: Tensor) -> Tensor:
    """Return whether all labelled cells of each row are predicted correctly, boolean (B,)."""
    return ((logits.argmax(dim=-1) == labels) | (labels < 0)).all(dim=-1)


def step_terms(logits: Tensor, q: Tensor, labels: Tensor, kind: str, halt_weight: float) -> dict[str, LossTerm]:
    """Return the loss parts `task` and `halt` of one supervision step, summed over rows.

    Args:
        logits: Logits of the cells, (B, L, V).
        q: Logits that the answer is right, (B,).
        labels: Symbols of the cells, int64 (B, L), negative where a cell is not labelled.
        kind: `stablemax` or `softmax`.
        halt_weight: Weight w of `halt`.
    """
    rows = torch.full((), len(labels), device=labels.device)
    right = is_answer_correct(logits.detach(), labels).float()
    halt = functional.binary_cross_entropy_with_logits(q.float(), right, reduction="none")
    return {
        "task": LossTerm(answer_losses(logits, labels, kind).sum(), rows),
        "halt": LossTerm(halt.sum(), rows, halt_weight),
    }


def block_macs(config: TrmConfig) -> float:
    """Return the MACs of one block for one row.

    They are 4 S D^2 + 2 S^2 D for attention, or 3 S F_S D for mixing over positions, and 3 S D F for the feed-forward
    layer.
    """
    length, width = config.length, config.hidden_size
    attention = 4 * length * width**2 + 2 * length**2 * width
    mixing = 3 * length * config.mixing_width * width if config.mixing == "positions" else attention
    return float(mixing + 3 * length * width * config.inner_width)


def step_macs(config: TrmConfig) -> float:
    """Return the MACs of one supervision step for one row.

    They are those of T (n + 1) applications of a network, and of the heads.
    """
    heads = config.cells * config.hidden_size * config.vocab_size + config.hidden_size
    return config.cycles * config.cycle_blocks * block_macs(config) + heads


# Contents of the slots in training, empty before the first step: answer, reasoning (B, S, D); input_ids, labels (B, L);
# steps int64, halted bool, puzzle_kinds (B,).
Carry = dict[str, Tensor]


def refill_slots(carry: Carry, model: Any, input_ids: Tensor, labels: Tensor, puzzle_kinds: Tensor) -> Carry:
    """Return the batch for the next training step, in which new puzzles replace those that have halted."""
    answer, reasoning = model.start(len(input_ids))
    fresh = {
        "answer": answer,
        "reasoning": reasoning,
        "steps": puzzle_kinds.new_zeros(len(input_ids), dtype=torch.int64),
        "input_ids": input_ids,
        "labels": labels,
        "puzzle_kinds": puzzle_kinds,
    }
    if not carry:
        return fresh
    expected = {name: (value.shape, value.dtype.is_floating_point) for name, value in fresh.items()}
    expected["halted"] = (puzzle_kinds.shape, False)
    for name, (shape, is_real) in expected.items():
        if name not in carry or carry[name].shape != shape or carry[name].dtype.is_floating_point != is_real:
            has = f"shape {tuple(carry[name].shape)}, {carry[name].dtype}" if name in carry else "nothing"
            raise DataError(f"carry: {name} has {has}, but needs shape {tuple(shape)}")
    halted = carry["halted"]
    return {name: torch.where(_broadcast(halted, new), new, carry[name]) for name, new in fresh.items()}


def decide_halting(config: TrmConfig, steps: Tensor, q: Tensor, draws: Tensor | None) -> Tensor:
    """Return which puzzles of a training batch halt after this step, boolean (B,).

    Args:
        config: Configuration with `num_steps` and `exploration`.
        steps: Number of steps of the puzzle in each slot, this step included, int64 (B,).
        q: Logits that the answer is right, (B,).
        draws: Two uniform random numbers per slot, (B, 2), or None for no exploration.
    """
    halted = (steps >= config.num_steps) | (q > 0)
    if draws is None or config.num_steps < 2:
        return halted
    least = 2 + (draws[:, 1] * (config.num_steps - 1)).long()
    return halted & ((steps >= least) | (draws[:, 0] >= config.exploration))


def _broadcast(rows: Tensor, values: Tensor) -> Tensor:
    return rows.view(-1, *[1] * (values.dim() - 1))


Q_BIAS = -5.0  # of the Q head at first: no answer is right


@dataclass
class TrmOutput(StepwiseOutput):
    """Output of a tiny recursive model: predicted answers after every step.

    `logits` are (B, L, V), and `step_logits` (B, N, L, V).

    Attributes:
        carry: Contents of the slots of a batch after a training step; see `Carry`.
    """

    carry: Carry | None = None


class TrmForPuzzles(ExitRuleKnob, PreTrainedModel):
    """Tiny recursive model that refines its answer to a puzzle, with a Q head that predicts whether it is right."""

    config: TrmConfig
    config_class = TrmConfig
    base_model_prefix = ""
    main_input_name = "input_ids"
    # Its losses are normalised by `num_targets`, never by the trainer's count of items.
    accepts_loss_kwargs = False
    depth_unit = "sequence"
    longest_sequence = None  # the data decide how many cells there are
    exit_signals = frozenset({"logits", "correctness"})
    level_rule = "correct"
    trains_in_slots = True
    refills = True
    supports_gradient_checkpointing = True

    def __init__(self, config: TrmConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.prefix = nn.Embedding(config.puzzle_kinds, config.hidden_size)
        if config.positions == "learned":
            self.embed_positions = nn.Embedding(config.length, config.hidden_size)
        self.network = Network(config, config.num_layers)
        if config.answer_layers is not None:
            self.answer_network = Network(config, config.answer_layers)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.q_head = nn.Linear(config.hidden_size, 2)
        self.answer_init: Tensor
        self.reasoning_init: Tensor
        self.register_buffer("answer_init", torch.zeros(config.hidden_size))
        self.register_buffer("reasoning_init", torch.zeros(config.hidden_size))
        self.post_init()

    @classmethod
    def read_published(cls, path: Any, stored: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any] | None:
        """Load a TRM or HRM from a folder or hub id that the published code wrote, without running its code."""
        is_ours = path is None or "transformers_version" in stored  # which every saved configuration has
        folder = None if is_ours else find_published_folder(path, options)
        if folder is None:
            return None
        more = dict(options)
        config = more.pop("config", None) or cls.config_class.from_dict(dict(stored))
        more = take_config_fields(config, more)
        weights, source = read_weights(folder, describe_place(path))
        logger.info("%s: read %s", path, source)
        return more | {"config": config, "state_dict": weights}

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialise weights as in the published code.

        The standard deviation is 1 / sqrt(inputs) for linear layers, 1 / sqrt(D) for embeddings, and 1 for start
        states.
        """
        if isinstance(module, TrmForPuzzles):
            init_truncated_normal(module.answer_init, 1.0)
            init_truncated_normal(module.reasoning_init, 1.0)
        elif module is self.q_head:
            init.zeros_(self.q_head.weight)
            init.constant_(self.q_head.bias, Q_BIAS)
        elif module is self.prefix:
            init.zeros_(self.prefix.weight)
        elif isinstance(module, nn.Linear):
            init_truncated_normal(module.weight, 1.0 / math.sqrt(module.in_features))
        elif isinstance(module, nn.Embedding):
            init_truncated_normal(module.weight, 1.0 / math.sqrt(module.embedding_dim))

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        labels: Tensor | None = None,
        puzzle_kinds: Tensor | None = None,
        num_targets: Mapping[str, Tensor] | None = None,
        carry: Carry | None = None,
        draws: Tensor | None = None,
        exit_rule: str | ExitRule | None = None,
        run_all_steps: bool | None = None,
        generator: torch.Generator | None = None,
        places: int | None = None,
        **kwargs: Any,
    ) -> TrmOutput:
        """Refine the answers until every puzzle has exited, or run one training step if `carry` is given.

        If there are labels and no `carry`, the loss is the mean over all N steps. If `places` is also given, it is the
        loss at the step at which each puzzle exits.

        Args:
            input_ids: Cells, (B, L).
            labels: Correct symbol of each cell, (B, L), negative where a cell is not labelled.
            puzzle_kinds: Kind of each puzzle, (B,), or None if all puzzles are of the first kind.
            num_targets: Counts that normalise the loss parts in place of this batch's counts; see `combine_terms`.
            carry: Contents of the slots after the previous step, empty before the first step; see `Carry`.
            draws: Uniform random numbers for exploration, (B, 2), or None for no exploration.
            exit_rule: Rule by which puzzles exit, or None for that of the configuration.
            run_all_steps: Whether puzzles continue to run after their exit; see `runs_all`.
            generator: Random generator for stochastic rules.
            places: Number of puzzles that are computed at a time, while the others wait until one exits. None means
                that of the configuration, unless all steps run anyway.
            **kwargs: `return_dict`. All other arguments are ignored.

        Raises:
            DataError: If the number of cells of the puzzles is not that of the model.
            ValueError: If `places` is less than 1, or is given although every puzzle runs all steps.
        """
        if input_ids.dim() != 2 or input_ids.shape[1] != self.config.cells:
            raise DataError(f"input_ids of shape {tuple(input_ids.shape)}: must be (batch, {self.config.cells})")
        if puzzle_kinds is None:
            puzzle_kinds = input_ids.new_zeros(input_ids.shape[0])
        if carry is not None:
            assert labels is not None, "a training step needs targets"
            return self._train_slots(refill_slots(carry, self, input_ids, labels, puzzle_kinds), draws, num_targets)

        rule, places = resolve_exit_rule(self, exit_rule), self._resolve_places(places, run_all_steps)
        run_all = runs_all(run_all_steps, labels if places is None else None, training=self.training)
        stepper = TrmStepper(self, input_ids, puzzle_kinds, places)
        steps = run_steps(
            stepper, rule, max_updates=self.max_updates, run_all=run_all, generator=generator, places=places
        )
        output = TrmOutput(**stepwise_output(steps, rule, tokens=None))
        if labels is not None:
            loss = self._mean_loss if run_all else self._exit_loss
            output.loss, output.loss_parts = loss(output, labels, num_targets)
        return output

    def _resolve_places(self, slots: int | None, run_all_steps: bool | None) -> int | None:
        """Return the number of puzzles that run at a time in a forward pass, or None if all of them do.

        If `slots` is None, the number is that of the configuration, unless all steps run anyway.
        """
        if slots is not None or run_all_steps or self.training or torch.compiler.is_exporting():
            return slots
        return self.config.places

    def _train_slots(self, carry: Carry, draws: Tensor | None, num_targets: Mapping[str, Tensor] | None) -> TrmOutput:
        """Run one supervision step on the current batch of puzzles, and return its loss and the state to carry over."""
        labels, config = carry["labels"], self.config
        embedded = self.embed(carry["input_ids"], carry["puzzle_kinds"])
        answer, reasoning = self.step(embedded, carry["answer"], carry["reasoning"])
        logits, q = self.read(answer)
        terms = step_terms(logits, q, labels, config.answer_loss, config.halt_loss_weight)
        loss, parts = combine_terms(terms, num_targets)
        steps = carry["steps"] + 1
        halted = decide_halting(config, steps, q.detach(), draws)
        changed = {"answer": answer.detach(), "reasoning": reasoning.detach(), "steps": steps, "halted": halted}
        trace = DepthTrace("sequence", steps.float(), halted, self.max_updates, execution=Execution(1))
        return TrmOutput(
            loss=loss,
            loss_parts=parts,
            logits=logits,
            halting_logits=q.unsqueeze(1),
            trace=trace,
            carry={**carry, **changed},
        )

    def _mean_loss(
        self, output: TrmOutput, labels: Tensor, num_targets: Mapping[str, Tensor] | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the mean loss over all steps."""
        assert output.step_logits is not None
        assert output.halting_logits is not None
        answers, steps = output.step_logits, output.step_logits.shape[1]
        terms = step_terms(
            answers.flatten(0, 1),
            output.halting_logits.flatten(),
            labels.repeat_interleave(steps, dim=0),
            self.config.answer_loss,
            self.config.halt_loss_weight,
        )
        rows = torch.full((), len(labels), device=labels.device)
        means = {name: LossTerm(term.total / steps, rows, term.weight) for name, term in terms.items()}
        return combine_terms(means, num_targets)

    def _exit_loss(
        self, output: TrmOutput, labels: Tensor, num_targets: Mapping[str, Tensor] | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the loss of each puzzle at its exit step."""
        assert output.logits is not None
        assert output.exit_steps is not None
        assert output.halting_logits is not None
        q = output.halting_logits.gather(1, output.exit_steps.unsqueeze(1) - 1).squeeze(1)
        terms = step_terms(output.logits, q, labels, self.config.answer_loss, self.config.halt_loss_weight)
        return combine_terms(terms, num_targets)

    def embed(self, input_ids: Tensor, puzzle_kinds: Tensor) -> Tensor:
        """Return the embedded puzzles x, (B, S, D): the kind of puzzle, empty registers and the cells."""
        config = self.config
        registers = self.prefix(puzzle_kinds).unsqueeze(1)
        padding = registers.new_zeros(input_ids.shape[0], config.prefix_length - 1, config.hidden_size)
        embedded = torch.cat([registers, padding, self.embed_tokens(input_ids)], dim=1)
        if config.positions == "learned":
            embedded = (embedded + self.embed_positions.weight) * math.sqrt(0.5)
        return embedded * math.sqrt(config.hidden_size)

    def step(self, embedded: Tensor, answer: Tensor, reasoning: Tensor) -> tuple[Tensor, Tensor]:
        """Run one supervision step, and return the new answer state y and reasoning state z, (A, S, D) each."""
        rotation = self._compute_rotation(embedded)
        with torch.no_grad():
            for _ in range(self.config.cycles - 1):
                answer, reasoning = self.cycle(embedded, answer, reasoning, rotation)
        return self.cycle(embedded, answer, reasoning, rotation)

    def cycle(
        self, embedded: Tensor, answer: Tensor, reasoning: Tensor, rotation: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, Tensor]:
        """Update the reasoning state n times and then the answer state, which does not read the puzzle."""
        context = answer + embedded
        for _ in range(self.config.reasoning_updates):
            reasoning = self.network(reasoning + context, rotation)
        network = self.network if self.config.answer_layers is None else self.answer_network
        return network(answer + reasoning, rotation), reasoning

    def build_state_maps(self, batch: Mapping[str, Tensor]) -> StateMaps:
        """Return the first answer and reasoning state (y, z), joined along the width, and the map of every step."""
        cells, kinds = batch["input_ids"], batch.get("puzzle_kinds")
        embedded = self.embed(cells, cells.new_zeros(len(cells)) if kinds is None else kinds)
        rotation = self._compute_rotation(embedded)

        def run_step(state: Tensor) -> Tensor:
            answer, reasoning = state.chunk(2, dim=-1)
            for _ in range(self.config.cycles):
                answer, reasoning = self.cycle(embedded, answer, reasoning, rotation)
            return torch.cat([answer, reasoning], dim=-1)

        start = torch.cat(self.start(len(embedded)), dim=-1)
        valid = torch.ones(start.shape[:2], dtype=torch.bool, device=start.device)
        return StateMaps(start, valid, [run_step] * self.max_updates)

    def read(self, answer: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of the cells, (A, L, V), and the logit that the answer is right, float32 (A,)."""
        q = nn.functional.linear(answer[:, 0].float(), self.q_head.weight.float(), self.q_head.bias.float())
        return self.lm_head(answer[:, self.config.prefix_length :]), q[:, 0]

    def start(self, rows: int) -> tuple[Tensor, Tensor]:
        """Return the initial answer state y and reasoning state z, (rows, S, D) each.

        Each repeats one random vector that is not trained.
        """
        shape = (rows, self.config.length, self.config.hidden_size)
        return self.answer_init.expand(shape), self.reasoning_init.expand(shape)

    def _compute_rotation(self, like: Tensor) -> tuple[Tensor, Tensor] | None:
        config = self.config
        if config.mixing == "positions" or config.positions != "rotary":
            return None
        width = config.hidden_size // config.num_attention_heads
        return rotations(config.length, width, config.rope_theta, like.device)

    def count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the number of rows, the divisor of both parts of the loss.

        The published loss is a mean over rows of means over cells.
        """
        rows = torch.full((), len(batch["labels"]), device=batch["labels"].device)
        return {"task": rows, "halt": rows}

    def list_heads(self) -> set[str]:
        """Return the names of the answer head and of the Q head."""
        return {"lm_head", "q_head"}

    def descending_by_sign(self) -> set[str]:
        """Return the puzzle-kind embedding's name, which is trained by gradient signs as in the published code."""
        return {"prefix.weight"}

    def least_activations(self, lengths: Sequence[int], recomputed: bool) -> dict[str, int]:
        """Return the number of activation values stored in the last cycle of a step, by part of the model."""
        config, rows = self.config, len(lengths)
        blocks = config.cycle_blocks
        at_once = 1 if recomputed else blocks
        numbers = {
            "states": blocks * rows * config.length * config.hidden_size,
            "feed-forward": at_once * rows * config.length * 2 * config.inner_width,
        }
        if config.mixing == "positions":
            numbers["mixing"] = at_once * rows * config.hidden_size * 2 * config.mixing_width
        return numbers

    def price(self, trace: DepthTrace) -> Work:
        """Return the MACs of a batch from its depth trace; rows that have exited cost nothing."""
        step, updates, ran = step_macs(self.config), trace.updates.double(), trace.executed
        computed = torch.as_tensor(len(updates) * ran.steps) if ran.rows is None else ran.rows.sum()
        return Work(
            executed=step * computed.to(updates),
            dense=step * len(updates) * updates.max(),
            adaptive=step * updates.sum(),
            full=step * len(updates) * updates.new_full((), trace.max_updates),
        )

    @property
    def vocabulary_size(self) -> int:
        """Number of symbols that a puzzle cell can contain."""
        return self.config.vocab_size

    @property
    def max_updates(self) -> int:
        """Maximum number of supervision steps per puzzle."""
        return self.config.num_steps


class TrmStepper:
    """Runs a tiny recursive model step by step on puzzles that exit one by one; implements `RefillingStepper`."""

    width, computed = 1, None

    def __init__(self, model: TrmForPuzzles, input_ids: Tensor, puzzle_kinds: Tensor, places: int | None) -> None:
        self._model, self._cells, self._kinds = model, input_ids, puzzle_kinds
        self.rows, self.device = input_ids.shape[0], input_ids.device
        self._embedded = model.embed(input_ids[:places], puzzle_kinds[:places])
        self._answer, self._reasoning = model.start(self._embedded.shape[0])

    def advance(self) -> tuple[Tensor, Tensor | None]:
        """Run one supervision step, and return the logits of the answer and of the Q head."""
        # Gradients never cross a step's boundary.
        answer, reasoning = self._model.step(self._embedded, self._answer.detach(), self._reasoning.detach())
        self._answer, self._reasoning = answer, reasoning
        return self._model.read(answer)

    def keep(self, rows: Tensor) -> None:
        """Remove all puzzles from the batch except the given ones."""
        rows = rows.to(self.device, non_blocking=True)
        self._embedded = self._embedded[rows]
        self._answer, self._reasoning = self._answer[rows], self._reasoning[rows]

    def admit(self, rows: Tensor) -> None:
        """Add waiting puzzles to the running ones, at their first step."""
        embedded = self._model.embed(self._cells[rows], self._kinds[rows])
        self._embedded = torch.cat([self._embedded, embedded])
        answer, reasoning = self._model.start(len(rows))
        self._answer = torch.cat([self._answer, answer])
        self._reasoning = torch.cat([self._reasoning, reasoning])
