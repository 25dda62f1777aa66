"""Example sentences of an evaluation with the depth of every token: the first, deepest and shallowest sentences."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from adadepth.halting.trace import DepthTrace

Sentence = dict[str, Any]
_Fields = list[list[Any]]  # a list of entries per token for each field of one example
MASK_KINDS = ("", "mask", "random", "original")


class SentenceSampler:
    """Sampler that selects the first, the deepest and the shallowest sentences of an evaluated data set.

    Args:
        decode: Function from a token id to text.
        decode_label: Function from a label or prediction to text, or None if labels are token ids.
        per_rule: Number of examples per rule. The rules are `first` of the set, and `deepest` and `shallowest` by mean
            updates over real tokens. Ties go to the earlier example.
    """

    def __init__(
        self, decode: Callable[[int], str], per_rule: int = 3, decode_label: Callable[[int], str] | None = None
    ) -> None:
        self.decode = decode
        self.decode_label = decode_label or decode
        self.per_rule = per_rule
        self._seen = 0
        self._samples: dict[str, list[tuple[float, int, _Fields, list[float] | None]]] = {
            name: [] for name in ("first", "deepest", "shallowest")
        }

    @torch.no_grad()
    def update(
        self,
        batch: Mapping[str, Tensor],
        trace: DepthTrace,
        losses: Tensor,
        predictions: Tensor,
        distribution: Tensor | None = None,
    ) -> None:
        """Add those sentences of a batch that rank among the first, deepest or shallowest so far.

        At most `3 * per_rule` rows are copied to the host, all in one copy.

        Args:
            batch: `input_ids`, `attention_mask` and `labels`, (B, T); `mask_kind`, (B, T), if tokens were selected for
                prediction; and `index`, (B,), the numbers of the examples, which by default continue those of the last
                batch.
            trace: Depths of tokens or of whole sequences.
            losses: Loss of each token in nats, or NaN for a token without a loss, (B, T).
            predictions: Predicted ids or labels, (B, T). They are used only where `losses` is a number.
            distribution: Halting distribution of every sequence, (B, N), if whole sequences halt.
        """
        ids, real = batch["input_ids"], batch["attention_mask"].bool()
        updates = _expand_to_tokens(trace.updates, real).float()
        unknown = torch.full_like(updates, math.nan)
        remainders = None if trace.halting is None else trace.halting.remainders
        remainders = unknown if remainders is None else _expand_to_tokens(remainders, real)
        kinds = batch.get("mask_kind", torch.zeros_like(ids))
        mean_depth = (updates * real).sum(dim=1) / real.sum(dim=1).clamp(min=1)
        index = batch["index"] if "index" in batch else torch.arange(len(ids), device=ids.device) + self._seen
        in_order = index.argsort()
        ranks = (index, -mean_depth, mean_depth)
        rows = torch.cat([in_order[rank[in_order].argsort(stable=True)][: self.per_rule] for rank in ranks])
        fields = torch.stack([real, ids, updates, remainders, kinds, batch["labels"], predictions, losses]).double()
        header = torch.stack([index[rows].double(), mean_depth[rows].double()])
        copied = torch.cat([header.flatten(), fields[:, rows].flatten()]).cpu()
        indices, depths = copied[: header.numel()].view(2, -1)
        table = copied[header.numel() :].view(8, len(rows), -1)
        iterations = _list_iterations(trace.ran, rows, ids.shape[1])
        probabilities = _list_probabilities(trace, rows, ids.shape[1])
        shared = None if distribution is None else distribution[rows].cpu().tolist()
        for row, (number, depth) in enumerate(zip(indices.int().tolist(), depths.tolist(), strict=True)):
            columns = [*table[:, row].tolist(), iterations[row], probabilities[row]]
            self._add(number, depth, columns, None if shared is None else shared[row])
        self._seen += len(ids)

    def _add(self, index: int, depth: float, fields: _Fields, shared: list[float] | None) -> None:
        """Add an example to the lists (first, deepest, shallowest) in which it ranks high enough."""
        for samples, rank in zip(self._samples.values(), (0.0, -depth, depth), strict=True):
            if all(index != sampled for _, sampled, *_ in samples):
                samples.append((rank, index, fields, shared))
                samples.sort(key=lambda entry: entry[:2])
                del samples[self.per_rule :]

    def sentences(self) -> list[Sentence]:
        """Return the sampled sentences without padding.

        Each example has `rule`, `index` (its number in the evaluated set), `mean_depth`, and lists with an entry per
        token: `tokens` (input text), `updates`, `remainders`, `mask_kind` (`""`, `mask`, `random`, `original`),
        `original` (text before masking, or label), `predicted` (predicted text or label) and `loss` (nats). The last
        three are null at tokens without a prediction, and `remainders` is null if the trace has none. `iterations`
        lists the iterations that each token ran, counted from 1, if the trace has them. `probabilities` are the halting
        probabilities of each token, if it has any; `distribution` is the halting distribution of the sentence, if whole
        sequences halt.
        """
        return [self._render(rule, *entry[1:]) for rule, samples in self._samples.items() for entry in samples]

    def _render(self, rule: str, index: int, fields: _Fields, shared: list[float] | None) -> Sentence:
        real_tokens = [token for token in zip(*fields, strict=True) if token[0]]
        columns = [list(column) for column in zip(*real_tokens, strict=True)]
        _, ids, updates, remainders, kinds, labels, predictions, losses, iterations, probabilities = columns

        def decode(values: list[float]) -> list[str | None]:
            pairs = zip(values, losses, strict=True)
            return [self.decode_label(int(value)) if math.isfinite(loss) else None for value, loss in pairs]

        return {
            "rule": rule,
            "index": index,
            "mean_depth": sum(updates) / len(updates),
            "tokens": [self.decode(int(value)) for value in ids],
            "updates": [round(value) for value in updates],
            **({} if None in iterations else {"iterations": iterations}),
            **({} if None in probabilities else {"probabilities": probabilities}),
            **({} if shared is None else {"distribution": [_round(value) for value in shared]}),
            "remainders": [_round(value) for value in remainders],
            "mask_kind": [MASK_KINDS[int(kind)] for kind in kinds],
            "original": decode(labels),
            "predicted": decode(predictions),
            "loss": [_round(value) for value in losses],
        }


def _expand_to_tokens(values: Tensor, like: Tensor) -> Tensor:
    """Return values per token, (B, T); a value per sequence, (B,), is repeated for its tokens."""
    return values if values.dim() == like.dim() else values[:, None].expand(like.shape)


def _list_iterations(ran: Tensor | None, rows: Tensor, tokens: int) -> list[list[list[int] | None]]:
    """Return which iterations each token (or its sequence) executed, or None per token if they were not recorded."""
    if ran is None:
        return [[None] * tokens for _ in rows]
    masks = (ran if ran.dim() == 3 else ran[:, None].expand(-1, tokens, -1))[rows].cpu().tolist()
    return [[[step for step, is_run in enumerate(mask, start=1) if is_run] for mask in row] for row in masks]


def _list_probabilities(trace: DepthTrace, rows: Tensor, tokens: int) -> list[list[list[float] | None]]:
    """Return the halting probabilities of each token, up to the iteration at which it halted.

    They are None if the trace has no halting probabilities of tokens.
    """
    if trace.halting is None or trace.unit != "token":
        return [[None] * tokens for _ in rows]
    last = trace.iterations_run.long() * torch.arange(1, trace.iterations_run.shape[-1] + 1, device=rows.device)
    columns = trace.halting.probabilities[rows].cpu().tolist(), last.amax(dim=-1)[rows].cpu().tolist()
    return [
        [[round(value, 3) for value in values[:end]] for values, end in zip(row, ends, strict=True)]
        for row, ends in zip(*columns, strict=True)
    ]


def _round(value: float) -> float | None:
    """Round a value to four decimals, or return None if it is not finite."""
    return round(value, 4) if math.isfinite(value) else None
