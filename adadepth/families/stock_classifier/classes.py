"""The classes of a head and those of a data set, matched by name."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from adadepth.errors import ConfigError

logger = logging.getLogger(__name__)


def class_names(config: PreTrainedConfig) -> list[str]:
    """Names of the head's classes, in its order."""
    names: Any = config.id2label
    return [names[number] for number in range(len(names))]


def are_numbered(names: Sequence[str]) -> bool:
    """Whether these are what transformers calls classes that nobody has named: LABEL_0, LABEL_1."""
    return list(names) == [f"LABEL_{number}" for number in range(len(names))]


def class_order(own: Sequence[str], wanted: Sequence[str]) -> list[int] | None:
    """Where the head has each of the wanted classes.

    Names are compared as they are, then whatever their case; classes without names are in the data's order.

    Args:
        own: The head's classes.
        wanted: The data's.

    Returns:
        A number of the head's for each wanted class; None where the two are not the same classes.
    """
    for read in (str, str.casefold):
        places = {read(name): place for place, name in enumerate(own)}
        names = [read(name) for name in wanted]
        if sorted(places) == sorted(names) and len(places) == len(own):
            return [places[name] for name in names]
    return list(range(len(own))) if are_numbered(own) and len(own) == len(wanted) else None


def take_classes(model: PreTrainedModel, wanted: Sequence[str]) -> None:
    """Put the rows of the head's last layer into the data's order, and give the classes the data's names.

    Raises:
        ConfigError: If the head has other classes.
    """
    own = class_names(model.config)
    order = class_order(own, wanted)
    if order is None:
        raise ConfigError(f"its head has the classes {', '.join(own)}; the data have {', '.join(wanted)}")
    if are_numbered(own) and not are_numbered(wanted):
        logger.warning("%s: its classes have no names; taken to be %s", model.name_or_path, ", ".join(wanted))
    last = _last_layer(model)
    for parameter in (last.weight, last.bias):
        if parameter is not None:
            parameter.data = parameter.data[order].contiguous()
    model.config.id2label = dict(enumerate(wanted))
    model.config.label2id = {name: number for number, name in enumerate(wanted)}


def _last_layer(model: PreTrainedModel) -> nn.Linear:
    """The linear map to the classes, which the classifiers of transformers make last."""
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not linear or linear[-1].out_features != model.config.num_labels:
        raise ConfigError(f"{type(model).__name__} does not end in a linear layer of its classes")
    return linear[-1]
