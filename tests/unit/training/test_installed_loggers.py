"""Loggers of installed packages: registered by name, or refused with one line that names the package."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from adadepth.errors import ConfigError
from adadepth.training.trackers import GROUP, trackers
from tests.configs.support import configured
from tests.plugins_support import install_package

SOURCE = """
from adadepth.training.trackers import TrackerKind

HERE = TrackerKind("own_logger:Here", "json", "nothing")
GONE = TrackerKind("own_logger:Gone", "no_such_library", "no-such-library")
NO_PLACE = TrackerKind("own_logger.Here", "json", "nothing")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "own_logger.py").write_text(SOURCE)
    yield tmp_path
    sys.modules.pop("own_logger", None)


def test_an_installed_logger_works_like_a_built_in_one(folder: Path) -> None:
    with install_package(folder, "own-logger", {GROUP: {"here": "own_logger:HERE", "gone": "own_logger:GONE"}}):
        assert configured("act_tiny", "logger.report_to=here").logger.report_to == ["here"]
        with pytest.raises(ConfigError, match="the package no_such_library is missing; install it with"):
            configured("act_tiny", "logger.report_to=gone")
    with pytest.raises(ConfigError, match=r"logger\.report_to=here: must be one of wandb"):
        configured("act_tiny", "logger.report_to=here")


@pytest.mark.parametrize(("name", "target", "message"), [
    ("here", "own_logger:TrackerKind", "must be an adadepth.training.trackers.TrackerKind, not type"),
    ("here", "own_logger:NO_PLACE", "'own_logger.Here' must be"),
    ("wandb", "own_logger:HERE", "a logger of that name already exists"),
])  # fmt: skip
def test_a_broken_logger_is_a_one_line_error(folder: Path, name: str, target: str, message: str) -> None:
    with install_package(folder, "own-logger", {GROUP: {name: target}}):
        with pytest.raises(ConfigError) as raised:
            trackers()
        assert message in str(raised.value)
        assert "own-logger" in str(raised.value)
