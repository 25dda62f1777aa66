"""Evaluation of language models with memory, and of supernets: likelihood per token, word, character and byte."""

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
from adadepth.runtime.distributed import all_reduce_sum

_PATH_SEED = 0x9A7  # seed of the sampled paths, so that equal gates give equal paths in every evaluation
_BATCH_KEY = 1  # second part of the noise key of a batch; the key of an update has one part
_LARGEST_EXPONENT = 700.0  # exp of more does not fit a float


@dataclass(frozen=True)
class SampledPaths(Dataset):
    """Data set repeated once for each sampled path of a supernet, whose number is in the field `path`."""

    streams: StreamBatches
    paths: int

    def __len__(self) -> int:
        return self.paths * len(self.streams)

    def __getitem__(self, index: int) -> dict[str, Any]:
        path, position = divmod(index, len(self.streams))
        return {**self.streams[position], "path": path}


@dataclass(eq=False)
class LanguageScorer(Scorer):
    """Scorer that sums a language model's losses over text streams, and passes its memory from batch to batch.

    Attributes:
        model: Evaluated language model.
        streams: Evaluated set, with the counts of its words, characters and bytes.
        context: Context length of attention.
        device: Device of the sums, with float64.
        name: Name of this evaluation.
        qualities: Metrics of all evaluations by `name`. `metrics` adds those of this evaluation, and reports read them.
        gates: Type of supernet gates: `soft`, `argmax`, `sampled` (one path per pass) or `noisy` (new noise per batch).
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
        self._draws = 0
        empty = torch.zeros(0, 2, dtype=torch.float64, device=self.device)
        self._sums = empty  # losses and targets of each pass
        self._batches = empty.new_zeros(2)  # sum of the perplexities of batches, number of batches

    def options(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return recurrent memory, context length and supernet gates as arguments of the forward pass."""
        if batch["is_start"]:
            self._memory = None
            self._sums = torch.cat([self._sums, self._sums.new_zeros(1, 2)])
            if self.gates == "sampled":
                generator = torch.Generator().manual_seed(_PATH_SEED + batch["path"])
                self._path = self.model.sample_path(generator)
        if self.gates == "noisy":
            self._draws += 1
            self.model.draw_noise(self._draws, _BATCH_KEY)
        gates = {} if self.gates is None else {"gates": self._path if self.gates == "sampled" else self.gates}
        memory = None if self._memory is None else self._memory.to(batch["input_ids"].device)
        return {"memory": memory, "context": self.context, **gates}

    def record(self, batch: Mapping[str, Tensor], outputs: Any) -> None:
        """Add the losses of a batch, and store the recurrent memory for the next batch."""
        self._memory = outputs.memory
        losses = outputs.token_losses.double()
        self._sums[-1] += torch.stack([losses.sum(), losses.new_tensor(len(losses))])
        if self.gates == "noisy":
            self._batches += torch.stack([losses.mean().exp(), losses.new_ones(())])

    def merge(self) -> None:
        """Add the sums of losses and counts of all processes."""
        all_reduce_sum([self._sums, self._batches])

    def metrics(self, losses: Mapping[str, float]) -> dict[str, float]:
        """Return the mean loss in nats per token, perplexity, perplexity per word, bits per character and per byte.

        Perplexity is exp(sum of losses / tokens), and per word exp(sum of losses / words). Bits per character are the
        sum of losses / (characters ln 2), and bits per byte the sum of losses / (UTF-8 bytes ln 2). With several
        sampled paths, the metrics are means over paths, with the sample standard deviation of the perplexity. Only the
        likelihood counts, not the other parts of the loss.
        """
        sizes = (self.streams.words, self.streams.characters, self.streams.bytes)
        passes = [likelihood(float(total), float(count), *sizes) for total, count in self._sums]
        metrics = {name: math.fsum(one[name] for one in passes) / len(passes) for name in passes[0]}
        if len(passes) > 1:
            mean = metrics["perplexity"]
            squares = math.fsum((one["perplexity"] - mean) ** 2 for one in passes)
            metrics["perplexity_std"] = math.sqrt(squares / (len(passes) - 1))
        if self.gates == "noisy":
            metrics["batch_perplexity"] = float(self._batches[0] / self._batches[1])
        self.qualities[self.name] = metrics
        return metrics

    def report(self, statistics: dict[str, Any]) -> EvaluationReport:
        """Return the report: the architecture, its compute, and the metrics of all evaluations so far.

        The perplexity of a large loss may be infinite, which JSON cannot store. The field `missing` then has the
        reason.
        """
        evaluations: dict[str, dict[str, float]] = {}
        missing: dict[str, str] = {}
        for name, metrics in self.qualities.items():
            evaluations[name] = {key: value for key, value in metrics.items() if math.isfinite(value)}
            missing |= {f"eval/{name}/{key}": "not finite" for key in metrics if key not in evaluations[name]}
        return EvaluationReport(statistics | {"evaluations": evaluations, "missing": missing})


def likelihood(total: float, tokens: float, words: float, characters: float, size: float) -> dict[str, float]:
    """Convert summed cross-entropies in nats to mean loss, perplexities, bits per character and bits per byte.

    Args:
        total: Sum of the cross-entropies in nats.
        tokens: Number of predicted tokens.
        words: Number of words of the text.
        characters: Number of characters of the text.
        size: Number of UTF-8 bytes of the text.
    """
    loss = total / tokens
    return {
        "loss": loss,
        "lm_loss": loss,
        "perplexity": _exponential(loss),
        "word_perplexity": _exponential(total / words),
        "bits_per_character": total / math.log(2) / characters,
        "bits_per_byte": total / math.log(2) / size,
    }


def _exponential(value: float) -> float:
    """Return exp(value), or infinity if it overflows."""
    return math.exp(value) if value < _LARGEST_EXPONENT else math.inf
