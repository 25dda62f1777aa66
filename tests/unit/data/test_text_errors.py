"""Files of text that cannot be read: one line names the key, the file and the reason.

A case is the files of a folder, changed settings, and the parts of the error; error_support describes them.
"""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from adadepth.data import load_pretraining_data
from adadepth.errors import DataError
from adadepth.tasks.predict import read_texts

from .error_support import Files, has_parts, insert_folder, write_files
from .support import make_corpus_config, make_tokenizer_config

TEXTS = [f"The cat sees dog number {number}. It was a fine day in story {number}." for number in range(40)]
STORY = {"story.txt": "\n\n".join(TEXTS)}
ROWS = {"rows.jsonl": [{"txt": text, "number": 1} for text in TEXTS]}
PACKED = gzip.compress("".join(f"{json.dumps({'text': text})}\n" for text in TEXTS).encode())
BOMB = b"".join(gzip.compress(b" " * 2**20) for _ in range(100))

CORPORA: list[tuple[Files, dict[str, Any], str]] = [
    # paths
    (STORY, {"path": "FOLDER/stroy.txt"},
     "dataset.path=FOLDER/stroy.txt: no such file or folder (did you mean 'story.txt'?)"),
    (STORY, {"evaluation_path": "FOLDER/none/x.txt"}, "dataset.evaluation_path=FOLDER/none/x.txt: no such file"),
    ({"folder/": ""}, {"path": "FOLDER/folder"}, "no non-empty file found (in a folder: .txt"),
    (STORY, {"path": "FOLDER/*.nothing"}, "no non-empty file found"),
    ({}, {"path": "/dev/zero"}, "dataset.path=/dev/zero: must be a file or a folder"),
    *((STORY, {"path": path}, "dataset.path=")
      for path in (7, True, {"a": "b"}, [7, None], "x" * 5000, "x/" * 2500, "a\0b")),
    (STORY, {"evaluation_path": 7}, "dataset.evaluation_path=7"),
    *((STORY, {"cache_dir": folder}, "dataset.cache_dir=")
      for folder in ("x" * 5000, "x/" * 2500, "/proc/x", "/dev/null", "FOLDER/story.txt/.cache/adadepth")),
    # documents
    ({"empty.txt": ""}, {"path": "FOLDER/empty.txt"}, "FOLDER/empty.txt: the file is empty"),
    ({"blank.txt": "\n \n"}, {}, "0 different document(s) found, but a held-out text needs at least 2"),
    ({"one.txt": "Only one document."}, {}, "1 different document(s) found ... dataset.evaluation_path"),
    (STORY, {"evaluation_path": "FOLDER/story.txt"}, "contain no text"),
    # tables
    (ROWS, {}, "FOLDER/rows.jsonl has the columns txt, number (did you mean 'txt'?)"),
    (ROWS, {"text_column": "number"}, "holds int there, not text"),
    ({"bad.jsonl": '{"text": "a"}\n{"text":\n'}, {}, "dataset.path=FOLDER/bad.jsonl: not a readable json file"),
    ({"bad.parquet": "nothing of the kind"}, {}, "dataset.path=FOLDER/bad.parquet: not a readable parquet file"),
    ({"bad.arrow": "nothing of the kind"}, {}, "dataset.path=FOLDER/bad.arrow: not a readable arrow file"),
    ({"begun.jsonl.gz": PACKED[:20]}, {}, "dataset.path=FOLDER/begun.jsonl.gz: not a readable json file"),
    ({"cut.jsonl.gz": PACKED[:-9]}, {}, "dataset.path=FOLDER/cut.jsonl.gz: not a readable json file"),
    ({"bomb.jsonl.gz": BOMB}, {}, "FOLDER/bomb.jsonl.gz: unpacks to more than 100 times its size"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("files", "changes", "message"),
    [pytest.param(*case, id=f"{list(case[0])} {str(case[1])[:40]}") for case in CORPORA],
)
def test_an_unreadable_corpus_is_a_one_line_error(
    files: Files, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = tmp_path / "texts"
    write_files(folder, files)
    config = make_corpus_config(next((folder / name for name in files), folder), tmp_path / "cache")
    for key, value in insert_folder(changes, folder).items():
        setattr(config, key, value)
    with pytest.raises(DataError) as raised:
        load_pretraining_data(config, make_tokenizer_config(), 0)
    line = str(raised.value)
    assert has_parts(line, insert_folder(message, folder)), line
    assert "\n" not in line
    assert len(line) < 500
    assert not list((tmp_path / "cache").glob("train-*"))


@pytest.mark.parametrize(("content", "message"), [
    (None, "No such file"), (b"\n", "holds no text"), (b"\xff\xfe", "not UTF-8 at byte 0"),
    (b"a cat\n\none\ttwo\tthree\n", "FILE, line 3 has 3 texts with tabs between them, not 2"),
    (b"\0" * (2**25 + 1), "FILE: has more than 32 MiB"), ("a pipe", "FILE: must be a file"),
], ids=["missing", "blank", "bytes", "tabs", "huge", "pipe"])  # fmt: skip
def test_a_file_without_texts_to_predict_is_a_one_line_error(
    content: bytes | str | None, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "texts.txt"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content == "a pipe":
        os.mkfifo(file)
    with pytest.raises(DataError) as raised:
        read_texts(f"@{file}")
    assert message.replace("FILE", str(file)) in str(raised.value)
    assert "\n" not in str(raised.value)
