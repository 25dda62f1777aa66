"""What every kind of data has, and where data come from."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from adadepth.declaration import MISSING, at_least, setting

Source = StrEnum("Source", ["embedded", "local", "hub", "auto"])


@dataclass
class DatasetConfig:
    """What every data set has."""

    name: str = setting(MISSING, "shown in reports")
    sequence_length: int = setting(128, "tokens, including [CLS] and [SEP] where there are any", at_least(8))
    cache_dir: str | None = setting(None, "prepared data; None: the user's cache folder", neutral=True)


@dataclass
class ExamplesConfig(DatasetConfig):
    """Data that consist of examples, in any order."""

    max_evaluation_examples: int | None = setting(2000, "None: all", at_least(1), debug=8)
    pad_to_length: bool = setting(False, "pad every batch to sequence_length: fixed shapes for compiled runs")


def local_or_hub(source: Source, path: Any) -> Source:
    """What `auto` means, decided once, so that whoever reads a configuration sees where its data came from."""
    if source is not Source.auto:
        return source
    return Source.local if path else Source.hub


@dataclass
class HubTable:
    """A data set of the hub."""

    path: str | None = setting(None, "its name there, or a local folder in its layout")
    name: str | None = setting(None, "of one of its configurations")
