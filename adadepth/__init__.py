"""adadepth: transformers whose depth is not fixed.

Each name is imported at its first use, so that `import adadepth` is fast. That first use also registers the models with
the Auto classes of transformers. The package also exports the configurations, models and conversions of the model
families; see `adadepth.models.public_names`.
"""

import sys
from importlib import import_module
from typing import Any

from adadepth.models.auto_classes import register_lazily
from adadepth.renamed import RenamedFinder

__version__ = "0.1.0"

_OWN = {
    "DepthCallback": "adadepth.training.depth_callback",
    "DepthTrace": "adadepth.halting.trace",
    "ExitRule": "adadepth.halting.exit_rules",
    "HaltingUnit": "adadepth.halting.units",
    "Pipeline": "adadepth.prediction",
    "StepLoss": "adadepth.halting.step_losses",
    "register_exit_rule": "adadepth.halting.exit_rules",
    "register_halting_unit": "adadepth.halting.units",
    "register_step_loss": "adadepth.halting.step_losses",
}

register_lazily()
sys.meta_path.insert(0, RenamedFinder())  # before the finder of files, which would load a renamed module twice


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted(["__version__", *_OWN, *_models().public_names()])
    if name in _OWN:
        return getattr(import_module(_OWN[name]), name)
    if not name.startswith("_") and name in _models().public_names():
        return getattr(_models(), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_OWN, *_models().public_names()})


def _models() -> Any:
    return import_module("adadepth.models")
