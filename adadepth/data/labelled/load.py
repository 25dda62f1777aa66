"""Labelled data of every kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adadepth.data.labelled.contract import LabelledData
from adadepth.kinds import called, kind_of

if TYPE_CHECKING:
    from adadepth.config import DatasetConfig, TokenizerConfig
    from adadepth.data.text.layout import DoubleCls


def load_labelled_data(
    dataset: DatasetConfig,
    tokenizer: TokenizerConfig,
    seed: int,
    *,
    cls_tokens: int = 1,
    double_cls_pairs: DoubleCls = "first",
) -> LabelledData:
    """Read and tokenise labelled data, or take from the cache what was done before.

    Safe to call from several processes at once; one of them does the work.

    Args:
        dataset: Settings of a kind that has a loader, see `adadepth.kinds`.
        tokenizer: Existing, or trained on the training texts; not read where the data set has symbols of its own.
        seed: Of what is drawn: shifted words, generated examples.
        cls_tokens: How many [CLS] a sequence begins with; they count against ``dataset.sequence_length``. 0: the model
            needs none, so any tokenizer with a padding token will do, and its own special tokens are used.
        double_cls_pairs: ``both``: the second text of a pair gets the further [CLS] too.

    Raises:
        DataError: Something the data or the tokenizer lack, in one line.
    """
    loader = kind_of(dataset).loader
    assert loader is not None, "validated"
    data: LabelledData = called(
        loader, dataset, tokenizer=tokenizer, seed=seed, cls_tokens=cls_tokens, double_cls_pairs=double_cls_pairs
    )
    return data
