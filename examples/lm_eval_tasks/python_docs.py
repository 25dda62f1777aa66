"""The documents of the tasks `python_docs` and `python_docs_endings`, and what a likelihood is divided by."""

import random
from typing import Any

from datasets import Dataset, DatasetDict

from adadepth.config import StreamConfig
from adadepth.data.streams.line_text import open_texts

CHOICES = 4  # endings of a line
FEWEST_WORDS = 12  # of a line that is cut in two


def read_texts() -> list[str]:
    """Return the held-out documents of `dataset=stream_python_docs`."""
    dataset = StreamConfig(name="stream_python_docs", source="embedded", evaluation_fraction=0.15)
    return list(open_texts(dataset)["evaluation"].rows())


def documents(**metadata: Any) -> DatasetDict:
    """Load the held-out documents of `dataset=stream_python_docs`."""
    return DatasetDict({"test": Dataset.from_dict({"text": read_texts()})})


def endings(**metadata: Any) -> DatasetDict:
    """Load the first halves of lines, each with its own second half among those of other lines of the documents."""
    words = [line.split() for text in read_texts() for line in text.splitlines()]
    halves = [(line[: len(line) // 2], line[len(line) // 2 :]) for line in words if len(line) >= FEWEST_WORDS]
    starts, ends = [" ".join(start) for start, _ in halves], [" ".join(end) for _, end in halves]
    draw, rows = random.Random(0), []
    for start, end in zip(starts, ends, strict=True):
        choices = [end, *draw.sample(sorted({*ends} - {end}), CHOICES - 1)]
        draw.shuffle(choices)
        rows.append({"start": start, "endings": choices, "label": choices.index(end)})
    return DatasetDict({"test": Dataset.from_list(rows)})


def counts(document: dict[str, str], results: list[float]) -> dict[str, tuple[float, int]]:
    """Return a document's summed log-likelihood with its number of words or bytes, for each metric."""
    (total,) = results
    words, size = len(document["text"].split()), len(document["text"].encode())
    return {"word_perplexity": (total, words), "byte_perplexity": (total, size), "bits_per_byte": (total, size)}
