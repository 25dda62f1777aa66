"""Checks of the stored states (optimizer, schedule, random numbers) from which training resumes.

PyTorch replaces a live state by a stored one without checks. Fused kernels then access memory out of bounds if the
moments have another shape, and a missing state silently starts from zero. Therefore a state is loaded only if it has
the structure of the live one.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainingArguments
from transformers.trainer_pt_utils import safe_globals

# Options of a group of parameters that a schedule sets, and options of the implementation of a step.
_SCHEDULED = ("lr",)
_EXECUTION = ("fused", "foreach", "capturable", "differentiable")
_POSITIONS = 624  # numbers of a Mersenne twister's state


def check_optimizer_state(optimizer: torch.optim.Optimizer, stored: Any, names: Sequence[str]) -> None:
    """Raise an error if a stored optimizer state does not fit the optimizer.

    Args:
        optimizer: Live optimizer with its groups of parameters.
        stored: Stored state, as `state_dict` returns it.
        names: Names of the parameters, in the order of the groups.

    Raises:
        ValueError: If the state does not fit; the message names the parameter or the option.
    """
    check_structure(stored)
    _check_groups(optimizer.param_groups, stored["param_groups"])
    parameters = [(group, weight) for group in optimizer.param_groups for weight in group["params"]]
    if unknown := [key for key in stored["state"] if type(key) is not int or not 0 <= key < len(parameters)]:
        raise ValueError(
            f"the stored state has an entry for parameter {unknown[0]!r}, but there are {len(parameters)} parameters"
        )
    examples = {id(group): _make_example_state(optimizer, group) for group in optimizer.param_groups}
    for number, state in stored["state"].items():
        group, weight = parameters[number]
        if problem := _check_state(state, examples[id(group)], weight):
            raise ValueError(f"the stored state of {names[number]!r} {problem}")


_PARTS = {"state": Mapping, "param_groups": list}


def check_structure(stored: Any) -> None:
    """Raise an error if a stored state is not that of an optimizer, with a list of parameters in every group.

    Raises:
        ValueError: If a part is missing.
    """
    if not isinstance(stored, Mapping) or not all(isinstance(stored.get(key), kind) for key, kind in _PARTS.items()):
        raise ValueError("the file holds no optimizer state")
    for number, group in enumerate(stored["param_groups"]):
        if not isinstance(group, Mapping) or not isinstance(group.get("params"), list):
            raise ValueError(f"the stored parameter group {number} has no list of parameters")


def stateless_parameters(optimizer: torch.optim.Optimizer) -> list[int]:
    """Return the numbers of the parameters without optimizer state, which have had no gradient so far."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    return [number for number, weight in enumerate(weights) if not optimizer.state.get(weight)]


def find_frozen(
    optimizer: torch.optim.Optimizer, stored: Mapping[str, Any], stateless: Sequence[int] | None
) -> set[int]:
    """Return the numbers of the stored parameters that the optimizer lacks, because they are frozen now.

    Earlier versions gave the optimizer also parameters that no loss trains, and which therefore had no state. The
    result is empty unless the groups fit without exactly these.

    Args:
        optimizer: Live optimizer with its groups of parameters.
        stored: Stored state, as `state_dict` returns it.
        stateless: Numbers of the parameters that had no state when it was stored; None: those that have none in it.
    """
    groups = [set(group["params"]) for group in stored["param_groups"]]
    idle = set(stateless) if stateless is not None else set().union(*groups) - stored["state"].keys()
    fits = [len(group - idle) for group in groups] == [len(group["params"]) for group in optimizer.param_groups]
    return idle if fits else set()


def check_completeness(stored: Mapping[str, Any], stateless: Sequence[int], names: Sequence[str]) -> None:
    """Raise an error if a stored optimizer state lacks the state of a parameter.

    Every parameter that had a state when the checkpoint was written must have one.

    Raises:
        ValueError: If a state is missing; the message names the parameter.
    """
    missing = [number for number in range(len(names)) if not stored["state"].get(number) and number not in stateless]
    if missing:
        raise ValueError(f"the stored state of {names[missing[0]]!r} is missing")


def parameter_names(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """Return the names of an optimizer's parameters, in the order of its groups."""
    names = {id(weight): name for name, weight in model.named_parameters()}
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    return [names.get(id(weight), f"parameter {number}") for number, weight in enumerate(weights)]


def _check_groups(groups: Sequence[Mapping[str, Any]], stored: Sequence[Any]) -> None:
    if len(groups) != len(stored):
        raise ValueError(f"the stored state has {len(stored)} parameter groups, but {len(groups)} are needed")
    first = 0
    for number, (group, other) in enumerate(zip(groups, stored, strict=True)):
        size = len(group["params"])
        if not isinstance(other, Mapping) or other.get("params") != list(range(first, first + size)):
            raise ValueError(
                f"the stored parameter group {number} must have the parameters {first} to {first + size - 1}"
            )
        first += size
        for key, value in other.items():
            if problem := _check_option(key, value, group):
                raise ValueError(f"the stored parameter group {number}: {key} {problem}")


def _check_option(key: str, value: Any, group: Mapping[str, Any]) -> str | None:
    """Return how a stored parameter-group option differs from the optimizer's current one, or None.

    An option that no schedule changes must equal the setting of the run.
    """
    if key == "step":  # LAMB counts its updates in the group
        is_count = type(value) is int and value >= 0
        return None if is_count else f"must be a whole number of at least 0, not {_abbreviate(value)}"
    if key in ("params", *_EXECUTION) or key not in group:
        return None
    if key in _SCHEDULED:
        if isinstance(value, Tensor) and value.ndim == 0:
            value = value.item()
        is_rate = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
        return None if is_rate else f"must be a number of at least 0, not {_abbreviate(value)}"
    expected = list(group[key]) if isinstance(group[key], tuple) else group[key]
    value = list(value) if isinstance(value, tuple) else value
    is_equal = type(value) is type(expected) and value == expected
    is_number = isinstance(expected, int | float) and isinstance(value, int | float) and value == expected
    return None if is_equal or is_number else f"is {_abbreviate(value)}, but the settings say {_abbreviate(expected)}"


def _make_example_state(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the optimizer state of a 2 x 2 zero matrix after one step, as an example of its structure."""
    weight = nn.Parameter(torch.zeros(2, 2))
    weight.grad = torch.zeros_like(weight)
    twin: Any = copy.copy(optimizer)
    twin.__dict__ |= {key: value for key, value in vars(optimizer).items() if key not in ("step", "state")}
    options = {key: copy.deepcopy(value) for key, value in group.items() if key != "params"}
    twin.param_groups, twin.state = [{**options, "params": [weight]}], defaultdict(dict)
    type(optimizer).step(twin)
    state: Mapping[str, Any] = twin.state[weight]
    return state


def _check_state(state: Any, examples: Mapping[str, Any], weight: Tensor) -> str | None:
    if not isinstance(state, Mapping) or state.keys() != examples.keys():
        has = ", ".join(map(str, state)) if isinstance(state, Mapping) else _abbreviate(state)
        return f"has {has or 'nothing'}; needed is {', '.join(examples) or 'nothing'}"
    for name, example in examples.items():
        problem = _check_state_part(state[name], example, weight)
        if problem:
            return f"has {problem} as {name}"
    return None


def _check_state_part(value: Any, example: Any, weight: Tensor) -> str | None:
    """Return how a stored tensor or number of a parameter's optimizer state differs from its expected form, or None."""
    if not isinstance(example, Tensor):
        is_count = type(value) is type(example) and math.isfinite(value) and value >= 0
        return None if is_count else _abbreviate(value)
    shape = weight.shape if example.ndim else example.shape
    if not isinstance(value, Tensor) or value.layout is not torch.strided:
        return f"{_abbreviate(value)} where a tensor is needed"
    if value.shape != shape:
        return f"a tensor of shape {tuple(value.shape)} where {tuple(shape)} is needed"
    if value.dtype.is_floating_point != example.dtype.is_floating_point or value.dtype.is_complex:
        return f"a tensor of {value.dtype} where one like {example.dtype} is needed"
    local: Any = value.to_local() if hasattr(value, "to_local") else value
    if not bool(local.isfinite().all()) or (not example.ndim and value.item() < 0):
        return "an impossible number"
    return None


def difference(stored: Any, live: Any, name: str = "") -> str | None:
    """Return the first difference in structure between a stored state and the current one, or None.

    Mappings may lack keys that older versions did not write. Numbers must be finite, unless the live number is
    infinite.

    Args:
        stored: Stored state, nested from dictionaries, lists, tuples, tensors, numbers, texts and None.
        live: Live state that will be replaced; None allows any value.
        name: Name of the compared part, for the message.
    """
    return next(_differences(stored, live, name), None)


def _differences(stored: Any, live: Any, name: str) -> Iterator[str]:
    where = name or "it"
    if isinstance(live, Mapping):
        if not isinstance(stored, Mapping):
            yield f"{where} must be a mapping, not {_abbreviate(stored)}"
            return
        for key in stored:
            if key not in live:
                yield f"{where} has {key!r}, which is unknown"
            else:
                yield from _differences(stored[key], live[key], f"{name}.{key}" if name else str(key))
    elif isinstance(live, list | tuple):
        if not isinstance(stored, list | tuple) or len(stored) != len(live):
            yield f"{where} must be a list of {len(live)}, not {_abbreviate(stored)}"
            return
        for number, pair in enumerate(zip(stored, live, strict=True)):
            yield from _differences(*pair, f"{name}.{number}" if name else str(number))
    elif isinstance(live, Tensor):
        if not isinstance(stored, Tensor) or stored.shape != live.shape or stored.dtype != live.dtype:
            yield f"{where} must be a tensor of shape {tuple(live.shape)} and {live.dtype}, not {_abbreviate(stored)}"
    elif isinstance(live, bool | str):
        if type(stored) is not type(live):
            kind = "true or false" if isinstance(live, bool) else "a text"
            yield f"{where} must be {kind}, not {_abbreviate(stored)}"
    elif isinstance(live, int | float):
        may_be = (int,) if isinstance(live, int) else (int, float)
        is_number = isinstance(stored, may_be) and not isinstance(stored, bool)
        if not is_number or math.isnan(stored) or (math.isinf(stored) and not math.isinf(live)):
            yield f"{where} must be a {'whole ' if isinstance(live, int) else ''}number, not {_abbreviate(stored)}"


def check_schedule(schedule: Any, stored: Any, updates: int, *, may_skip: bool) -> None:
    """Raise an error if the stored state of a learning-rate schedule does not fit the schedule.

    Args:
        schedule: Live schedule.
        stored: Stored state, as `state_dict` returns it.
        updates: Number of optimiser steps before the checkpoint was written.
        may_skip: Whether steps may be skipped because their gradients overflow, as in fp16.

    Raises:
        ValueError: Naming the part.
    """
    compared = stored
    if isinstance(stored, Mapping):
        compared = {key: value for key, value in stored.items() if key != "verbose"}
    check_like(compared, schedule.state_dict())
    for name, expected in (("base_lrs", getattr(schedule, "base_lrs", None)), ("last_epoch", updates)):
        value = stored.get(name)
        if name == "last_epoch" and (may_skip or not isinstance(schedule, LambdaLR)):
            continue
        if None not in (value, expected) and value != expected:
            raise ValueError(f"{name} is {_abbreviate(value)}, but the run has {_abbreviate(expected)}")


def check_like(stored: Any, live: Any, name: str = "") -> None:
    """Raise an error if a stored state has another structure than the current one; see `difference`.

    Raises:
        ValueError: Naming the part.
    """
    if problem := difference(stored, live, name):
        raise ValueError(problem)


def check_random_file(checkpoint: Path, args: TrainingArguments) -> None:
    """Raise an error if the checkpoint's file of this process's random states is not valid."""
    name = f"rng_state_{args.process_index}.pth" if args.world_size > 1 else "rng_state.pth"
    if (checkpoint / name).is_file():
        with safe_globals():
            check_random_state(torch.load(checkpoint / name, weights_only=True))


def check_random_state(stored: Any) -> None:
    """Raise an error if stored random-generator states cannot be restored.

    NumPy does not check the position within its 624 numbers, and would read out of bounds.

    Raises:
        ValueError: If a part is missing, or the position is out of range.
    """
    if not isinstance(stored, Mapping) or not {"python", "numpy", "cpu"} <= stored.keys():
        raise ValueError("the file holds no random-generator states")
    numpy_state = stored["numpy"]
    if not isinstance(numpy_state, tuple | list) or len(numpy_state) != 5:
        raise ValueError("numpy: the random-generator state is missing")
    position = numpy_state[2]
    if type(position) is not int or not 0 <= position <= _POSITIONS:
        raise ValueError(
            f"numpy: the random generator's position must be 0 to {_POSITIONS}, not {_abbreviate(position)}"
        )


def _abbreviate(value: Any) -> str:
    """Format a value as a short text for messages."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)} and {value.dtype}"
    text = repr(value)
    return text if len(text) <= 60 else f"a {type(value).__name__}"
