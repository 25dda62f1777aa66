"""What is asked of ragged execution, and whether a benchmark's rows reach it."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

Row = dict[str, Any]

# On a CPU, of transformers' ALBERT at the mean depth: mode, width, smallest and largest batch, at most.
_OF_ALBERT = (
    ("inference", 768, 1, 1, 1.10),
    ("inference", 768, 8, 32, 1.10),
    ("inference", 256, 1, 1, 1.15),
    ("inference", 256, 8, 32, 1.08),
    ("training", 768, 8, 32, 1.05),
)


def judge(
    text: str, rows: Sequence[Row], execution: str, number: str, at_most: float = 0.0, at_least: float = 0.0
) -> str:
    """Compare a number of the worst row with the given limit and format the verdict."""
    found = [(row[execution][number], row) for row in rows if number in row.get(execution, {})]
    limit = f"target >= {at_least:g}" if at_least else f"target <= {at_most:g}"
    if not found:
        return f"{text}: not measured ({limit})"
    worst, row = (min if at_least else max)(found, key=lambda pair: pair[0])
    good = sum(value >= at_least if at_least else value <= at_most for value, _ in found)
    verdict = "met" if good == len(found) else f"NOT met in {len(found) - good} of {len(found)} rows"
    where = f"{row['mode']} H {row['hidden']} L {row['depth']} {row['depths']} S {row['length']} B {row['batch']}"
    return f"{text}: {worst:.3g} ({limit}: {verdict}; worst at {where})"


def judge_rows(rows: Sequence[Row], on_gpu: bool) -> Iterator[str]:
    """Every target of this kind of device: a line each."""

    def chosen(mode: str, hidden: int, least: int, most: float = math.inf) -> list[Row]:
        kind = (mode, hidden, 128, False)
        found = [row for row in rows if (row["mode"], row["hidden"], row["length"], row["padding"]) == kind]
        return [row for row in found if least <= row["batch"] <= most]

    if on_gpu:
        text = "inference, H 768, batch >= 32, length 128: ragged, share of the ideal speed-up"
        yield judge(text, chosen("inference", 768, 32), "ragged", "share_of_ideal", at_least=0.75)
    else:
        for mode, hidden, least, most, limit in _OF_ALBERT:
            text = f"{mode}, H {hidden}, batch {least} to {most}, length 128: ragged / ALBERT at the mean depth"
            yield judge(text, chosen(mode, hidden, least, most), "ragged", "of_albert", at_most=limit)
        for mode in ("inference", "training"):
            text = f"{mode}, H 768, batch >= 8, length 128: ragged, share of the ideal speed-up"
            yield judge(text, chosen(mode, 768, 8), "ragged", "share_of_ideal", at_least=0.85)
        single = [row for row in rows if row["batch"] == 1]
        for name in ("ragged", "auto"):
            yield judge(f"batch 1: {name} / dense", single, name, "of_dense", at_most=1.0)
        yield judge("ragged and dense, largest difference of a state", rows, "ragged", "difference", at_most=1e-5)
        yield judge("ragged and dense, gradients", rows, "ragged", "gradient_difference", at_most=1e-5)
    yield judge("auto / the faster of dense and ragged", rows, "auto", "of_best", at_most=1.05)
    yield judge("ragged and dense, the same updates", rows, "ragged", "updates_equal", at_least=1)
