"""States of sentences after every update of a frozen encoder, the input of probes.

Shape legend: B rows, T tokens, H width, S states: before the first update, after each of the N, and the final one, n
examples, R readouts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from adadepth.models.contract import DepthModel
from adadepth.runtime.distributed import gather_from_processes

READOUTS = ("first", "mean")  # the first token, and the mean of the real tokens
_COLUMNS = ("index", "labels", "difficulty")


# Function that runs a set through a model and yields batches with outputs. Its second argument returns the arguments of
# the forward pass of a batch beside its tensors; see `DepthTrainer.forward_passes`.
ForwardPasses = Callable[
    [Any, Callable[[Mapping[str, Any]], Mapping[str, Any]]], Iterable[tuple[dict[str, Tensor], Any]]
]


@dataclass(frozen=True)
class EncodedSet:
    """Encoded examples of a set in the order of their rows, on the CPU.

    Attributes:
        states: States, float32, (n, S, R, H); the final one is the last of S.
        labels: Class numbers, int64, (n,).
        difficulty: Difficulty, int64, (n,), if the data have it.
        changed: Share of the tokens of a readout that each update changed at all, float64, (N, R).
    """

    states: Tensor
    labels: Tensor
    difficulty: Tensor | None
    changed: Tensor


def encode_set(passes: ForwardPasses, model: DepthModel, dataset: Any) -> EncodedSet:
    """Run a set through an encoder and return its states.

    If a batch stops early because all its tokens have halted, its last states stand for the remaining updates.
    """
    parts: list[dict[str, Tensor]] = []
    changed = torch.zeros(model.max_updates, len(READOUTS), dtype=torch.float64)
    read = torch.zeros(len(READOUTS), dtype=torch.float64)
    for batch, outputs in passes(dataset, lambda _: {"output_hidden_states": True}):
        mask = batch["attention_mask"].bool()
        steps = [state.float() for state in outputs.hidden_states]
        steps += [steps[-1]] * (model.max_updates + 1 - len(steps))
        changed += count_changed_tokens(steps, mask).cpu()
        read += torch.tensor([len(mask), int(mask.sum())])
        part = {"states": read_states([*steps, outputs.last_hidden_state.float()], mask)}
        part |= {name: batch[name] for name in _COLUMNS if name in batch}
        parts.append({name: values.cpu() for name, values in part.items()})
    parts = [part for process_parts in gather_from_processes(parts) for part in process_parts]
    columns = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    order = columns["index"].argsort()
    shares = torch.stack(gather_from_processes(changed)).sum(dim=0) / torch.stack(gather_from_processes(read)).sum(
        dim=0
    )
    difficulty = columns["difficulty"][order] if "difficulty" in columns else None
    return EncodedSet(columns["states"][order], columns["labels"][order], difficulty, shares)


def read_states(states: Sequence[Tensor], mask: Tensor) -> Tensor:
    """Return first tokens and means over real tokens, (B, S, R, H), of S states (B, T, H) with the mask (B, T)."""
    weights = mask.unsqueeze(-1) / mask.sum(dim=1)[:, None, None]
    return torch.stack([torch.stack([state[:, 0], (state * weights).sum(dim=1)], dim=1) for state in states], dim=1)


def count_changed_tokens(states: Sequence[Tensor], mask: Tensor) -> Tensor:
    """Count the first and the real tokens that each of N updates changed, float64, (N, R).

    Args:
        states: N + 1 states, each (B, T, H).
        mask: Mask of the real tokens, boolean (B, T).
    """
    moved = torch.stack([(after != before).any(dim=-1) & mask for before, after in pairwise(states)])
    return torch.stack([moved[:, :, 0].sum(dim=1), moved.sum(dim=(1, 2))], dim=-1).double()
