"""Configuration of PAR-XL, with architectures as strings of one letter per block, baselines and MAC counts."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Sequence
from itertools import count, takewhile
from typing import ClassVar

import numpy as np
import torch
from huggingface_hub.dataclasses import strict

from adadepth.errors import ConfigError
from adadepth.halting.trace import DepthTrace, Work
from adadepth.models.par_xl.adaptive_softmax import check_cutoffs, check_widths
from adadepth.models.par_xl.settings import ParXLFields, ParXLSettings
from adadepth.models.shared.configuration import FamilyConfig
from adadepth.runtime.devices import fill_values

# Attention, feed-forward, identity: the order of the gates.
OPERATIONS = "sf-"
_DRAWS, _TOLERANCE = 1000, 0.05
_SMALLEST = 1e-30  # of a probability: its logarithm stays finite


def parse_architecture(key: str, text: str) -> str:
    """Check an architecture string, and return it without surrounding spaces.

    Raises:
        ConfigError: Names the key and the first character that is not an operation, or reports an empty architecture.
    """
    architecture = text.strip()
    allowed = "allowed: s (attention), f (feed-forward), - (identity), one per block"
    if not architecture:
        raise ConfigError(f"{key}={text!r}: no blocks; {allowed}")
    for position, operation in enumerate(architecture, 1):
        if operation not in OPERATIONS:
            raise ConfigError(
                f"{key}={architecture!r}: {operation!r} at block {position} is not an operation; {allowed}"
            )
    return architecture


def alternating(blocks: int) -> str:
    """Return the architecture `sfsf...`, which alternates attention and feed-forward as in a standard transformer."""
    return ("sf" * blocks)[:blocks]


def paper_rule(blocks: int, ratio: int = 5) -> str:
    """Return the architecture that follows the design rule of the paper (Mandava et al. 2020).

    One block in `ratio` is attention. Attention blocks are spread evenly over the first two thirds, and all others are
    feed-forward.

    With a ratio of 5, rounding gives the published architecture of 32 blocks: `sfff` six times, then `f` eight times.
    """
    assert ratio >= 1
    first_part = max(2 * blocks // 3, 1)
    attentions = min(max(blocks // ratio, 1), first_part)
    period = (first_part + first_part // attentions) // attentions
    return (("s" + "f" * (period - 1)) * attentions).ljust(blocks, "f")[:blocks]


def sandwich(blocks: int) -> str:
    """Return the sandwich architecture `s^k (sf)^(n-k) f^k` for n pairs of blocks, with k = 3n / 8.

    This is the best ratio of Press et al. (2020), who used k = 6 for n = 16.
    """
    pairs = blocks // 2
    outer = min(max(3 * pairs // 8, 1), pairs)
    return "s" * outer + alternating(blocks - 2 * outer) + "f" * outer


def random_architecture(blocks: int, generator: torch.Generator) -> str:
    """Draw a random architecture: attention or feed-forward for each block with equal probability."""
    return "".join("sf"[number] for number in torch.randint(2, (blocks,), generator=generator).tolist())


def match_macs(make: Callable[[int], str], macs: Callable[[str], float], target: float) -> str:
    """Return the architecture among `make(1)`, `make(2)`, ... with MACs closest to a target. The MACs must increase."""
    # An architecture of twice the target is further away than one without blocks.
    longer = takewhile(lambda architecture: macs(architecture) < 2 * target, (make(blocks) for blocks in count(2)))
    return min([make(1), *longer], key=lambda architecture: abs(macs(architecture) - target))


def baseline_architectures(
    target_architecture: str, macs: Callable[[str], float], ratio: int = 5, seed: int = 0
) -> dict[str, str]:
    """Return hand-designed baselines whose MACs are as close as possible to those of a searched architecture.

    Args:
        target_architecture: Searched architecture.
        macs: Function that returns the multiply-accumulates of an architecture.
        ratio: Number of blocks per attention block in the design rule of the paper.
        seed: Seed of the random architecture. This architecture has as many blocks as the alternating one. It is
            sampled until its MACs are within 5 % of the target. After 1,000 samples, the closest one is used.

    Returns:
        Architectures `alternating`, `paper_rule`, `sandwich` and `random`.
    """
    target = macs(target_architecture)
    reference = match_macs(alternating, macs, target)
    return {
        "alternating": reference,
        "paper_rule": match_macs(lambda blocks: paper_rule(blocks, ratio), macs, target),
        "sandwich": match_macs(sandwich, macs, target),
        "random": _sample_at_macs(len(reference), macs, target, torch.Generator().manual_seed(seed)),
    }


def find_most_probable_at_cost(
    probabilities: Sequence[Sequence[float]], costs: Sequence[float], target: float, tolerance: float
) -> str:
    """Return the most probable architecture whose cost is within a tolerance of the target.

    If there is none, return the architecture with the nearest cost.

    The cost depends only on the counts of the operations. Dynamic programming over blocks therefore stores the most
    probable order for each pair of counts. The result is exact and takes N^3 steps.

    Args:
        probabilities: Probabilities of attention, feed-forward and identity for every block, (N, 3).
        costs: Costs of the three operations.
        target: Target in the unit of the costs.
        tolerance: Largest deviation, as a share of the target.
    """
    best: dict[tuple[int, ...], tuple[float, str]] = {(0,) * len(OPERATIONS): (0.0, "")}
    for row in probabilities:
        longer: dict[tuple[int, ...], tuple[float, str]] = {}
        for counts, (score, text) in best.items():
            for number, operation in enumerate(OPERATIONS):
                key = (*counts[:number], counts[number] + 1, *counts[number + 1 :])
                candidate = (score + math.log(max(row[number], _SMALLEST)), text + operation)
                longer[key] = max(longer.get(key, candidate), candidate)
        best = longer
    distances = {counts: abs(sum(map(operator.mul, counts, costs)) - target) for counts in best}
    bound = max(tolerance * target, min(distances.values()) * (1 + 1e-9))  # sums of equal costs differ by rounding
    return max(best[counts] for counts, distance in distances.items() if distance <= bound)[1]


def _sample_at_macs(blocks: int, macs: Callable[[str], float], target: float, generator: torch.Generator) -> str:
    def distance(architecture: str) -> float:
        return abs(macs(architecture) - target)

    closest = random_architecture(blocks, generator)
    for _ in range(_DRAWS - 1):
        if distance(closest) <= _TOLERANCE * target:
            break
        closest = min(closest, random_architecture(blocks, generator), key=distance)
    return closest


def settle_cutoffs(settings: ParXLSettings, word_counts: Callable[[], np.ndarray]) -> ParXLSettings:
    """Compute the optimal vocabulary cutoffs for a training text, if the number of clusters is configured.

    Args:
        settings: Settings of the model.
        word_counts: Function that returns the count of each word id in the training text, (V,).

    Raises:
        ConfigError: If there are more clusters than words.
    """
    if (clusters := settings.cutoff_clusters) is None:
        return settings
    counts = word_counts()
    unused = max((settings.vocab_size or 0) - len(counts), 0)
    counts = np.pad(counts, (0, unused))
    if clusters > len(counts):
        raise ConfigError(f"model.cutoff_clusters={clusters}: the vocabulary has only {len(counts)} words")
    return dataclasses.replace(settings, cutoffs=optimal_cutoffs(counts, clusters), cutoff_clusters=None)


def optimal_cutoffs(counts: np.ndarray, clusters: int) -> list[int]:
    """Return the vocabulary cutoffs that minimise the MACs per target, for vectors of width d.

        C = d (c_1 + n)  +  d sum_k P_k V_k
            head            tail k, of V_k words, for the share P_k of the targets that lie in it

    Grave et al. (2017, arXiv 1609.04309, section 4) choose cutoffs in this way, but minimise modelled GPU time instead
    of compute. The narrower widths of tails are ignored, because otherwise frequent words would get narrow vectors. The
    result is exact over all clusters of consecutive ids, for any order of the words.

    Args:
        counts: Count of each word id, (V,). At least one count must be positive.
        clusters: Number of clusters n + 1 (the head and n tails), at most V.

    Returns:
        First words of the tails, c_1 < ... < c_n. Every cluster has at least one word.
    """
    words = len(counts)
    assert clusters <= words
    cumulated = np.concatenate([[0.0], np.cumsum(counts, dtype=np.float64)]) / counts.sum()
    costs, begins = np.arange(words + 1.0), []  # in units of d, of a head of the first j words
    for before in range(1, clusters):
        costs, begin = _add_tail(costs, cumulated, before)
        begins.append(begin)
    cutoffs = [words]
    for begin in reversed(begins):
        cutoffs.append(int(begin[cutoffs[-1]]))
    return cutoffs[:0:-1]


def _add_tail(costs: np.ndarray, cumulated: np.ndarray, before: int) -> tuple[np.ndarray, np.ndarray]:
    """Compute the minimum cost of the first j words with one more cluster, and that cluster's start, (V + 1,) each.

    The start of a tail is monotone in its end, because the mixed difference of (F_j - F_i) (j - i) is never positive.
    Bisecting the ends therefore bisects the starts, too. This takes V log V steps instead of V^2.

    Args:
        costs: Minimum costs of the first j words in `before` clusters, (V + 1,).
        cumulated: Share F_j of the targets that are among the first j words, (V + 1,).
        before: Number of clusters so far.
    """
    last = len(costs) - 1
    least, begin = np.full_like(costs, np.inf), np.zeros(len(costs), dtype=np.int64)
    spans = [(before + 1, last, before, last - 1)]  # first and last end, first and last start
    while spans:
        low, high, earliest, latest = spans.pop()
        if low > high:
            continue
        end = (low + high) // 2
        starts = np.arange(earliest, min(latest, end - 1) + 1)
        totals = costs[starts] + (cumulated[end] - cumulated[starts]) * (end - starts)
        best = int(totals.argmin())
        least[end], begin[end] = totals[best], starts[best]
        spans += [(low, end - 1, earliest, starts[best]), (end + 1, high, starts[best], latest)]
    return least, begin


@strict
class ParXLConfig(FamilyConfig, settings=ParXLFields):
    """Configuration of a Transformer-XL with one operation per block (Mandava et al. 2020, arXiv 2009.04534).

    With an `architecture`, the network is fixed. Without one, it is the supernet that searches for an architecture.
    """

    # Outputs that a stock `Trainer` does not collect in an evaluation.
    keys_to_ignore_at_inference: ClassVar[list[str]] = [
        "loss_parts", "token_losses", "memory", "cache", "hidden_states", "attentions", "gate_probabilities",
        "trace",
    ]  # fmt: skip

    # Fields of `ParXLFields`, which describes them; the defaults are those of a file without the field.
    architecture: str | None = None
    vocab_size: int = 12000
    hidden_size: int = 128
    num_hidden_layers: int = 6
    num_attention_heads: int = 4
    intermediate_size: int = 512
    hidden_act: str = "relu"
    memory_length: int = 16
    cutoffs: list[int] = []
    proj_factor: int = 4
    proj_dims: list[int] | None = None
    softmax_bias: bool = False
    tie_word_embeddings: bool = False
    hidden_dropout_prob: int | float = 0.1
    output_dropout_prob: int | float | None = None
    attention_probs_dropout_prob: int | float = 0.0
    activation_dropout_prob: int | float = 0.0
    attention_scale: str = "sqrt"
    attention_out_act: str = "none"
    branch_norm: str = "per_branch"
    share_position_bias: bool = True
    projection_bias: bool = False
    layer_norm_eps: int | float = 1e-05
    initializer: str = "normal"
    initializer_range: int | float = 0.02
    clamp_length: int | None = None
    same_length: bool = False
    straight_through: bool = False
    tau_start: int | float = 1.0
    tau_end: int | float = 0.1
    tau_schedule: str = "exponential"
    gate_path: str = "soft"
    gate_seed: int = 0
    latency_weight: int | float = 0.0
    operation_costs: list[int | float] | None = None

    pad_token_id: int | None = 0
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 2

    def __post_init__(self, **kwargs: object) -> None:
        super().__post_init__(**kwargs)
        if self.architecture is not None:
            self.architecture = parse_architecture("architecture", self.architecture)
            self.num_hidden_layers = len(self.architecture)
        self._check_heads()
        check_cutoffs(self.cutoffs, self.vocab_size)
        if self.proj_dims is not None:
            check_widths(self.proj_dims, len(self.cutoffs))
        self._check_costs()

    @property
    def operations(self) -> tuple[str, ...]:
        """Operations that each block can run: all of them in the supernet, one in a fixed network."""
        return tuple(self.architecture or [OPERATIONS] * self.num_hidden_layers)

    @property
    def attending(self) -> list[int]:
        """Indices of the A blocks that can run attention."""
        return [number for number, operations in enumerate(self.operations) if "s" in operations]

    @property
    def path(self) -> list[int]:
        """Operation number of every block in a fixed network."""
        assert self.architecture is not None
        return [OPERATIONS.index(operation) for operation in self.architecture]

    @property
    def relative_costs(self) -> list[float] | None:
        """Costs of the operations relative to the alternating network with the same number of blocks."""
        if self.operation_costs is None:
            return None
        costs = dict(zip(OPERATIONS, self.operation_costs, strict=True))
        reference = sum(costs[operation] for operation in alternating(self.num_hidden_layers))
        return [cost / reference for cost in self.operation_costs]

    @property
    def full_latency(self) -> float:
        """Latency in milliseconds of the alternating (standard) network with the same number of blocks."""
        return self.compute_latency(alternating(self.num_hidden_layers))

    @property
    def dearest_latency(self) -> float:
        """Latency in milliseconds if every block runs the slowest operation."""
        return max(self.compute_latency(operation * self.num_hidden_layers) for operation in OPERATIONS)

    def compute_latency(self, architecture: str) -> float:
        """Return the latency of an architecture in milliseconds, the sum over its blocks."""
        assert self.operation_costs is not None
        return 1e3 * sum(self.operation_costs[OPERATIONS.index(operation)] for operation in architecture)

    def _check_heads(self) -> None:
        if self.hidden_size % self.num_attention_heads:
            raise ConfigError(
                f"num_attention_heads={self.num_attention_heads} must divide hidden_size={self.hidden_size}"
            )

    def _check_costs(self) -> None:
        costs = self.operation_costs
        if costs is None:
            if self.latency_weight > 0:
                raise ConfigError(
                    f"latency_weight={self.latency_weight} needs operation_costs of attention, feed-forward and "
                    "identity"
                )
        elif len(costs) != len(OPERATIONS) or min(costs) < 0 or costs[0] <= 0:
            raise ConfigError(
                f"operation_costs={costs}: must be three values, for attention (> 0), feed-forward and identity (>= 0)"
            )


def operation_macs(operation: str, length: int, memory: int, batch: int, hidden: int, inner: int) -> float:
    """Return the MACs of one block for one sequence of T new tokens after M memory positions.

        attention     2 T d^2  +  2 (T+M) d^2  +  (T+M) d^2 / B  +  3 T (T+M) d
                      q and o     k and v         distances         three products
        feed-forward  2 T d F

    The projected distances are shared by all B sequences. Norms, activations, the softmax and the additional distance
    that `align_distances` needs are not counted.

    Args:
        operation: `s`, `f` or `-`.
        length: Number T of new tokens.
        memory: Number M of memory positions.
        batch: Number B of sequences.
        hidden: Hidden width d.
        inner: Inner width F of a feed-forward block.
    """
    assert operation in OPERATIONS
    if operation == "-":
        return 0.0
    if operation == "f":
        return 2.0 * length * hidden * inner
    keys = length + memory
    projections = (2 * length + 2 * keys + keys / batch) * hidden**2
    return projections + 3 * length * keys * hidden


def architecture_macs(config: ParXLConfig, architecture: str, length: int, memory: int, batch: int) -> float:
    """Return the MACs of all blocks of an architecture for one sequence."""
    costs = _operation_costs(config, length, memory, batch)
    return sum(architecture.count(operation) * cost for operation, cost in zip(OPERATIONS, costs, strict=True))


def price_par_xl(config: ParXLConfig, trace: DepthTrace) -> Work:
    """Return the MACs of the blocks for a batch, from its depth trace.

    `executed` and `dense` count the branches that ran. `adaptive` is the expectation under the weights of the
    operations. `full` counts the alternating architecture with the same number of blocks. Embedding and output layer
    are not counted, because they are the same for all architectures.

    Args:
        config: Configuration with the widths.
        trace: Trace with `operations` and `execution`, which has `tokens`, `width` and `memory_length`.
    """
    ran, operations = trace.executed, trace.operations
    assert ran.tokens is not None
    assert isinstance(ran.width, int)
    assert operations is not None
    batch, blocks = len(ran.tokens), trace.max_updates
    costs = _operation_costs(config, ran.width, ran.memory_length, batch)
    alternated = sum(costs[OPERATIONS.index(operation)] for operation in alternating(blocks))
    column = fill_values(costs, operations.weights.device, torch.float64)
    executed = batch * (operations.executed.double() @ column).sum()
    return Work(
        executed=executed,
        dense=executed,
        adaptive=batch * (operations.weights.double() @ column).sum(),
        full=torch.full_like(column[0], batch * alternated),
    )


def _operation_costs(config: ParXLConfig, length: int, memory: int, batch: int) -> list[float]:
    return [
        operation_macs(operation, length, memory, batch, config.hidden_size, config.intermediate_size)
        for operation in OPERATIONS
    ]
