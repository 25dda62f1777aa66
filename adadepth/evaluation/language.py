"""The scorer of a language model that remembers: likelihood per token, word and character; of a supernet, its gates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from adadepth.data.streams.contiguous import StreamBatches
from adadepth.evaluation.scorer import EvaluationReport, Scorer
from adadepth.system.processes import add_over_processes

_PATH_SEED = 0x9A7  # of the sampled paths: the same in every evaluation whose gates are the same
_OF_A_BATCH = 1  # in the key of a batch's noise; that of an update has its number alone
_LONGEST_LOSS = 700.0  # exp of more does not fit a float


@dataclass(frozen=True)
class SampledPaths(Dataset):
    """A set as often as there are sampled paths; `path` in a batch tells which one it is for."""

    streams: StreamBatches
    paths: int

    def __len__(self) -> int:
        return self.paths * len(self.streams)

    def __getitem__(self, index: int) -> dict[str, Any]:
        path, position = divmod(index, len(self.streams))
        return {**self.streams[position], "path": path}


@dataclass(eq=False)
class LanguageScorer(Scorer):
    """Sums of the losses, in one pass over streams whose memory is carried from batch to batch.

    Attributes:
        model: The language model.
        streams: The set, with the counts of its words and characters.
        context: What attention sees.
        device: Of the batches.
        name: Of this evaluation.
        qualities: Where to put the metrics for the reports of other evaluations, by `name`.
        gates: Of a supernet: `soft`, `argmax`, `sampled` (a path a pass), or `noisy`, with other noise for every batch.
    """

    model: Any
    streams: StreamBatches
    context: Any
    device: torch.device
    name: str
    qualities: dict[str, dict[str, float]]
    gates: str | None = None

    def __post_init__(self) -> None:
        self._memory: Tensor | None = None
        self._path: Sequence[int] = ()
        self._drawn = 0
        empty = torch.zeros(0, 2, dtype=torch.float64, device=self.device)
        self._sums = empty  # of each pass: losses, targets
        self._batches = empty.new_zeros(2)  # perplexities of the batches, their number

    def options(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        """The memory of the rows so far, the context, and which branches run."""
        if batch["is_start"]:
            self._memory = None
            self._sums = torch.cat([self._sums, self._sums.new_zeros(1, 2)])
            if self.gates == "sampled":
                generator = torch.Generator().manual_seed(_PATH_SEED + batch["path"])
                self._path = self.model.sample_path(generator)
        if self.gates == "noisy":
            self._drawn += 1
            self.model.draw_noise(self._drawn, _OF_A_BATCH)
        chosen = {} if self.gates is None else {"gates": self._path if self.gates == "sampled" else self.gates}
        return {"memory": self._memory, "context": self.context, **chosen}

    def record(self, batch: Mapping[str, Tensor], outputs: Any) -> None:
        """Add a batch's losses to the sums of this pass, and keep the memory for the next batch."""
        self._memory = outputs.memory
        losses = outputs.token_losses.double()
        self._sums[-1] += torch.stack([losses.sum(), losses.new_tensor(len(losses))])
        if self.gates == "noisy":
            self._batches += torch.stack([losses.mean().exp(), losses.new_ones(())])

    def merge(self) -> None:
        """Add the sums of all processes."""
        add_over_processes([self._sums, self._batches])

    def metrics(self, losses: Mapping[str, float]) -> dict[str, float]:
        """Mean loss in nats a token, its exponential, and what it is per word and per character.

        Perplexity is exp(sum of losses / tokens), per word exp(sum of losses / words); bits per character are the sum
        over characters and ln 2. Of several sampled paths: means, and the sample deviation of the perplexity. Parts of
        the loss beside the likelihood are no measure of a model and do not count.
        """
        passes = [self._metrics_of(float(total), float(count)) for total, count in self._sums]
        found = {name: math.fsum(one[name] for one in passes) / len(passes) for name in passes[0]}
        if len(passes) > 1:
            mean = found["perplexity"]
            squares = math.fsum((one["perplexity"] - mean) ** 2 for one in passes)
            found["perplexity_std"] = math.sqrt(squares / (len(passes) - 1))
        if self.gates == "noisy":
            found["batch_perplexity"] = float(self._batches[0] / self._batches[1])
        self.qualities[self.name] = found
        return found

    def _metrics_of(self, total: float, count: float) -> dict[str, float]:
        return likelihood(total, count, self.streams.words, self.streams.characters)

    def _finite_quality(self) -> tuple[dict[str, dict[str, float]], dict[str, str]]:
        """What files can hold, and what they cannot with the reason: the exponential of a large loss is infinite."""
        finite: dict[str, dict[str, float]] = {}
        missing: dict[str, str] = {}
        for name, found in self.qualities.items():
            finite[name] = {key: value for key, value in found.items() if math.isfinite(value)}
            missing |= {f"eval/{name}/{key}": "not finite" for key in found if key not in finite[name]}
        return finite, missing

    def report(self, statistics: dict[str, Any]) -> EvaluationReport:
        """The architecture, its work, and the quality of all evaluations so far."""
        evaluations, missing = self._finite_quality()
        return EvaluationReport(statistics | {"evaluations": evaluations, "missing": missing})


def likelihood(total: float, tokens: float, words: float, characters: float) -> dict[str, float]:
    """What a sum of cross-entropies in nats is per token, word and character; see `LanguageScorer.metrics`."""
    loss = total / tokens
    return {
        "loss": loss,
        "lm_loss": loss,
        "perplexity": _exponential(loss),
        "word_perplexity": _exponential(total / words),
        "bits_per_character": total / math.log(2) / characters,
    }


def _exponential(value: float) -> float:
    """exp, infinite where a float cannot hold it."""
    return math.exp(value) if value < _LONGEST_LOSS else math.inf
