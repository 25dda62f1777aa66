"""Check of the setting `halting_unit`, shared by the families with a halting unit."""

from collections.abc import Iterator

from adadepth.errors import ConfigError


def find_unit_problems(text: str) -> Iterator[str]:
    """Yield an error of `model.halting_unit` for a text that is no halting unit.

    Other units than `linear` are classes of torch, which is imported for them only.
    """
    if text == "linear":
        return
    from adadepth.halting.units import parse_halting_unit

    try:
        parse_halting_unit(text)
    except ConfigError as error:
        yield f"model.halting_unit={text}: {error}"
