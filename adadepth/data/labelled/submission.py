"""Files for GLUE's evaluation server: predictions of the test sets, whose labels are not public."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from adadepth.atomic import write_atomic
from adadepth.errors import ConfigError, nearest

# The server's file names, by whether it wants class names, class numbers or values.
_NAMED = ("MNLI-m", "MNLI-mm", "AX", "QNLI", "RTE")
_NUMBERED = ("CoLA", "SST-2", "MRPC", "QQP", "WNLI")
_VALUED = ("STS-B",)
SUBMISSIONS = _NAMED + _NUMBERED + _VALUED
_LOWEST, _HIGHEST = 0.0, 5.0  # similarity of STS-B


def check_submission_names(names: Sequence[str]) -> None:
    """Raise `ConfigError` for a name that the server does not know, with the nearest one."""
    for name in names:
        if name not in SUBMISSIONS:
            raise ConfigError(
                f"dataset.submission={name}: not a file of GLUE's server{nearest(name, SUBMISSIONS)}; "
                f"known: {', '.join(SUBMISSIONS)}"
            )


def write_submission(folder: Path, name: str, predictions: np.ndarray, labels: Sequence[str]) -> Path:
    r"""Write ``folder/<name>.tsv`` whole: the header ``index\tprediction``, then a line a test row from 0 on.

    Args:
        folder: Made if it is not there.
        name: One of SUBMISSIONS.
        predictions: Class numbers (M,) int64, or values (M,) float, in the order of the test file.
        labels: Class names in order; not read for classes that the server numbers.

    Returns:
        The file.
    """
    check_submission_names([name])
    if name in _VALUED:
        lines = [f"{value:.3f}" for value in np.clip(predictions, _LOWEST, _HIGHEST)]
    else:
        lines = [labels[number] if name in _NAMED else str(number) for number in map(int, predictions)]
    rows = [f"{index}\t{line}\n" for index, line in enumerate(lines)]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.tsv"
    write_atomic(path, "index\tprediction\n" + "".join(rows))
    return path
