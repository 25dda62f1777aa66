"""Trackers for MLflow, Trackio and Comet, registered by entry points of the group `adadepth.loggers`.

This module imports none of their packages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from adadepth.training.trackers import TrackerKind

if TYPE_CHECKING:
    from adadepth.training.trackers.base import Tracker


def _import_mlflow() -> type[Tracker]:
    from adadepth.contrib.trackers.mlflow import MlflowTracker

    return MlflowTracker


def _import_trackio() -> type[Tracker]:
    from adadepth.contrib.trackers.trackio import TrackioTracker

    return TrackioTracker


def _import_comet() -> type[Tracker]:
    from adadepth.contrib.trackers.comet import CometTracker

    return CometTracker


MLFLOW = TrackerKind(_import_mlflow, "mlflow", "adadepth[mlflow]", keeps_files=True)
TRACKIO = TrackerKind(_import_trackio, "trackio", "adadepth[trackio]")
COMET = TrackerKind(_import_comet, "comet_ml", "adadepth[comet]", keeps_files=True)
