"""Corpora, tokenizers and pretraining examples. Knows no model and no trainer."""

from adadepth.data.baseline import unigram_baseline
from adadepth.data.pretraining import PretrainingData, load_pretraining_data
from adadepth.data.sampler import EpochSampler

__all__ = ["EpochSampler", "PretrainingData", "load_pretraining_data", "unigram_baseline"]
