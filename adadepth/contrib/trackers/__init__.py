"""Trackers that join by the entry points group `adadepth.loggers`: MLflow, Trackio and Comet. None is imported here."""

from adadepth.training.trackers import TrackerKind

MLFLOW = TrackerKind(f"{__name__}.mlflow:MlflowTracker", "mlflow", "adadepth[mlflow]", keeps_files=True)
TRACKIO = TrackerKind(f"{__name__}.trackio:TrackioTracker", "trackio", "adadepth[trackio]")
COMET = TrackerKind(f"{__name__}.comet:CometTracker", "comet_ml", "adadepth[comet]", keeps_files=True)
