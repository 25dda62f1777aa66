"""Hidden states of sentences after every update of a frozen encoder, which are the input of probes.

Shape legend: B rows, T tokens, H width, n examples, N updates. There are S states: before the first update, after each
of the N updates, and the final state. R readouts turn each state into a vector: the first token, and the mean over
tokens.
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
    """Hidden states of the examples of a data set, in the order of its rows, on the CPU.

    Attributes:
        states: Hidden states, float32, (n, S, R, H); the last of the S states is the final state.
        labels: Class numbers, int64, (n,).
        difficulty: Difficulty of each example, int64, (n,), or None if the data have none.
        changed: Share of a readout's tokens with a state that each update changed, float64, (N, R).
    """

    states: Tensor
    labels: Tensor
    difficulty: Tensor | None
    changed: Tensor


def encode_set(passes: ForwardPasses, model: DepthModel, dataset: Any) -> EncodedSet:
    """Run a frozen encoder on a data set, and return the hidden states after every update.

    If a batch stops early because all its tokens have halted, its last states are repeated for the remaining updates.
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
    """Return the state of the first token and the mean over real tokens, for S states (B, T, H): (B, S, R, H)."""
    weights = mask.unsqueeze(-1) / mask.sum(dim=1)[:, None, None]
    return torch.stack([torch.stack([state[:, 0], (state * weights).sum(dim=1)], dim=1) for state in states], dim=1)


def count_changed_tokens(states: Sequence[Tensor], mask: Tensor) -> Tensor:
    """Count how many first tokens and how many real tokens each of N updates changed, float64, (N, R).

    Args:
        states: Hidden states before the first and after each update, N + 1 tensors (B, T, H).
        mask: Mask of the unpadded tokens, boolean (B, T).
    """
    moved = torch.stack([(after != before).any(dim=-1) & mask for before, after in pairwise(states)])
    return torch.stack([moved[:, :, 0].sum(dim=1), moved.sum(dim=(1, 2))], dim=-1).double()
