"""Data set of an installed package, from its entry point to its batches."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adadepth.cli.keys import list_keys
from adadepth.config.kinds import GROUP, kinds, list_dataset_schemas
from adadepth.errors import ConfigError, DataError
from tests.configs.support import configured
from tests.marks_support import keep_one_quick
from tests.plugins_support import install_package

from .labelled_support import load

MOODS = """
from dataclasses import dataclass

from adadepth.config import DatasetConfig, LabelledConfig, Source
from adadepth.config.kinds import Kind
from adadepth.config.declaration import at_least, setting


@dataclass
class Moods(LabelledConfig):
    name: str = setting("moods", "name of the data set in reports")
    source: Source = setting(Source.local, "read by the package")
    repeats: int = setting(4, "of every sentence", at_least(1))


@dataclass
class Plain(DatasetConfig):
    name: str = setting("moods", "name of the data set in reports")


@dataclass
class OfTheHub(LabelledConfig):
    name: str = setting("moods", "name of the data set in reports")


def tables(dataset):
    from adadepth.data.text.table import build_table

    rows = [{"sentence": f"I am {word} .", "label": word} for word in ("glad", "sad")] * dataset.repeats
    return {"train": build_table("moods", rows), "validation": build_table("moods", rows[:2])}


MOODS = Kind(Moods, tables="moods:tables")
PLAIN = Kind(Plain, tables="moods:tables")
OF_THE_HUB = Kind(OfTheHub, tables="moods:tables")
NO_PROBLEM = Kind(Moods, "guessing", tables="moods:tables")
NO_PLACE = Kind(Moods, tables="moods.tables")
"""


@pytest.fixture
def moods(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "moods.py").write_text(MOODS)
    yield tmp_path
    sys.modules.pop("moods", None)


@pytest.mark.slow
def test_rows_of_an_installed_data_set_are_read_like_those_of_any_table(moods: Path) -> None:
    with install_package(moods, "adadepth-moods", {GROUP: {"moods": "moods:MOODS"}}):
        assert "moods" in list_dataset_schemas()
        assert "dataset.repeats" in set(list_keys())
        dataset: Any = configured(
            "act_cola", "dataset=moods", "dataset.repeats=3", f"dataset.cache_dir={moods}"
        ).dataset
        data = load(dataset)
        assert data.labels == ("glad", "sad")
        assert (len(data.train), len(data.evaluation["validation"])) == (6, 2)  # type: ignore[arg-type]
        assert data.tokenizer is not None
        assert data.tokenizer.decode(data.train[1]["input_ids"], skip_special_tokens=True).strip() == "i am sad ."
        dataset.evaluation_splits = ["dev"]
        with pytest.raises(DataError, match=r"dataset.evaluation_splits=dev: "):
            load(dataset)
    assert "moods" not in list_dataset_schemas()


@pytest.mark.parametrize(("override", "message"), keep_one_quick(2, [
    ("dataset.repeats=0", "dataset.repeats=0: must be at least 1"),
    ("dataset.source=hub", "dataset.source=hub: dataset=moods is read from local files; leave it at local"),
]))  # fmt: skip
def test_a_wrong_setting_is_a_one_line_error(moods: Path, override: str, message: str) -> None:
    with install_package(moods, "adadepth-moods", {GROUP: {"moods": "moods:MOODS"}}):
        with pytest.raises(ConfigError) as raised:
            configured("act_cola", "dataset=moods", override)
        assert str(raised.value) == message


@pytest.mark.parametrize(("name", "target", "message"), [
    ("moods", "moods:Moods", "must be an adadepth.config.kinds.Kind, not type"),
    ("moods", "moods:PLAIN", "it needs a loader and a problem, or a loader and evaluate, or settings"),
    ("moods", "moods:OF_THE_HUB", "must have source=local, not hub"),
    ("moods", "moods:NO_PLACE", "'moods.tables' must be 'module:name'"),
    ("moods", "moods:NO_PROBLEM", "its problem 'guessing' must be one of classification, multi_label, "),
    ("feelings", "moods:MOODS", "its settings name it 'moods'"),
    ("labelled", "moods:MOODS", "a data set of that name already exists"),
])  # fmt: skip
def test_a_broken_data_set_is_a_one_line_error(moods: Path, name: str, target: str, message: str) -> None:
    with install_package(moods, "adadepth-moods", {GROUP: {name: target}}):
        with pytest.raises(ConfigError) as raised:
            kinds()
        assert message in str(raised.value)
        assert "adadepth-moods" in str(raised.value)
        assert "\n" not in str(raised.value)
