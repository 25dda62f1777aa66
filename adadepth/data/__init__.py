"""Data: corpora, labelled data, generated tasks, tokenizers and examples, independent of models and trainers."""

from adadepth.data.batches import EpochSampler
from adadepth.data.labelled.submission import check_submission_names, write_submission
from adadepth.data.labelled.types import LabelledData
from adadepth.data.pretraining.load import PretrainingData, load_pretraining_data, unigram_baseline
from adadepth.data.registry import load_labelled_data
from adadepth.data.streams.contiguous import StreamBatches, TwoPhase
from adadepth.data.streams.load import LanguageData, load_language_data

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
