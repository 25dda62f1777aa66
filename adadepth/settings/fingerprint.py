"""What of a configuration may change a result, and its hash."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from adadepth.settings import OPTIONAL_GROUPS, DatasetConfig, ExperimentConfig, TrainerConfig
from adadepth.settings.declaration import without_neutral

_RUN = ("task", "mode", "seed", "seeds", "exit_rules")
# What a data set's None meant when it was written out.
WRITTEN_OUT = {"text_columns": ["sentence"], "label_column": "label"}
_RESULT_KEYS = (*_RUN, "model", "dataset", "tokenizer", *OPTIONAL_GROUPS, "trainer")


def result_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Select from a configuration, as nested dictionaries, what may change a result.

    Args:
        settings: A configuration, or what the file of an earlier run says, which may lack what is newer: of
            `OPTIONAL_GROUPS` it then had the defaults.
    """
    chosen = {key: settings[key] for key in _RESULT_KEYS if key in settings}
    for key, group in OPTIONAL_GROUPS.items():
        chosen[key] = _plain(group()) | dict(chosen.get(key) or {})
    if isinstance(dataset := chosen.get("dataset"), Mapping):
        named = {key: value for key, value in WRITTEN_OUT.items() if key in dataset and dataset[key] is None}
        chosen["dataset"] = {**dataset, **named}
    kinds = {"dataset": DatasetConfig, "trainer": TrainerConfig} | OPTIONAL_GROUPS
    return {key: without_neutral(kinds[key], value) if key in kinds else value for key, value in chosen.items()}


def result_hash(config: ExperimentConfig) -> str:
    """Hash (8 hexadecimal digits) of the settings that may change a result; equal for equal experiments.

    A group of `OPTIONAL_GROUPS` takes part only where it differs from its defaults, so that a run's hash does not
    depend on what it does not use.
    """
    unused = {key for key, group in OPTIONAL_GROUPS.items() if getattr(config, key) == group()}
    settings = result_settings(dataclasses.asdict(config))
    relevant = {key: value for key, value in settings.items() if key not in unused}
    return hashlib.sha256(json.dumps(relevant, sort_keys=True).encode()).hexdigest()[:8]


def _plain(group: Any) -> dict[str, Any]:
    """A group's settings as the file of a run holds them."""
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(group)))
    return plain
