"""The base class of model outputs whose fields are set one after the other."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, cast

from transformers.utils import ModelOutput


class FieldOrderedOutput(ModelOutput):
    """A `ModelOutput` whose tuple follows the order of its fields, not the order in which they were set."""

    def to_tuple(self) -> tuple[Any, ...]:
        """Return the values of all fields that are not None, in the order of the fields."""
        return tuple(self[field.name] for field in fields(cast(Any, self)) if field.name in self)
