"""Files for submission to the GLUE server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from adadepth.errors import ConfigError, nearest
from adadepth.runtime.files import write_atomic

# The server's file names, by content: class names, class numbers or values.
_NAMED = ("MNLI-m", "MNLI-mm", "AX", "QNLI", "RTE")
_NUMBERED = ("CoLA", "SST-2", "MRPC", "QQP", "WNLI")
_VALUED = ("STS-B",)
SUBMISSIONS = _NAMED + _NUMBERED + _VALUED
_LOWEST, _HIGHEST = 0.0, 5.0  # range of STS-B's similarity


def check_submission_names(names: Sequence[str]) -> None:
    """Raise a `ConfigError` for a submission file name that the GLUE server does not accept, with the nearest one."""
    for name in names:
        if name not in SUBMISSIONS:
            raise ConfigError(
                f"dataset.submission={name}: not a file of GLUE's server{nearest(name, SUBMISSIONS)}; "
                f"known: {', '.join(SUBMISSIONS)}"
            )


def write_submission(folder: Path, name: str, predictions: np.ndarray, labels: Sequence[str]) -> Path:
    r"""Write the file ``folder/<name>.tsv`` with predictions for submission to the GLUE server.

    The header is ``index\tprediction``. One line follows for each test row, numbered from 0.

    Args:
        folder: Folder, which is created if it is missing.
        name: Name of the file, one of SUBMISSIONS.
        predictions: Class numbers (M,) int64, or values (M,) float, in the order of the test file.
        labels: Class names in order. They are not used for files of class numbers.

    Returns:
        The path of the file.
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
