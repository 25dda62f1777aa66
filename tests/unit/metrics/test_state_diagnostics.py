"""Diagnostics of repeated maps against closed forms: linear maps of known spectrum, and states that are known."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from adadepth.metrics.state_diagnostics import (
    StateMaps,
    compute_cka,
    compute_residuals,
    estimate_spectral_radius,
    measure_states,
)

GENERATOR = torch.Generator().manual_seed(0)


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=GENERATOR, dtype=torch.float64)


def build_matrix(eigenvalues: Tensor, basis: Tensor) -> Tensor:
    return basis @ eigenvalues @ torch.linalg.inv(basis)


DIAGONAL = torch.diag(torch.tensor([0.9, -0.5, 0.2, 0.1], dtype=torch.float64))
ROTATION = torch.block_diag(0.8 * torch.tensor([[0.6, -0.8], [0.8, 0.6]], dtype=torch.float64), DIAGONAL[2:, 2:])


@pytest.mark.parametrize(("spectrum", "radius"), [(DIAGONAL, 0.9), (ROTATION, 0.8), (3 * DIAGONAL, 2.7)])
def test_a_linear_map_has_its_spectral_radius(spectrum: Tensor, radius: float) -> None:
    """Map separate tokens by s -> s A', also with complex eigenvalues and eigenvectors that are not orthogonal."""
    matrix = build_matrix(spectrum, draw(4, 4))
    valid = torch.ones(3, 5, dtype=torch.bool)
    estimate = estimate_spectral_radius(lambda state: state @ matrix.T, draw(3, 5, 4), valid, iterations=400)
    assert estimate.tolist() == pytest.approx([radius] * 3, rel=0.02)


def test_the_jacobian_is_that_of_all_tokens_of_a_sequence_at_the_state_and_not_of_padding() -> None:
    """Mix tokens by a matrix C of each sequence, s -> C sin(s), with the radii of C diag(cos s)."""
    mixing, state = draw(2, 3, 3), draw(2, 3, 1)
    valid = torch.tensor([[True, True, True], [True, True, False]])
    estimate = estimate_spectral_radius(lambda states: mixing @ states.sin(), state, valid, iterations=2000)
    for row, length in enumerate((3, 2)):
        jacobian = mixing[row, :length, :length] @ torch.diag(state[row, :length, 0].cos())
        expected = torch.linalg.eigvals(jacobian).abs().max()
        assert float(estimate[row]) == pytest.approx(float(expected), rel=0.02)


def test_a_map_without_dependence_on_the_state_has_radius_0() -> None:
    valid = torch.ones(1, 2, dtype=torch.bool)
    assert estimate_spectral_radius(lambda state: 0 * state + 1, draw(1, 2, 3), valid).tolist() == [0.0]


def test_cka_is_1_up_to_rotation_and_scale_and_0_for_orthogonal_states() -> None:
    states = draw(50, 6)
    rotation = torch.linalg.qr(draw(6, 6)).Q
    assert compute_cka(states, 3 * states @ rotation + 1) == pytest.approx(1.0)
    columns = torch.linalg.qr(torch.cat([torch.ones(50, 1, dtype=torch.float64), draw(50, 4)], dim=1)).Q[:, 1:]
    assert compute_cka(columns[:, :2], columns[:, 2:]) == pytest.approx(0.0, abs=1e-12)
    # one of two columns is shared: 1 / (sqrt(2) sqrt(2))
    assert compute_cka(columns[:, :2], columns[:, 1:3]) == pytest.approx(0.5)
    assert compute_cka(torch.ones(5, 2), draw(5, 2)) is None


def test_residuals_leave_out_states_of_0() -> None:
    before = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    assert compute_residuals(before, torch.tensor([[3.0, 1.0], [1.0, 1.0]])).tolist() == pytest.approx([0.6])


def test_a_linear_loop_is_measured_over_batches() -> None:
    """Use s -> a s: residual |a - 1|, similarity 1 and radius |a| in every update; padding counts nowhere."""

    def build_batch(rows: int) -> StateMaps:
        valid = torch.tensor([[True, True, False]] * rows)
        start = draw(rows, 3, 4)
        start[~valid] = math.nan
        return StateMaps(start, valid, [lambda state: 0.7 * state, lambda state: -1.5 * state])

    first, second = measure_states([build_batch(2), build_batch(3)])
    assert (first["update"], second["update"]) == (1, 2)
    for row, factor in ((first, 0.7), (second, -1.5)):
        assert row["residual"] == pytest.approx(abs(factor - 1))
        assert row["cka_previous"] == pytest.approx(1.0)
        assert row["cka_last"] == pytest.approx(1.0)
        assert row["spectral_radius"] == pytest.approx(abs(factor))
        assert row["largest_radius"] == pytest.approx(abs(factor))
