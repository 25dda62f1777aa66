"""Files without text: devices, pipes, decompression bombs, and rows without an owner."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from adadepth.config.data import MazePathConfig
from adadepth.data.cache import ensure_folder
from adadepth.data.puzzles.dataset import PuzzleExamples, build_puzzle_data
from adadepth.data.puzzles.generated import draw_paths
from adadepth.data.stores.questions import read_rows
from adadepth.data.text.local_files import find_files
from adadepth.data.text.table import build_table
from adadepth.data.text.table_files import open_file_table
from adadepth.errors import ConfigError, DataError
from adadepth.tasks.predict import read_texts
from tests.configs.support import configured


def test_a_device_is_refused() -> None:
    with pytest.raises(DataError, match=r"^dataset.path=/dev/zero: must be a file or a folder$"):
        find_files("dataset.path", "/dev/zero")


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match=r"pipe: must be a file$"):
        read_texts(f"@{tmp_path}/pipe")


def test_a_huge_file_of_texts_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "texts").open("wb") as file:
        file.truncate(2**25 + 1)
    with pytest.raises(DataError, match="texts: has more than 32 MiB"):
        read_texts(f"@{tmp_path}/texts")


def test_a_decompression_bomb_is_refused(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.jsonl.gz", "wb") as file:
        for _ in range(100):
            file.write(b" " * 2**20)
    with pytest.raises(DataError, match="unpacks to more than 100 times its size"):
        open_file_table("dataset.path", tmp_path / "a.jsonl.gz")


@pytest.mark.parametrize(("ids", "context", "message"), [
    ([None, "a"], "a dog", "dataset.id_column=id: there, row 0 has no id; null uses row numbers as ids"),
    (["a", "b"], "a dog" * 200_001, "there, row 0 has 1,000,005 characters, more than 1,000,000; shorten it"),
])  # fmt: skip
def test_questions_without_a_readable_id_or_context_are_refused(
    ids: list[str | None], context: str, message: str
) -> None:
    dataset = configured("act_squad").dataset
    answers = {"text": ["dog"], "answer_start": [2]}
    rows = [{"question": "what?", "context": context, "answers": answers, "id": number} for number in ids]
    (batch,) = build_table("there", rows).read_batches()
    with pytest.raises(DataError, match=message):
        list(read_rows(batch, dataset, 0))


def test_mazes_without_a_path_are_refused() -> None:
    dataset = MazePathConfig(name="maze_path", walls=0.99, size=5)
    with pytest.raises(ConfigError, match=r"^dataset.walls=0.99: hardly a maze of dataset.size=5 has a path$"):
        draw_paths(dataset, 4, 0, evaluation=False)


def test_puzzles_without_a_question_are_refused() -> None:
    cells = np.ones((3, 4), dtype=np.int8)
    examples = PuzzleExamples(cells, cells, np.zeros(3, dtype=np.int64), {})
    with pytest.raises(DataError, match="nothing can be learned"):
        build_puzzle_data(MazePathConfig(name="maze_path"), examples, {}, "ab", {})
    wide = PuzzleExamples(cells.reshape(1, 12), cells.reshape(1, 12), np.zeros(1, dtype=np.int64), {})
    with pytest.raises(ConfigError, match=r"^dataset.sequence_length=8: a puzzle has 12 cells$"):
        build_puzzle_data(MazePathConfig(name="maze_path", sequence_length=8), wide, {}, "ab", {})


def test_a_cache_that_cannot_be_created_is_a_one_line_error(tmp_path: Path) -> None:
    """Use a home that may not be written, which is above the folder."""
    (tmp_path / "home").write_text("")
    with pytest.raises(DataError, match=r"^dataset.cache_dir="):
        ensure_folder(tmp_path / "home" / ".cache" / "adadepth", "name", lambda folder: None)
