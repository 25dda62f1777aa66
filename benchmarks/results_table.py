"""Read and write the results of the full bench: `results.parquet`, a row for each run.

    python benchmarks/results_table.py FOLDER

This command writes them as the JSON files that a bench reads, for `hydra.sweeper.results=FOLDER`. The sets of a run are
a map by name, and so are the operating points of a set (`readings`, and `half_readings` if its halves were scored). A
field that a file does not have is null.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from adadepth.report.run_files import write_json

TABLE = Path(__file__).with_name("results.parquet")
_TEXT, _NUMBER, _COUNT = pa.string(), pa.float64(), pa.int64()


def _fields(names: str, dtype: pa.DataType) -> dict[str, pa.DataType]:
    return dict.fromkeys(names.split(), dtype)


_POINT = pa.struct(
    {"rule": _TEXT}
    | _fields("chosen_score score score_error updates updates_error macs prediction_macs spearman", _NUMBER)
)
_RULE = pa.struct(
    {"rule": _TEXT}
    | _fields("score online online_updates updates macs permuted permuted_std mixture spearman calibration", _NUMBER)
    | {"time": pa.map_(_TEXT, _NUMBER)}
)
_SET = pa.struct(
    {
        "n": _COUNT,
        "readings": pa.map_(_TEXT, pa.list_(_POINT)),
        "half_readings": pa.map_(_TEXT, pa.list_(_POINT)),
        "rules": pa.list_(_RULE),
        "overthinking": pa.struct({"step": _COUNT} | _fields("best last gap lost", _NUMBER)),
    }
)
_HARDWARE = pa.struct(
    _fields("platform machine processor", _TEXT) | _fields("cpus threads processes", _COUNT) | {"gpus": pa.list_(_TEXT)}
)
SCHEMA = pa.schema(
    _fields("name task way", _TEXT)
    | {"setting": pa.list_(_TEXT), "seed": _COUNT, "overrides": pa.list_(_TEXT), "commit": _TEXT, "hardware": _HARDWARE}
    | {"versions": pa.map_(_TEXT, _TEXT), "seconds": _NUMBER, "steps": _COUNT, "unit": _TEXT, "max_updates": _COUNT}
    | {"sets": pa.map_(_TEXT, _SET)}
)


def read_table(file: Path = TABLE) -> list[dict[str, Any]]:
    """Return the results by name, as `adadepth.contrib.bench.page.read_results` reads them from files."""
    results: list[dict[str, Any]] = parquet.read_table(file).to_pylist(maps_as_pydicts="strict")
    for result in results:
        result["hardware"] = result["hardware"] and _drop_nulls(result["hardware"])
        result["sets"] = {name: _drop_nulls(measured) for name, measured in result["sets"].items()}
        for measured in result["sets"].values():
            for key in measured.keys() & {"readings", "half_readings"}:
                measured[key] = {
                    rule: [_drop_later(point) for point in points] for rule, points in measured[key].items()
                }
    return results


def _drop_later(point: Mapping[str, Any]) -> dict[str, Any]:
    """Return an operating point without the compute of a prediction if its run has none."""
    return {name: value for name, value in point.items() if name != "prediction_macs" or value is not None}


def _drop_nulls(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def write_table(results: Iterable[Mapping[str, Any]], file: Path = TABLE) -> None:
    """Write results, sorted by name."""
    rows = sorted(results, key=lambda result: result["name"])
    parquet.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), file, compression="zstd")


def write_files(folder: Path) -> None:
    """Write the JSON file of each result, as a bench writes it."""
    for result in read_table():
        write_json(folder / f"{result['name']}.json", result)


if __name__ == "__main__":
    write_files(Path(sys.argv[1]))
