"""Small labelled tables in every format, and helpers shared by the tests of labelled data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from adadepth.config import LabelledConfig, Source, TokenizerConfig
from adadepth.data import RunData, load_labelled_data

Row = dict[str, Any]


def make_pair_rows(count: int, first: int = 0) -> list[Row]:
    """Return pairs of different lengths with the classes 0 and 1, some with quotes, tabs and line ends kept out."""
    return [
        {
            "premise": f'The {number}. cat says "{"so " * (number % 5)}much", doesn\'t it?',
            "hypothesis": f"Cat {number} talks" + " a lot" * (number % 3) + ".",
            "label": number % 2,
            "number": number,
        }
        for number in range(first, first + count)
    ]


def write_table(file: Path, rows: list[Row]) -> Path:
    """Write rows in the format of the file's suffix."""
    file.parent.mkdir(parents=True, exist_ok=True)
    names = list(rows[0]) if rows else ["premise", "hypothesis", "label"]
    if file.suffix == ".parquet":
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({name: [row[name] for row in rows] for name in names}), file)
    elif file.suffix == ".jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif file.suffix == ".csv":
        quoted = [['"' + str(value).replace('"', '""') + '"' for value in row.values()] for row in rows]
        file.write_text("\n".join([",".join(names), *map(",".join, quoted)]) + "\n", encoding="utf-8")
    else:
        lines = ["\t".join(map(str, row.values())) for row in rows]
        file.write_text("\n".join(["\t".join(names), *lines]) + "\n", encoding="utf-8")
    return file


def write_splits(folder: Path, suffix: str = "jsonl", **splits: list[Row]) -> Path:
    for split, rows in splits.items():
        write_table(folder / f"{split}.{suffix}", rows)
    return folder


def make_labelled_config(path: Any, cache: Path, **changes: Any) -> LabelledConfig:
    settings: dict[str, Any] = {
        "name": "pairs", "source": Source.local, "path": path if isinstance(path, dict) else str(path),
        "text_columns": ["premise", "hypothesis"], "cache_dir": str(cache), "sequence_length": 64,
    }  # fmt: skip
    return LabelledConfig(**{**settings, **changes})


def load(dataset: LabelledConfig, tokenizer: TokenizerConfig | None = None, **options: Any) -> RunData:
    return load_labelled_data(dataset, tokenizer or TokenizerConfig(vocab_size=60), 0, **options)
