"""Model families, one folder each. Public names are imported lazily, at their first use.

The first use registers all families with the Auto classes of transformers. `adadepth.models.registry` finds the
families without importing torch.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any


@cache
def public_names() -> Mapping[str, Callable[[], Any]]:
    """Return the importer of every public class and function by name, without importing them.

    If a family and the entry-point group `adadepth.names` define the same name, the name of the family is used.
    """
    from adadepth.config.plugins import get_import_path, list_plugin_importers
    from adadepth.models.registry import families

    names = list_plugin_importers("adadepth.names")
    names |= {
        "StepwiseOutput": _import_stepwise_output,
        "convert_reference_config": _import_config_conversion,
        "convert_reference_state_dict": _import_weight_conversion,
    }
    for family in families().values():
        package = family.settings.__module__.partition(".")[0]
        importers = (family.config, *family.heads.values(), *family.auto.values())
        paths = [get_import_path(importer) for importer in importers]
        names |= {
            name: importer
            for (module, name), importer in zip(paths, importers, strict=True)
            if module.partition(".")[0] == package
        }
        names |= family.public
    return names


def _import_stepwise_output() -> type[Any]:
    from adadepth.models.depth.outputs import StepwiseOutput

    return StepwiseOutput


def _import_config_conversion() -> Callable[..., Any]:
    from adadepth.models.shared.convert import convert_reference_config

    return convert_reference_config


def _import_weight_conversion() -> Callable[..., Any]:
    from adadepth.models.shared.convert import convert_reference_state_dict

    return convert_reference_state_dict


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted(public_names())
    if name.startswith("_") or name not in (names := public_names()):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from adadepth.models.auto import register_auto_classes

    register_auto_classes()
    return names[name]()


def __dir__() -> list[str]:
    return sorted(public_names())
