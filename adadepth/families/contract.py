"""What the rest of the project asks of a model: one protocol for every family, and one for each further capability.

Training, evaluation, statistics, pricing and budgets know models by these protocols alone. `DepthModel` is what every
model has; the others are what some have, and they are asked for by `isinstance(model, ...)`, never by the family's
name. A protocol compares names, not types: a member of a capability is a method, a property or a class attribute.

Shape legend: B rows, T tokens, N steps, L layers, K operations.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor
from transformers import PreTrainedConfig

from adadepth.budget.fit import Fit
from adadepth.families.shared.losses import LossTerm
from adadepth.halting.trace import DepthTrace, DepthUnit, Work


class DepthOutput(Protocol):
    """What the forward pass of a batch with targets returns, beside the logits of its task.

    Attributes:
        loss: Sum of `loss_parts`, a scalar.
        loss_parts: Name to scalar: each part normalised, see `combine_terms`, and weighted.
        trace: The depth that the batch was given.
    """

    loss: Tensor
    loss_parts: dict[str, Tensor]
    trace: DepthTrace


@runtime_checkable
class DepthModel(Protocol):
    """What every model has. Its forward takes `num_targets`, counts that normalise the loss parts; see `combine_terms`.

    Attributes:
        config: Its configuration.
        depth_unit: What has a depth: the `unit` of all its traces.
        max_updates: The most updates a unit can receive: the `max_depth` of all its traces.
        longest_sequence: The most tokens it has positions for; None where any number will do.
        vocabulary_size: How many pieces it has embeddings for; None where it reads no tokens.
    """

    @property
    def config(self) -> PreTrainedConfig: ...  # noqa: D102

    @property
    def depth_unit(self) -> DepthUnit: ...  # noqa: D102

    @property
    def max_updates(self) -> int: ...  # noqa: D102

    @property
    def longest_sequence(self) -> int | None: ...  # noqa: D102

    @property
    def vocabulary_size(self) -> int | None: ...  # noqa: D102

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """A `DepthOutput` with the logits of the task."""

    def count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What each loss part of a batch is divided by, by the part's name; the trainer adds it up over an update."""

    def price(self, trace: DepthTrace) -> Work:
        """Multiply-accumulates of one traced batch."""


@runtime_checkable
class KnowsActivations(Protocol):
    """A model that can say what a batch of training costs in memory, before there is one."""

    def least_activations(self, lengths: Sequence[int], recomputed: bool) -> dict[str, int]:
        """Numbers that a forward pass keeps for the backward pass, by part; it may keep more, but not fewer.

        Args:
            lengths: Tokens of every row.
            recomputed: Whether the backward pass computes most of them again: gradient checkpointing.
        """


@runtime_checkable
class PredictsEveryStep(Protocol):
    """A model with a prediction after every step, and rules that choose among them.

    Its forward takes `exit_rule`, `run_all_steps` and, for rules that draw, a `generator`; with all steps its output
    has `step_logits` and `exit_steps`, and `halting_logits` where it has a halting head. A model whose tokens are
    classified adds `unit_slots`; see `adadepth.measure.exit_records.token_columns`.

    Attributes:
        exit_signals: What rules can read: `logits`, `halting`.
    """

    @property
    def exit_signals(self) -> frozenset[str]: ...  # noqa: D102


@runtime_checkable
class Refills(Protocol):
    """A model with predictions after every step that can compute a part of a batch at a time, and refill it.

    Its forward takes `places`, how many examples are computed at a time; one that exits makes room for one that waits.
    Its output is that without `places`, to rounding, but for what the trace says of the execution.

    Attributes:
        refills: That it can.
    """

    @property
    def refills(self) -> bool: ...  # noqa: D102


@runtime_checkable
class PricesReadouts(Protocol):
    """A model with predictions after every step whose `price` does not count them.

    Attributes:
        readout_work: Multiply-accumulates of one prediction of one unit.
    """

    @property
    def readout_work(self) -> float: ...  # noqa: D102


class StateEncoder(Protocol):
    """An encoder, the model of a family without a head, whose states can be read after every update.

    Its forward takes `output_hidden_states`. The output then has `hidden_states`, those before the first and after
    every update that the batch ran, and `last_hidden_state`, which heads read, each (B, T, H).

    Attributes:
        max_updates: The most updates a token can receive.
        longest_sequence: See `DepthModel`.
        vocabulary_size: See there.
    """

    @property
    def max_updates(self) -> int: ...  # noqa: D102

    @property
    def longest_sequence(self) -> int | None: ...  # noqa: D102

    @property
    def vocabulary_size(self) -> int | None: ...  # noqa: D102

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """An output with `hidden_states` and `last_hidden_state`."""


@runtime_checkable
class ShowsStates(Protocol):
    """A model whose forward takes `output_hidden_states` and then returns what its iterations did to its units.

    `hidden_states` of the output are those before the first and after every iteration that ran, each (*updates, H).

    Attributes:
        shows_states: Whether it does now.
    """

    @property
    def shows_states(self) -> bool: ...  # noqa: D102


@runtime_checkable
class HasHaltingPrior(Protocol):
    """A model whose halting distribution is drawn to a prior."""

    def prior_facts(self, outputs: Any) -> dict[str, Any]:
        """What `step_summary` is told of the prior: `prior_pmf` (N,), `truncation`, `kl_direction`.

        Empty where the outputs have no prior.
        """


@runtime_checkable
class FollowsSchedule(Protocol):
    """A model that changes with the updates made, whatever is in its batches."""

    def set_step(self, step: int, total: int) -> None:
        """Tell it that `step` of `total` updates were made."""


@runtime_checkable
class SpeedsUpParameters(Protocol):
    """A model of which some parameters learn faster than the others."""

    def learning_rate_multipliers(self) -> dict[str, float]:
        """How many times the learning rate a parameter has, by its name; 1 for all others."""


@runtime_checkable
class SparesParameters(Protocol):
    """A model of which some parameters never decay."""

    def no_weight_decay(self) -> set[str]:
        """Their names."""


@runtime_checkable
class DescendsBySign(Protocol):
    """A model of which some parameters are published as trained by the sign of their gradients; see `AdamAtan2`."""

    def descending_by_sign(self) -> set[str]:
        """Their names."""


@runtime_checkable
class HasOwnClasses(Protocol):
    """A model whose head somebody else has trained, with its classes in an order of its own."""

    def take_classes(self, names: Sequence[str]) -> None:
        """Predict these classes in this order from now on, or raise a `ConfigError` where the head has others."""


@runtime_checkable
class ReadsCachedStates(Protocol):
    """A head on a base whose states may be computed before; its forward takes them as `states`.

    Attributes:
        layer_states: Numbers of all states that it could read.
        state_width: Their width.
        states_key: What `base_states` depends on beside its inputs; equal keys, equal states.
    """

    @property
    def layer_states(self) -> tuple[int, ...]: ...  # noqa: D102

    @property
    def state_width(self) -> int: ...  # noqa: D102

    @property
    def states_key(self) -> str: ...  # noqa: D102

    def states_to_read(self) -> tuple[int, ...]:
        """Those that the next forward pass reads."""

    def base_states(self, wanted: Collection[int], **inputs: Any) -> dict[int, Tensor]:
        """The base's states as the head reads them, by number, each (B, T, width), without gradients."""


@runtime_checkable
class MixesLayers(Protocol):
    """A model with one distribution over the layers of a base, for the whole task.

    Attributes:
        learns_distribution: Whether training decides it; otherwise it was set.
    """

    @property
    def learns_distribution(self) -> bool: ...  # noqa: D102

    def layer_distribution(self) -> Tensor:
        """The weight of every layer, (L,)."""

    def added_parameters(self) -> int:
        """Parameters beside the base's."""

    def base_parameters(self) -> int:
        """Parameters of the base."""


@runtime_checkable
class Remembers(Protocol):
    """A language model that carries states from one segment of a text to the next.

    Its forward takes `memory`, the one of the output before, or None at a start, and `context`.
    """

    def context(self, memory_length: int | None, clamp_length: int | None, same_length: bool) -> Any:
        """What attention sees in evaluation; None leaves a length as the configuration says.

        It has `memory_length`, the most positions that are remembered.
        """


@runtime_checkable
class TrainsInSlots(Protocol):
    """A model of which an update trains one step of every example: these keep their place in the batch until they halt.

    Its forward takes `carry`, which its output had after the update before, {} at first, and `draws`, uniform numbers
    (B, 2) of this update. The carry is a dictionary of tensors; in it are `halted` and `steps`, (B,), after an update.

    Attributes:
        trains_in_slots: That it does.
    """

    @property
    def trains_in_slots(self) -> bool: ...  # noqa: D102


@runtime_checkable
class LearnsGates(Protocol):
    """A supernet: gates choose between the operations of every block, and learn with the weights.

    Its forward takes `gates`: `soft`, `argmax`, `noisy`, or a path of operation numbers. The parameter with the gates
    is called `gates`, (N, K).

    Attributes:
        temperature: Of the current update.
    """

    temperature: float

    def gate_probabilities(self) -> Tensor:
        """Softmax of the gates, (N, K)."""

    def draw_noise(self, *key: int) -> Tensor:
        """Set the noise that `noisy` adds to that of these numbers, and return it, (N, K)."""


@runtime_checkable
class SearchesArchitecture(LearnsGates, Protocol):
    """A supernet of which networks are derived; an architecture is a string, one letter for each block.

    Its configuration has `latency_weight` and `operation_costs`, which a search sets, and from these in milliseconds
    `latency_of(architecture)`, `full_latency` and `dearest_latency`.
    """

    @property
    def config(self) -> Any: ...  # noqa: D102

    def architecture(self) -> str:
        """The most probable operation of every block."""

    def most_probable_within(self, target: float, tolerance: float) -> str:
        """The most probable of the architectures whose latency is within a share of the target, or nearest to it."""


@runtime_checkable
class HasExecutions(Protocol):
    """A model that can compute the same results in several ways; `config.execution` chooses.

    Attributes:
        executions: Their names, `dense` first; where there is a second it is `ragged`.
    """

    @property
    def executions(self) -> tuple[str, ...]: ...  # noqa: D102


@runtime_checkable
class HasOneDepth(Protocol):
    """A model whose units can all be given one depth.

    Attributes:
        one_depth: The updates that each unit gets now; None where they decide.
    """

    @property
    def one_depth(self) -> int | None: ...  # noqa: D102


@runtime_checkable
class HasDepthKnob(Protocol):
    """A model whose depth can be set after training.

    Attributes:
        depth_knob: What is set, for the tables.
    """

    @property
    def depth_knob(self) -> str: ...  # noqa: D102

    def fit_depth(self, target: float, measure: Callable[[], float]) -> Fit:
        """Set the depth to a target, and leave it so; see `adadepth.budget.fit.DepthKnob`."""


@runtime_checkable
class CountsDepth(Protocol):
    """A model that a budget can hold. It also has the smooth depth that its unit of budgets asks for."""

    def count_units(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Units of a batch whose depth is counted."""


@runtime_checkable
class HasSoftDepth(CountsDepth, Protocol):
    """A model with a smooth depth near the hard one."""

    def soft_depth(self, outputs: Any) -> LossTerm:
        """Of a batch's units, in updates, summed over them; see `adadepth.budget.controller`."""


@runtime_checkable
class HasExpectedDepth(CountsDepth, Protocol):
    """A model with an expected depth."""

    def expected_depth(self, outputs: Any) -> LossTerm:
        """Of a batch's units, summed over them."""


@runtime_checkable
class LimitsDepth(Protocol):
    """A model in which a depth can be forbidden."""

    def limit_depth(self, depth: int) -> None:
        """Let nothing be deeper from now on."""


@runtime_checkable
class ForcesDepth(Protocol):
    """A model whose units can be given one depth for a while."""

    def force_depth(self, depth: int | None) -> None:
        """Give every unit this many updates from now on; None: let them halt."""


@runtime_checkable
class TrainsHaltingAlone(Protocol):
    """A model whose halting head can go on learning while everything else stays as it is."""

    def train_halting_alone(self, stage: Any) -> None:
        """Freeze the rest; see `adadepth.families.shared.ponder_objective.HaltingStage`."""
