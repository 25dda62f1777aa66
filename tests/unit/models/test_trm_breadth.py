"""Noisy rollouts of tiny recursive models against the reference with noise, and the comparison with depth by hand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from adadepth.errors import ConfigError
from adadepth.models.trm import reference
from adadepth.models.trm.breadth import CHOICES, Rollouts, run_rollouts
from adadepth.models.trm.modeling import TrmForPuzzles, step_macs
from adadepth.models.trm.report import build_breadth_section, describe_breadth, format_breadth
from adadepth.report.figure import Lines
from adadepth.report.run_files import read_run, write_json
from adadepth.tasks.breadth import measure_columns, summarise_columns
from tests.unit.models.trm_support import CELLS, HEADS, puzzles, small

NOISE, STEPS = 0.7, 4
RULE = "correct:0.9989"


def plain_rollout(model: TrmForPuzzles, cells: Tensor, rng: np.random.Generator) -> tuple[list[Tensor], ...]:
    """Answers, q and relative movements of y after every step of one puzzle, with the functions of the reference."""
    weights, sizes = model.state_dict(), (2, HEADS, model.config.rope_theta)
    x = reference.embed(weights, cells, torch.tensor(0), 2)
    y, z = weights["answer_init"].expand_as(x), weights["reasoning_init"].expand_as(x)
    answers, qs, moved = [], [], []
    for _ in range(STEPS):
        before, z = y, z + NOISE * torch.from_numpy(rng.standard_normal(z.shape, dtype=np.float32))
        for _ in range(2):
            for _ in range(3):
                z = reference.apply_network(weights, z + y + x, *sizes)
            y = reference.apply_network(weights, y + z, *sizes)
        answers.append((y[2:] @ weights["lm_head.weight"].T).argmax(dim=-1))
        qs.append(y[0] @ weights["q_head.weight"][0] + weights["q_head.bias"][0])
        moved.append((y - before).norm() / y.norm())
    return answers, qs, moved


def test_every_rollout_is_the_reference_with_its_own_noise_and_exit() -> None:
    model = small(exit_rule=RULE).eval()
    cells, _ = puzzles(3)
    ran = run_rollouts(model, cells, rollouts=2, noise=NOISE, numbers=[5, 0, 9], seed=4)
    for row, number in enumerate((5, 0, 9)):
        for rollout in range(2):
            rng = np.random.Generator(np.random.Philox(counter=[0, number, rollout, 0], key=[4, 1_000_001]))
            answers, qs, moved = plain_rollout(model, cells[row], rng)
            last = next((step for step in range(STEPS) if qs[step].sigmoid() > 0.9989), STEPS - 1)
            assert int(ran.exit_steps[row, rollout]) == last + 1
            for step in range(STEPS):
                end = min(step, last)
                assert ran.answers[row, rollout, step].tolist() == answers[end].tolist()
                torch.testing.assert_close(ran.q[row, rollout, step], qs[end], atol=1e-4, rtol=1e-4)
                window = torch.stack(moved[max(0, end - 2) : end + 1]).mean()
                torch.testing.assert_close(ran.residuals[row, rollout, step], window, atol=1e-4, rtol=1e-4)
    assert len(ran.exit_steps.unique()) > 1, "rollouts must exit at different steps for this test to mean anything"


@pytest.mark.parametrize("rollouts", [1, 3])
def test_without_noise_every_rollout_is_the_model(rollouts: int) -> None:
    model = small(exit_rule=RULE).eval()
    cells, _ = puzzles(4)
    output = model(cells)
    ran = run_rollouts(model, cells, rollouts=rollouts, noise=0.0)
    for rollout in range(rollouts):
        assert ran.answers[:, rollout, -1].tolist() == output.logits.argmax(dim=-1).tolist()
        assert ran.exit_steps[:, rollout].tolist() == output.exit_steps.tolist()


def test_noise_depends_on_puzzle_and_rollout_alone() -> None:
    model = small(exit_rule="fixed:2").eval()  # for rollouts, no exit
    cells, _ = puzzles(4)
    ran = run_rollouts(model, cells, rollouts=3, noise=NOISE, seed=1)
    part = run_rollouts(model, cells[2:], rollouts=2, noise=NOISE, numbers=[2, 3], seed=1)
    torch.testing.assert_close(part.q, ran.q[2:, :2])
    assert part.exit_steps.unique().tolist() == [STEPS]
    assert not torch.allclose(ran.q, run_rollouts(model, cells, rollouts=3, noise=NOISE, seed=2).q)


def test_choices_by_hand() -> None:
    """Of four rollouts, the first and the last agree, and with three rollouts no two do."""
    answers = torch.tensor([[[[1, 2]], [[1, 3]], [[2, 2]], [[1, 2]]]])
    q, residuals = torch.tensor([[[0.1], [0.9], [0.5], [0.2]]]), torch.tensor([[[0.3], [0.2], [0.1], [0.4]]])
    ran = Rollouts(answers, q, residuals, torch.ones(1, 4, dtype=torch.int64))
    assert [ran.choose(by).item() for by in CHOICES] == [1, 2, 3]
    assert [ran.choose(by, rollouts=3).item() for by in CHOICES] == [1, 2, 1]
    with pytest.raises(ConfigError, match=r"^by=best: must be one of q, residual, majority$"):
        ran.choose("best")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rollouts": 0, "noise": 0.1}, "rollouts=0: must be at least 1"),
        ({"rollouts": 1, "noise": -0.1}, "noise=-0.1: must be at least 0"),
        ({"rollouts": 1, "noise": 0.1, "steps": 0}, "steps=0: must be at least 1"),
    ],
)
def test_wrong_numbers_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        run_rollouts(small(), puzzles(1)[0], **options)


def test_the_comparison_by_hand(tmp_path: Path) -> None:
    """12 puzzles, of which answers after some step are declared right, so that all choices are right sometimes."""
    model = small(exit_rule="fixed:4").eval()
    cells, _ = puzzles(12)
    wide = run_rollouts(model, cells, rollouts=4, noise=NOISE)
    deep = run_rollouts(model, cells, rollouts=1, noise=0.0, steps=16)
    labels = torch.stack([wide.answers[row, row % 4, -1] for row in range(12)])
    labels[6:] = deep.answers[6:, 0, -1]
    columns = {key: values.numpy() for key, values in measure_columns(wide, deep, labels, [1, 2, 4]).items()}
    for steps in (1, 2, 4):
        for count in (1, 2, 4):
            anyone = columns[count, steps, "any"]
            assert (columns[count, steps, "updates"] == count * steps).all()
            assert (anyone <= columns[4, steps, "any"]).all()
            for by in CHOICES:
                chosen = [int(wide.choose(by, count, steps)[row]) for row in range(12)]
                right = [bool((wide.answers[row, k, steps - 1] == labels[row]).all()) for row, k in enumerate(chosen)]
                assert columns[count, steps, by].tolist() == [float(value) for value in right]
                assert (columns[count, steps, by] <= anyone).all()
    breadth = summarise_columns(columns, step_macs(model.config))
    assert [row["steps"] for row in breadth["depth"]] == [1, 2, 4, 8, 16]
    assert breadth["depth"][-1]["accuracy"] == pytest.approx(np.mean(columns[0, 16, "accuracy"]))
    row = breadth["rows"][-1]
    assert (row["rollouts"], row["steps"], row["macs"]) == (4, 4, 16 * step_macs(model.config))
    differences = columns[4, 4, "q"] - columns[0, 16, "accuracy"]
    assert row["q_against_depth"]["difference"] == pytest.approx(differences.mean())
    assert row["q_error"] == pytest.approx(columns[4, 4, "q"].std(ddof=1) / np.sqrt(12))

    breadth = {"set": "validation", "n": 12, "noise": NOISE, "exit_rule": "fixed:4", **breadth}
    assert "of 18 comparisons" in describe_breadth(breadth)
    assert "depth alone" in format_breadth(breadth)
    write_json(tmp_path / "breadth.json", breadth)
    section = build_breadth_section(read_run(tmp_path))
    assert section is not None
    assert len(section.tables[0].rows) == 9
    marks = [panel.mark for panel in section.figures[0].panels]
    assert [len(mark.curves) for mark in marks if isinstance(mark, Lines)] == [4] * 4


def test_cells_without_a_label_are_always_right() -> None:
    ones, zeros = torch.ones(1, 1, 1, CELLS, dtype=torch.int64), torch.zeros(1, 1, 1)
    wide = Rollouts(ones, zeros, zeros, ones[0, :, 0, :1])
    labels = torch.full((1, CELLS), -100)
    labels[0, 3] = 1
    assert measure_columns(wide, wide, labels, [1])[1, 1, "q"].tolist() == [1.0]
    labels[0, 3] = 2
    assert measure_columns(wide, wide, labels, [1])[1, 1, "any"].tolist() == [0.0]
