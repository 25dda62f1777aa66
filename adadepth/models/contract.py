"""Interface between models and the rest of the package: the base class of every model, and optional mixins.

Training, evaluation, statistics, compute counts and budgets use models through these classes only. Members that every
family must define are marked `required`. Optional members have a default or belong to a mixin. Callers test for a mixin
with `isinstance(model, ...)` and never by the family's name. `adadepth.models.validation` reports missing members, and
`adadepth.models.head_outputs` specifies the outputs of heads.

Shape legend: B rows, T tokens, N steps, L layers, K operations.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from torch import Generator, Tensor, nn

from adadepth.budget.fit import Fit, fit_level
from adadepth.errors import ConfigError
from adadepth.halting.exit_rules import LOGITS
from adadepth.halting.trace import DepthTrace, DepthUnit, StateMaps, Work
from adadepth.models.loading import StrictLoading
from adadepth.models.shared.layers import use_plain_linear_layers
from adadepth.models.shared.layouts import write_layout
from adadepth.models.shared.losses import LossTerm

_Method = TypeVar("_Method", bound=Callable[..., Any])


def required(method: _Method) -> _Method:
    """Mark a method or property that every subclass must define."""
    method.is_required = True  # type: ignore[attr-defined]
    return method


class DepthModel(StrictLoading):
    """Base class of every model with a task head; it must precede `PreTrainedModel` among the bases.

    The forward pass takes `num_targets`, the counts that normalise the loss parts; see `combine_terms`. A value is a
    class attribute or a property.

    An encoder without a head needs only `max_updates`, `longest_sequence` and `vocabulary_size`. Its forward pass takes
    `output_hidden_states`. Its output has `hidden_states`, the states before the first and after every update that the
    batch ran, and `last_hidden_state`, the states that heads read, each (B, T, H).

    Attributes:
        config: Configuration of the model.
        training: Whether the module is in training mode.
        refills: Whether the model can compute a part of a batch at a time. Its forward pass then takes `places`, the
            number of slots for examples. When an example exits, a waiting one enters its slot. Up to rounding, `places`
            changes nothing in the output except the execution in the trace.
        shows_states: Whether the forward pass takes `output_hidden_states` and then returns `hidden_states`, the states
            before the first and after every iteration that ran, each (*updates, H).
        trains_in_slots: Whether an optimiser step trains one step of every example, and an example stays in its slot of
            the batch until it halts. The forward pass then takes `carry` and `draws`. `carry` is a dictionary of
            tensors with `halted` and `steps`, (B,), from the output of the previous optimiser step. It is {} before the
            first step. `draws` are uniform random numbers of this step, (B, 2).
    """

    config: Any
    training: bool
    refills: bool = False
    shows_states: bool = False
    trains_in_slots: bool = False

    def post_init(self) -> None:
        """Finish the initialisation as transformers does; a model that will be quantised has plain linear layers."""
        if getattr(self.config, "quantization_config", None) is not None:
            use_plain_linear_layers(cast(nn.Module, self))
        super().post_init()  # type: ignore[misc]
        self.freeze_untrained()

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Load as `StrictLoading` does, and freeze again what transformers makes trainable when it loads weights."""
        loaded = super().from_pretrained(*args, **kwargs)
        (loaded[0] if isinstance(loaded, tuple) else loaded).freeze_untrained()
        return loaded

    def freeze_untrained(self) -> None:
        """Freeze the parameters that training with this configuration never changes. By default there are none."""

    def save_pretrained(self, save_directory: Any, *args: Any, layout: str | None = None, **kwargs: Any) -> None:
        """Save the model as transformers does, or in the layout in which others publish such models.

        Args:
            save_directory: Folder of the model.
            *args: As in transformers.
            layout: Name of a published layout, such as `ouro` or `llama`; see `write_layout`. None: our own layout.
            **kwargs: As in transformers.

        Raises:
            ConfigError: If the layout cannot express the model.
        """
        if layout is not None:
            write_layout(self, Path(save_directory), layout, *args, **kwargs)
            return
        parent: Any = super()
        parent.save_pretrained(save_directory, *args, **kwargs)

    def drop_exits(self) -> None:
        """Remove what early exits add to the network, so that the network at full depth remains.

        Raises:
            ConfigError: If there is no network without exits, because its depth is not that of different layers.
        """
        raise ConfigError(f"drop_exits=true: {type(self).__name__} has no early exits that it could do without")

    @property
    @required
    def depth_unit(self) -> DepthUnit:
        """Kind of unit that has its own depth: token, sequence, task or architecture."""
        raise NotImplementedError

    @property
    @required
    def max_updates(self) -> int:
        """Maximum number of block updates that a token or sequence can receive, an integer of at least 1."""
        raise NotImplementedError

    @property
    @required
    def longest_sequence(self) -> int | None:
        """Maximum number of tokens in a sequence, or None if there is no limit."""
        raise NotImplementedError

    @property
    @required
    def vocabulary_size(self) -> int | None:
        """Number of tokens in the embedding table, or None if the model reads no tokens."""
        raise NotImplementedError

    @required
    def count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the number of targets in a batch for each part of the loss, which the trainer uses as its divisor."""
        raise NotImplementedError

    @required
    def price(self, trace: DepthTrace) -> Work:
        """Return the multiply-accumulates (MACs) of a batch, computed from its depth trace."""
        raise NotImplementedError

    @property
    def exit_signals(self) -> frozenset[str]:
        """Signals that the model provides to exit rules: `logits`, `halting`, `correctness`, `states`.

        The set is empty if the model predicts only after its last update. If there are signals, the forward pass takes
        `exit_rule`, `run_all_steps` and, for stochastic rules, a `generator`. When all steps run, the output has
        `step_logits` and `exit_steps`. It also has `halting_logits` if the model has a halting head, and `state_moves`
        if rules read its states (see `adadepth.halting.exit_rules.state_moves`). A model that classifies tokens adds
        `unit_slots`; see `adadepth.metrics.step_records.build_token_columns`.
        """
        return frozenset()

    @property
    def exit_rule_problem(self) -> str | None:
        """Reason why this configuration has no `exit_signals`, where others of its class have some, or None."""
        return None

    @property
    def step_loss_problem(self) -> str | None:
        """Reason why this configuration's loss over exits cannot be computed, which names its setting, or None."""
        return None

    @property
    def readout_work(self) -> float:
        """MACs of one prediction for one token or sequence, or 0 if `price` counts the predictions of all steps."""
        return 0.0

    def reading_work(self, signal: str, lengths: Tensor) -> Tensor | float:
        """Return the MACs of computing an exit rule's input signal once, unless `price` already counts them.

        Args:
            signal: One of `exit_signals`.
            lengths: Number of real tokens in the text of each unit, (M,).

        Returns:
            Multiply-accumulates of every unit, float64 (M,), or one number for all units.
        """
        return self.readout_work if signal == LOGITS else 0.0

    @property
    def executions(self) -> tuple[str, ...]:
        """Allowed values of `config.execution`: `dense`, and `ragged` if halted tokens can be skipped.

        All modes give the same results.
        """
        return ("dense",)

    @property
    def one_depth(self) -> int | None:
        """Number of updates of every token or sequence if the depth is currently fixed, or None if they halt."""
        return None

    def least_activations(self, lengths: Sequence[int], recomputed: bool) -> dict[str, int] | None:
        """Return a lower bound on the number of activation values stored for the backward pass, by part of the model.

        Args:
            lengths: Number of tokens in every row.
            recomputed: Whether gradient checkpointing recomputes most of them.

        Returns:
            Number of values by part, or None if no bound is known.
        """
        return None

    def build_state_maps(self, batch: Mapping[str, Tensor]) -> StateMaps | None:
        """Return the first state of a batch, and the map of every update as if no token halted; see `measure_states`.

        It is None for models that do not repeat a map of states.
        """
        return None

    def prior_facts(self, outputs: Any) -> dict[str, Any]:
        """Return the prior over exit steps, as arguments of `summarise_steps`: `prior_pmf`, `truncation` and so on."""
        return {}

    def set_step(self, step: int, total: int) -> None:
        """Set the number of completed optimiser steps out of `total`, for schedules inside the model."""

    def learning_rate_multipliers(self) -> dict[str, float]:
        """Return a learning-rate multiplier for each parameter name that needs one; the others use 1."""
        return {}

    def no_weight_decay(self) -> set[str]:
        """Return the names of the parameters to train without weight decay."""
        return set()

    def list_heads(self) -> set[str]:
        """Return the names of the modules that predict or halt: task heads and halting heads.

        By default, these are the children of the model other than its base model.
        """
        model: Any = self
        base = model.base_model
        return set() if base is model else {name for name, child in model.named_children() if child is not base}

    def list_copied_layers(self) -> set[str]:
        """Return the names of the linear layers of heads that begin as copies of layers of a frozen network.

        They get low-rank adapters where the network itself is not trained.
        """
        return set()

    def descending_by_sign(self) -> set[str]:
        """Return the names of the parameters to update by the sign of their gradients; see `AdamAtan2`."""
        return set()

    def take_classes(self, names: Sequence[str]) -> None:
        """Set the class names of the head, in this order.

        Raises:
            ConfigError: If the head was trained with other classes.
        """

    def take_padding(self, token: int | None) -> None:
        """Set the padding token id, if the model needs one and has none."""

    def train_halting_alone(self, slope: float, threshold: float) -> None:
        """Freeze all parameters except the halting head, and train it with `continuation_losses`.

        Raises:
            ConfigError: If the model has no separate halting head.
        """
        raise ConfigError(
            f"halting.alone=true: {type(self).__name__} has no halting head that can be trained separately"
        )


class DepthKnob(DepthModel):
    """Mixin for models whose mean depth can be adjusted after training, usually by one threshold."""

    @property
    @required
    def depth_knob(self) -> str:
        """Name of the parameter that adjusts the depth, for tables."""
        raise NotImplementedError

    def set_depth_level(self, level: float) -> None:
        """Set the depth threshold to a level in (0, 1). A higher level never makes a token or sequence shallower."""
        raise NotImplementedError

    def fit_depth(self, target: float, measure: Callable[[], float]) -> Fit:
        """Search for the depth threshold at which the measured depth is as close to the target as possible.

        `measure()` returns the depth of the model with the current value of the parameter.
        """

        def measure_depth(level: float) -> float:
            self.set_depth_level(level)
            return measure()

        fit = fit_level(measure_depth, target)
        self.set_depth_level(fit.level)
        return fit


class HoldsBudget(DepthModel):
    """Mixin for models that can be trained to a target mean depth (a depth budget)."""

    @required
    def count_units(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the number of units in a batch (tokens or sequences) over which the mean depth is taken."""
        raise NotImplementedError

    def soft_depth(self, outputs: Any) -> LossTerm:
        """Return a differentiable approximation of the depth in updates, summed over tokens or sequences."""
        raise NotImplementedError

    def expected_depth(self, outputs: Any) -> LossTerm:
        """Return the expected depth under the halting distribution, summed over tokens or sequences."""
        raise NotImplementedError

    def latency(self) -> Tensor:
        """Return the latency of the current architecture in milliseconds, a scalar."""
        raise NotImplementedError

    @property
    def halting_bias(self) -> Tensor | None:
        """Bias parameter of all halting logits, or None if the model has none.

        Shifting the bias corrects a trained model that missed its target. A lower bias never makes a unit shallower.
        """
        return None

    def limit_depth(self, depth: int) -> None:
        """Limit the depth of all tokens or sequences to at most `depth` in later forward passes."""
        raise NotImplementedError

    def force_depth(self, depth: int | None) -> None:
        """Force `depth` updates per token or sequence in later forward passes, or let them halt again if None."""
        raise NotImplementedError


class ReplaysHalting(DepthModel):
    """Mixin for models whose tokens can halt by given halting masses instead of predicted ones.

    The output has `halting_probabilities`, the masses applied.

    Attributes:
        halts_by_sequence: Whether all tokens of a sequence halt together.
    """

    halts_by_sequence: bool = False

    @required
    def replay_halting(self, masses: Tensor | None) -> None:
        """Make tokens halt by given halting masses, (B, T, N), instead of the halting head, or by the head if None.

        A token halts at the update at which the sum of its masses reaches its threshold, or at update N at the latest.
        """
        raise NotImplementedError


class ReadsCachedStates(DepthModel):
    """Mixin for heads on a frozen base model, whose hidden states can be cached and passed as `states`."""

    @property
    @required
    def layer_states(self) -> tuple[int, ...]:
        """Indices of all hidden states of the base model that the head may read."""
        raise NotImplementedError

    @property
    @required
    def state_width(self) -> int:
        """Width of the base model's hidden states."""
        raise NotImplementedError

    @property
    @required
    def states_key(self) -> str:
        """Text that identifies the base model in the cache key of its hidden states.

        Equal keys and equal inputs give equal states.
        """
        raise NotImplementedError

    @required
    def states_to_read(self) -> tuple[int, ...]:
        """Return the indices of the hidden states that the next forward pass needs."""
        raise NotImplementedError

    @required
    def base_states(self, wanted: Collection[int], **inputs: Any) -> dict[int, Tensor]:
        """Compute hidden states of the base model by index, each (B, T, width), without gradients."""
        raise NotImplementedError


class MixesLayers(DepthModel):
    """Mixin for models that average the layers of a base model with weights shared by all inputs."""

    @property
    @required
    def learns_distribution(self) -> bool:
        """Whether training learns the layer weights, instead of keeping them constant."""
        raise NotImplementedError

    @required
    def layer_distribution(self) -> Tensor:
        """Return the weight of every layer in the average, (L,)."""
        raise NotImplementedError

    @required
    def added_parameters(self) -> int:
        """Return the number of parameters that do not belong to the base model."""
        raise NotImplementedError

    @required
    def base_parameters(self) -> int:
        """Return the number of parameters of the base model."""
        raise NotImplementedError


class Remembers(DepthModel):
    """Mixin for language models with recurrence: states of one text segment are the memory of the next.

    The forward pass takes `memory` and `context`. `memory` comes from the output of the previous segment, and is None
    at the start of a text.
    """

    @required
    def context(self, memory_length: int | None, clamp_length: int | None, same_length: bool) -> Any:
        """Build the attention context for evaluation: memory length and position clamping. None uses the configuration.

        The context has `memory_length`, the maximum number of positions of the memory.
        """
        raise NotImplementedError


class LearnsGates(DepthModel):
    """Mixin for supernets (architecture search), whose gates select one operation per block and are trained.

    The forward pass takes `gates`: `soft`, `argmax`, `noisy`, or a path of operation numbers. The parameter `gates` is
    (N, K). Fixed networks are derived from the supernet. An architecture is a string with one letter per block. A
    search sets `latency_weight` and `operation_costs` of the configuration. From these, the configuration computes
    `compute_latency(architecture)`, `full_latency` and `dearest_latency` in milliseconds.

    Attributes:
        temperature: Temperature of the gates in the current optimiser step.
    """

    temperature: float

    @required
    def gate_probabilities(self) -> Tensor:
        """Return the probability of every operation in every block, the softmax of the gates, (N, K)."""
        raise NotImplementedError

    @required
    def draw_noise(self, *key: int) -> Tensor:
        """Draw the random noise that is added to the gates in mode `noisy`, (N, K), seeded by the given numbers."""
        raise NotImplementedError

    @required
    def architecture(self) -> str:
        """Return the most probable operation of every block, as one letter per block."""
        raise NotImplementedError

    @required
    def sample_path(self, generator: Generator) -> list[int]:
        """Sample one operation index per block from the gate probabilities."""
        raise NotImplementedError

    @required
    def find_most_probable(self, target: float, tolerance: float) -> str:
        """Return the most probable architecture whose latency is within a relative tolerance of the target.

        If there is none, return the architecture with the nearest latency.
        """
        raise NotImplementedError
