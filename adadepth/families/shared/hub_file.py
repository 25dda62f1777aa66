"""The file beside a saved configuration by which transformers finds the classes of a model of this package.

With this package imported nobody reads it, and nothing in this package ever runs it. Without, transformers says that
the model has code of its own, and runs these lines if the user trusts them; they hold no code of a model.
"""

from __future__ import annotations

from pathlib import Path

from adadepth.families.registry import families

MODULE = "modeling_adadepth"
_CODE = '''"""The classes of this model are in the package adadepth: this file imports it, and has no other code."""

try:
    import adadepth
except ImportError as error:
    raise ImportError(
        "this model needs the package adadepth: install it from a clone or a wheel, then `import adadepth`"
    ) from error


def __getattr__(name):
    return getattr(adadepth, name)
'''


def auto_map(model_type: str) -> dict[str, str]:
    """Auto class of transformers -> the class that the file names, as configurations say it."""
    about = families()[model_type]
    places = {"AutoConfig": about.config, **about.auto_classes()}
    return {auto: f"{MODULE}.{place.rpartition(':')[2]}" for auto, place in places.items()}


def write_module(folder: Path) -> None:
    """Write the file."""
    (folder / f"{MODULE}.py").write_text(_CODE, encoding="utf-8")
