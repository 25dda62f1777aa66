"""The mode `serve`, the web demo: its descriptor."""

from __future__ import annotations

from collections.abc import Callable

from adadepth.config import ExperimentConfig
from adadepth.config.modes import ModeSpec
from adadepth.contrib.serve.settings import ServeConfig


def _import_serve() -> Callable[[ExperimentConfig], None]:
    from adadepth.contrib.serve.serve import serve

    return serve


SERVE = ModeSpec(
    _import_serve,
    "serve checkpoints on an interactive page with adjustable depth",
    "serving",
    settings=ServeConfig,
    checkpoints="several",
    inherits=True,
)
