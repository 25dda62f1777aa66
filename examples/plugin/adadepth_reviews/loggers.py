"""What adadepth knows of the logger: where its class is, and what it needs. Read with every run, so nothing else."""

from adadepth.training.trackers import TrackerKind
from adadepth.training.trackers.base import Tracker


def _import_tracker() -> type[Tracker]:
    from adadepth_reviews.csv_tracker import CsvTracker

    return CsvTracker


CSV = TrackerKind(_import_tracker, library="csv", needs="nothing: it is Python's own")
