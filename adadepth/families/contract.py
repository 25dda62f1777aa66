"""What the rest of the project asks of a model: one base class that every head extends, and seven mixins beside it.

Training, evaluation, statistics, pricing and budgets know models by these classes alone. What every family has to have
is marked `required`; what only some have is a member with a default, or, where it is several methods, a mixin, which is
asked for by `isinstance(model, ...)`, never by the family's name. `adadepth.families.members` says in one line what a
family lacks; what the outputs of its heads hold is in `adadepth.families.heads`.

Shape legend: B rows, T tokens, N steps, L layers, K operations.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from torch import Generator, Tensor

from adadepth.budget.fit import Fit, fit_level
from adadepth.errors import ConfigError
from adadepth.families.loading import StrictLoading
from adadepth.families.shared.losses import LossTerm
from adadepth.halting.exit_rules import LOGITS
from adadepth.halting.trace import DepthTrace, DepthUnit, Work

_Method = TypeVar("_Method", bound=Callable[..., Any])


def required(method: _Method) -> _Method:
    """Mark a method, or what a property reads, that every model of its class must define."""
    method.is_required = True  # type: ignore[attr-defined]
    return method


class DepthModel(StrictLoading):
    """What every head is, beside a `PreTrainedModel`, which its class names after this one.

    Its forward takes `num_targets`, counts that normalise the loss parts; see `combine_terms`. A value is a class
    attribute or a property. A model without heads, an encoder whose states can be read after every update, is one of
    which only `max_updates`, `longest_sequence` and `vocabulary_size` are asked; its forward takes
    `output_hidden_states`, and its output has `hidden_states`, those before the first and after every update that the
    batch ran, and `last_hidden_state`, which heads read, each (B, T, H).

    Attributes:
        config: Its configuration.
        training: As of any torch module.
        refills: Whether it can compute a part of a batch at a time: its forward takes `places`, how many examples are
            computed at once, and one that exits makes room for one that waits. The output is that without `places`, to
            rounding, but for what the trace says of the execution.
        shows_states: Whether its forward takes `output_hidden_states` and the output then has `hidden_states`, those
            before the first and after every iteration that ran, each (*updates, H).
        trains_in_slots: Whether an update trains one step of every example, which keep their place in the batch until
            they halt: its forward takes `carry`, which its output had after the update before, {} at first, and
            `draws`, uniform numbers (B, 2) of this update. The carry is a dictionary of tensors; in it are `halted` and
            `steps`, (B,), after an update.
    """

    config: Any
    training: bool
    refills: bool = False
    shows_states: bool = False
    trains_in_slots: bool = False

    @property
    @required
    def depth_unit(self) -> DepthUnit:
        """What has a depth, the `unit` of all its traces: token, sequence, task or architecture."""
        raise NotImplementedError

    @property
    @required
    def max_updates(self) -> int:
        """The most updates a unit can receive, that of all its traces: a whole number of at least 1."""
        raise NotImplementedError

    @property
    @required
    def longest_sequence(self) -> int | None:
        """The most tokens it has positions for: a whole number, or None where any number will do."""
        raise NotImplementedError

    @property
    @required
    def vocabulary_size(self) -> int | None:
        """How many pieces it has embeddings for: a whole number, or None where it reads no tokens."""
        raise NotImplementedError

    @required
    def count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What each loss part of a batch is divided by, by its name; the trainer adds it up over an optimiser step."""
        raise NotImplementedError

    @required
    def price(self, trace: DepthTrace) -> Work:
        """Multiply-accumulates of one traced batch, a `Work`."""
        raise NotImplementedError

    @property
    def exit_signals(self) -> frozenset[str]:
        """What exit rules can read, `logits`, `halting`, `correctness`, `states`; empty: it predicts at its end only.

        Otherwise its forward takes `exit_rule`, `run_all_steps` and, for rules that draw, a `generator`; with all steps
        its output has `step_logits` and `exit_steps`, `halting_logits` where it has a halting head, and `state_moves`
        where rules read its states, see `adadepth.halting.exit_rules.state_moves`. A model whose tokens are classified
        adds `unit_slots`; see `adadepth.measure.exit_records.token_columns`.
        """
        return frozenset()

    @property
    def readout_work(self) -> float:
        """Multiply-accumulates of one prediction of one unit, where `price` does not count those of all steps."""
        return 0.0

    def reading_work(self, signal: str, lengths: Tensor) -> Tensor | float:
        """Multiply-accumulates of what rules read of units after one update, where `price` does not count them.

        Args:
            signal: One of `exit_signals`.
            lengths: Real tokens of each unit's text, (M,).

        Returns:
            Of every unit, float64 (M,), or one number for all.
        """
        return self.readout_work if signal == LOGITS else 0.0

    @property
    def executions(self) -> tuple[str, ...]:
        """Ways to compute the same results, of which `config.execution` chooses: `dense`, and maybe `ragged`."""
        return ("dense",)

    @property
    def one_depth(self) -> int | None:
        """The updates that each unit gets now; None where they decide."""
        return None

    def least_activations(self, lengths: Sequence[int], recomputed: bool) -> dict[str, int] | None:
        """Numbers that a forward pass keeps for the backward pass, by part; it may keep more, but not fewer.

        Args:
            lengths: Tokens of every row.
            recomputed: Whether the backward pass computes most of them again: gradient checkpointing.

        Returns:
            None: it cannot say.
        """
        return None

    def prior_facts(self, outputs: Any) -> dict[str, Any]:
        """What `step_summary` is told of its prior, if any: `prior_pmf` (N,), `truncation`, `kl_direction`."""
        return {}

    def set_step(self, step: int, total: int) -> None:
        """Tell it that `step` of `total` optimiser steps were made, where it changes with them."""

    def learning_rate_multipliers(self) -> dict[str, float]:
        """How many times the learning rate a parameter has, by its name; 1 for all others."""
        return {}

    def no_weight_decay(self) -> set[str]:
        """Names of the parameters that never decay."""
        return set()

    def descending_by_sign(self) -> set[str]:
        """Names of those that are published as trained by the sign of their gradients; see `AdamAtan2`."""
        return set()

    def take_classes(self, names: Sequence[str]) -> None:
        """Predict these classes in this order from now on.

        Raises:
            ConfigError: If somebody else has trained its head, with other classes.
        """

    def take_padding(self, token: int | None) -> None:
        """Take the id with which a tokenizer fills rows up, where the model has to know it and does not."""

    def train_halting_alone(self, slope: float, threshold: float) -> None:
        """Let the halting head go on learning while everything else stays as it is; see `continuation_losses`.

        Raises:
            ConfigError: If it has none of its own.
        """
        raise ConfigError(f"halting.alone=true: {type(self).__name__} has no halting head that learns alone")


class DepthKnob(DepthModel):
    """A model whose depth can be set after training: with a knob that is fitted by bisection, or by its `fit_depth`."""

    @property
    @required
    def depth_knob(self) -> str:
        """What is turned, for the tables: a string."""
        raise NotImplementedError

    def set_depth_level(self, level: float) -> None:
        """Turn the knob to a level in (0, 1): a higher one never makes units shallower."""
        raise NotImplementedError

    def fit_depth(self, target: float, measure: Callable[[], float]) -> Fit:
        """Turn the knob to where `measure()`, the depth as the model is set now, is nearest to the target."""

        def depth_at(level: float) -> float:
            self.set_depth_level(level)
            return measure()

        fit = fit_level(depth_at, target)
        self.set_depth_level(fit.level)
        return fit


class HoldsBudget(DepthModel):
    """A model whose depth a budget can hold in training; which of the further methods, its units of budgets say."""

    @required
    def count_units(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Units of a batch whose depth is counted."""
        raise NotImplementedError

    def soft_depth(self, outputs: Any) -> LossTerm:
        """A smooth depth near the hard one, in updates, summed over the batch's units; see `adadepth.budget`."""
        raise NotImplementedError

    def expected_depth(self, outputs: Any) -> LossTerm:
        """The expected depth, summed over the batch's units."""
        raise NotImplementedError

    def latency(self) -> Tensor:
        """Milliseconds of the one architecture as it is now, a scalar."""
        raise NotImplementedError

    @property
    def halting_bias(self) -> Tensor | None:
        """The bias of all halting logits, by which a trained model that missed its target is corrected.

        A lower bias makes no unit shallower. None: it has no such bias.
        """
        return None

    def limit_depth(self, depth: int) -> None:
        """Let nothing be deeper from now on."""
        raise NotImplementedError

    def force_depth(self, depth: int | None) -> None:
        """Give every unit this many updates from now on; None: let them halt."""
        raise NotImplementedError


class ReplaysHalting(DepthModel):
    """A model of tokens that can halt by given masses; outputs have `halting_probabilities`, those that it halted by.

    Attributes:
        halts_by_sequence: Whether all tokens of a sequence halt together.
    """

    halts_by_sequence: bool = False

    @required
    def replay_halting(self, masses: Tensor | None) -> None:
        """Let tokens halt by these masses from now on, (B, T, N), whatever their states say; None: by their states.

        A token halts at the update at which its masses sum to its threshold, or at the last of N.
        """
        raise NotImplementedError


class ReadsCachedStates(DepthModel):
    """A head on a base whose states may be computed before; its forward takes them as `states`."""

    @property
    @required
    def layer_states(self) -> tuple[int, ...]:
        """Numbers of all states that it could read."""
        raise NotImplementedError

    @property
    @required
    def state_width(self) -> int:
        """Width of a state."""
        raise NotImplementedError

    @property
    @required
    def states_key(self) -> str:
        """What `base_states` depends on beside its inputs; equal keys, equal states."""
        raise NotImplementedError

    @required
    def states_to_read(self) -> tuple[int, ...]:
        """Those that the next forward pass reads."""
        raise NotImplementedError

    @required
    def base_states(self, wanted: Collection[int], **inputs: Any) -> dict[int, Tensor]:
        """The base's states as the head reads them, by number, each (B, T, width), without gradients."""
        raise NotImplementedError


class MixesLayers(DepthModel):
    """A model with one distribution over the layers of a base, for the whole task."""

    @property
    @required
    def learns_distribution(self) -> bool:
        """Whether training decides the distribution; otherwise it was set."""
        raise NotImplementedError

    @required
    def layer_distribution(self) -> Tensor:
        """The weight of every layer, (L,)."""
        raise NotImplementedError

    @required
    def added_parameters(self) -> int:
        """How many parameters it has beside the base's."""
        raise NotImplementedError

    @required
    def base_parameters(self) -> int:
        """How many parameters the base has."""
        raise NotImplementedError


class Remembers(DepthModel):
    """A language model that carries states from one segment of a text to the next.

    Its forward takes `memory`, the one of the output before, or None at a start, and `context`.
    """

    @required
    def context(self, memory_length: int | None, clamp_length: int | None, same_length: bool) -> Any:
        """What attention sees in evaluation; None leaves a length as the configuration says.

        It has `memory_length`, the most positions that are remembered.
        """
        raise NotImplementedError


class LearnsGates(DepthModel):
    """A supernet: gates choose between the operations of every block, and learn with the weights.

    Its forward takes `gates`: `soft`, `argmax`, `noisy`, or a path of operation numbers. The parameter with the gates
    is called `gates`, (N, K). Networks are derived of it; an architecture is a string, one letter for each block. Its
    configuration has `latency_weight` and `operation_costs`, which a search sets, and from these in milliseconds
    `latency_of(architecture)`, `full_latency` and `dearest_latency`.

    Attributes:
        temperature: Of the current update.
    """

    temperature: float

    @required
    def gate_probabilities(self) -> Tensor:
        """Softmax of the gates, (N, K)."""
        raise NotImplementedError

    @required
    def draw_noise(self, *key: int) -> Tensor:
        """Set the noise that `noisy` adds to that of these numbers, and return it, (N, K)."""
        raise NotImplementedError

    @required
    def architecture(self) -> str:
        """The most probable operation of every block."""
        raise NotImplementedError

    @required
    def sample_path(self, generator: Generator) -> list[int]:
        """Sample the number of one operation per block by the probabilities of the gates, with a CPU generator."""
        raise NotImplementedError

    @required
    def most_probable_within(self, target: float, tolerance: float) -> str:
        """The most probable of the architectures whose latency is within a share of the target, or nearest to it."""
        raise NotImplementedError
