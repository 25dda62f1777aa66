"""Corpora, labelled data, tokenizers and examples. Knows no model and no trainer."""

from adadepth.data.baseline import unigram_baseline
from adadepth.data.labelled import load_labelled_data
from adadepth.data.labelled_data import LabelledData
from adadepth.data.language import LanguageData, load_language_data
from adadepth.data.pretraining import PretrainingData, load_pretraining_data
from adadepth.data.sampler import EpochSampler
from adadepth.data.streams import StreamBatches, TwoPhase
from adadepth.data.submission import check_submission_names, write_submission

__all__ = [
    "EpochSampler",
    "LabelledData",
    "LanguageData",
    "PretrainingData",
    "StreamBatches",
    "TwoPhase",
    "check_submission_names",
    "load_labelled_data",
    "load_language_data",
    "load_pretraining_data",
    "unigram_baseline",
    "write_submission",
]
