"""The kinds of data that a configuration can name: those of this package, and the data sets of installed packages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from adadepth.config import (
    ChoiceConfig,
    DatasetConfig,
    LabelledConfig,
    QuestionConfig,
    Source,
    TableConfig,
    TaggingConfig,
)
from adadepth.config.kinds import DATASET_SCHEMAS
from adadepth.plugins import installed

GROUP = "adadepth.datasets"

# What is predicted follows from which of these a data set's settings extend.
_TABLES = (LabelledConfig, TaggingConfig, QuestionConfig, ChoiceConfig)


@dataclass(frozen=True)
class DataSet:
    """All that is known of a data set of an installed package, which reads its tables itself.

    Attributes:
        settings: A subclass of `LabelledConfig` (classes or values of texts), `TaggingConfig`, `QuestionConfig` or
            `ChoiceConfig`, whose `name` is the data set's and whose `source` is `local`: what `dataset=NAME` fills.
        tables: `"module:function"`: from these settings to an `adadepth.data.labelled.table.Table` for every split, by
            its name. Tokens, labels, the cache, held-out rows and batches are made of them as of any other table.
    """

    settings: type[TableConfig]
    tables: str


@cache
def installed_data_sets() -> Mapping[str, DataSet]:
    """The data sets of installed packages by name.

    Raises:
        ConfigError: If one is broken, or has a name that is taken.
    """
    return installed(GROUP, "data set", DATASET_SCHEMAS, _wrong)


def dataset_schemas() -> dict[str, type[DatasetConfig]]:
    """The settings of every kind of data by the name that YAML files extend."""
    return DATASET_SCHEMAS | {name: each.settings for name, each in installed_data_sets().items()}


def installed_data_set(dataset: DatasetConfig) -> DataSet | None:
    """The data set of an installed package that these settings are of; None: of this package's own kinds."""
    return next((each for each in installed_data_sets().values() if type(dataset) is each.settings), None)


def _wrong(descriptor: object, name: str) -> str | None:
    """What keeps an object from being the descriptor of the data set of that name."""
    if not isinstance(descriptor, DataSet):
        return f"must be an adadepth.data_sets.DataSet, not {type(descriptor).__name__}"
    settings = descriptor.settings
    if not issubclass(settings, _TABLES):
        known = ", ".join(kind.__name__ for kind in _TABLES)
        return f"its settings must extend one of {known}, not {settings.__name__}"
    if settings.name != name:
        return f"its settings call it {settings.name!r}"
    if settings.source is not Source.local:
        return f"its settings must have source=local, not {settings.source}"
    if descriptor.tables.count(":") != 1:
        return f"{descriptor.tables!r} must be 'module:function'"
    return None
