"""Base class of the outputs of models that can have a key-value cache."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, cast

from transformers import Cache
from transformers.utils import ModelOutput

from adadepth.models.shared.cache_argument import FORMER_NAME


class CacheOutput(ModelOutput):
    """`ModelOutput` with a field `cache`, which can also be read as `past_key_values`.

    Its tuple follows the order of the declared fields, not the order of assignment.
    """

    cache: Cache | None

    @property
    def past_key_values(self) -> Cache | None:
        """The cache."""
        return self.cache

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__("cache" if key == FORMER_NAME else key)

    def __contains__(self, key: object) -> bool:
        return super().__contains__("cache" if key == FORMER_NAME else key)

    def to_tuple(self) -> tuple[Any, ...]:
        """Return the values of all fields that are not None, in declared order."""
        return tuple(self[field.name] for field in fields(cast(Any, self)) if field.name in self)
