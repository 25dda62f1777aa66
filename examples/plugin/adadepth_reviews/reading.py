"""Reads the CSV file: columns `text` and `stars`, and no splits, so that a hash sets a fifth aside."""

import csv
import zlib
from pathlib import Path

from adadepth.data.text.table import DataTable, build_table
from adadepth.errors import DataError
from adadepth_reviews.data import ReviewsConfig

STARS = ("1", "2", "3", "4", "5")


def read_reviews(dataset: ReviewsConfig) -> dict[str, DataTable]:
    """Read the splits train and validation, with the columns `text` and `label`.

    Raises:
        DataError: There is no such file, or a row without a text or without stars.
    """
    file = Path(str(dataset.path)).expanduser()
    if not file.is_file():
        raise DataError(f"dataset.path={dataset.path}: no such file; dataset=reviews reads one CSV file")
    splits: dict[str, list[dict[str, str]]] = {"train": [], "validation": []}
    with file.open(encoding="utf-8", newline="") as lines:
        for number, row in enumerate(csv.DictReader(lines), start=2):
            text, stars = row.get("text"), row.get("stars")
            if not text or stars not in STARS:
                raise DataError(
                    f"dataset.path={file}: line {number} needs a text, and stars from 1 to 5; it has {stars}"
                )
            label = "praise" if int(stars) >= dataset.praise_from else "blame"
            splits["train" if zlib.crc32(text.encode()) % 5 else "validation"].append({"text": text, "label": label})
    return {split: build_table(f"dataset.path={file}", rows) for split, rows in splits.items()}
