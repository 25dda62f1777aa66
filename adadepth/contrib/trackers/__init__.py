"""Trackers for MLflow, Trackio and Comet, registered by entry points of the group `adadepth.loggers`.

This module imports none of their packages.
"""

from adadepth.training.trackers import TrackerKind

MLFLOW = TrackerKind(f"{__name__}.mlflow:MlflowTracker", "mlflow", "adadepth[mlflow]", keeps_files=True)
TRACKIO = TrackerKind(f"{__name__}.trackio:TrackioTracker", "trackio", "adadepth[trackio]")
COMET = TrackerKind(f"{__name__}.comet:CometTracker", "comet_ml", "adadepth[comet]", keeps_files=True)
