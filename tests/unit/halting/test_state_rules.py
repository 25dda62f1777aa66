"""Exit rules on hidden states, in hand-made cases and against plain loops."""

from __future__ import annotations

import math
from itertools import pairwise

import torch

from adadepth.halting.exit_rules import Acceleration, Distance, apply_rule, parse_rule, state_moves


def compute_moves(states):
    """Return moves (M, N, 2) of states s_0..s_N, (M, D) each, computed by a plain loop."""

    def compute_norm(values):
        return math.sqrt(sum(value * value for value in values))

    def subtract(first, second):
        return [one - other for one, other in zip(first, second, strict=True)]

    moves = []
    for path in torch.stack(states, dim=1).double().tolist():
        updates = [subtract(after, before) for before, after in pairwise(path)]
        turns = [math.nan, *(compute_norm(subtract(after, before)) for before, after in pairwise(updates))]
        row = zip(map(compute_norm, updates), turns, map(compute_norm, path[1:]), strict=True)
        moves.append([[moved / length, turned / length] for moved, turned, length in row])
    return torch.tensor(moves)


def draw_states(rows=20, steps=6, width=5):
    """Return states whose updates shrink."""
    generator = torch.Generator().manual_seed(4)
    updates = torch.randn(steps + 1, rows, width, generator=generator) * 0.6 ** torch.arange(steps + 1).view(-1, 1, 1)
    return list(updates.cumsum(dim=0))


def test_moves_equal_a_plain_loop():
    states = draw_states()
    computed = [state_moves(states[n], states[n - 1], states[n - 2] if n > 1 else None) for n in range(1, len(states))]
    torch.testing.assert_close(torch.stack(computed, dim=1), compute_moves(states), equal_nan=True)


def test_equal_states_have_distance_zero_and_zero_states_are_finite():
    zeros, ones = torch.zeros(1, 3), torch.ones(1, 3)
    assert state_moves(ones, ones, ones).tolist() == [[0.0, 0.0]]
    assert state_moves(zeros, zeros, zeros).tolist() == [[0.0, 0.0]]
    assert state_moves(zeros, ones, ones)[0, 0] > 1e30


def test_half_precision_is_measured_in_float32():
    states = [state.half() for state in draw_states()]
    assert state_moves(states[2], states[1], states[0]).dtype == torch.float32


def test_rules_on_states_equal_their_definition():
    moves = compute_moves(draw_states())
    distance_exits, acceleration_exits, consecutive_exits = (
        apply_rule(rule, None, None, None, moves).tolist()
        for rule in (Distance(0.3), Acceleration(0.4, 1), Acceleration(0.4))
    )
    for row, path in enumerate(moves.tolist()):
        small = [n for n, (distance, _) in enumerate(path, 1) if distance < 0.3]
        calm = [n for n, (_, turn) in enumerate(path, 1) if turn < 0.4]
        assert distance_exits[row] == min([*small, 6])
        assert acceleration_exits[row] == min([*calm, 6])
        assert consecutive_exits[row] == min([*(n for n in calm if n - 1 in calm), 6])
    assert len(set(distance_exits)) > 2
    assert min(acceleration_exits) >= 2
    assert min(consecutive_exits) >= 3


def test_acceleration_waits_for_two_consecutive_updates():
    assert parse_rule("acceleration:0.1") == Acceleration(0.1, 2)
    moves = torch.tensor([[math.nan, 0.0, 0.9, 0.0, 0.0, 0.0]]).unsqueeze(-1).expand(-1, -1, 2)
    assert apply_rule(Acceleration(0.1, 1), None, None, None, moves).item() == 2
    assert apply_rule(Acceleration(0.1), None, None, None, moves).item() == 5
    assert apply_rule(Acceleration(0.1, 3), None, None, None, moves).item() == 6
