"""The documents of the task `python_docs`, and what a document's likelihood is divided by."""

from typing import Any

from datasets import Dataset, DatasetDict

from adadepth.config import StreamConfig
from adadepth.data.streams.line_text import open_texts


def documents(**metadata: Any) -> DatasetDict:
    """Load the held-out documents of `dataset=stream_python_docs`."""
    dataset = StreamConfig(name="stream_python_docs", source="embedded", evaluation_fraction=0.15)
    texts = list(open_texts(dataset)["evaluation"].rows())
    return DatasetDict({"test": Dataset.from_dict({"text": texts})})


def counts(document: dict[str, str], results: list[float]) -> dict[str, tuple[float, int]]:
    """Return a document's summed log-likelihood with its number of words or bytes, for each metric."""
    (total,) = results
    words, size = len(document["text"].split()), len(document["text"].encode())
    return {"word_perplexity": (total, words), "byte_perplexity": (total, size), "bits_per_byte": (total, size)}
