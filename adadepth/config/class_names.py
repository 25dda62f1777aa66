"""Matching of the classes of a data set with the classes of a trained model by their names."""

from __future__ import annotations

from collections.abc import Sequence

from adadepth.errors import DataError, nearest

_MAX_NAMES = 12  # of a long list in a message


def match_classes(names: Sequence[str], classes: Sequence[str]) -> list[int | None]:
    """Return the model's class number for every class name that data set and model share.

    Names that do not match exactly are compared without regard to case, if they are still unique then.

    Args:
        names: Classes of the data, (C,).
        classes: Classes of the model, in its order.

    Returns:
        Class numbers, (C,), with None for a class that the model does not have.
    """
    exact = {name: number for number, name in enumerate(classes)}
    matches = [exact.get(name) for name in names]
    folded = {name.casefold(): number for number, name in enumerate(classes)}
    are_distinct = len(folded) == len(classes) and len({name.casefold() for name in names}) == len(names)
    if None in matches and are_distinct:
        return [folded.get(name.casefold()) for name in names]
    return matches


def number_classes(names: Sequence[str], classes: Sequence[str], source: str) -> list[int]:
    """Return the model's class number for each class of a data set, (C,); raise an error if a class has no match.

    Args:
        names: Classes of the data.
        classes: Classes of the model, in its order.
        source: Origin of the classes of the data, a setting and its value, for the message.

    Raises:
        DataError: If the model lacks a class of the data; the message names the first one.
    """
    numbers = []
    for name, number in zip(names, match_classes(names, classes), strict=True):
        if number is None:
            raise DataError(
                f"{source}: the model has no class {name!r}{nearest(name, classes)}; it predicts {shorten(classes)}"
            )
        numbers.append(number)
    return numbers


def are_numbered(names: Sequence[str]) -> bool:
    """Return whether class names are transformers' defaults: LABEL_0, LABEL_1, ..."""
    return list(names) == [f"LABEL_{number}" for number in range(len(names))]


def shorten(names: Sequence[str]) -> str:
    """Format names as one line, with the middle of a long list omitted."""
    return ", ".join(names[:_MAX_NAMES]) + (f", and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else "")
