"""Example sentences of an evaluation: the first ones, the deepest and the shallowest, with the depth of every token."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from adadepth.halting.trace import DepthTrace

Sentence = dict[str, Any]
_Fields = list[list[Any]]  # of one example: a list with an entry a token for each of its fields
MASK_KINDS = ("", "mask", "random", "original")


class SentenceSampler:
    """Keeps `3 * per_rule` examples while a set is evaluated.

    Args:
        decode: Token id to text.
        decode_label: Number of a label or prediction to text; None: they are tokens as well.
        per_rule: How many examples each rule keeps: `first` of the set, `deepest` and `shallowest` by mean updates
            over real tokens. Ties go to the earlier example.
    """

    def __init__(
        self, decode: Callable[[int], str], per_rule: int = 3, decode_label: Callable[[int], str] | None = None
    ) -> None:
        self.decode = decode
        self.decode_label = decode_label or decode
        self.per_rule = per_rule
        self._seen = 0
        self._kept: dict[str, list[tuple[float, int, _Fields, list[float] | None]]] = {
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
        """Offer a batch, in any order; at most `3 * per_rule` of its rows are copied to the host, at once.

        Args:
            batch: `input_ids`, `attention_mask` and `labels` (B, T); `mask_kind` (B, T) where tokens were selected;
                `index` (B,), the numbers of its examples, without which they follow on from the last batch's.
            trace: Token- or sequence-level depths.
            losses: Loss of each token in nats, NaN where none, (B, T).
            predictions: Predicted ids, or numbers of labels; read where `losses` is a number, (B, T).
            distribution: Where whole sequences halt: the probability of each to halt at every step, (B, N).
        """
        ids, real = batch["input_ids"], batch["attention_mask"].bool()
        updates = _per_token(trace.updates, real).float()
        unknown = torch.full_like(updates, math.nan)
        remainders = None if trace.halting is None else trace.halting.remainders
        remainders = unknown if remainders is None else _per_token(remainders, real)
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
        iterations = _iterations(trace.ran, rows, ids.shape[1])
        probabilities = _probabilities(trace, rows, ids.shape[1])
        shared = None if distribution is None else distribution[rows].cpu().tolist()
        for row, (number, depth) in enumerate(zip(indices.int().tolist(), depths.tolist(), strict=True)):
            of_tokens = [*table[:, row].tolist(), iterations[row], probabilities[row]]
            self._offer(number, depth, of_tokens, None if shared is None else shared[row])
        self._seen += len(ids)

    def _offer(self, index: int, depth: float, fields: _Fields, shared: list[float] | None) -> None:
        """Let every rule keep the example if it is among its best."""
        for kept, rank in zip(self._kept.values(), (0.0, -depth, depth), strict=True):
            if all(index != known for _, known, *_ in kept):
                kept.append((rank, index, fields, shared))
                kept.sort(key=lambda entry: entry[:2])
                del kept[self.per_rule :]

    def sentences(self) -> list[Sentence]:
        """The examples kept, padding removed.

        Each has `rule`, `index` (its number in the evaluated set), `mean_depth`, and lists with an entry per
        token: `tokens` (text as fed), `updates`, `remainders`, `mask_kind` (`""`, `mask`, `random`, `original`),
        `original` (text before masking, or label), `predicted` (likewise) and `loss` (nats); the last three null where
        nothing was predicted, `remainders` where the trace has none. Where the trace says which iterations ran, these
        are `iterations`, counted from 1. Where tokens have halting probabilities, `probabilities` has those of each
        after its iterations; where whole sequences halt, `distribution` is the sentence's over steps.
        """
        return [self._render(rule, *entry[1:]) for rule, kept in self._kept.items() for entry in kept]

    def _render(self, rule: str, index: int, fields: _Fields, shared: list[float] | None) -> Sentence:
        real_tokens = [token for token in zip(*fields, strict=True) if token[0]]
        columns = [list(column) for column in zip(*real_tokens, strict=True)]
        _, ids, updates, remainders, kinds, labels, predictions, losses, iterations, probabilities = columns
        predicted = [math.isfinite(loss) for loss in losses]

        def texts(values: list[float]) -> list[str | None]:
            decode = self.decode_label
            return [decode(int(value)) if here else None for value, here in zip(values, predicted, strict=True)]

        return {
            "rule": rule,
            "index": index,
            "mean_depth": sum(updates) / len(updates),
            "tokens": [self.decode(int(value)) for value in ids],
            "updates": [round(value) for value in updates],
            **({} if None in iterations else {"iterations": iterations}),
            **({} if None in probabilities else {"probabilities": probabilities}),
            **({} if shared is None else {"distribution": [_rounded(value) for value in shared]}),
            "remainders": [_rounded(value) for value in remainders],
            "mask_kind": [MASK_KINDS[int(kind)] for kind in kinds],
            "original": texts(labels),
            "predicted": texts(predictions),
            "loss": [_rounded(value) for value in losses],
        }


def _per_token(values: Tensor, like: Tensor) -> Tensor:
    """Depths of tokens, also where whole sequences halt."""
    return values if values.dim() == like.dim() else values[:, None].expand(like.shape)


def _iterations(ran: Tensor | None, rows: Tensor, tokens: int) -> list[list[list[int] | None]]:
    """Of some rows of a batch the iterations that each token, or its sequence, ran; None where the trace has none."""
    if ran is None:
        return [[None] * tokens for _ in rows]
    of_tokens = ran if ran.dim() == 3 else ran[:, None].expand(-1, tokens, -1)
    return [
        [[step for step, here in enumerate(steps, start=1) if here] for steps in row]
        for row in of_tokens[rows].cpu().tolist()
    ]


def _probabilities(trace: DepthTrace, rows: Tensor, tokens: int) -> list[list[list[float] | None]]:
    """Of some rows of a batch the halting probabilities of each token, up to its last iteration; None without any."""
    if trace.halting is None or trace.unit != "token":
        return [[None] * tokens for _ in rows]
    last = trace.iterations_run.long() * torch.arange(1, trace.iterations_run.shape[-1] + 1, device=rows.device)
    of_rows = trace.halting.probabilities[rows].cpu().tolist(), last.amax(dim=-1)[rows].cpu().tolist()
    return [
        [[round(value, 3) for value in found[:end]] for found, end in zip(row, ends, strict=True)]
        for row, ends in zip(*of_rows, strict=True)
    ]


def _rounded(value: float) -> float | None:
    """Four decimals; None for what is not a number."""
    return round(value, 4) if math.isfinite(value) else None
