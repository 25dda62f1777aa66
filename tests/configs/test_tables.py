"""What is checked of tables and tagged sentences before anything is read."""

from __future__ import annotations

import pytest

from adadepth.errors import ConfigError
from adadepth.settings.fingerprint import result_hash
from tests.configs.support import configured


@pytest.mark.parametrize(("overrides", "expected"), [
    (["dataset=imdb", "dataset.held_out=null"],
     "dataset.evaluation_splits=held_out: needs dataset.held_out, the share of the training rows set aside"),
    (["dataset=imdb", "dataset.evaluation_splits=[test]"],
     "dataset.held_out=0.1: name held_out in dataset.evaluation_splits, to evaluate on it"),
    (["dataset=imdb", "dataset.held_out=1"], "dataset.held_out=1.0: "),
    (["dataset=bigram_shift", "dataset.held_out=0.1", "dataset.evaluation_splits=[held_out]"],
     "dataset.held_out=0.1: read only with rows of your own, dataset.source=local dataset.path=PATH, or of the hub"),
    (["dataset=wikiann", "dataset.hub.path=null"], "dataset.hub.path: dataset.source=hub needs it"),
    (["dataset=wikiann", "dataset.source=local"],
     "dataset.path: dataset.source=local needs a folder, or a mapping of splits to files"),
    (["dataset=wikiann", "dataset.source=embedded"],
     "dataset.source=embedded: tagged sentences are read from the hub or local files"),
    (["dataset=wikiann", "dataset.metrics=[f1]"], "dataset.metrics=f1: not a metric of a tagging"),
    (["dataset=wikiann", "dataset.labels=[NOUN,VERB]"],
     "dataset.metrics=entity_f1: needs tags O, B-TYPE and I-TYPE, but there is NOUN; "
     "name them with dataset.labels, or use token_accuracy"),
])  # fmt: skip
def test_a_wrong_setting_is_one_line(overrides: list[str], expected: str) -> None:
    with pytest.raises(ConfigError) as raised:
        configured("adalayers_tiny", *overrides)
    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)


def test_columns_by_name_are_those_that_runs_wrote_out_before() -> None:
    """So that a run goes on, and is the same run of a grid, whether its file names the columns or not."""
    given = ("ponder_tiny", "dataset=table", "dataset.path=x")
    by_name = configured(*given)
    written = configured(*given, "dataset.text_columns=[sentence]", "dataset.label_column=label")
    other = configured(*given, "dataset.text_columns=[text]")
    assert (by_name.dataset.text_columns, by_name.dataset.label_column) == (None, None)
    assert result_hash(by_name) == result_hash(written) != result_hash(other)
