"""Folders and names of YAML configuration files, and the options of the command line that choose among them.

Needs neither Hydra nor OmegaConf, so help is fast.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from adadepth.errors import ConfigError
from adadepth.models.registry import config_folders

_PACKAGE = Path(__file__).resolve().parents[1]
_INSTALLED = _PACKAGE / "configs"  # a wheel has those of the repository here
CONFIGS = _INSTALLED if _INSTALLED.is_dir() else _PACKAGE.parent / "configs"


def list_config_folders() -> list[Path]:
    """Return the folders that Hydra searches for YAML configuration files.

    They are, in order, the folder of this package, the user's folder, and those of model families.
    """
    folder = _find_user_folder()
    return [CONFIGS, *([] if folder is None else [folder]), *config_folders()]


def check_user_folder() -> None:
    """Raise an error for a user's YAML file that has the name of a built-in one, since Hydra would ignore it."""
    if (folder := _find_user_folder()) is None:
        return
    if not folder.is_dir():
        raise ConfigError(f"--config-dir {folder}: no such folder")
    from adadepth.cli.yaml_files import check_yaml  # needs OmegaConf, help does not

    shipped = [CONFIGS, *(path for path in config_folders() if path.is_relative_to(_PACKAGE))]
    for path in (*folder.glob("*.yaml"), *folder.glob("*/*.yaml"), *folder.glob("*/*/*.yaml")):
        check_yaml(path)
        name = path.relative_to(folder)
        if any((parent / name).is_file() for parent in shipped):
            raise ConfigError(f"--config-dir {folder}: adadepth already has a configuration {name}; rename yours")


def _find_user_folder() -> Path | None:
    folder = parse_options(sys.argv[1:])[0].config_dir
    return None if folder is None else Path(folder)


def parse_options(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Split the command line into options that are handled before Hydra starts, and the rest.

    Raises:
        ConfigError: If an option has no value.
    """
    options = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    options.error = raise_option_error  # type: ignore[method-assign]
    options.add_argument("--help", "-h", nargs="?", const="")
    options.add_argument("--version", action="store_true")
    options.add_argument("--config-dir", "-cd")
    options.add_argument("--config-name", "-cn")
    return options.parse_known_args(words)


def raise_option_error(message: str) -> NoReturn:
    """Raise an error of a parser of options in one line, where argparse would print the usage and exit."""
    raise ConfigError(message.removeprefix("argument "))


def parse_config_name(words: Sequence[str]) -> str | None:
    """Return the value of the flag ``--config-name``, or None if it is absent."""
    name = parse_options(words)[0].config_name
    return None if name is None else str(name).removesuffix(".yaml")


def list_configs(folders: Sequence[Path]) -> list[str]:
    """Return the names that ``--config-name`` accepts, which are those of the YAML files in the folders."""
    return sorted({path.stem for folder in folders for path in folder.glob("*.yaml")})


def list_published_configs(folders: Sequence[Path]) -> list[str]:
    """Return the experiments for which ``preset=paper`` exists, which repeats a published run."""
    return sorted({path.stem for folder in folders for path in folder.glob("preset/paper/*.yaml")})
