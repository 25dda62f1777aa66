"""What `adadepth --help` prints: experiments and groups; and, of a group, an experiment or a key, what it is.

Every key with its value is what `--config-name NAME --help` lists; see `adadepth.cli.explanations`.
"""

from __future__ import annotations

import dataclasses
import platform
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from adadepth import __version__
from adadepth.cli.composition import declared_keys, group_schemas
from adadepth.cli.explanations import inline
from adadepth.cli.hints import published_configs
from adadepth.errors import ConfigError, nearest
from adadepth.settings.declaration import MISSING, choices, declared, in_words
from adadepth.settings.modes import modes

_WIDTH = 112
_USAGE = """\
adadepth: transformers whose depth is not fixed.

  adadepth mode=evaluate checkpoint=demo:hops             evaluate a model of the package; nothing to train
  adadepth --config-name act_tiny                         train, evaluate, write a report
  adadepth --config-name act_tiny model=albert_act_mini trainer.max_steps=50
  adadepth --config-name act_tiny mode=evaluate checkpoint=latest
  adadepth --config-name act_tiny -m model.act_penalty=1e-3,5e-4 seed=0,1
  adadepth --config-dir FOLDER --config-name NAME         with YAML files of your own beside these

`python -m adadepth` is the same, and so is `python adadepth/run.py` in a clone.
"""
_FURTHER = """\
Further help:

  adadepth --help GROUP                   the options of a group, and its keys
  adadepth --help KEY                     what a key means and can be: --help trainer.learning_rate
  adadepth --config-name NAME --help      every key with its value in an experiment
  adadepth --version                      of adadepth, torch and transformers
  adadepth --hydra-help                   Hydra's own options: --cfg job, --multirun, ...
"""


def usage(folders: Sequence[Path]) -> str:
    """How to run, every mode and every experiment in a line, every group with its options."""
    experiments = _table({name: _comment(path) for name, path in _files(folders).items()})
    groups = "\n".join(
        textwrap.fill(f"  {group}: {', '.join(_options(group, folders))}", _WIDTH, subsequent_indent="    ")
        for group in _groups(folders)
    )
    what = _table({name: mode.help for name, mode in modes().items()})
    return (
        f"{_USAGE}\nModes (mode=NAME):\n\n{what}\n\nExperiments (--config-name):\n\n{experiments}\n\n"
        f"Groups (group=option):\n\n{groups}\n\n{_FURTHER}"
    )


def versions() -> str:
    """The version of adadepth, and those of what decides its results."""
    others = (f"{name} {metadata.version(name)}" for name in ("torch", "transformers", "hydra-core"))
    return f"adadepth {__version__}\n{', '.join(others)}, Python {platform.python_version()}\n"


def about(name: str, folders: Sequence[Path]) -> str:
    """What a group, an experiment or a key is.

    Raises:
        ConfigError: If there is none of that name.
    """
    groups, experiments = _groups(folders), _files(folders)
    keys: dict[str, type] = {}  # with the first class that declares each
    for key, owner in declared_keys():
        keys.setdefault(key, owner)
    parts = []
    if name in groups:
        parts.append(f"Options ({name}=OPTION):\n\n{_table(_options(name, folders))}")
    elif name in keys:
        parts.append("\n".join(_key(name)))
    if name in experiments:
        parts.append(f"{name}\n{_paragraph(_comment(experiments[name]))}")
    if below := {key: _words(owner, key) for key, owner in keys.items() if key.startswith(f"{name}.")}:
        parts.append(f"Keys:\n\n{_table(below)}")
    if not parts:
        known = [*groups, *experiments, *keys]
        leaves = [key for key in keys if key.rpartition(".")[2] == name]
        hint = f" (did you mean {' or '.join(map(repr, leaves[:2]))}?)" if leaves else nearest(name, known)
        raise ConfigError(f"--help {name}: no such group, experiment or key{hint}; --help alone lists them")
    return "\n\n".join(parts) + "\n"


def _files(folders: Sequence[Path], group: str = "") -> dict[str, Path]:
    """The YAML files of a group, or the experiments, by name; those of earlier folders are what Hydra takes."""
    found = {path.stem: path for folder in reversed(folders) for path in (folder / group).glob("*.yaml")}
    return dict(sorted(found.items()))


def _groups(folders: Sequence[Path]) -> list[str]:
    """The folders that hold options, Hydra's own settings left out."""
    found = {path.parent.name for folder in folders for path in folder.glob("*/*.yaml")}
    return sorted((found | set(group_schemas())) - {"hydra"})


def _options(group: str, folders: Sequence[Path]) -> dict[str, str]:
    """What the options of a group say: YAML files, and the schemas that they extend, which are options, too."""
    schemas = group_schemas().get(group, {})
    first_lines = {name: (schema.__doc__ or "").partition("\n")[0] for name, schema in schemas.items()}
    files = {name: _comment(path) for name, path in _files(folders, group).items()}
    if group == "preset":
        files["paper"] = f"The published run, everything of it, of {', '.join(published_configs(folders))}."
    return dict(sorted({**first_lines, **files}.items()))


def _table(texts: Mapping[str, str]) -> str:
    """A line for every name: the first sentence of its text, shortened."""
    width = max(map(len, texts), default=0)
    lines = (
        f"  {name:<{width}}  {textwrap.shorten(_first_sentence(text), _WIDTH, placeholder=' ...')}".rstrip()
        for name, text in texts.items()
    )
    return "\n".join(lines)


def _comment(file: Path) -> str:
    """The comment that a YAML file begins with."""
    words = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        if not line.startswith("# @package"):
            words.append(line.lstrip("# "))
    return " ".join(words)


def _first_sentence(text: str) -> str:
    """Up to a mark that a capital follows; `et al. 2019` goes on."""
    return re.split(r"(?<=[.?!]) (?=[A-Z])", text, maxsplit=1)[0]


def _paragraph(text: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)


def _key(name: str) -> Iterator[str]:
    """What is declared of a key, once for all kinds of models or data that say the same of it."""
    yield name
    kinds: dict[tuple[str, str], list[str]] = {}
    field = name.rpartition(".")[2]
    for owner in dict.fromkeys(owner for key, owner in declared_keys() if key == name):
        sentences = " ".join(filter(None, (f"{_words(owner, name)}.", declared(owner)[field].more)))
        what = (sentences, _default(owner, field))
        kinds.setdefault(what, []).append(owner.__name__)
    for (sentences, default), owners in kinds.items():
        whose = f" ({', '.join(owners)})" if len(kinds) > 1 else ""
        yield _paragraph(sentences)
        if default:
            yield f"  default: {default}{whose}"


def _words(owner: type, key: str) -> str:
    """One line of what a key of a class means and can be."""
    field = key.rpartition(".")[2]
    return in_words(declared(owner)[field], choices(owner).get(field, ()))


def _default(owner: type, field: str) -> str:
    """The default as a YAML has it; nothing where there is none, or where it is a group of keys."""
    found = next(each for each in dataclasses.fields(owner) if each.name == field)
    factory = found.default_factory
    value = found.default if factory is dataclasses.MISSING else factory()
    return "" if value == MISSING or dataclasses.is_dataclass(value) else inline(value)
