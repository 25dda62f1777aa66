"""Statistics of an architecture search and of a comparison of networks: operations, entropy, compute and latency."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean
from typing import Any

OPERATION_NAMES, LETTERS = ("attention", "feed_forward", "identity"), "sf-"
QUALITIES = {
    "loss": "loss (nats)",
    "perplexity": "perplexity per token",
    "word_perplexity": "perplexity per word",
    "bits_per_character": "bits per character",
    "bits_per_byte": "bits per byte",
    "perplexity_std": "sd of the perplexity over paths",
    "batch_perplexity": "mean of the batches' perplexities",
}
EVALUATION_COSTS = {
    "soft": "every block mixes its operations, weighted by their probabilities",
    "argmax": "every block runs its most probable operation",
    "sampled": "one operation per block, sampled from the probabilities; mean over the sampled paths",
    "noisy": "as in training: probabilities with Gumbel noise, at the temperature of the step",
    "network": "a fixed architecture, without choices",
    "test": "the test text, which no choice depends on; a supernet mixes its operations as in soft",
}
_BLOCK = "search/block/"


def describe_architecture(probabilities: Sequence[Sequence[float]], temperature: float | None = None) -> dict[str, Any]:
    """Return statistics of the architecture that a search would choose at this evaluation.

    Args:
        probabilities: Probabilities of attention, feed-forward and identity for every block: the softmax of the gates
            without noise. A fixed network has ones and zeros.
        temperature: Temperature of the gates in training, or None for a fixed network.

    Returns:
        `string`, the most probable operation of every block (the first one if several are equal); `blocks`, the number
        N of blocks; `probabilities`; `entropy` of every block in nats, from 0 to ln 3, and `mean_entropy`;
        `temperature`; `expected_blocks`, the sum of 1 - p_identity; `thirds`, see `operations_by_third`.
    """
    assert probabilities, "a network has a block"
    string = "".join(LETTERS[max(range(len(LETTERS)), key=row.__getitem__)] for row in probabilities)
    entropy = [_entropy(row) for row in probabilities]
    return {
        "string": string,
        "blocks": len(string),
        "probabilities": [list(row) for row in probabilities],
        "entropy": entropy,
        "mean_entropy": fmean(entropy),
        "temperature": temperature,
        "expected_blocks": sum(1 - row[LETTERS.index("-")] for row in probabilities),
        "thirds": operations_by_third(string),
    }


def _entropy(row: Sequence[float]) -> float:
    return max(-sum(share * math.log(share) for share in row if share > 0), 0.0)


def operations_by_third(architecture: str) -> list[dict[str, int]]:
    """Count each operation in every third of the depth. Block n of N, counted from 0, is in third floor(3n / N)."""
    thirds = [dict.fromkeys(OPERATION_NAMES, 0) for _ in range(3)]
    for block, letter in enumerate(architecture):
        thirds[3 * block // len(architecture)][OPERATION_NAMES[LETTERS.index(letter)]] += 1
    return thirds


def is_fixed(described: Mapping[str, Any]) -> bool:
    """Return whether an architecture was fixed from the start, so that no search chooses its operations.

    It is fixed if it has no temperature and one operation of every block has probability 1.
    """
    return described["temperature"] is None and not any(described["entropy"])


def flatten_architecture(described: Mapping[str, Any]) -> dict[str, float | str | list[float]]:
    """Flatten the result of `describe_architecture` into named scalars for the training log.

    The names are `search/architecture` (the string); `search/attention`, `search/feed_forward`, `search/identity` and
    `search/entropy`, lists with one value per block; and the scalars `search/mean_entropy`, `search/expected_blocks`,
    `search/temperature` (if there is one) and `search/thirds/<1 to 3>/<operation>`.
    """
    columns = zip(*described["probabilities"], strict=True)
    flat: dict[str, float | str | list[float]] = {"search/architecture": described["string"]}
    flat |= {f"search/{operation}": list(column) for operation, column in zip(OPERATION_NAMES, columns, strict=True)}
    flat |= {f"search/{key}": described[key] for key in ("entropy", "mean_entropy", "expected_blocks")}
    if described["temperature"] is not None:
        flat["search/temperature"] = described["temperature"]
    for number, counts in enumerate(described["thirds"], start=1):
        flat |= {f"search/thirds/{number}/{operation}": count for operation, count in counts.items()}
    return flat


def block_metrics(described: Mapping[str, Any]) -> dict[str, float]:
    """Return the probability of every operation in every block under `search/block/<n from 1>/<operation>`."""
    return {
        f"{_BLOCK}{block}/{operation}": share
        for block, row in enumerate(described["probabilities"], start=1)
        for operation, share in zip(OPERATION_NAMES, row, strict=True)
    }


def flatten_search(halting: Mapping[str, Any]) -> dict[str, float | str | list[float]]:
    """Flatten the searched architecture in halting.json into named values, without quality metrics.

    The names are those of `flatten_architecture` and `block_metrics`, and `cost/<name>`, such as `cost/executed_macs`.
    """
    described = halting["architecture"]
    cost = {f"cost/{key}": value for key, value in halting["cost"].items()}
    return flatten_architecture(described) | block_metrics(described) | cost


def architecture_history(metrics: Sequence[Mapping[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    """Return (step, statistics) of each evaluation in metrics.jsonl that has as many blocks as the last one."""
    history = []
    for line in metrics:
        columns = [_numbers(line.get(f"search/{operation}")) for operation in OPERATION_NAMES]
        if columns[0] and len({len(column) for column in columns}) == 1:
            rows = list(zip(*columns, strict=True))
            history.append((line["step"], describe_architecture(rows, line.get("search/temperature"))))
    return [(step, described) for step, described in history if described["blocks"] == history[-1][1]["blocks"]]


def _numbers(values: Any) -> list[float]:
    """Return the list unchanged if all its values are numbers, otherwise an empty list.

    Files store non-finite values as text.
    """
    is_valid = isinstance(values, list) and all(isinstance(value, int | float) for value in values)
    return values if is_valid else []


# ---- several seeds


def architectures_over_seeds(metrics: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the architecture that the search of every seed found, as operation probabilities for all blocks.

    Args:
        metrics: The value of `metrics` in the result of `summarise_seeds`.
    """
    blocks = {int(name.removeprefix(_BLOCK).split("/")[0]) for name in metrics if name.startswith(_BLOCK)}
    rows = [
        [metrics.get(f"{_BLOCK}{block}/{operation}", {}).get("values", {}) for operation in OPERATION_NAMES]
        for block in range(1, max(blocks, default=0) + 1)
    ]
    seeds = [seed for seed in (rows[0][0] if rows else ()) if all(seed in values for row in rows for values in row)]
    return {seed: describe_architecture([[v[seed] for v in row] for row in rows])["string"] for seed in seeds}


def agreement_over_seeds(architectures: Mapping[str, str]) -> dict[str, Any] | None:
    """Compute how often the searches of two seeds choose the same operation for a block: chance gives 1/3.

    Args:
        architectures: Architecture of every seed, all of the same length, from `architectures_over_seeds`.

    Returns:
        `mean` and `min` of the share of blocks that agree, over `pairs` pairs of seeds; `strings`, the architecture of
        each seed; `thirds`, the operations in each third of the depth, summed over seeds. The result is None for fewer
        than two seeds.
    """
    if len(architectures) < 2:
        return None
    shares = [
        fmean(a == b for a, b in zip(one, other, strict=True)) for one, other in combinations(architectures.values(), 2)
    ]
    thirds = [operations_by_third(string) for string in architectures.values()]
    return {
        "mean": fmean(shares),
        "min": min(shares),
        "pairs": len(shares),
        "strings": dict(architectures),
        "thirds": [
            {name: sum(row[name] for row in rows) for name in OPERATION_NAMES} for rows in zip(*thirds, strict=True)
        ],
    }


NOT_RETRAINED = "not retrained"


def compared_rows(comparison: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the networks of an architecture comparison: unique `label`, operation `counts`, and `costs`.

    For every shape, `costs` has `macs`, and in seconds `median`, `p10`, `p90` and `blocks_median`, if they were
    measured. `macs_share`, `median_share` and `blocks_median_share` are the ratios to the reference network.
    """
    rows, names = comparison["rows"], Counter(row["name"] for row in comparison["rows"])
    reference = next((_costs(row, comparison) for row in rows if row["name"] == comparison["reference"]), {})
    return [
        {
            **row,
            "label": f"{row['name']} ({row['trained']})" if names[row["name"]] > 1 else row["name"],
            "counts": [row["architecture"].count(letter) for letter in LETTERS],
            "costs": {shape: _with_shares(numbers, reference.get(shape, {})) for shape, numbers in costs.items()},
        }
        for row, costs in ((row, _costs(row, comparison)) for row in rows)
    ]


def _costs(row: Mapping[str, Any], comparison: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return the measured compute and time of a network, by input shape."""
    costs = {}
    for shape in (shape["name"] for shape in comparison["shapes"]):
        seconds = (row.get("seconds") or {}).get(shape, {})
        numbers = {"macs": (row.get("macs") or {}).get(shape)} | {key: seconds.get(key) for key in _SECONDS}
        costs[shape] = {key: value for key, value in numbers.items() if value is not None}
    return costs


_SECONDS = ("median", "p10", "p90", "blocks_median")


def _with_shares(costs: Mapping[str, float], reference: Mapping[str, float]) -> dict[str, float]:
    shares = {
        f"{key}_share": costs[key] / reference[key]
        for key in ("macs", "median", "blocks_median")
        if key in costs and reference.get(key)
    }
    return {**costs, **shares}


def measured_qualities(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the quality metrics that at least one compared network has, in display order."""
    return [name for name in QUALITIES if any((row["quality"] or {}).get(name) is not None for row in rows)]


def quality_points(comparison: Mapping[str, Any]) -> list[tuple[str, str, list[tuple[float, float, dict[str, Any]]]]]:
    """Return scatter-plot data per evaluated set and input shape: titles, and points (cost, perplexity, network).

    The cost is the median time in milliseconds if one was measured, otherwise the multiply-accumulates. A network that
    was not retrained has no point, because its perplexity only measures the weights that it shares with the supernet.
    """
    rows = [row for row in compared_rows(comparison) if (row["quality"] or {}).get("perplexity") is not None]
    rows = [row for row in rows if row["trained"] != NOT_RETRAINED]
    drawings = []
    for quality_set in dict.fromkeys(row["quality_set"] for row in rows):
        for shape in (shape["name"] for shape in comparison["shapes"]):
            of_set = [row for row in rows if row["quality_set"] == quality_set]
            timed = any("median" in row["costs"][shape] for row in of_set)
            key, scale = ("median", 1e3) if timed else ("macs", 1.0)
            points = [
                (scale * row["costs"][shape][key], row["quality"]["perplexity"], row)
                for row in of_set
                if key in row["costs"][shape]
            ]
            if points:
                axis = "median milliseconds of a forward pass" if timed else "multiply-accumulates per sequence"
                drawings.append((f"{set_title(quality_set)}, {shape}", axis, points))
    return drawings


def set_title(quality_set: str) -> str:
    """Return the display name of an evaluation set of text."""
    return {"held_out": "held-out text", "test": "test text"}.get(quality_set, quality_set)


def conditions_text(comparison: Mapping[str, Any]) -> str:
    """Format the conditions of a time measurement, such as the device, as one line."""
    if not any(row.get("seconds") for row in comparison["rows"]):
        return "time: not measured"
    conditions = ", ".join(f"{key} {value}" for key, value in comparison.get("conditions", {}).items())
    return f"time: {conditions or 'conditions unknown'}"
