"""What adadepth knows of the logger: where its class is, and what it needs. Read with every run, so nothing else."""

from adadepth.training.trackers import TrackerKind

CSV = TrackerKind("adadepth_reviews.csv_tracker:CsvTracker", library="csv", needs="nothing: it is Python's own")
