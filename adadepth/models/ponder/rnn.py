"""Recurrent network of the PonderNet paper, whose cell reads the same input at every step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.utils.generic import can_return_tuple

from adadepth.halting.exit_rules import ExitRule
from adadepth.halting.trace import DepthTrace, Work
from adadepth.halting.units import HaltingProjection
from adadepth.models.depth.engine import resolve_exit_rule, run_steps, runs_all
from adadepth.models.depth.outputs import StepwiseOutput, stepwise_output
from adadepth.models.ponder.configuration import PonderRnnConfig
from adadepth.models.ponder.modeling import PonderTraining, build_prior
from adadepth.models.shared.losses import count_head_classes

_GATES = {"tanh": 1, "gru": 3}


class PonderRnnForClassification(PonderTraining, PreTrainedModel):
    """Recurrent cell with a classifier or regressor and a halting head, which both read its state at every step."""

    config: PonderRnnConfig
    config_class = PonderRnnConfig
    base_model_prefix = ""
    main_input_name = "inputs"
    # Its losses are normalised by `num_targets`, never by the trainer's count of items.
    accepts_loss_kwargs = False
    depth_unit = "sequence"
    # Its inputs have no tokens.
    longest_sequence = None
    vocabulary_size = None
    refills = True

    def __init__(self, config: PonderRnnConfig) -> None:
        super().__init__(config)
        gates = _GATES[config.cell]
        self.input = nn.Linear(config.input_size, gates * config.hidden_size)
        # Gates need a bias behind the reset, the plain cell has one already.
        self.recurrent = nn.Linear(config.hidden_size, gates * config.hidden_size, bias=gates > 1)
        self.classifier = nn.Linear(config.hidden_size, count_head_classes(config))
        self.halting = HaltingProjection(config.hidden_size, config.halt_bias_init)
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialise weights uniformly in +-1 / sqrt(inputs), as torch does for recurrent cells.

        The recurrent matrix is initialised as an orthogonal matrix.

        With transformers' normal(0.02), the state is nearly linear in the input. With an orthogonal recurrent matrix,
        it changes from step to step. docs/log.md reports the effect of each on the parity task.
        """
        if not isinstance(module, nn.Linear):
            return
        bound = 1.0 / math.sqrt(module.in_features)
        if module is self.recurrent:
            init.orthogonal_(module.weight)
        else:
            init.uniform_(module.weight, -bound, bound)
        if module.bias is not None:
            init.uniform_(module.bias, -bound, bound)
        if isinstance(module, HaltingProjection):
            init.constant_(module.bias, module.bias_init)

    @can_return_tuple
    def forward(
        self,
        inputs: Tensor,
        labels: Tensor | None = None,
        num_targets: Mapping[str, Tensor] | None = None,
        exit_rule: str | ExitRule | None = None,
        run_all_steps: bool | None = None,
        generator: torch.Generator | None = None,
        places: int | None = None,
        **kwargs: Any,
    ) -> StepwiseOutput:
        """Run steps until every example has exited, and compute the loss if there are labels.

        Args:
            inputs: Examples, (B, S), floating point.
            labels: Classes or values, (B,); see `step_losses`.
            num_targets: Counts that normalise the loss parts in place of this batch's counts; see `combine_terms`.
            exit_rule: Rule by which examples exit, or None for that of the configuration.
            run_all_steps: Whether examples continue to run after their exit; see `runs_all`.
            generator: Random generator for stochastic rules.
            places: Number of examples that are computed at a time, or None for all. The others wait until one exits.
            **kwargs: `return_dict`. All other arguments are ignored.

        Raises:
            ValueError: If the size of the examples is not that of the model, or `places` is less than 1, or `places` is
                given although every example runs all steps.
        """
        if inputs.dim() != 2 or not len(inputs) or inputs.shape[1] != self.config.input_size:
            raise ValueError(f"inputs of shape {tuple(inputs.shape)}: must be (batch, {self.config.input_size})")
        rule, run_all = resolve_exit_rule(self, exit_rule), runs_all(run_all_steps, labels, training=self.training)

        stepper = RnnStepper(self, inputs, places)
        steps = run_steps(
            stepper, rule, max_updates=self.max_updates, run_all=run_all, generator=generator, places=places
        )

        output = stepwise_output(steps, rule, tokens=None)
        if run_all:  # the halting distribution and the loss need every step
            self.add_halting(output, labels, num_targets)
        else:
            output.prior = build_prior(self.config, self.max_updates, inputs.device)
        return output

    def step(self, driven: Tensor, state: Tensor) -> Tensor:
        """Return the next state, (A, H), from the previous state and the projected input, (A, G H).

        The projected input is the same at all steps.
        """
        recurrent = self.recurrent(state)
        if self.config.cell == "tanh":
            return torch.tanh(driven + recurrent)
        (reset, update, candidate), (reset_h, update_h, candidate_h) = driven.chunk(3, -1), recurrent.chunk(3, -1)
        reset, update = torch.sigmoid(reset + reset_h), torch.sigmoid(update + update_h)
        return torch.lerp(torch.tanh(candidate + reset * candidate_h), state, update)

    def price(self, trace: DepthTrace) -> Work:
        """Return the MACs of a batch from its depth trace, including the heads."""
        heads = self.classifier.in_features * (self.classifier.out_features + 1)
        once, step = float(self.input.weight.numel()), float(self.recurrent.weight.numel() + heads)
        updates = trace.updates.double()
        rows = updates.new_full((len(updates),), once)
        ran = trace.executed
        computed = torch.as_tensor(len(updates) * ran.steps) if ran.rows is None else ran.rows.sum()
        return Work(
            executed=rows.sum() + step * computed.to(rows),
            dense=(rows + step * updates.max()).sum(),
            adaptive=(rows + step * updates).sum(),
            full=(rows + step * trace.max_updates).sum(),
        )

    def list_heads(self) -> set[str]:
        """Return the names of the classifier and of the halting head."""
        return {"classifier", "halting"}

    @property
    def max_updates(self) -> int:
        """Maximum number of steps of an example."""
        return self.config.max_updates

    @property
    def halting_head(self) -> nn.Module:
        """Module that computes the halting logits."""
        return self.halting


class RnnStepper:
    """Runs the recurrent cell step by step on a batch whose examples exit one by one; implements `RefillingStepper`."""

    width, computed = 1, None

    def __init__(self, model: PonderRnnForClassification, inputs: Tensor, places: int | None) -> None:
        self._model, self._inputs = model, inputs
        self.rows, self.device = len(inputs), inputs.device
        self._driven, self._state = self._start(inputs[:places])

    def _start(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        driven = self._model.input(inputs)
        return driven, driven.new_zeros(len(inputs), self._model.config.hidden_size)

    def advance(self) -> tuple[Tensor, Tensor | None]:
        """Run one step of the cell, and return the logits and the halting logits."""
        self._state = self._model.step(self._driven, self._state)
        return self._model.classifier(self._state), self._model.halting(self._state).squeeze(-1)

    def keep(self, rows: Tensor) -> None:
        """Remove all examples from the batch except the given ones."""
        rows = rows.to(self.device, non_blocking=True)
        self._driven, self._state = self._driven[rows], self._state[rows]

    def admit(self, rows: Tensor) -> None:
        """Add waiting examples to the running ones, at their first step."""
        driven, state = self._start(self._inputs[rows])
        self._driven, self._state = torch.cat([self._driven, driven]), torch.cat([self._state, state])
