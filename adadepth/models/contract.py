"""Interface of models to the rest of the package: a base class of every head, and mixins beside it.

Training, evaluation, statistics, compute counts and budgets use models through these classes only. Members that every
family must define are marked `required`. Optional members have a default, or form a mixin, which callers test by
`isinstance(model, ...)` and never by the family's name. `adadepth.models.validation` reports missing members, and
`adadepth.models.head_outputs` specifies the outputs of heads.

Shape legend: B rows, T tokens, N steps, L layers, K operations.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from torch import Generator, Tensor

from adadepth.budget.fit import Fit, fit_level
from adadepth.errors import ConfigError
from adadepth.halting.exit_rules import LOGITS
from adadepth.halting.trace import DepthTrace, DepthUnit, Work
from adadepth.models.loading import StrictLoading
from adadepth.models.shared.losses import LossTerm

_Method = TypeVar("_Method", bound=Callable[..., Any])


def required(method: _Method) -> _Method:
    """Mark a method, or the getter of a property, that every model of its class must define."""
    method.is_required = True  # type: ignore[attr-defined]
    return method


class DepthModel(StrictLoading):
    """Base class of every head, which a class names before `PreTrainedModel`.

    Its forward takes `num_targets`, counts that normalise the loss parts; see `combine_terms`. A value is a class
    attribute or a property. A model without a head, an encoder whose states can be read after every update, needs only
    `max_updates`, `longest_sequence` and `vocabulary_size`. Its forward takes `output_hidden_states`. Its output has
    `hidden_states`, before the first and after every update that the batch ran, and `last_hidden_state` for heads,
    each (B, T, H).

    Attributes:
        config: Configuration of the model.
        training: Whether the module is in training mode.
        refills: Whether it can compute a part of a batch at a time: its forward takes `places`, the number of slots for
            examples, and one that exits makes room for a waiting one. Apart from the execution in the trace, the output
            is that without `places`, to rounding.
        shows_states: Whether its forward takes `output_hidden_states` and the output then has `hidden_states`, before
            the first and after every iteration that ran, each (*updates, H).
        trains_in_slots: Whether an optimiser step trains one step of every example, which stays in its slot of the
            batch until it halts. Its forward takes `carry`, from the output of the optimiser step before, {} at first,
            and `draws`, uniform numbers (B, 2) of this step. The carry is a dictionary of tensors with `halted` and
            `steps`, (B,).
    """

    config: Any
    training: bool
    refills: bool = False
    shows_states: bool = False
    trains_in_slots: bool = False

    @property
    @required
    def depth_unit(self) -> DepthUnit:
        """Unit that has a depth, the `unit` of all its traces: token, sequence, task or architecture."""
        raise NotImplementedError

    @property
    @required
    def max_updates(self) -> int:
        """Most updates of a unit, `max_updates` of all its traces: a whole number of at least 1."""
        raise NotImplementedError

    @property
    @required
    def longest_sequence(self) -> int | None:
        """Most tokens that it has positions for: a whole number, or None for any number."""
        raise NotImplementedError

    @property
    @required
    def vocabulary_size(self) -> int | None:
        """Number of tokens that it has embeddings for: a whole number, or None if it reads no tokens."""
        raise NotImplementedError

    @required
    def count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the normaliser of every loss part by name; the trainer sums them over an optimiser step."""
        raise NotImplementedError

    @required
    def price(self, trace: DepthTrace) -> Work:
        """Multiply-accumulates of one traced batch, a `Work`."""
        raise NotImplementedError

    @property
    def exit_signals(self) -> frozenset[str]:
        """Signals for exit rules: `logits`, `halting`, `correctness`, `states`; empty: it predicts at its end only.

        Otherwise its forward takes `exit_rule`, `run_all_steps` and, for rules that draw, a `generator`; with all steps
        its output has `step_logits` and `exit_steps`, `halting_logits` where it has a halting head, and `state_moves`
        where rules read its states, see `adadepth.halting.exit_rules.state_moves`. A model whose tokens are classified
        adds `unit_slots`; see `adadepth.metrics.step_records.build_token_columns`.
        """
        return frozenset()

    @property
    def readout_work(self) -> float:
        """Multiply-accumulates of one prediction of one unit, if `price` does not count those of all steps."""
        return 0.0

    def reading_work(self, signal: str, lengths: Tensor) -> Tensor | float:
        """Compute the multiply-accumulates of reading a signal after one update, if `price` does not count them.

        Args:
            signal: One of `exit_signals`.
            lengths: Real tokens of the text of each unit, (M,).

        Returns:
            Multiply-accumulates of every unit, float64 (M,), or one number for all.
        """
        return self.readout_work if signal == LOGITS else 0.0

    @property
    def executions(self) -> tuple[str, ...]:
        """Execution modes with the same results, selected by `config.execution`: `dense`, and maybe `ragged`."""
        return ("dense",)

    @property
    def one_depth(self) -> int | None:
        """Number of updates of every unit if depth is fixed now; None if units halt."""
        return None

    def least_activations(self, lengths: Sequence[int], recomputed: bool) -> dict[str, int] | None:
        """Return a lower bound of the numbers that a forward pass stores for the backward pass, by part.

        Args:
            lengths: Tokens of every row.
            recomputed: Whether gradient checkpointing recomputes most of them.

        Returns:
            Counts by part; None: no bound is known.
        """
        return None

    def prior_facts(self, outputs: Any) -> dict[str, Any]:
        """Return the arguments of `summarise_steps` about its prior: `prior_pmf` (N,), `truncation`, `kl_direction`."""
        return {}

    def set_step(self, step: int, total: int) -> None:
        """Set the number of completed optimiser steps of `total`, for schedules of the model."""

    def learning_rate_multipliers(self) -> dict[str, float]:
        """Return multipliers of the learning rate by name of the parameter; 1 for all others."""
        return {}

    def no_weight_decay(self) -> set[str]:
        """Return the names of the parameters without weight decay."""
        return set()

    def descending_by_sign(self) -> set[str]:
        """Return the names of the parameters that train by the sign of their gradients; see `AdamAtan2`."""
        return set()

    def take_classes(self, names: Sequence[str]) -> None:
        """Set the classes of the head, in this order.

        Raises:
            ConfigError: If its head was trained with other classes.
        """

    def take_padding(self, token: int | None) -> None:
        """Set the padding id of the tokenizer, if the model needs it and has none."""

    def train_halting_alone(self, slope: float, threshold: float) -> None:
        """Train only the halting head, and freeze everything else; see `continuation_losses`.

        Raises:
            ConfigError: If it has no separate halting head.
        """
        raise ConfigError(
            f"halting.alone=true: {type(self).__name__} has no halting head that can be trained separately"
        )


class DepthKnob(DepthModel):
    """Model whose depth can be set after training: by a knob with bisection, or by its `fit_depth`."""

    @property
    @required
    def depth_knob(self) -> str:
        """What is turned, for the tables: a string."""
        raise NotImplementedError

    def set_depth_level(self, level: float) -> None:
        """Turn the knob to a level in (0, 1): a higher one never makes units shallower."""
        raise NotImplementedError

    def fit_depth(self, target: float, measure: Callable[[], float]) -> Fit:
        """Turn the knob until `measure()`, the depth of the model in its current state, is nearest to the target."""

        def measure_depth(level: float) -> float:
            self.set_depth_level(level)
            return measure()

        fit = fit_level(measure_depth, target)
        self.set_depth_level(fit.level)
        return fit


class HoldsBudget(DepthModel):
    """Model whose depth a budget can hold in training; its units of budgets decide which other methods it needs."""

    @required
    def count_units(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the number of units of a batch with a counted depth."""
        raise NotImplementedError

    def soft_depth(self, outputs: Any) -> LossTerm:
        """Return a differentiable depth, in updates, summed over the batch's units; see `adadepth.budget`."""
        raise NotImplementedError

    def expected_depth(self, outputs: Any) -> LossTerm:
        """Compute the expected depth, summed over the units of the batch."""
        raise NotImplementedError

    def latency(self) -> Tensor:
        """Compute the milliseconds of the current architecture, a scalar."""
        raise NotImplementedError

    @property
    def halting_bias(self) -> Tensor | None:
        """Bias of all halting logits, which corrects a trained model that missed its target.

        A lower bias makes no unit shallower. None: it has no such bias.
        """
        return None

    def limit_depth(self, depth: int) -> None:
        """Limit the depth of all units from now on."""
        raise NotImplementedError

    def force_depth(self, depth: int | None) -> None:
        """Force a number of updates for all units from now on; None: let units halt."""
        raise NotImplementedError


class ReplaysHalting(DepthModel):
    """Model of tokens that can halt by external masses; its outputs have the applied `halting_probabilities`.

    Attributes:
        halts_by_sequence: Whether all tokens of a sequence halt together.
    """

    halts_by_sequence: bool = False

    @required
    def replay_halting(self, masses: Tensor | None) -> None:
        """Halt tokens by these masses from now on, (B, T, N), in place of the halting head; None: by the halting head.

        A token halts at the update at which its masses sum to its threshold, or at the last of N.
        """
        raise NotImplementedError


class ReadsCachedStates(DepthModel):
    """Head on a base whose states may be cached; its forward takes them as `states`."""

    @property
    @required
    def layer_states(self) -> tuple[int, ...]:
        """Numbers of all states that it may read."""
        raise NotImplementedError

    @property
    @required
    def state_width(self) -> int:
        """Width of a state."""
        raise NotImplementedError

    @property
    @required
    def states_key(self) -> str:
        """Cache key of `base_states` beside its inputs: equal keys have equal states."""
        raise NotImplementedError

    @required
    def states_to_read(self) -> tuple[int, ...]:
        """Return the numbers of the states that the next forward pass reads."""
        raise NotImplementedError

    @required
    def base_states(self, wanted: Collection[int], **inputs: Any) -> dict[int, Tensor]:
        """Compute states of the base for the head, by number, each (B, T, width), without gradients."""
        raise NotImplementedError


class MixesLayers(DepthModel):
    """Model with one distribution over the layers of a base for the whole task."""

    @property
    @required
    def learns_distribution(self) -> bool:
        """Whether training learns the distribution; otherwise it is set."""
        raise NotImplementedError

    @required
    def layer_distribution(self) -> Tensor:
        """Return the weight of every layer, (L,)."""
        raise NotImplementedError

    @required
    def added_parameters(self) -> int:
        """Count the parameters beside those of the base."""
        raise NotImplementedError

    @required
    def base_parameters(self) -> int:
        """Count the parameters of the base."""
        raise NotImplementedError


class Remembers(DepthModel):
    """Language model that carries states from one segment of a text to the next.

    Its forward takes `memory`, from the output of the segment before or None at a start, and `context`.
    """

    @required
    def context(self, memory_length: int | None, clamp_length: int | None, same_length: bool) -> Any:
        """Build the context of attention in evaluation; None keeps a length of the configuration.

        The context has `memory_length`, the most positions of the memory.
        """
        raise NotImplementedError


class LearnsGates(DepthModel):
    """Supernet, whose gates select the operations of every block and learn with the weights.

    Its forward takes `gates`: `soft`, `argmax`, `noisy`, or a path of operation numbers. Its parameter `gates` is
    (N, K). Networks are derived from it; an architecture is a string, one letter per block. A search sets
    `latency_weight` and `operation_costs` of its configuration, which computes from these in milliseconds
    `compute_latency(architecture)`, `full_latency` and `dearest_latency`.

    Attributes:
        temperature: Temperature of the current optimiser step.
    """

    temperature: float

    @required
    def gate_probabilities(self) -> Tensor:
        """Compute the softmax of the gates, (N, K)."""
        raise NotImplementedError

    @required
    def draw_noise(self, *key: int) -> Tensor:
        """Draw the noise of `noisy` with these numbers as a seed, and return it, (N, K)."""
        raise NotImplementedError

    @required
    def architecture(self) -> str:
        """Return the most probable operation of every block."""
        raise NotImplementedError

    @required
    def sample_path(self, generator: Generator) -> list[int]:
        """Sample the number of one operation per block by the probabilities of the gates, with a CPU generator."""
        raise NotImplementedError

    @required
    def find_most_probable(self, target: float, tolerance: float) -> str:
        """Return the most probable architecture whose latency is within a share of the target, or nearest to it."""
        raise NotImplementedError
