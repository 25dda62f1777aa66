"""Model families, one folder each. Public names are imported lazily, at their first use.

The first use registers all families with the Auto classes of transformers. `adadepth.models.registry` finds the
families without importing torch.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

# Public names that belong to no single family.
_SHARED = {
    "StepwiseOutput": "adadepth.models.depth.outputs:StepwiseOutput",
    "convert_reference_config": "adadepth.models.shared.convert:convert_reference_config",
    "convert_reference_state_dict": "adadepth.models.shared.convert:convert_reference_state_dict",
}


@cache
def public_names() -> Mapping[str, str]:
    """Return the import path `"module:name"` of every public model and configuration class.

    If a family and the entry-point group `adadepth.names` define the same name, the name of the family is used.
    """
    from adadepth.config.plugins import list_plugin_paths
    from adadepth.models.registry import families

    names = list_plugin_paths("adadepth.names") | _SHARED
    for family in families().values():
        package = f"{family.settings.__module__.partition('.')[0]}."
        places = (family.config, *family.heads.values(), *family.auto.values())
        names |= {place.partition(":")[2]: place for place in places if place.startswith(package)}
        names |= family.public
    return names


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted(public_names())
    if name.startswith("_") or name not in (paths := public_names()):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from adadepth.models.auto import register_auto_classes
    from adadepth.models.registry import load

    register_auto_classes()
    return load(paths[name])


def __dir__() -> list[str]:
    return sorted(public_names())
