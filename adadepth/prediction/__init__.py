"""Prediction: pipelines that predict texts and tables with a trained model, and the depth spent on each."""

from adadepth.prediction.pipeline import Pipeline
from adadepth.prediction.results import Prediction, Step, TokenPrediction

__all__ = ["Pipeline", "Prediction", "Step", "TokenPrediction"]
