"""Checks of the settings of halting units and of losses over exits, shared by the families that have them."""

from collections.abc import Collection, Iterator

from adadepth.errors import ConfigError
from adadepth.halting.step_losses import parse_step_loss


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


def find_loss_problems(key: str, text: str, more_names: Collection[str] = ()) -> Iterator[str]:
    """Yield errors of a setting for a text that is no loss over exits.

    Args:
        key: Name of the setting.
        text: Value of the setting.
        more_names: Further values that the setting allows.
    """
    try:
        if text not in more_names:
            parse_step_loss(text, more_names)
    except ConfigError as error:
        yield f"{key}={text}: {error}"
