"""Hash of those settings of a run that can change its result."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from adadepth.config import OPTIONAL_GROUPS, DatasetConfig, ExperimentConfig, TrainerConfig
from adadepth.config.declaration import drop_neutral

_RUN = ("task", "mode", "seed", "seeds", "exit_rules")
# Values that None stands for, as older runs wrote them out.
WRITTEN_OUT = {"text_columns": ["sentence"], "label_column": "label"}
_RESULT_KEYS = (*_RUN, "model", "dataset", "tokenizer", *OPTIONAL_GROUPS, "trainer")


def select_result_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run that can change its result, as nested dictionaries.

    Args:
        settings: Configuration, or the file of an earlier run. Missing `OPTIONAL_GROUPS` are filled with their
            defaults.
    """
    selected = {key: settings[key] for key in _RESULT_KEYS if key in settings}
    for key, group in OPTIONAL_GROUPS.items():
        defaults = json.loads(json.dumps(dataclasses.asdict(group())))  # as the file of a run holds them
        selected[key] = defaults | dict(selected.get(key) or {})
    if isinstance(dataset := selected.get("dataset"), Mapping):
        defaults = {key: value for key, value in WRITTEN_OUT.items() if key in dataset and dataset[key] is None}
        selected["dataset"] = {**dataset, **defaults}
    schemas = {"dataset": DatasetConfig, "trainer": TrainerConfig} | OPTIONAL_GROUPS
    return {key: drop_neutral(schemas[key], value) if key in schemas else value for key, value in selected.items()}


def hash_result_settings(config: ExperimentConfig) -> str:
    """Return a hash (8 hexadecimal digits) of the settings that can change a run's result.

    Equal experiments have equal hashes. A group of `OPTIONAL_GROUPS` is included only if it differs from its defaults,
    so that unused groups do not change the hash.
    """
    unused = {key for key, group in OPTIONAL_GROUPS.items() if getattr(config, key) == group()}
    settings = select_result_settings(dataclasses.asdict(config))
    relevant = {key: value for key, value in settings.items() if key not in unused}
    return hashlib.sha256(json.dumps(relevant, sort_keys=True).encode()).hexdigest()[:8]
