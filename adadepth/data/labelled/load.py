"""Loading of labelled data of every kind, and files for submission to the GLUE server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from adadepth.config.class_names import number_classes, shorten
from adadepth.config.kinds import PREDICTED, load_run_data
from adadepth.data.run_data import RunData
from adadepth.errors import ConfigError, DataError, nearest
from adadepth.runtime.files import write_atomic

if TYPE_CHECKING:
    from adadepth.config import DatasetConfig, TokenizerConfig
    from adadepth.data.text.special_tokens import DoubleCls


def load_labelled_data(
    dataset: DatasetConfig,
    tokenizer: TokenizerConfig,
    seed: int,
    *,
    cls_tokens: int = 1,
    double_cls_pairs: DoubleCls = "first",
    classes: Sequence[str] | None = None,
) -> RunData:
    """Load labelled data for fine-tuning: read and tokenise them, or load them from the cache.

    Several processes may call this function at once. One of them does the work, and the others wait.

    Args:
        dataset: Settings of a data set with a loader; see `adadepth.config.kinds`.
        tokenizer: Settings of an existing tokenizer or of one to be trained. Data with symbols of their own do not use
            it.
        seed: Seed of the random parts, such as shifted words and generated examples.
        cls_tokens: Number of leading [CLS] tokens, which count towards ``dataset.sequence_length``. With 0 the model
            needs none. Any tokenizer with a padding token can then be used, with its own special tokens.
        double_cls_pairs: Setting for pairs. With ``both``, the second text of a pair also gets the additional [CLS].
        classes: Classes of a model, in its order, or None for the order of the data. Labels are matched by name and
            numbered as in the model.

    Raises:
        DataError: If the data or the tokenizer lack something, or if the model lacks a class. The message is one line.
    """
    data: RunData = load_run_data(
        dataset,
        tokenizer=tokenizer,
        seed=seed,
        cls_tokens=cls_tokens,
        double_cls_pairs=double_cls_pairs,
        classes=classes,
    )
    if classes is not None and PREDICTED[data.problem].has_classes and data.labels:
        numbers = number_classes(data.labels, classes, f"dataset.name={dataset.name}")
        if numbers != list(range(len(classes))):  # drawn data, whose classes have fixed numbers
            raise DataError(
                f"dataset.name={dataset.name}: its classes are {shorten(data.labels)}; the model predicts "
                f"{shorten(classes)}"
            )
    return data


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
