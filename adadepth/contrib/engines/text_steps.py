"""Modules for `torch.export` that run one step of a model whose texts or puzzles exit as a whole.

A program in another engine runs `FirstStep`, and then `NextStep` for as long as a row of the batch runs. Rows that have
exited keep their prediction, and run with the others until all have exited. Tensors that change from step to step are
`Carried`; all others, such as masks, are constants of a batch. Shape legend: B rows, T tokens, N steps, C classes, D
width, k numbers that an exit rule remembers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from adadepth.halting.exit_decisions import ExitRule, StepView, decide_exits, start_memory
from adadepth.models.depth.runner import LayerInputs, RunningTexts
from adadepth.models.early_exit.classifiers import EarlyExitForSequenceClassification
from adadepth.models.ponder.modeling import PonderAlbertForSequenceClassification
from adadepth.models.shared.albert.block import build_attention_mask
from adadepth.models.shared.albert.stepper import SteppedAlbertPreTrainedModel
from adadepth.models.shared.encoders import find_real_tokens
from adadepth.models.trm.modeling import TrmForPuzzles

Tensors = tuple[Tensor, ...]


class StepOutput(NamedTuple):
    """States after a step, (B, ...) each, with logits, (B, C) or (B, L, C), and halting logits, (B,), or None."""

    states: Tensors
    logits: Tensor
    halting_logits: Tensor | None


class Steps(Protocol):
    """Interface of a family: how its rows start, and how they run one step, without changes of any object.

    Attributes:
        model: Model in evaluation mode.
        are_alike: Whether all steps but the first are the same function.
    """

    model: Any
    are_alike: bool

    def begin(self, inputs: Mapping[str, Tensor]) -> tuple[Tensors, Tensors]:
        """Return the states before the first step, and the constants of the batch."""
        ...

    def advance(self, step: int, states: Tensors, constants: Tensors) -> StepOutput:
        """Run a step, counted from 1."""
        ...


def select_steps(model: Any) -> Steps | None:
    """Return the steps of a model whose texts or puzzles exit as a whole, or None for other models."""
    if isinstance(model, SteppedAlbertPreTrainedModel):
        return AlbertSteps(model)
    if isinstance(model, EarlyExitForSequenceClassification):
        return LayerSteps(model)
    return PuzzleSteps(model) if isinstance(model, TrmForPuzzles) else None


class AlbertSteps:
    """Steps of PonderALBERT and of multi-exit ALBERT: states (B, T, D), and the memory of the heads."""

    def __init__(self, model: SteppedAlbertPreTrainedModel) -> None:
        self.model: Any = model
        self.are_alike = isinstance(model, PonderAlbertForSequenceClassification)

    def begin(self, inputs: Mapping[str, Tensor]) -> tuple[Tensors, Tensors]:
        """Embed the texts; the attention mask is a constant."""
        albert = self.model.albert
        embedded = albert.embeddings(inputs["input_ids"], inputs["token_type_ids"], None)
        state = albert.encoder.embedding_hidden_mapping_in(embedded)
        return (state,), (build_attention_mask(self.model.config, state, inputs["attention_mask"], training=False),)

    def advance(self, step: int, states: Tensors, constants: Tensors) -> StepOutput:
        """Apply the shared layer and the heads."""
        state, *memory = states
        state = self.model.albert.encoder.albert_layer(state, constants[0])[0]
        reading = self.model.read(state, memory[0] if memory else None, step)
        updated = () if reading.memory is None else (reading.memory,)
        return StepOutput((state, *updated), reading.logits, reading.halting_logits)


class LayerSteps:
    """Steps of an early-exit classifier: the layers until the next exit, and the memory of its gate."""

    are_alike = False

    def __init__(self, model: EarlyExitForSequenceClassification) -> None:
        self.model: Any = model
        self._layout: tuple[list[Any], Any] = [], None

    def begin(self, inputs: Mapping[str, Tensor]) -> tuple[Tensors, Tensors]:
        """Embed the texts; the tensors that the network passes to its layers are constants."""
        running = self.model.begin(inputs)
        real = find_real_tokens(inputs["attention_mask"], running.states.shape[:2], running.states.device)
        leaves, structure = pytree.tree_flatten([tuple(layer) for layer in running.inputs])
        tensors = list({id(leaf): leaf for leaf in leaves if isinstance(leaf, Tensor)}.values())
        numbers = {id(tensor): number for number, tensor in enumerate(tensors)}
        self._layout = [_Slot(numbers[id(x)]) if isinstance(x, Tensor) else x for x in leaves], structure
        read = self.model.get_picker(real)(running.states, torch.arange(running.states.shape[0]))
        return (running.states, *self.model.start_gate(read)), (real, *tensors)

    def advance(self, step: int, states: Tensors, constants: Tensors) -> StepOutput:
        """Run the layers until an exit, and read the exit and its gate."""
        (state, *memory), (real, *tensors), (leaves, structure) = states, constants, self._layout
        layers = pytree.tree_unflatten([tensors[x.number] if isinstance(x, _Slot) else x for x in leaves], structure)
        running = RunningTexts([LayerInputs(*layer) for layer in layers], [0, *self.model.config.exits][step - 1])
        running.states = state
        state = self.model.run_to_exit(running, step)
        texts = torch.arange(state.shape[0])
        gate, updated = self.model.estimate(self.model.get_picker(real)(state, texts), tuple(memory), step)
        return StepOutput((state, *updated), self.model.get_reader(real)(step, state, texts), gate)


class _Slot(NamedTuple):
    """Place of a tensor among the constants of a batch."""

    number: int


class PuzzleSteps:
    """Steps of a tiny recursive model: states of answer and reasoning, (B, S, D) each."""

    are_alike = True

    def __init__(self, model: TrmForPuzzles) -> None:
        self.model: Any = model

    def begin(self, inputs: Mapping[str, Tensor]) -> tuple[Tensors, Tensors]:
        """Return the first states; the embedded puzzles are constants."""
        cells = inputs["input_ids"]
        kinds = inputs.get("puzzle_kinds", cells.new_zeros(cells.shape[0]))
        return self.model.start(cells.shape[0]), (self.model.embed(cells, kinds),)

    def advance(self, step: int, states: Tensors, constants: Tensors) -> StepOutput:
        """Run one supervision step."""
        answer, reasoning = self.model.step(constants[0], *states)
        return StepOutput((answer, reasoning), *self.model.read(answer))


class Carried(NamedTuple):
    """Tensors that change from step to step.

    Attributes:
        goes_on: Whether any row runs, boolean, ().
        running: Whether each row runs, boolean, (B,).
        depth: Number of steps that each row has run, int64, (B,).
        logits: Prediction of each row at its last step, (B, C) or (B, L, C).
        memory: Numbers that the exit rule remembers of each row, (B, k).
        states: States of the rows, (B, ...) each.
    """

    goes_on: Tensor
    running: Tensor
    depth: Tensor
    logits: Tensor
    memory: Tensor
    states: Tensors


class FirstStep(nn.Module):
    """The inputs of a batch, its first step and the first decision of the exit rule.

    Args:
        steps: Steps of the model.
        rule: Exit rule.
        names: Names of the inputs, in order.
    """

    def __init__(self, steps: Steps, rule: ExitRule, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.steps, self.rule, self.names = steps.model, steps, rule, names

    def forward(self, *inputs: Tensor) -> Tensors:
        """Return the fields of `Carried`, its states last, and the constants of the batch."""
        rows, device = inputs[0].shape[0], inputs[0].device
        states, constants = self.steps.begin(dict(zip(self.names, inputs, strict=True)))
        output = self.steps.advance(1, states, constants)
        running = torch.ones(rows, dtype=torch.bool, device=device)
        carried = Carried(
            goes_on=running.any(),
            running=running,
            depth=torch.zeros(rows, dtype=torch.int64, device=device),
            logits=output.logits,
            memory=start_memory(self.rule, rows, device),
            states=states,
        )
        *fields, states = _record_step(self.rule, 1, self.model.max_updates, carried, output)
        return (*fields, *states, *constants)


class NextStep(nn.Module):
    """A later step of a batch, and the decision of the exit rule.

    Args:
        steps: Steps of the model.
        rule: Exit rule.
        step: Number of the step, counted from 1.
        num_states: Number of states.
    """

    def __init__(self, steps: Steps, rule: ExitRule, step: int, num_states: int) -> None:
        super().__init__()
        self.model, self.steps, self.rule, self.step, self.num_states = steps.model, steps, rule, step, num_states

    def forward(self, *tensors: Tensor) -> Tensors:
        """Return the fields of `Carried` after the step, given those before it and the constants of the batch."""
        goes_on, running, depth, logits, memory, *unnamed = tensors
        states, constants = tuple(unnamed[: self.num_states]), tuple(unnamed[self.num_states :])
        carried = Carried(goes_on, running, depth, logits, memory, states)
        output = self.steps.advance(self.step, states, constants)
        *fields, states = _record_step(self.rule, self.step, self.model.max_updates, carried, output)
        return (*fields, *states)


def _record_step(rule: ExitRule, step: int, max_updates: int, before: Carried, output: StepOutput) -> Carried:
    """Store the predictions of the rows that ran a step, and let those exit for which the rule decides so."""
    running = before.running
    halting = None if output.halting_logits is None else output.halting_logits.float()
    exits, memory = decide_exits(rule, StepView(step, max_updates, output.logits.float(), halting), before.memory)
    shape = (-1, *[1] * (output.logits.dim() - 1))
    stays = running & ~exits
    return Carried(
        goes_on=stays.any(),
        running=stays,
        depth=before.depth + running.long(),
        logits=torch.where(running.view(shape), output.logits, before.logits),
        memory=memory,
        states=output.states,
    )


class FixedSteps(nn.Module):
    """The first steps of a model, with the prediction of the last of them.

    Args:
        steps: Steps of the model.
        count: Number of steps.
        names: Names of the inputs, in order.
    """

    has_depth = False

    def __init__(self, steps: Steps, count: int, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.steps, self.count, self.names = steps.model, steps, count, names

    def forward(self, *inputs: Tensor) -> Tensors:
        """Return the logits, (B, C) or (B, L, C)."""
        states, constants = self.steps.begin(dict(zip(self.names, inputs, strict=True)))
        for step in range(1, self.count + 1):
            states, logits, _ = self.steps.advance(step, states, constants)
        return (logits,)
