"""Muon optimizer of torch for the matrices of hidden layers, with AdamW for all other parameters.

Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) orthogonalises the momentum of a matrix W of the
shape A x B. The factor of the learning rate is that of Liu et al. (2025, arXiv 2502.16982), which gives updates the
size of AdamW's, so that both optimizers can share a learning rate and a weight decay:

    m <- mu m + (1 - mu) g        o = orthogonalise((1 - mu) g + mu m)
    W <- (1 - lr wd) W - 0.2 lr sqrt(max(A, B)) o

Embeddings, heads, norms and biases are no maps between hidden states, and keep AdamW.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from adadepth.errors import ConfigError


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon for parameter groups that are marked `by_muon`, and AdamW for the others, as one optimizer.

    Args:
        groups: Groups of parameters with `lr`, `weight_decay` and `by_muon`.
        adamw: Further arguments of `torch.optim.AdamW`.
    """

    def __init__(self, groups: Sequence[dict[str, Any]], adamw: Mapping[str, Any]) -> None:
        def select(by_muon: bool) -> list[dict[str, Any]]:
            return [group for group in groups if group.setdefault("by_muon", False) is by_muon]

        self._optimizers: dict[bool, torch.optim.Optimizer] = {}
        if by_muon := select(True):
            self._optimizers[True] = torch.optim.Muon(by_muon, adjust_lr_fn="match_rms_adamw")
        if by_adamw := select(False):
            self._optimizers[False] = torch.optim.AdamW(by_adamw, **adamw)
        super().__init__([*by_muon, *by_adamw], {})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make an optimiser step; if `closure` is given, call it to recompute the loss, and return the loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for by_muon, optimizer in self._optimizers.items():
            # Groups and states are objects of this optimizer, which a checkpoint replaces.
            optimizer.param_groups = [group for group in self.param_groups if group["by_muon"] is by_muon]
            optimizer.state = self.state
            optimizer.step()
        return loss


def find_hidden_matrices(model: Any) -> list[Tensor]:
    """Return the matrices of a model's hidden layers that training changes.

    These are the 2-D weights of all modules except embeddings and the modules that `model.list_heads()` names.

    Args:
        model: A `DepthModel`.
    """
    heads = model.list_heads()
    excluded = {
        id(weight)
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) or name in heads
        for weight in module.parameters()
    }
    weights = [dict(module.named_parameters(recurse=False)).get("weight") for module in model.modules()]
    return [
        weight
        for weight in weights
        if weight is not None and weight.ndim == 2 and weight.requires_grad and id(weight) not in excluded
    ]


def require_hidden_matrices(model: Any) -> list[Tensor]:
    """Return the matrices that Muon trains.

    Raises:
        ConfigError: If no matrix of a hidden layer is trained.
    """
    if not (matrices := find_hidden_matrices(model)):
        raise ConfigError(
            f"trainer.optimizer=muon: {type(model).__name__} trains no matrix of a hidden layer here; use adamw"
        )
    return matrices


def build_muon(
    model: Any, groups: Sequence[dict[str, Any]], adamw: Mapping[str, Any], learning_rate: float | None
) -> MuonWithAdamW:
    """Build Muon for the hidden matrices of a model, and AdamW for its other parameters.

    Args:
        model: A `DepthModel`.
        groups: Groups of parameters; see `parameter_groups`.
        adamw: Arguments of `torch.optim.AdamW`, among them `lr`.
        learning_rate: Learning rate of Muon, or None for that of AdamW.

    Raises:
        ConfigError: If no matrix of a hidden layer is trained.
    """
    hidden = {id(weight) for weight in require_hidden_matrices(model)}
    factor = 1.0 if learning_rate is None else learning_rate / adamw["lr"]
    split: list[dict[str, Any]] = []
    for group in groups:
        members = {by_muon: [p for p in group["params"] if (id(p) in hidden) is by_muon] for by_muon in (True, False)}
        rates = {True: factor * group.get("lr", adamw["lr"]), False: group.get("lr", adamw["lr"])}
        split += [
            {**group, "params": members[key], "by_muon": key, "lr": rates[key]} for key in members if members[key]
        ]
    return MuonWithAdamW(split, adamw)
