"""Metrics of the ``evaluate`` library, from the hub or a local folder: the one place that uses it."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from adadepth.connection import first_line, require_hub
from adadepth.errors import DataError, nearest
from adadepth.remote_code import say_trusted

HUB_PREFIX = "evaluate:"


def hub_metric(name: str) -> Callable[[np.ndarray, np.ndarray], float]:
    """Return the function of predictions and labels, both (M,), that ``evaluate:METRIC[:KEY]`` names.

    METRIC is a name of the hub or a folder; its code is run, as the library does. KEY chooses among several values.

    Raises:
        DataError: The metric cannot be loaded; of the function: it cannot be computed, or has no such value.
    """
    path, _, key = name.removeprefix(HUB_PREFIX).partition(":")
    module = _load(name, path)

    def compute(predictions: np.ndarray, labels: np.ndarray) -> float:
        try:
            values = module.compute(predictions=predictions.tolist(), references=labels.tolist())
        except (ValueError, TypeError) as error:
            raise DataError(f"dataset.metrics={name}: {first_line(error)}") from error
        return _choose(name, key, values or {})

    return compute


@lru_cache
def _load(name: str, path: str) -> Any:
    """Return the library's metric; without a connection or an earlier download it fails at once."""
    alternative = "give a local folder with evaluate:FOLDER, or a metric of adadepth's own"
    if not Path(path).expanduser().exists():
        if path.startswith((".", "/", "~")):
            raise DataError(f"dataset.metrics={name}: no such folder")
        require_hub(f"dataset.metrics={name}", alternative)
    import evaluate

    say_trusted(path)
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:  # which the library does not read
        evaluate.config.HF_EVALUATE_OFFLINE = True
    try:
        return evaluate.load(str(Path(path).expanduser()) if Path(path).expanduser().exists() else path)
    except (OSError, ImportError, ValueError) as error:
        raise DataError(f"dataset.metrics={name}: {first_line(error)}; {alternative}") from error


def _choose(name: str, key: str, values: dict[str, Any]) -> float:
    if not key and len(values) == 1:
        return float(next(iter(values.values())))
    if key not in values:
        hint = "choose one of its values" if not key else f"it has no {key!r}{nearest(key, values)}"
        raise DataError(f"dataset.metrics={name}: {hint}, evaluate:METRIC:KEY with KEY in {', '.join(values)}")
    return float(values[key])
