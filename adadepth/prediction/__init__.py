"""Prediction: pipelines that predict texts and tables with a trained model, and report the depth spent on each."""

from adadepth.prediction.outputs import Prediction, Step, TokenPrediction
from adadepth.prediction.pipeline import Pipeline

__all__ = ["Pipeline", "Prediction", "Step", "TokenPrediction"]
