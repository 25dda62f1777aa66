"""Fixtures of tests of data."""

from __future__ import annotations

from pathlib import Path

import pytest

from adadepth.data import RunData, load_pretraining_data

from .support import make_corpus_config, make_tokenizer_config, write_corpus


@pytest.fixture(scope="package")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="package")
def corpus(workspace: Path) -> Path:
    return write_corpus(workspace)


@pytest.fixture(scope="package")
def data(workspace: Path, corpus: Path) -> RunData:
    return load_pretraining_data(make_corpus_config(corpus, workspace / "cache"), make_tokenizer_config(), seed=3)
