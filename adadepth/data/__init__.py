"""Data: corpora, labelled data, generated tasks, tokenizers and examples, independent of models and trainers."""

from adadepth.data.batches import EpochSampler
from adadepth.data.labelled.submission import check_submission_names, write_submission
from adadepth.data.pretraining.load import load_pretraining_data, unigram_baseline
from adadepth.data.registry import load_labelled_data
from adadepth.data.run_data import RunData
from adadepth.data.streams.contiguous import StreamBatches, TwoPhase
from adadepth.data.streams.load import load_language_data

__all__ = [
    "EpochSampler",
    "RunData",
    "StreamBatches",
    "TwoPhase",
    "check_submission_names",
    "load_labelled_data",
    "load_language_data",
    "load_pretraining_data",
    "unigram_baseline",
    "write_submission",
]
