"""Architectures as strings, one operation a block, and those that a searched one is compared with."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from itertools import count, takewhile

import torch

from adadepth.errors import ConfigError

# Attention, feed-forward, identity: the order of the gates.
OPERATIONS = "sf-"
_DRAWS, _TOLERANCE = 1000, 0.05
_SMALLEST = 1e-30  # of a probability: its logarithm stays finite


def parse_architecture(key: str, text: str) -> str:
    """Return the architecture without surrounding space.

    Raises:
        ConfigError: Naming the key and the first character that is no operation, or that there is none.
    """
    architecture = text.strip()
    allowed = "allowed: s (attention), f (feed-forward), - (identity), one a block"
    if not architecture:
        raise ConfigError(f"{key}={text!r}: no blocks; {allowed}")
    for position, operation in enumerate(architecture, 1):
        if operation not in OPERATIONS:
            raise ConfigError(f"{key}={architecture!r}: {operation!r} at block {position} is no operation; {allowed}")
    return architecture


def alternating(blocks: int) -> str:
    """`sfsf...`, the order of the transformer's sublayers."""
    return ("sf" * blocks)[:blocks]


def paper_rule(blocks: int, ratio: int = 5) -> str:
    """Attention in one of `ratio` blocks, evenly over the first two thirds, and feed-forward (Mandava et al. 2020).

    The rounding gives the published 32 blocks at a ratio of 5: `sfff` six times, then `f` eight times.
    """
    assert ratio >= 1
    first_part = max(2 * blocks // 3, 1)
    attentions = min(max(blocks // ratio, 1), first_part)
    period = (first_part + first_part // attentions) // attentions
    return (("s" + "f" * (period - 1)) * attentions).ljust(blocks, "f")[:blocks]


def sandwich(blocks: int) -> str:
    """`s^k (sf)^(n-k) f^k` with n pairs of blocks and k = 3n / 8, the best of Press et al. (2020): 6 of 16."""
    pairs = blocks // 2
    outer = min(max(3 * pairs // 8, 1), pairs)
    return "s" * outer + alternating(blocks - 2 * outer) + "f" * outer


def random_architecture(blocks: int, generator: torch.Generator) -> str:
    """Attention or feed-forward in each block, by a fair coin; an identity would only make it shorter."""
    return "".join("sf"[drawn] for drawn in torch.randint(2, (blocks,), generator=generator).tolist())


def at_equal_macs(make: Callable[[int], str], macs: Callable[[str], float], target: float) -> str:
    """Of the architectures `make(1)`, `make(2)`, ..., each dearer than the last, the one whose MACs are closest."""
    # From twice the target on, an architecture is further off than none at all.
    longer = takewhile(lambda architecture: macs(architecture) < 2 * target, (make(blocks) for blocks in count(2)))
    return min([make(1), *longer], key=lambda architecture: abs(macs(architecture) - target))


def baseline_architectures(
    target_architecture: str, macs: Callable[[str], float], ratio: int = 5, seed: int = 0
) -> dict[str, str]:
    """What a searched architecture is compared with, at MACs as close to its own as the number of blocks allows.

    Args:
        target_architecture: The searched one.
        macs: The work of an architecture.
        ratio: Blocks for one attention block in the paper's rule.
        seed: Of the random architecture, which has as many blocks as the alternating one and is drawn again until its
            MACs are within 5 % of the target; of 1,000 draws that are not, the closest.

    Returns:
        `alternating`, `paper_rule`, `sandwich` and `random`.
    """
    target = macs(target_architecture)
    reference = at_equal_macs(alternating, macs, target)
    return {
        "alternating": reference,
        "paper_rule": at_equal_macs(lambda blocks: paper_rule(blocks, ratio), macs, target),
        "sandwich": at_equal_macs(sandwich, macs, target),
        "random": _random_at_macs(len(reference), macs, target, torch.Generator().manual_seed(seed)),
    }


def most_probable_at_cost(
    probabilities: Sequence[Sequence[float]], costs: Sequence[float], target: float, tolerance: float
) -> str:
    """The most probable of the architectures whose cost is within the tolerance; if none is, of the nearest.

    Cost depends on how often each operation occurs alone, so that for each pair of counts the most probable order is
    kept from block to block: exact, in N^3 steps.

    Args:
        probabilities: For every block those of attention, feed-forward and identity.
        costs: Of the three.
        target: In the unit of the costs.
        tolerance: As a share of it.
    """
    best: dict[tuple[int, ...], tuple[float, str]] = {(0,) * len(OPERATIONS): (0.0, "")}
    for row in probabilities:
        longer: dict[tuple[int, ...], tuple[float, str]] = {}
        for counts, (score, text) in best.items():
            for number, operation in enumerate(OPERATIONS):
                key = (*counts[:number], counts[number] + 1, *counts[number + 1 :])
                found = (score + math.log(max(row[number], _SMALLEST)), text + operation)
                longer[key] = max(longer.get(key, found), found)
        best = longer
    distances = {counts: abs(sum(map(operator.mul, counts, costs)) - target) for counts in best}
    bound = max(tolerance * target, min(distances.values()) * (1 + 1e-9))  # sums of equal costs differ by rounding
    return max(best[counts] for counts, distance in distances.items() if distance <= bound)[1]


def _random_at_macs(blocks: int, macs: Callable[[str], float], target: float, generator: torch.Generator) -> str:
    def distance(architecture: str) -> float:
        return abs(macs(architecture) - target)

    closest = random_architecture(blocks, generator)
    for _ in range(_DRAWS - 1):
        if distance(closest) <= _TOLERANCE * target:
            break
        closest = min(closest, random_architecture(blocks, generator), key=distance)
    return closest
