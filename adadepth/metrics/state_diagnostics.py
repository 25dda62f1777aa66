"""Diagnostics of a repeated map of states: residual, similarity of states, and spectral radius of the Jacobian.

Let s_n = f_n(s_{n-1}) be the states of all tokens of a sequence after update n. An iteration that converges to a fixed
point has residuals that fall to 0, similarities that rise to 1, and spectral radii below 1.

Shape legend: B sequences, T tokens, S width of a state, N updates, M tokens of all batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from adadepth.halting.trace import StateMaps

ITERATIONS = 32  # of the power iteration, of which the second half is averaged


def compute_residuals(before: Tensor, after: Tensor) -> Tensor:
    """Return ||s_n - s_{n-1}|| / ||s_{n-1}|| of the tokens whose state s_{n-1} is not 0, for states (M, S)."""
    sizes = before.norm(dim=-1)
    residuals: Tensor = (after - before).norm(dim=-1) / sizes
    return residuals[sizes > 0]


def compute_cka(first: Tensor, second: Tensor) -> float | None:
    """Return the linear CKA ||Y'X||^2 / (||X'X|| ||Y'Y||) of two sets of states, of 0 to 1 (Kornblith et al. 2019).

    X, (M, S), and Y, (M, S'), are states of the same tokens, centred over tokens; norms are Frobenius norms. CKA is
    None if all tokens have the same state.
    """
    x, y = (states.double() - states.double().mean(dim=0) for states in (first, second))
    size = float((x.T @ x).norm() * (y.T @ y).norm())
    return float((y.T @ x).norm().square()) / size if size > 0 else None


def estimate_spectral_radius(
    function: Callable[[Tensor], Tensor], state: Tensor, valid: Tensor, iterations: int = ITERATIONS
) -> Tensor:
    """Return the estimated spectral radius of the Jacobian J of a map at a state, for every sequence, float64 (B,).

    The power iteration v <- J'v / ||J'v|| starts from a random v. J' has the eigenvalues of J, so one forward pass and
    `iterations` backward passes suffice. The estimate is the geometric mean of the growth ||J'v|| over the second half
    of the iterations, which also holds for a pair of complex eigenvalues.

    Args:
        function: Map of states (B, T, S), without interaction between sequences.
        state: State at which J is taken, (B, T, S).
        valid: Mask of the real tokens, boolean, (B, T). J is that of their states.
        iterations: Number of iterations, at least 2.
    """
    generator = torch.Generator().manual_seed(0)
    mask = valid.unsqueeze(-1)
    vector = torch.randn(state.shape, generator=generator).to(state) * mask
    growth = []
    with torch.enable_grad():
        state = state.detach().requires_grad_()
        output = function(state)
        for _ in range(iterations):
            vector = vector / vector.flatten(1).norm(dim=1).clamp(min=torch.finfo(vector.dtype).tiny).view(-1, 1, 1)
            (vector,) = torch.autograd.grad(output, state, vector, retain_graph=True)
            vector = vector * mask
            growth.append(vector.flatten(1).norm(dim=1).double())
    return torch.stack(growth[iterations // 2 :]).log().mean(dim=0).exp()


def measure_states(batches: Sequence[StateMaps]) -> list[dict[str, Any]]:
    """Return the diagnostics of every update over some batches.

    Args:
        batches: First states and maps of each batch, all with N updates. Spectral radii are those of the first batch.

    Returns:
        For every update n: `update`; `residual`, the mean over tokens; `cka_previous` and `cka_last`, the similarity of
        s_n to s_{n-1} and to s_N; and `spectral_radius` at s_{n-1}, the mean over sequences, with the largest one as
        `largest_radius`. A value is None where it is undefined.
    """
    states: list[list[Tensor]] = [[] for _ in range(len(batches[0].maps) + 1)]
    radii: list[Tensor] = []
    for start, valid, maps in batches:
        state = start
        states[0].append(state[valid])
        for number, function in enumerate(maps):
            if len(radii) <= number:
                radii.append(estimate_spectral_radius(function, state, valid))
            with torch.no_grad():
                state = function(state)
            states[number + 1].append(state[valid])
    stacked = [torch.cat(parts).double() for parts in states]
    rows = []
    for number, (before, after) in enumerate(pairwise(stacked)):
        residuals, radius = compute_residuals(before, after), radii[number]
        row = {
            "residual": float(residuals.mean()) if len(residuals) else None,
            "cka_previous": compute_cka(after, before),
            "cka_last": compute_cka(after, stacked[-1]),
            "spectral_radius": float(radius.mean()),
            "largest_radius": float(radius.max()),
        }
        finite = {name: value if value is not None and math.isfinite(value) else None for name, value in row.items()}
        rows.append({"update": number + 1, **finite})
    return rows
