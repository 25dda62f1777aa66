"""What the command line says before Hydra reads it: where configurations lie, which one is meant, and help."""

import argparse
import re
import sys
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from adadepth.cli.composition import check_yaml
from adadepth.cli.help import about, usage, versions
from adadepth.cli.hints import known_configs, published_configs
from adadepth.cli.python_values import from_python
from adadepth.errors import ConfigError, nearest
from adadepth.families.registry import config_folders
from adadepth.runs.directory import read_record
from adadepth.system.demos import DEMO_PREFIX, resolve_demo

_PACKAGE = Path(__file__).resolve().parents[1]
_INSTALLED = _PACKAGE / "configs"  # where a wheel puts those of the repository
CONFIGS = _INSTALLED if _INSTALLED.is_dir() else _PACKAGE.parent / "configs"

# Of Hydra's flags, those that take a value after an equals sign.
_HYDRA_FLAGS = frozenset(
    {"--cfg", "--package", "--shell-completion", "--config-path", "--config-name", "--config-dir", "--info"}
)
_FLAGS = _HYDRA_FLAGS | {"--help", "--hydra-help", "--version", "--run", "--multirun", "--resolve"}


def arguments(given: list[str]) -> list[str]:
    """Put the overrides last, where Hydra's parser wants them together, and see to it that there is a configuration.

    ``--key=value``, as the agent of a W&B sweep writes it, is an override, too. A run's folder says its configuration.
    Raises ``ConfigError`` without ``--config-name``, which Hydra would run as an empty configuration.
    """
    if unreadable := [item for item in given if not _is_unicode(item)]:
        raise ConfigError(f"{unreadable[0]!r}: not in UTF-8")
    if any(len(item) > 3 and "--experimental-rerun".startswith(item.partition("=")[0]) for item in given):
        raise ConfigError("--experimental-rerun: not here, because it runs whatever is in the file; repeat the command")
    given = [item.removeprefix("--") if _is_dashed_override(item) else item for item in given]
    overrides = [item for item in given if not item.startswith("-") and ("=" in item or item.startswith("~"))]
    options = [item for item in given if item not in overrides]
    if any(item.lstrip("+~").startswith("hydra.searchpath") for item in overrides):
        raise ConfigError("hydra.searchpath: say the folder with --config-dir")
    overrides = [beyond_ascii(from_python(verbatim(item))) for item in overrides]
    flags = {option.split("=")[0] for option in options}
    if not flags & {"--config-name", "-cn"} and (root := _root_of_run(overrides)):
        return ["--config-name", root, *options, *(expand_preset(item, root) for item in overrides)]
    if not flags & {"--config-name", "-cn", "--hydra-help", "--shell-completion", "-sc"}:
        if any(_names_latest(item) for item in overrides):
            raise ConfigError("latest: the newest run of a configuration, which --config-name says")
        raise ConfigError(_without_configuration(options))
    name = _config_name(options)
    return options + [expand_preset(item, name) for item in overrides]


def expand_preset(override: str, config_name: str | None) -> str:
    """Name the published run of a configuration in `preset=paper`, also among the values of a sweep.

    Hydra cannot choose an option by the name of the configuration: `preset/paper` has one option a configuration.

    Returns:
        `preset=paper/act_tiny` for act_tiny; any other override as it is.

    Raises:
        ConfigError: The configuration is known and has no published run.
    """
    key, _, value = override.partition("=")
    presets = [preset.strip() for preset in value.split(",")]
    if key != "preset" or "paper" not in presets or config_name not in known_configs(folders()):
        return override
    if config_name not in (published := published_configs(folders())):
        raise ConfigError(f"preset=paper: {config_name} has no published run; {', '.join(published)} have")
    return "preset=" + ",".join(f"paper/{config_name}" if preset == "paper" else preset for preset in presets)


def _config_name(options: list[str]) -> str | None:
    """Return the name after the flag of the configuration, or after its equals sign; None without that flag."""
    flags = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    flags.add_argument("--config-name", "-cn")
    name = flags.parse_known_args(options)[0].config_name
    return None if name is None else str(name).removesuffix(".yaml")


def _without_configuration(options: list[str]) -> str:
    """What is wrong where no configuration is named: most likely what else is there."""
    known = known_configs(folders())
    for option in (item.partition("=")[0] for item in options):
        if option in known:
            return f"{option}: a configuration is named with --config-name {option}"
        if option.startswith("--") and option not in _FLAGS and not "--config-name".startswith(option):
            return f"{option}: unknown option{nearest(option, _FLAGS)}"
    return f"--config-name is missing; known configurations: {', '.join(known)}"


def help_text(given: list[str]) -> str | None:
    """What is asked for without a configuration, of ``--help [GROUP|EXPERIMENT|KEY]`` and ``--version``; else None."""
    found, others = _own_options(given)
    if found.version:
        return versions()
    if found.help and "=" not in found.help:
        return about(found.help, folders())
    return None if others or found.help or (found.help is None and given) else usage(folders())


def folders() -> list[Path]:
    """The folders in which Hydra looks for YAML files, the first ones first: ours, the user's, those of families."""
    own = _own_folder()
    return [CONFIGS, *([] if own is None else [own]), *config_folders()]


def check_own_folder() -> None:
    """Refuse a file of the user's that has the name of one of ours, which Hydra would silently read instead."""
    if (own := _own_folder()) is None:
        return
    if not own.is_dir():
        raise ConfigError(f"--config-dir {own}: no such folder")
    for path in (*own.glob("*.yaml"), *own.glob("*/*.yaml"), *own.glob("*/*/*.yaml")):
        check_yaml(path)
        if (CONFIGS / (name := path.relative_to(own))).is_file():
            raise ConfigError(f"--config-dir {own}: adadepth has a {name}, too; give it another name")


def _own_folder() -> Path | None:
    """The user's folder of YAML files."""
    own = _own_options(sys.argv[1:])[0].config_dir
    return None if own is None else Path(own)


def _own_options(given: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """What is read here before Hydra reads it, and the other arguments."""
    options = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    options.add_argument("--help", "-h", nargs="?", const="")
    options.add_argument("--version", action="store_true")
    options.add_argument("--config-dir", "-cd")
    return options.parse_known_args(given)


def _is_dashed_override(item: str) -> bool:
    flag, equals, _ = item.partition("=")
    return flag.startswith("--") and bool(equals) and flag not in _HYDRA_FLAGS


def _root_of_run(overrides: list[str]) -> str | None:
    """Return the configuration of the run to be continued or reported, or of the first demo; None: none is named.

    A continued or reported run has its own settings, so any root will do where its name is that of no configuration.

    Raises:
        CheckpointError: There is no such demo.
    """
    for key, _, value in (override.partition("=") for override in overrides):
        if key == "checkpoint" and (demo := _first_demo(value)) is not None:
            return str(read_record(demo)["config_name"])
        if key == "runs" and "latest" not in value:
            return "act_tiny"
        if key in ("resume", "run") and value != "latest":
            name = read_record(Path(_unquoted(value))).get("config_name")
            return name if name in known_configs(folders()) else "act_tiny"
    return None


def _first_demo(value: str) -> Path | None:
    """Return the run directory of the first demo that a checkpoint or a list of them names."""
    names = (name for name in _split_list(value) if name.startswith(DEMO_PREFIX))
    return next((resolve_demo("checkpoint", name) for name in names), None)


def _split_list(value: str) -> list[str]:
    """Return the items of a list as the command line has it, or a single value."""
    return re.split(r"[][,'\" ]+", value)


def _unquoted(value: str) -> str:
    """A text as Hydra reads it."""
    try:
        return str(OverridesParser.create().parse_override(f"a={value}").value())
    except HydraException:  # which Hydra says itself, once it has a configuration
        return value


def _is_unicode(text: str) -> bool:
    """Python keeps bytes of the command line that are none as halves of characters."""
    return not re.search("[\ud800-\udfff]", text)


def _names_latest(override: str) -> bool:
    key, _, value = override.partition("=")
    return key in ("resume", "run", "runs", "checkpoint", "rival_of") and "latest" in _split_list(value)


def verbatim(override: str) -> str:
    """Quote the text of `text=...`, so that its commas, quotes and colons are text to Hydra, too; lists stay lists."""
    key, _, value = override.partition("=")
    if key != "text" or value.startswith("[") or value in ("", "null"):
        return override
    quoted = re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), value)
    return "text='" + quoted.replace("${", "\\${") + "'"


def beyond_ascii(override: str) -> str:
    """Quote texts with letters beyond ASCII, which Hydra reads in quotes only: `name=ü`, `dataset.path=jörg/`.

    Lists and the values of a sweep stay what they are; what has quotes, braces or functions is left as it is written.
    """
    key, _, value = override.partition("=")
    if value.isascii() or re.search(r"[\"'\\{}()]", value):
        return override
    return f"{key}=" + re.sub(r"[^][,]*[^][,\x00-\x7f][^][,]*", lambda text: f'"{text[0].strip(" ")}"', value)
