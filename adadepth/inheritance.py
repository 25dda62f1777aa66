"""What `mode=evaluate` and `mode=predict` take from the run of their checkpoint.

Data, tokenizer and context are those of the run, unless the command line names others.
"""

import copy
import dataclasses
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from adadepth.config import ContextConfig, Mode, Source, TokenizerConfig
from adadepth.data_sets import dataset_schemas
from adadepth.training.run_directory import model_path, read_record, read_settings, run_of_checkpoint

_SCHEMAS = {"tokenizer": TokenizerConfig, "context": ContextConfig}
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def with_inherited(composed: DictConfig, given: Set[str]) -> DictConfig:
    """Return a composed configuration with what it inherits from the run that its `checkpoint` is from.

    A group that the command line chose stays as it is composed; of the other groups, each key that it gave does.

    Args:
        composed: Any; where no run's checkpoint is evaluated or predicts it is returned as it is.
        given: Groups and keys of the command line.
    """
    if (run := _run_of(composed)) is None:
        return composed
    stored = read_settings(run)
    inheriting = copy.deepcopy(composed)
    for group in _inherited_groups(given):
        values = stored.get(group) or {}
        schema = data_schema(run, set(values)) if group == "dataset" else _SCHEMAS[group]
        settings = OmegaConf.merge(OmegaConf.structured(schema), values)
        if group == "tokenizer" and (own := _own_tokenizer(composed)) is not None:
            settings.path = own
        if group == "dataset" and "dataset.path" in given and settings.source is Source.hub:
            settings.source = Source.auto
        for key in _given_keys(group, given):
            OmegaConf.update(settings, key, OmegaConf.select(composed, f"{group}.{key}"), merge=False)
        inheriting[group] = settings
    return inheriting


def inheritance(composed: DictConfig, given: Set[str]) -> str | None:
    """Say in a line what `with_inherited` takes from a run; None: nothing."""
    groups, run = list(_inherited_groups(given)), _run_of(composed)
    if run is None or not groups:
        return None
    but = [f"{group}.{key}" for group in groups for key in _given_keys(group, given)]
    return f"{', '.join(groups)} as in {run}" + (f", but for {', '.join(but)}" if but else "")


def _run_of(composed: Any) -> Path | None:
    """Return the folder of the run whose checkpoint is used; None: there is none, or it is from no run."""
    return run_of_checkpoint(composed) if composed.mode in (Mode.evaluate, Mode.predict) else None


def _inherited_groups(given: Set[str]) -> Iterator[str]:
    return (group for group in ("dataset", "tokenizer", "context") if group not in given)


def _given_keys(group: str, given: Set[str]) -> list[str]:
    return sorted(key.removeprefix(f"{group}.") for key in given if key.startswith(f"{group}."))


def data_schema(run: Path, keys: Set[str]) -> type:
    """Return the dataclass of a run's data: its record names it, that of an older run follows from the keys."""
    schemas = dataset_schemas()
    if (name := read_record(run).get("dataset_schema")) in schemas:
        return schemas[name]
    fields = {schema: {field.name for field in dataclasses.fields(schema)} for schema in schemas.values()}
    return min(fields, key=lambda schema: (len(fields[schema] ^ keys), len(schema.__mro__)))


def _own_tokenizer(composed: Any) -> str | None:
    """Return the folder of the checkpoint if a tokenizer was saved with it: the run's, wherever that came from."""
    model = model_path(composed)
    return model if any(Path(model, name).is_file() for name in _TOKENIZER_FILES) else None
