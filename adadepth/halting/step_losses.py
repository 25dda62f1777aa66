"""Losses over exits: the weights w_n of the losses L_n after every exit or loop, from their depths and the losses.

    loss = sum_n w_n L_n,  w = f(L_1..L_N, d_1..d_N)

d_n is the layer of exit n, or the number of loop n. The losses that this module defines depend on the depths alone:

    w_n proportional to     1 if n = N, else 0          last
                            1                           uniform
                            d_n, sqrt d_n               linear, sqrt
                            1 / d_n, 1 / sqrt d_n       inverse, inverse_sqrt
                            sum_{i<=n} d_i              sum
                            sum_{i<d_n} i               layerskip (arXiv 2404.16710)

Other losses are subclasses of `StepLoss`, which a package registers as entry points, and a program by
`register_step_loss`. A configuration selects a loss by its text, `NAME[:PARAMETER...]`.

Shape legend: M tokens or texts with a target, N exits or loops with a loss.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from adadepth.config.plugins import load_plugins, register_class
from adadepth.errors import ConfigError, nearest
from adadepth.halting.rules import find_rule_problem, parse_named

if TYPE_CHECKING:
    from torch import Tensor

GROUP = "adadepth.step_losses"
_NOUN = "loss over exits"

Loss = TypeVar("Loss", bound="type[StepLoss]")


@dataclass(frozen=True)
class StepLoss:
    """Base class of losses over exits, which define `weigh` or `weigh_depths`. Fields are numeric parameters.

    Attributes:
        name: Name in configurations.
    """

    name: ClassVar[str]

    def weigh_depths(self, depths: Sequence[int]) -> Sequence[float] | None:
        """Return weights that depend on the depths alone, or None if `weigh` computes the weights.

        The family scales the weights so that their sum is 1, and computes no loss for an exit of weight 0.

        Args:
            depths: Depth d_n of every exit or loop with a loss, in increasing order.
        """
        return None

    def weigh(self, losses: Tensor, depths: Tensor) -> Tensor:
        """Return the weights w_n, (M, N) or (N,). They are used as they are, and are constants of the gradient.

        Args:
            losses: Losses L_n of every token or text, float32 (M, N), without gradients.
            depths: Depth d_n of every exit or loop with a loss, in increasing order, float32 (N,).
        """
        raise NotImplementedError


def _define_by_depth(name: str, weigh: Callable[[Sequence[int]], Iterable[float]]) -> type[StepLoss]:
    """Return the class of a loss whose weights are a function of the depths."""
    methods = {"name": name, "weigh_depths": lambda self, depths: list(weigh(depths))}
    return dataclass(frozen=True)(type(f"{name}_loss", (StepLoss,), methods))


_BY_DEPTH: dict[str, Callable[[Sequence[int]], Iterable[float]]] = {
    "last": lambda depths: [0.0] * (len(depths) - 1) + [1.0],
    "uniform": lambda depths: [1.0] * len(depths),
    "linear": lambda depths: depths,
    "sqrt": lambda depths: [depth**0.5 for depth in depths],
    "inverse": lambda depths: [1 / depth for depth in depths],
    "inverse_sqrt": lambda depths: [depth**-0.5 for depth in depths],
    "sum": accumulate,
    "layerskip": lambda depths: [depth * (depth - 1) / 2 for depth in depths],
}
BUILT_IN = {name: _define_by_depth(name, weigh) for name, weigh in _BY_DEPTH.items()}


# ---- Registry

_registered: dict[str, type[StepLoss]] = {}


@cache
def installed_step_losses() -> Mapping[str, type[StepLoss]]:
    """Return the losses over exits of installed packages by name.

    Raises:
        ConfigError: If a loss of a package is broken, or if its name is already taken.
    """
    return load_plugins(GROUP, _NOUN, BUILT_IN, _find_problem)


def register_step_loss(loss: Loss) -> Loss:
    """Register a loss over exits of the running program, under its name, and return it. It is usable as a decorator.

    A loss that was registered before under this name is replaced, as when a notebook runs a cell again.

    Raises:
        ConfigError: If the loss is broken, or its name is that of another loss.
    """
    register_class(_registered, loss, _NOUN, {*BUILT_IN, *installed_step_losses()}, _find_problem)
    _parsed.clear()
    return loss


# A compiled forward pass cannot inspect classes or packages, so every text is parsed once, by a configuration.
_parsed: dict[str, StepLoss] = {}


def parse_step_loss(text: str, more_names: Collection[str] = ()) -> StepLoss:
    """Parse a loss over exits from its text, `name[:parameter...]`.

    Args:
        text: Text with the name and the parameters.
        more_names: Further names that the setting allows, for the message.

    Raises:
        ConfigError: If the text is no loss. The message is one line that names the text and the allowed values.
    """
    if text not in _parsed:
        _parsed[text] = _parse(text, more_names)
    return _parsed[text]


def prepare_step_loss(text: str) -> None:
    """Parse a loss over exits before a compiled pass needs it. A model without the loss's package still predicts."""
    with suppress(ConfigError):
        parse_step_loss(text)


def _parse(text: str, more_names: Collection[str]) -> StepLoss:
    name, losses = text.partition(":")[0], BUILT_IN
    if name not in losses:  # built-in losses import no plug-in
        losses = {**BUILT_IN, **installed_step_losses(), **_registered}
    if name not in losses:
        names = dict.fromkeys([*more_names, *losses])
        allowed = f"must be one of {', '.join(names)}{nearest(name, names)}"
        raise ConfigError(f"{_NOUN} {text!r}: {allowed}; a loss of a package needs the package")
    return parse_named(text, losses, _NOUN)


def _find_problem(loss: Any, name: str) -> str | None:
    """Return why an object is not a valid loss over exits with this name, or None if it is valid."""
    if problem := find_rule_problem(loss, name, StepLoss):
        return problem
    has_weights = loss.weigh is not StepLoss.weigh or loss.weigh_depths is not StepLoss.weigh_depths
    return None if has_weights else "must define weigh or weigh_depths"
