"""Assignments, compared with a dictionary that is filled line by line."""

from __future__ import annotations

from collections import Counter
from typing import Any

from adadepth.config import TokenizerConfig
from adadepth.config.data import TraceConfig
from adadepth.data import load_labelled_data

FEW: dict[str, Any] = {"max_evaluation_examples": 60, "train_examples": 400}


def test_labels_equal_a_dictionary_of_assignments() -> None:
    dataset = TraceConfig(name="trace", lines=9, reach=2, questions=5, train_links=[0, 3], beyond_links=[5, 6], **FEW)
    data = load_labelled_data(dataset, TokenizerConfig(), 0)
    ranges = {"train": (0, 3), "inside": (0, 3), "beyond": (5, 6)}
    seen = {name: Counter[int]() for name in ranges}
    for name, examples in {"train": data.train, **data.evaluation}.items():
        low, high = ranges[name]
        for example in (examples[number] for number in range(60)):
            symbols = data.tokenizer.convert_ids_to_tokens(example["input_ids"])
            assignments: dict[str, tuple[str, int, int]] = {}  # value, links, line
            expected = []
            for line in range(9):
                target, equals, source = symbols[3 * line : 3 * line + 3]
                assert (equals, target in assignments) == ("=", False)
                assignments[target] = (source, 0, line)
                if source not in data.labels:
                    value, links, before = assignments[source]
                    assert 1 <= line - before <= 2
                    assignments[target] = (value, links + 1, line)
                expected += [(None, -1), (None, -1), assignments[target][:2]]
            for question in range(5):
                word, name_asked = symbols[27 + 2 * question : 29 + 2 * question]
                assert word == "print"
                value, links, _ = assignments[name_asked]
                expected += [(None, -1), (value, links + 1)]
            assert len({*symbols[28::2]}) == 5
            for position, (value, difficulty) in enumerate(expected):
                links = difficulty - (position > 27)
                label = data.labels.index(value) if value is not None and low <= links <= high else -100
                assert (example["labels"][position], example["difficulties"][position]) == (label, difficulty)
            link_counts = [links for _, links, _ in assignments.values()]
            assert low <= max(link_counts)
            seen[name].update(link_counts)
    assert min(seen["inside"][links] for links in range(4)) > 5
    assert min(seen["beyond"][links] for links in (5, 6)) > 15
