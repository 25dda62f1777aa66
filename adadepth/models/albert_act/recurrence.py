"""Recurrent encoder of ACT-ALBERT: a shared layer with a halting unit, applied until all tokens have halted.

An iteration applies the shared layer to the block input r_n = x_{n-1} (+ x_0) and advances the halting sums:

    y_n = block(r_n),  p_n = sigmoid(w y_n + b),  x_n = w_n y_n + (1 - w_n) x_{n-1}

with the weights w_n of `adadepth.halting.act`, which also describes the other state rules. Another `halting_unit`
computes p_n = sigmoid(z_n) from y_n and its memory of earlier updates; see `adadepth.halting.units`. Shape legend: B
batch, T tokens, P packed tokens, H width, N iterations that ran; (...) is (B, T) here, and (P,) in `ragged.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from adadepth.halting.act import ActState, StateRuleLike, act_step, init_act, update_result, update_stream
from adadepth.halting.active_set import take
from adadepth.halting.rules import halting_rule
from adadepth.halting.trace import ComputedSteps, DepthTrace, Execution, Halting
from adadepth.halting.units import UnitMemory, build_halting_unit, run_unit, start_unit
from adadepth.models.albert_act.configuration import AlbertActConfig
from adadepth.models.albert_act.readouts import ReadoutStates
from adadepth.models.shared.albert.block import AlbertLayer, may_wait
from adadepth.models.shared.layers import Product


class LayerHalting(nn.Module):
    """Halting unit of the shared layer, under the name that its weights have in published checkpoints."""

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__()
        self.dense = build_halting_unit(config.halting_unit, config.hidden_size, config.halt_bias_init)

    def start(self, states: Tensor) -> UnitMemory:
        """Return the memory before the first update, given x_0, (..., H)."""
        return start_unit(self.dense, states)

    def forward(self, states: Tensor, memory: UnitMemory, step: int) -> tuple[Tensor, UnitMemory]:
        """Return the halting probabilities of states, (..., H), float32 (...), and the memory after update `step`."""
        logits, memory = run_unit(self.dense, states, memory, step)
        return logits.sigmoid(), memory


class AlbertActLayer(AlbertLayer):
    """Shared ALBERT layer together with its halting unit."""

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__(config)
        self.act = LayerHalting(config)


class TokenStates(NamedTuple):
    """Hidden states, halting sums and memory of the halting unit of all tokens after an iteration.

    Attributes:
        state: x_n, (..., H).
        result: Result so far, (..., H). Under the rule `single`, it is the same tensor as `state`.
        halting: Halting sums, (...).
        memory: Memory of the halting unit, (..., *) each.
    """

    state: Tensor
    result: Tensor
    halting: ActState
    memory: UnitMemory


class DensePositions:
    """Token positions of a batch and their attention, for execution in which every position runs in every iteration.

    Args:
        valid: Mask of the real tokens, boolean, (B, T).
        attention_mask: Mask in the form of the attention implementation.
        options: Keyword arguments of the attention implementation.
        recall: Whether every iteration reads x_0 again.
    """

    def __init__(self, valid: Tensor, attention_mask: Tensor | None, options: dict[str, Any], *, recall: bool) -> None:
        self.valid = valid
        self._mask, self._options, self._recall = attention_mask, options, recall
        self._first: Tensor | None = None

    @property
    def slots(self) -> Tensor | None:
        """Index b T + t in the batch of each running token, int64, (P,), or None if all positions run."""
        return None

    @property
    def computed(self) -> tuple[int, int, Tensor | int] | None:
        """Number of queries, keys and query-key pairs of the next iteration, or None if all positions run."""
        return None

    def gather(self, values: Tensor) -> Tensor:
        """Select the values of the running tokens, (..., *), from those of the whole batch, (B, T, *)."""
        return values

    def enter(self, state: Tensor) -> Tensor:
        """Select the initial states of the running tokens, (..., H), from (B, T, H), and store them for recall."""
        first = self.gather(state)
        self._first = first if self._recall else None
        return first

    def block_input(self, state: Tensor) -> Tensor:
        """Return the block input r_{n+1} = x_n (+ x_0), with recall (Bansal et al. 2022, arXiv 2202.05826, 3.1)."""
        return state if self._first is None else state + self._first

    def apply(self, layer: AlbertActLayer, block_input: Tensor) -> Tensor:
        """Apply the block to its input, (..., H)."""
        return layer(block_input, self._mask, **self._options)[0]

    def keep(self, running: Tensor, state: Tensor, memory: UnitMemory) -> tuple[Tensor, UnitMemory]:
        """Remove halted tokens if tokens are packed, and return the states and the memory of the others."""
        return state, memory

    def find(self, slots: Tensor) -> Tensor:
        """Return the positions of the given batch indices b T + t among the flattened tokens."""
        return slots


class StateRecord(nn.Module):
    """Identity module applied to the states after an iteration, so that a forward hook can record them."""

    def forward(self, before: Tensor, after: Tensor) -> Tensor:
        """Return the states after an iteration, (B, T, H)."""
        return after


class AlbertActTransformer(nn.Module):
    """Encoder that applies the shared layer until every token has halted, at most `num_hidden_layers` times.

    Attributes:
        forced_depth: Number of updates of every token, or None for the configured depth.
        replayed_masses: Halting masses that replace those of the halting unit, (B, T, N), or None.
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
        """Run iterations until every token has halted.

        Args:
            state: x_0, (B, T, H).
            positions: Positions of the batch.
            readouts: Recorder of the states of some tokens after every iteration, or None.

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
        """Return the token states before the first iteration, given embeddings x_0, (..., H).

        Tokens outside `valid`, (...), start halted.
        """
        result = state if self.state_rule == "single" else torch.zeros_like(state)
        return TokenStates(state, result, init_act(valid), self.albert_layer.act.start(state))

    def update(self, tokens: TokenStates, positions: DensePositions, step: int) -> tuple[TokenStates, Tensor]:
        """Run iteration `step`, counted from 1, and return the new token states and their halting masses, (...).

        The halting mass of a token that had halted before is 0.
        """
        config, rule, adapts = self.config, self.state_rule, self.fixed_depth is None
        running = tokens.halting.running
        output, probability, memory = self.propose(tokens.state, tokens.memory, positions, step)
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
        return TokenStates(state, result, halting, memory), probability * running

    def propose(
        self, state: Tensor, memory: UnitMemory, positions: DensePositions, step: int
    ) -> tuple[Tensor, Tensor, UnitMemory]:
        """Apply the block to states x_{n-1}, and the halting unit with its memory of update n - 1.

        With a fixed depth, the halting unit does not run, and all its probabilities are 0.

        Returns:
            Outputs y_n, (..., H), halting probabilities p_n, float32, (...), and the memory of the halting unit.
        """
        block_input = positions.block_input(state)
        output = positions.apply(self.albert_layer, block_input)
        if self.fixed_depth is not None:
            return output, torch.zeros(output.shape[:-1], device=output.device), memory
        read = output if self.config.halting_input == "block_output" else block_input
        probability, memory = self.albert_layer.act(read, memory, step)
        return output, self.halting_probability(probability, positions.valid, positions.slots), memory

    def halting_probability(self, probability: Tensor, valid: Tensor, slots: Tensor | None = None) -> Tensor:
        """Return the probability p_n that each token halts at this update, float32, (...).

        Sequence-level halting takes the mean of p_n over the real tokens of a sequence.

        Args:
            probability: Probabilities of the halting unit, (...).
            valid: Mask of the real tokens, boolean, (B, T).
            slots: Index b T + t of each packed token, int64, (P,), or None if tokens are not packed. If sequences halt,
                the packed tokens are those of whole sequences.
        """
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
        """Build the depth trace of a forward pass.

        Args:
            halting: Final halting sums, (B, T).
            probabilities: Halting mass of every iteration, 0 once a token has halted, (B, T, N).
            valid: Mask of the real tokens, boolean, (B, T).
            computed: Number of computed queries, keys and pairs of each iteration, or None if all positions ran.
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
        """Number of updates of every token if halting is disabled, or None if tokens halt."""
        return self.config.fixed_depth if self.forced_depth is None else self.forced_depth

    @property
    def max_updates(self) -> int:
        """Maximum number of iterations of the shared layer."""
        fixed = self.fixed_depth
        return self.config.num_hidden_layers if fixed is None else fixed

    @property
    def state_rule(self) -> StateRuleLike:
        """Name of the rule that updates hidden states; `graves` with a fixed depth.

        A fixed depth leaves nothing to interpolate: the state is the block's output. The cap forces every token to halt
        with weight 1, so the last output is the result.
        """
        return self.config.state_rule if self.fixed_depth is None else "graves"

    def _may_wait(self) -> bool:
        """Return whether the loop may synchronise with the device to stop early once every token has halted.

        Synchronising costs nothing on a CPU and pays off in evaluation. In training on an accelerator it would empty
        the queue in every iteration, and in a compiled graph it would break the graph. Iterations after the last token
        has halted change neither states nor gradients.
        """
        return may_wait(self.embedding_hidden_mapping_in.weight.device, training=self.training)
