"""What adadepth knows of the data set: its settings, and where its reader is. Read for `--help`, so without torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from adadepth.config import LabelledConfig, Source
from adadepth.config.declaration import between, setting
from adadepth.config.kinds import Kind


@dataclass
class ReviewsConfig(LabelledConfig):
    """Reviews with one to five stars in one CSV file: is a text praise?"""

    name: str = setting("reviews", "name of the data set in reports")
    source: Source = setting(Source.local, "the CSV file dataset.path")
    text_columns: list[str] = setting(["text"], "of the file")
    praise_from: int = setting(4, "stars from which a review is praise", between(2, 5))


def _import_reader() -> Callable[[Any], dict[str, Any]]:
    from adadepth_reviews.reading import read_reviews

    return read_reviews


REVIEWS = Kind(settings=ReviewsConfig, tables=_import_reader)
