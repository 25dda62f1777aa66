"""Base class of model outputs whose fields are assigned one after the other."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, cast

from transformers.utils import ModelOutput


class FieldOrderedOutput(ModelOutput):
    """`ModelOutput` whose tuple follows the order of its declared fields, not the order of assignment."""

    def to_tuple(self) -> tuple[Any, ...]:
        """Return the values of all fields that are not None, in declared order."""
        return tuple(self[field.name] for field in fields(cast(Any, self)) if field.name in self)
