"""Files of predictions for GLUE's server."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from adadepth.config import LabelledConfig
from adadepth.data.labelled.submission import SUBMISSIONS, check_submission_names, write_submission
from adadepth.errors import ConfigError
from tests.configs.support import configured
from tests.marks_support import mark_mostly_slow

ENTAILMENT = ["entailment", "neutral", "contradiction"]


@pytest.mark.parametrize(("name", "predictions", "labels", "rows"), [
    ("CoLA", [1, 0], ["unacceptable", "acceptable"], ["1", "0"]),
    ("MNLI-mm", [2, 0, 1], ENTAILMENT, ["contradiction", "entailment", "neutral"]),
    ("RTE", [1, 0], ["entailment", "not_entailment"], ["not_entailment", "entailment"]),
    ("STS-B", [-0.5, 2.12345, 5.7], [], ["0.000", "2.123", "5.000"]),
])  # fmt: skip
def test_a_file_has_the_format_of_the_server(
    tmp_path: Path, name: str, predictions: list[float], labels: list[str], rows: list[str]
) -> None:
    path = write_submission(tmp_path / "submission", name, np.array(predictions), labels)
    assert path == tmp_path / "submission" / f"{name}.tsv"
    expected = ["index\tprediction", *(f"{index}\t{row}" for index, row in enumerate(rows))]
    assert path.read_bytes().decode().split("\n") == [*expected, ""]
    assert [file.name for file in path.parent.iterdir()] == [f"{name}.tsv"]


def test_names_of_files_are_those_of_the_server() -> None:
    check_submission_names(SUBMISSIONS)
    with pytest.raises(ConfigError) as raised:
        check_submission_names(["RTE", "STSB"])
    assert str(raised.value).startswith(
        "dataset.submission=STSB: not a file of GLUE's server (did you mean 'STS-B'?); known: MNLI-m, "
    )


# Files that GLUE's server accepts (gluebenchmark.com/faq): names of each task, and their values, class by class.
SERVER = {
    "cola": {"CoLA": ["0", "1"]},
    "sst2": {"SST-2": ["0", "1"]},
    "mrpc": {"MRPC": ["0", "1"]},
    "qqp": {"QQP": ["0", "1"]},
    "wnli": {"WNLI": ["0", "1"]},
    "qnli": {"QNLI": ["entailment", "not_entailment"]},
    "rte": {"RTE": ["entailment", "not_entailment"]},
    "stsb": {"STS-B": ["0.000", "1.000"]},
    "mnli": {name: ["entailment", "neutral", "contradiction"] for name in ("MNLI-m", "MNLI-mm", "AX")},
}


@pytest.mark.parametrize("task", mark_mostly_slow(SERVER, "mnli".__eq__))
def test_files_of_every_task_have_names_and_values_of_the_server(task: str, tmp_path: Path) -> None:
    dataset = configured(f"act_{task}").dataset
    assert isinstance(dataset, LabelledConfig)
    assert dataset.submission == list(SERVER[task])
    assert len(dataset.test_splits) == len(dataset.submission)
    for name, values in SERVER[task].items():
        path = write_submission(tmp_path, name, np.arange(len(values)), dataset.labels or ())
        header, *rows = path.read_text().splitlines()
        assert header == "index\tprediction"
        assert rows == [f"{number}\t{value}" for number, value in enumerate(values)]
