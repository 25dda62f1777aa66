"""Exits by the expected gain of further steps, which show what a rule on the predictions could gain.

An oracle that uses the labels bounds every rule, but no rule can reach it, because predictions are also right by
chance. The exits of this module read what a model knows at a step. Boosted trees learn, on one half of the
examples, when the other half should exit (optimal stopping by regression, Longstaff & Schwartz 2001). With a price c of
a step and the score s_n of the prediction after step n, backwards from V_N = s_N - c N:

    exit at n   if   E[s_n - s_N | signals until n] - c n  >=  E[V_{n+1} - s_N | signals until n]
    V_n       = s_n - c n at an exit, else V_{n+1}

Shape legend: M examples, N steps, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adadepth.errors import ConfigError
from adadepth.metrics.halves import select_first_half
from adadepth.metrics.step_records import StepRecords

EXPECTED = "oracle:expected"  # in `exit_rules`, and before the price in the name of a row
PRICES = (0.1, 0.25, 0.5, 1.0, 2.0)  # of a step, as shares of the mean gain of a step
_LIKELIEST = 4  # classes whose log-probabilities are signals


def find_expected_exits(records: StepRecords, scores: Tensor) -> dict[float, Tensor]:
    """Return the exit steps of all examples, int64 (M,), for every share of `PRICES`.

    The price c of a step is the share times the mean gain of a step, |mean(s_N - s_1)| / (N - 1).

    Args:
        records: Records with the logits of every step, (M, N, C).
        scores: Score of each example at every step, float64 (M, N).

    Raises:
        ConfigError: If there is only one sequence, or an example has more than one prediction.
    """
    assert records.step_logits is not None
    if records.step_logits.dim() != 3:
        raise ConfigError(f"exit_rules=[{EXPECTED}]: needs one prediction of each example")
    is_first = select_first_half(records.sequences.numpy())
    if not is_first.any():
        raise ConfigError(f"exit_rules=[{EXPECTED}]: needs at least two sequences, to fit on one")
    signals = [_collect_signals(records, step) for step in range(records.max_updates)]
    readable = [np.concatenate(signals[: step + 1], axis=1) for step in range(records.max_updates)]
    gains = (scores - scores[:, -1:]).double().numpy()
    steps = records.max_updates
    slope = abs(gains[:, 0].mean()) / max(steps - 1, 1)
    prices = [share * slope for share in PRICES]
    exits = stop_by_regression(gains, prices, lambda step, values: _predict(readable[step], values, is_first))
    return {share: torch.from_numpy(exit_steps) for share, exit_steps in zip(PRICES, exits, strict=True)}


def stop_by_regression(
    gains: NDArray[Any], prices: Sequence[float], predict: Callable[[int, NDArray[Any]], NDArray[Any]]
) -> list[NDArray[np.int64]]:
    """Return the exit steps of all examples, int64 (M,), at every price of a step, by the equations of this module.

    Args:
        gains: s_n - s_N of every example and step, (M, N).
        prices: Prices c of a step.
        predict: Function from a step, counted from 0, and values of all examples, (M,), to their expectations given
            what is known after this step, (M,).
    """
    count, steps = gains.shape
    expected = [predict(step, gains[:, step]) for step in range(steps - 1)]
    exits = []
    for price in prices:
        exit_steps, value = np.full(count, steps), np.full(count, -price * steps)
        for step in range(steps - 2, -1, -1):
            leaves = expected[step] - price * (step + 1) >= predict(step, value)
            value = np.where(leaves, gains[:, step] - price * (step + 1), value)
            exit_steps = np.where(leaves, step + 1, exit_steps)
        exits.append(exit_steps)
    return exits


def _collect_signals(records: StepRecords, step: int) -> NDArray[np.float32]:
    """Return what the model knows after a step, counted from 0, beside earlier signals: (M, signals).

    These are the entropy, the largest log-probabilities, the divergence from the prediction before, and halting logits
    and movements of the state where the model returns them.
    """
    assert records.step_logits is not None
    logits, before = records.step_logits[:, step].float(), records.step_logits[:, max(step - 1, 0)].float()
    logs, probabilities = logits.log_softmax(dim=-1), logits.softmax(dim=-1)
    signals = [-(probabilities * logs).sum(dim=-1, keepdim=True)]
    signals.append(logs.topk(min(_LIKELIEST, logits.shape[1]), dim=-1).values)
    signals.append((probabilities * (logs - before.log_softmax(dim=-1))).sum(dim=-1, keepdim=True))
    if records.halting_logits is not None:
        signals.append(records.halting_logits[:, step, None])
    if records.state_moves is not None:
        signals.append(records.state_moves[:, step])
    return torch.cat([signal.float() for signal in signals], dim=1).numpy()


def _predict(signals: NDArray[np.float32], values: NDArray[Any], is_first: NDArray[np.bool_]) -> NDArray[Any]:
    """Return the expected values of all examples, (M,), each half predicted by trees that are fitted on the other."""
    from sklearn.ensemble import HistGradientBoostingRegressor  # imported here: it takes a second

    predicted = np.empty(len(values))
    for fitted in (is_first, ~is_first):
        trees = HistGradientBoostingRegressor(random_state=0)
        predicted[~fitted] = trees.fit(signals[fitted], values[fitted]).predict(signals[~fitted])
    return predicted
