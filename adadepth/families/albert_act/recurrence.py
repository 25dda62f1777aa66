"""The recurrence of ACT-ALBERT over all positions of a batch.

An iteration applies the shared layer to what tokens read, r_n = x_{n-1} (+ x_0), and moves their halting sums on:

    y_n = block(r_n),  p_n = sigmoid(w y_n + b),  x_n = w_n y_n + (1 - w_n) x_{n-1}

with the weights w_n of `adadepth.halting.act`; other state rules are described there. Shape legend: B batch, T tokens,
P packed tokens, H width, N iterations that ran; (...) is (B, T) here, and (P,) in `ragged.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from adadepth.families.albert_act.configuration import AlbertActConfig
from adadepth.families.albert_act.readouts import ReadoutStates
from adadepth.families.shared.albert.block import AlbertLayer, HaltingProjection, may_wait
from adadepth.families.shared.layers import Product
from adadepth.halting.act import ActState, StateRuleLike, act_step, init_act, update_result, update_stream
from adadepth.halting.active_set import take
from adadepth.halting.rules import halting_rule
from adadepth.halting.trace import ComputedSteps, DepthTrace, Execution, Halting


class HaltingUnit(nn.Module):
    """Probability of halting after an update: p = sigmoid(w y + b)."""

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__()
        self.dense = HaltingProjection(config.hidden_size, config.halt_bias_init)

    def forward(self, state: Tensor) -> Tensor:
        """(..., H) to (...), float32."""
        return self.dense(state).squeeze(-1).sigmoid()


class AlbertActLayer(AlbertLayer):
    """The shared block with the halting unit, which is the recurrence's to call."""

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__(config)
        self.act = HaltingUnit(config)


class TokenStates(NamedTuple):
    """What an iteration changes.

    Attributes:
        state: x_n, (..., H).
        result: Result so far, (..., H); the state itself where the rule keeps nothing apart.
        halting: Halting sums, (...).
    """

    state: Tensor
    result: Tensor
    halting: ActState


class DensePositions:
    """What no iteration changes: where the tokens are and how they attend. All positions run in every iteration.

    Args:
        valid: True at the batch's real tokens, (B, T).
        attention_mask: In the form the attention implementation wants.
        options: For the attention implementation.
        recall: Whether every iteration reads x_0 again.
    """

    def __init__(self, valid: Tensor, attention_mask: Tensor | None, options: dict[str, Any], *, recall: bool) -> None:
        self.valid = valid
        self._mask, self._options, self._recall = attention_mask, options, recall
        self._first: Tensor | None = None

    @property
    def slots(self) -> Tensor | None:
        """Slot b T + t of each token, (P,); None where all positions of the batch are there."""
        return None

    @property
    def computed(self) -> tuple[int, int, Tensor | int] | None:
        """Queries, keys and pairs of them that the next iteration computes; None where that is everything."""
        return None

    def gather(self, values: Tensor) -> Tensor:
        """Return the tokens' values, (..., *), of those of the whole batch, (B, T, *)."""
        return values

    def enter(self, state: Tensor) -> Tensor:
        """Return x_0 of the tokens, (..., H), of that of the whole batch, (B, T, H), before the first iteration."""
        first = self.gather(state)
        self._first = first if self._recall else None
        return first

    def block_input(self, state: Tensor) -> Tensor:
        """Return r_{n+1} = x_n (+ x_0), what the block reads next (Bansal et al. 2022, arXiv 2202.05826, 3.1)."""
        return state if self._first is None else state + self._first

    def apply(self, layer: AlbertActLayer, block_input: Tensor) -> Tensor:
        """Apply the block, (..., H) to (..., H)."""
        return layer(block_input, self._mask, **self._options)[0]

    def keep(self, running: Tensor, state: Tensor) -> Tensor:
        """Leave behind the tokens outside `running`, (B, T), where that spares compute; return the others' state."""
        return state

    def find(self, slots: Tensor) -> Tensor:
        """Return the positions of slots b T + t among the flattened tokens."""
        return slots


class StateRecord(nn.Module):
    """Sees the states before and after an iteration; a module, so that a hook can record them."""

    def forward(self, before: Tensor, after: Tensor) -> Tensor:
        """The states after, (B, T, H)."""
        return after


class AlbertActTransformer(nn.Module):
    """Applies the shared layer until every token has halted, at most `num_hidden_layers` times.

    Attributes:
        forced_depth: Updates that every token gets instead of what the configuration says; None: as it says.
        replayed_masses: Halting masses (B, T, N) that take the place of the halting unit's; None: the unit's count.
    """

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding_hidden_mapping_in = Product(config.embedding_size, config.hidden_size)
        self.albert_layer = AlbertActLayer(config)
        self.state_record = StateRecord()
        self.halting_rule = halting_rule(config.halting_rule)
        self.forced_depth: int | None = None
        self.replayed_masses: Tensor | None = None

    def forward(
        self, state: Tensor, positions: DensePositions, readouts: ReadoutStates | None
    ) -> tuple[Tensor, DepthTrace]:
        """Update every position until the last token has halted.

        Args:
            state: x_0, (B, T, H).
            positions: Of the batch.
            readouts: Collects the states of some tokens after every iteration.

        Returns:
            The results, (B, T, H), and the trace.
        """
        tokens = self.start(positions.enter(state), positions.valid)
        probabilities, may_wait = [], self._may_wait()
        for step in range(1, self.max_updates + 1):
            if step > 1 and may_wait and not tokens.halting.running.any():
                break
            before = tokens.state
            tokens, probability = self.update(tokens, positions, step)
            self.state_record(before, tokens.state)
            if readouts is not None:
                readouts.add(tokens.state)
            probabilities.append(probability)
        return tokens.result, self.trace(tokens.halting, torch.stack(probabilities, dim=-1), positions.valid)

    def start(self, state: Tensor, valid: Tensor) -> TokenStates:
        """Tokens before the first iteration, x_0 (..., H); `valid` (...) is false at padding, which starts halted."""
        result = state if self.state_rule == "single" else torch.zeros_like(state)
        return TokenStates(state, result, init_act(valid))

    def update(self, tokens: TokenStates, positions: DensePositions, step: int) -> tuple[TokenStates, Tensor]:
        """Iteration `step`, counted from 1: the tokens after it, and the halting mass of those that ran, (...)."""
        config, rule, adapts = self.config, self.state_rule, self.fixed_depth is None
        running = tokens.halting.running
        output, probability = self.propose(tokens.state, positions)
        if self.replayed_masses is not None:
            masses = self.replayed_masses[..., step - 1]
            probability = masses if positions.slots is None else take(masses.flatten(), positions.slots)
        elif adapts:
            probability = self.halting_rule.mass(probability, tokens.halting.accumulated, step)
        halting, weight = act_step(
            tokens.halting,
            probability,
            threshold=1.0 - config.act_epsilon,
            is_last=step == self.max_updates,
            cap_remainder=config.cap_remainder if adapts else "forced",
        )
        state = update_stream(rule, tokens.state, output, weight, running)
        result = state if rule == "single" else update_result(rule, tokens.result, output, weight)
        return TokenStates(state, result, halting), probability * running

    def propose(self, state: Tensor, positions: DensePositions) -> tuple[Tensor, Tensor]:
        """The block's output y_n, (..., H), of x_{n-1}, and the probabilities p_n, (...)."""
        block_input = positions.block_input(state)
        output = positions.apply(self.albert_layer, block_input)
        return output, self.halting_probability(block_input, output, positions.valid, positions.slots)

    def halting_probability(self, state: Tensor, output: Tensor, valid: Tensor, slots: Tensor | None = None) -> Tensor:
        """The probability p_n that tokens halt at this update, (...), float32.

        Args:
            state: r_n, what the block read, (..., H).
            output: y_n, (..., H).
            valid: True at real tokens, (B, T).
            slots: Of packed tokens: whole sequences, where sequences halt.
        """
        probability = self.albert_layer.act(output if self.config.halting_input == "block_output" else state)
        if self.fixed_depth is not None:
            return torch.zeros_like(probability)
        if self.config.halting_scope == "token":
            return probability
        tokens = valid.sum(dim=1).clamp(min=1)
        if slots is None:
            mean = (probability * valid).sum(dim=1) / tokens
            return mean.unsqueeze(1).expand_as(probability)
        rows = slots // valid.shape[1]
        sums = torch.zeros_like(tokens, dtype=torch.float32).index_add(0, rows, probability)
        return (sums / tokens)[rows]

    def trace(
        self, halting: ActState, probabilities: Tensor, valid: Tensor, computed: ComputedSteps | None = None
    ) -> DepthTrace:
        """Return the trace of a pass.

        Args:
            halting: Final halting sums, (B, T).
            probabilities: Halting mass of every iteration, 0 once a token has halted, (B, T, N).
            valid: True at real tokens, (B, T).
            computed: What each iteration computed; None where that was everything.
        """
        return DepthTrace(
            unit="token",
            updates=halting.updates,
            valid=valid,
            max_updates=self.config.num_hidden_layers,
            execution=Execution(probabilities.shape[-1], computed=computed),
            halting=Halting(probabilities, halting.remainders),
        )

    @property
    def fixed_depth(self) -> int | None:
        """Updates that every token gets while nobody halts; None where they halt."""
        return self.config.fixed_depth if self.forced_depth is None else self.forced_depth

    @property
    def max_updates(self) -> int:
        """The most iterations."""
        fixed = self.fixed_depth
        return self.config.num_hidden_layers if fixed is None else fixed

    @property
    def state_rule(self) -> StateRuleLike:
        """How states are updated.

        Where nobody halts there is nothing to interpolate: a block's output follows, and the last one, which the cap
        forces to halt with weight 1, is the result.
        """
        return self.config.state_rule if self.fixed_depth is None else "graves"

    def _may_wait(self) -> bool:
        """Whether the device may be asked if anybody still runs.

        The answer costs a host synchronisation: nothing on a CPU, worth it in evaluation, but in training on an
        accelerator it would empty the queue in every iteration, and in a compiled graph it would break the graph.
        Iterations after the last token has halted change nothing, neither states nor gradients.
        """
        return may_wait(self.embedding_hidden_mapping_in.weight.device, training=self.training)
