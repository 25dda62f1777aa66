"""adadepth: transformers whose depth is not fixed.

Names are imported when they are first used, so that `import adadepth` costs nothing. The Auto classes of transformers
know the models from then on. Besides the names below there are those of the families: configurations, models and
conversions, see `adadepth.families.public_names`.
"""

from importlib import import_module
from typing import Any

from adadepth.families.auto_classes import register_lazily

__version__ = "0.1.0"

_OWN = {"DepthTrace": "adadepth.halting.trace", "Pipeline": "adadepth.prediction"}

register_lazily()


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted(["__version__", *_OWN, *_families().public_names()])
    if name in _OWN:
        return getattr(import_module(_OWN[name]), name)
    if not name.startswith("_") and name in _families().public_names():
        return getattr(_families(), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_OWN, *_families().public_names()})


def _families() -> Any:
    return import_module("adadepth.families")
