"""The package's own tests; `pytest` in its folder, once adadepth and the package are installed."""

from pathlib import Path

import pytest
import torch
from adadepth_reviews.csv_tracker import CsvTracker
from adadepth_reviews.data import ReviewsConfig
from adadepth_reviews.reading import read_reviews
from adadepth_reviews.rules import StickBreaking

from adadepth.config.kinds import list_dataset_schemas
from adadepth.errors import DataError
from adadepth.halting.rules import halting_rule

CSV = Path(__file__).resolve().parents[1] / "reviews.csv"


def rows_of(table):
    """The rows of a table as tuples."""
    return [row for batch in table.batches() for row in zip(*batch.values(), strict=True)]


def test_adadepth_knows_the_names():
    assert list_dataset_schemas()["reviews"] is ReviewsConfig
    assert isinstance(halting_rule("stick_breaking"), StickBreaking)


def test_numbers_become_lines(tmp_path):
    tracker = CsvTracker(None, tmp_path)
    tracker.log({"eval/loss": 0.5, "note": "no number"}, step=3)
    tracker.finish()
    CsvTracker(None, tmp_path).finish()
    assert (tmp_path / "metrics.csv").read_text() == "step,name,value\n3,eval/loss,0.5\n"


def test_every_review_is_in_one_split():
    splits = {name: rows_of(table) for name, table in read_reviews(ReviewsConfig(path=str(CSV))).items()}
    assert sum(map(len, splits.values())) == len(CSV.read_text(encoding="utf-8").splitlines()) - 1
    assert not set(splits["train"]) & set(splits["validation"])
    assert {label for rows in splits.values() for _, label in rows} == {"praise", "blame"}


def test_stars_decide_what_praise_is():
    few, many = (
        sum(label == "praise" for table in read_reviews(ReviewsConfig(path=str(CSV), praise_from=stars)).values()
            for _, label in rows_of(table))
        for stars in (5, 4)
    )  # fmt: skip
    assert (few, many) == (16, 32)


def test_a_row_without_stars_is_one_line(tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text("text,stars\nfine,4\nodd,many\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"line 3 needs a text, and stars from 1 to 5; it has many"):
        read_reviews(ReviewsConfig(path=str(file)))


def test_masses_are_the_probabilities_of_a_first_success():
    """Of independent draws with probability p, the n-th is the first success with probability p (1 - p)^(n-1)."""
    rule, p, accumulated, masses = StickBreaking(), torch.tensor([0.3, 0.8]), torch.zeros(2), []
    for step in range(1, 6):
        masses.append(rule.mass(p, accumulated, step))
        accumulated = accumulated + masses[-1]
    steps = torch.arange(5).unsqueeze(1)
    torch.testing.assert_close(torch.stack(masses), p * (1 - p) ** steps)
