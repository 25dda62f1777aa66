"""Prediction for texts and tables with a trained model, including the depth that the model spent on each text."""

from adadepth.prediction.outputs import Prediction, Step, TokenPrediction
from adadepth.prediction.pipeline import Pipeline

__all__ = ["Pipeline", "Prediction", "Step", "TokenPrediction"]
