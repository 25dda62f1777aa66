"""What adadepth knows of the data set: its settings, and where its reader is. Read for `--help`, so without torch."""

from dataclasses import dataclass

from adadepth.settings import LabelledConfig, Source
from adadepth.settings.declaration import between, setting
from adadepth.settings.kinds import DataSet


@dataclass
class ReviewsConfig(LabelledConfig):
    """Reviews with one to five stars in one CSV file: is a text praise?"""

    name: str = setting("reviews", "shown in reports")
    source: Source = setting(Source.local, "the CSV file dataset.path")
    text_columns: list[str] = setting(["text"], "of the file")
    praise_from: int = setting(4, "stars from which a review is praise", between(2, 5))


REVIEWS = DataSet(settings=ReviewsConfig, tables="adadepth_reviews.reading:read_reviews")
