"""Halting units: modules that read the state of a unit after an update, and predict whether it halts there.

    z_n, m_n = f(h_n, m_{n-1}, n)      p_n = sigmoid(z_n)

A unit has weights and a memory m of the earlier updates of the same forward pass. Two units are built in, both without
a memory:

    linear      z_n = w h_n + b
    mlp         z_n = w silu(W h_n + c) + b     W is (H, H)

Other units are subclasses of `HaltingUnit`, which a package registers as entry points, and a program by
`register_halting_unit`. A configuration selects a unit by its text, `NAME[:PARAMETER...]`.

Shape legend: (...) any leading dimensions, such as (B, T) or those of packed tokens, (P,); H width.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, field, make_dataclass
from functools import cache, partial
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from adadepth.config.plugins import load_plugins, register_class
from adadepth.errors import ConfigError, nearest
from adadepth.halting.rules import is_parameter_type, parse_named

GROUP = "adadepth.halting_units"

UnitMemory = tuple[Tensor, ...]
Unit = TypeVar("Unit", bound="type[HaltingUnit]")


class HaltingUnit(nn.Module):
    """Base class of halting units with their own weights and memory. The unit shares its weights over all updates.

    The arguments of `__init__` after width and bias are the parameters of the unit, numbers with a default. A model
    gives a new unit the weights that `__init__` gives it.

    Args:
        width: Width H of the states.
        bias: Initial bias of the logits.

    Attributes:
        name: Name in configurations.
        bias: Bias b of all logits, (1,), which `forward` adds. A depth budget may shift it.
        rebuild: Function that builds the unit again, with new weights.
    """

    name: ClassVar[str]
    rebuild: Callable[[], HaltingUnit]

    def __init__(self, width: int, bias: float) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.full((1,), float(bias)))

    @property
    def macs(self) -> int:
        """Number of multiply-accumulates for one state; by default the number of weights of the linear layers."""
        return sum(layer.weight.numel() for layer in self.modules() if isinstance(layer, nn.Linear))

    def start(self, states: Tensor) -> UnitMemory:
        """Return the memory m_0 before the first update: tensors (..., *), one row for each state. None by default.

        Args:
            states: States before the first update, (..., H).
        """
        return ()

    def forward(self, states: Tensor, memory: UnitMemory, step: int) -> tuple[Tensor, UnitMemory]:
        """Return the halting logits z_n, (...), and the memory m_n, with the shapes of m_{n-1}.

        Args:
            states: States h_n after update n, (..., H), in the dtype of the unit's weights.
            memory: Memory m_{n-1}.
            step: Number n of the update, counted from 1.
        """
        raise NotImplementedError


def linear_in_float32(layer: nn.Linear, state: Tensor) -> Tensor:
    """Return W x + b in float32, (..., outputs), whatever the dtype of the model or of autocast."""
    if torch.is_autocast_enabled(device := state.device.type):  # entering the context takes time
        with torch.autocast(device, enabled=False):
            return linear_in_float32(layer, state)
    assert layer.bias is not None
    return nn.functional.linear(state.float(), layer.weight.float(), layer.bias.float())


class HaltingProjection(nn.Linear):
    """Linear layer that predicts one halting logit per state, in float32 whatever the model's precision.

    It is the unit `linear`, and a part of other units. It is a plain linear layer, so that adapters and quantizers
    treat it as one.

    Args:
        width: Width H of the states.
        bias: Initial value of the bias.
    """

    name = "linear"

    def __init__(self, width: int, bias: float) -> None:
        super().__init__(width, 1)
        self.bias_init = bias

    def forward(self, state: Tensor) -> Tensor:
        """Return the halting logits, float32, (..., 1), of states, (..., H)."""
        return linear_in_float32(self, state)


class HaltingMLP(HaltingUnit):
    """Unit with one hidden layer of width H, z_n = w silu(W h_n + c) + b, in float32 whatever the model's precision.

    Args:
        width: Width H of the states.
        bias: Initial value of b.
    """

    name = "mlp"

    def __init__(self, width: int, bias: float) -> None:
        super().__init__(width, bias)
        self.hidden = nn.Linear(width, width)
        self.output = nn.Linear(width, 1, bias=False)

    def forward(self, states: Tensor, memory: UnitMemory, step: int) -> tuple[Tensor, UnitMemory]:
        """Return the halting logits, float32 (...), of states, (..., H); there is no memory."""
        hidden = nn.functional.silu(linear_in_float32(self.hidden, states))
        logits = nn.functional.linear(hidden, self.output.weight.float()).squeeze(-1)
        return logits + self.bias.float(), memory


# ---- Registry

_BUILT_IN: dict[str, Any] = {HaltingProjection.name: HaltingProjection, HaltingMLP.name: HaltingMLP}

_registered: dict[str, type[HaltingUnit]] = {}


@cache
def installed_halting_units() -> Mapping[str, type[HaltingUnit]]:
    """Return the halting units of installed packages by name.

    Raises:
        ConfigError: If a unit of a package is broken, or if its name is already taken.
    """
    return load_plugins(GROUP, "halting unit", _BUILT_IN, _find_problem)


def register_halting_unit(unit: Unit) -> Unit:
    """Register a halting unit of the running program, under its name, and return it. It is usable as a decorator.

    A unit that was registered before under this name is replaced, as when a notebook runs a cell again.

    Raises:
        ConfigError: If the unit is broken, or its name is that of another unit.
    """
    taken = {*_BUILT_IN, *installed_halting_units()}
    register_class(_registered, unit, "halting unit", taken, _find_problem)
    return unit


def parse_halting_unit(text: str) -> Callable[[int, float], nn.Module]:
    """Return the function that builds a unit from width and bias, given its text `name[:parameter...]`.

    Raises:
        ConfigError: If the text is no unit. The message is one line that names the text and the allowed values.
    """
    units = {**_BUILT_IN, **installed_halting_units(), **_registered}
    if (kind := text.partition(":")[0]) not in units:
        allowed = f"must be one of {', '.join(units)}{nearest(kind, units)}"
        raise ConfigError(f"halting unit {text!r}: {allowed}; a unit of a package needs the package")
    forms = {
        name: make_dataclass(
            unit.__name__,
            [(part.name, part.annotation, field(default=part.default)) for part in _list_parameters(unit)],
        )
        for name, unit in units.items()
    }
    parameters: Any = parse_named(text, forms, "halting unit")
    return partial(units[kind], **asdict(parameters))


def build_halting_unit(text: str, width: int, bias: float) -> nn.Module:
    """Build a halting unit from its text, `name[:parameter...]`, for states of a width, with an initial bias."""
    rebuild = partial(parse_halting_unit(text), width, bias)
    unit = rebuild()
    unit.rebuild = rebuild  # type: ignore[assignment]
    return unit


def _list_parameters(unit: type) -> list[inspect.Parameter]:
    """Return the parameters of a unit, the arguments of `__init__` after width and bias."""
    return [*inspect.signature(unit).parameters.values()][2:]


def _find_problem(unit: Any, name: str) -> str | None:
    """Return why an object is not a valid halting unit with this name, or None if it is valid."""
    if not (isinstance(unit, type) and issubclass(unit, HaltingUnit)):
        return "must be a class that extends adadepth.HaltingUnit"
    if getattr(unit, "name", None) != name:
        return f"its name is {getattr(unit, 'name', None)!r}"
    for part in _list_parameters(unit):
        if part.default is part.empty or not is_parameter_type(part.annotation):
            return f"its parameter {part.name} must be an int or a float with a default"
    return None


# ---- Units in a model


def start_unit(unit: nn.Module, states: Tensor) -> UnitMemory:
    """Return the memory of a unit before the first update, given the states there, (..., H)."""
    start: Callable[[Tensor], UnitMemory] | None = getattr(unit, "start", None)
    return () if start is None else _check_memory(unit, start(states.to(_read_dtype(unit, states))), states)


def run_unit(unit: nn.Module, states: Tensor, memory: UnitMemory, step: int) -> tuple[Tensor, UnitMemory]:
    """Return the halting logits z_n of states, float32 (...), and the new memory; see `HaltingUnit.forward`.

    A unit computes in the dtype of its weights, also under autocast. A unit without `start` is a linear layer, which an
    adapter may have replaced, and has no memory.

    Raises:
        ConfigError: If logits or memory do not have one row for each state.
    """
    if not hasattr(unit, "start"):
        logits: Tensor = unit(states)
        return logits.squeeze(-1), memory
    if torch.is_autocast_enabled(device := states.device.type):
        with torch.autocast(device, enabled=False):
            return run_unit(unit, states, memory, step)
    logits, memory = unit(states.to(_read_dtype(unit, states)), memory, step)
    if logits.shape != states.shape[:-1]:
        shapes = f"logits of shape {tuple(logits.shape)}, not {tuple(states.shape[:-1])}"
        raise ConfigError(f"halting unit {unit.name!r}: returned {shapes}")
    return logits.float(), _check_memory(unit, memory, states)


def take_memory(memory: UnitMemory, rows: Tensor) -> UnitMemory:
    """Return the memory (k', *) of the states with these positions among k, int64 (k',), which may be on the CPU."""
    return tuple(values[rows.to(values.device, non_blocking=True)] for values in memory)


def count_unit_macs(unit: nn.Module | None, width: int) -> int:
    """Return the multiply-accumulates of a unit for one state; a linear layer of a width takes as many as the width."""
    macs: int = getattr(unit, "macs", width)
    return macs


def _read_dtype(unit: nn.Module, states: Tensor) -> torch.dtype:
    """Return the dtype of the weights of a unit, or of states if it has none."""
    return next((weight.dtype for weight in unit.parameters()), states.dtype)


def _check_memory(unit: nn.Module, memory: UnitMemory, states: Tensor) -> UnitMemory:
    """Return the memory of a unit, or raise an error if a tensor does not have one row for each state."""
    leading = states.shape[:-1]
    for values in memory:
        if values.shape[: len(leading)] != leading:
            shapes = f"{tuple(values.shape)}, whose first dimensions are not {tuple(leading)}"
            raise ConfigError(f"halting unit {unit.name!r}: returned a memory of shape {shapes}")
    return memory
