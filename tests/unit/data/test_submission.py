from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from adadepth.data.labelled.submission import SUBMISSIONS, check_submission_names, write_submission
from adadepth.errors import ConfigError

ENTAILMENT = ["entailment", "neutral", "contradiction"]


@pytest.mark.parametrize(("name", "predictions", "labels", "rows"), [
    ("CoLA", [1, 0], ["unacceptable", "acceptable"], ["1", "0"]),
    ("MNLI-mm", [2, 0, 1], ENTAILMENT, ["contradiction", "entailment", "neutral"]),
    ("RTE", [1, 0], ["entailment", "not_entailment"], ["not_entailment", "entailment"]),
    ("STS-B", [-0.5, 2.12345, 5.7], [], ["0.000", "2.123", "5.000"]),
])  # fmt: skip
def test_a_file_as_the_server_wants_it(
    tmp_path: Path, name: str, predictions: list[float], labels: list[str], rows: list[str]
) -> None:
    path = write_submission(tmp_path / "submission", name, np.array(predictions), labels)
    assert path == tmp_path / "submission" / f"{name}.tsv"
    expected = ["index\tprediction", *(f"{index}\t{row}" for index, row in enumerate(rows))]
    assert path.read_bytes().decode().split("\n") == [*expected, ""]
    assert [file.name for file in path.parent.iterdir()] == [f"{name}.tsv"]


def test_names_of_the_server() -> None:
    check_submission_names(SUBMISSIONS)
    with pytest.raises(ConfigError) as raised:
        check_submission_names(["RTE", "STSB"])
    assert str(raised.value).startswith(
        "dataset.submission=STSB: not a file of GLUE's server (did you mean 'STS-B'?); known: MNLI-m, "
    )
