"""Prediction: texts in; what a model says about them, and the depth it gave them, out."""

from adadepth.prediction.pipeline import Pipeline
from adadepth.prediction.results import Prediction, Step, TokenPrediction

__all__ = ["Pipeline", "Prediction", "Step", "TokenPrediction"]
