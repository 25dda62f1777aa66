"""Small sizes for `debug=default`, with which any experiment runs in seconds."""

import dataclasses
from collections.abc import Set
from typing import Any

from adadepth.config import ExperimentConfig, Mode, Task
from adadepth.config.declaration import get_field_specs


def apply_debug_sizes(config: ExperimentConfig, overridden: Set[str]) -> ExperimentConfig:
    """Return a copy of the experiment with sizes so small that it runs in seconds, to test the code.

    A pretrained model keeps its sizes. The settings of a search are kept if there is no search.

    Args:
        config: Experiment to shrink.
        overridden: Keys that keep their values.
    """
    groups = ["dataset", "trainer"]
    if config.model.pretrained is None and config.mode is Mode.train:
        groups.append("model")
    if config.tokenizer.path is None:
        groups.append("tokenizer")
    if config.task is Task.architecture_search:
        groups.append("search")
    root = {
        name: spec.debug
        for name, spec in get_field_specs(ExperimentConfig).items()
        if spec.shrinks and name not in overridden
    }
    shrunk_groups = {name: _shrink_group(name, getattr(config, name), overridden) for name in groups}
    return dataclasses.replace(config, **root, **shrunk_groups)


def _shrink_group(group: str, settings: Any, overridden: Set[str]) -> Any:
    values = {}
    for name, spec in get_field_specs(type(settings)).items():
        value = getattr(settings, name)
        is_open = spec.shape and not value  # a shape that something else decides, or that is absent
        if spec.shrinks and f"{group}.{name}" not in overridden and not is_open:
            values[name] = min(value, spec.debug) if spec.shape and isinstance(value, int) else spec.debug
    return dataclasses.replace(settings, **values)
