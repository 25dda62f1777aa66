"""Check of the setting `halting_unit`, shared by the families with a halting unit."""

from collections.abc import Iterator

from adadepth.errors import ConfigError


def find_unit_problems(text: str, gate: str = "", has_gate: bool = True) -> Iterator[str]:
    """Yield errors of `model.halting_unit` for a text that is no halting unit, and for a model without a unit.

    Other units than `linear` are classes of torch, which is imported for them only.

    Args:
        text: Value of the setting.
        gate: Setting that gives a model a halting unit.
        has_gate: Value of that setting.
    """
    if text == "linear":
        return
    if not has_gate:
        yield f"model.halting_unit={text}: only used with model.{gate}=true"
    from adadepth.halting.units import parse_halting_unit

    try:
        parse_halting_unit(text)
    except ConfigError as error:
        yield f"model.halting_unit={text}: {error}"
