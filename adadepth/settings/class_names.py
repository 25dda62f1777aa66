"""Classes of data and classes of a model are the same where they have the same name, wherever each has its number."""

from __future__ import annotations

from collections.abc import Sequence

from adadepth.errors import DataError, nearest

_SHOWN = 12  # names of a long list in a message


def match_classes(names: Sequence[str], known: Sequence[str]) -> list[int | None]:
    """Return the number among the known classes of each class that is named.

    Names are compared as they are; where these do not suffice, regardless of case, if that tells all of them apart.

    Args:
        names: Classes of the data, (C,).
        known: Classes of the model, in its order.

    Returns:
        (C,) numbers; None for a class that is not known.
    """
    exact = {name: number for number, name in enumerate(known)}
    matches = [exact.get(name) for name in names]
    folded = {name.casefold(): number for number, name in enumerate(known)}
    is_told_apart = len(folded) == len(known) and len({name.casefold() for name in names}) == len(names)
    if None in matches and is_told_apart:
        return [folded.get(name.casefold()) for name in names]
    return matches


def number_classes(names: Sequence[str], known: Sequence[str], source: str) -> list[int]:
    """Return the model's number of each class of the data, (C,).

    Args:
        names: Classes of the data.
        known: Classes of the model, in its order.
        source: What the data's classes come from, for the message: a setting and its value.

    Raises:
        DataError: The model does not have a class of the data; names the first.
    """
    numbers = []
    for name, number in zip(names, match_classes(names, known), strict=True):
        if number is None:
            raise DataError(
                f"{source}: the model has no class {name!r}{nearest(name, known)}; it predicts {shorten(known)}"
            )
        numbers.append(number)
    return numbers


def are_numbered(names: Sequence[str]) -> bool:
    """Return whether these are what transformers calls classes that nobody has named: LABEL_0, LABEL_1."""
    return list(names) == [f"LABEL_{number}" for number in range(len(names))]


def shorten(names: Sequence[str]) -> str:
    """Return the names in a line, a long list cut."""
    return ", ".join(names[:_SHOWN]) + (f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
