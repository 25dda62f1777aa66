"""Rows that wait for a slot: predictions equal those of a call in which all rows begin together."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from adadepth.halting.exit_rules import ExitRule, StepView, parse_rule
from adadepth.models.depth.engine import run_steps
from adadepth.models.trm.modeling import TrmForPuzzles, step_macs
from adadepth.tasks import exit_study
from tests.marks_support import keep_one_quick, mark_mostly_slow
from tests.unit.models.ponder_rnn_support import build_recurrent, draw_examples
from tests.unit.models.trm_support import build_trm, draw_puzzles

PLACES = [None, 1, 4, 11]  # None: rows leave the batch, and none waits
ROWS = 17
RULES = ["correct", "confidence", "patience:1", "patience:2", "margin:0.05", "entropy:1.4", "fixed:2", "fixed:6"]
CASES = [("positions", rule) for rule in RULES] + [("attention", rule) for rule in ("correct", "patience:2")]
QUICK = [("positions", "confidence"), ("positions", "patience:2"), ("attention", "patience:2")]
HALTING = ["sample", "quantile:0.6", "expectation", "patience:2", "normalised_entropy:0.9", "fixed:3"]


def build_puzzle_model(mixing: str = "positions", **changes: Any) -> TrmForPuzzles:
    """Build a model with small weights, whose answers become stable at different steps."""
    model = build_trm(mixing=mixing, num_steps=6, cycles=1, reasoning_updates=1, **changes).double().eval()
    with torch.no_grad():
        for weight in model.network.parameters():
            weight.mul_(0.5)
    return model


def choose_rule(model: TrmForPuzzles, rule: str, cells: Tensor) -> str:
    """Return a rule under which rows exit at several steps: `correct` and `confidence` use a median of step two."""
    with torch.no_grad():
        dense = model(input_ids=cells, run_all_steps=True)
    measured = {
        "correct": dense.halting_logits[:, 1].sigmoid(),
        "confidence": dense.step_logits[:, 1].softmax(dim=-1).amax(dim=-1).amin(dim=-1),
    }
    return f"{rule}:{float(measured[rule].median())}" if rule in measured else rule


def check_same(actual: Any, dense: Any) -> None:
    """Compare exit steps and, up to rounding, all outputs until then; later ones must be NaN."""
    assert actual.exit_steps.tolist() == dense.exit_steps.tolist()
    torch.testing.assert_close(actual.logits, dense.logits, atol=1e-5, rtol=1e-5)
    steps = dense.step_logits.shape[1]
    ran = torch.arange(1, steps + 1) <= dense.exit_steps.unsqueeze(1)
    for name in ("step_logits", "halting_logits", "halting_probabilities"):
        values = getattr(actual, name)
        torch.testing.assert_close(values[ran], getattr(dense, name)[ran], atol=1e-5, rtol=1e-5, msg=name)
        assert values[~ran].isnan().all(), name


@pytest.mark.parametrize(("mixing", "rule"), mark_mostly_slow(CASES, lambda case: case in QUICK))
def test_waiting_changes_no_prediction(mixing: str, rule: str) -> None:
    model, (cells, _) = build_puzzle_model(mixing), draw_puzzles(ROWS)
    rule = choose_rule(model, rule, cells)
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        dense = model(input_ids=cells, exit_rule=rule, run_all_steps=True)
        shuffled = model(input_ids=cells[order], exit_rule=rule, run_all_steps=True)
        assert shuffled.exit_steps.tolist() == dense.exit_steps[order].tolist()
        for num_slots in PLACES:
            check_same(model(input_ids=cells, exit_rule=rule, places=num_slots), dense)
        check_same(model(input_ids=cells[order], exit_rule=rule, places=4), shuffled)
    if not rule.startswith("fixed"):
        assert len(dense.exit_steps.unique()) > 1, "rows leave at different steps"


@pytest.mark.parametrize("rule", keep_one_quick(3, HALTING))
def test_rules_keep_a_memory_for_each_row(rule: str) -> None:
    model, inputs = build_recurrent(), draw_examples(ROWS)
    with torch.no_grad():
        dense, *refilled = (
            model(inputs=inputs, exit_rule=rule, generator=torch.Generator().manual_seed(3), **options)
            for options in ({"run_all_steps": True}, *({"places": num_slots} for num_slots in PLACES))
        )
    for output in refilled:
        check_same(output, dense)
    if not rule.startswith(("fixed", "expectation")):
        assert len(dense.exit_steps.unique()) > 1


@dataclass(frozen=True)
class Counting(ExitRule):
    """Rule that exits at a step given by a puzzle's first logits, and checks the step count of every row."""

    name = "counting"
    needs = frozenset({"logits"})

    def decide(self, view: StepView, memory: Tensor) -> tuple[Tensor, Tensor]:
        assert view.logits is not None
        assert (memory[:, 0] == view.step - 1).all()
        exit_step = 1 + (100 * view.logits.flatten(1).sum(dim=1)).floor() % 5
        last_step = exit_step if view.step == 1 else memory[:, 1]
        return view.step >= last_step, torch.stack([memory[:, 0] + 1, last_step], dim=1)

    def start(self, rows: int, device: torch.device | str, generator: torch.Generator | None = None) -> Tensor:
        return torch.zeros(rows, 2, device=device)


@pytest.mark.parametrize("num_slots", keep_one_quick(3, PLACES))
def test_a_rule_gets_the_step_of_every_row(num_slots: int | None) -> None:
    model, (cells, _) = build_puzzle_model(), draw_puzzles(ROWS)
    with torch.no_grad():
        dense = model(input_ids=cells, exit_rule=Counting(), run_all_steps=True)
        check_same(model(input_ids=cells, exit_rule=Counting(), places=num_slots), dense)
    assert len(dense.exit_steps.unique()) > 2


class QueueStepper:
    """Stepper whose logits are row numbers and step counts, with given exits; `ran` lists the rows of each step."""

    width, computed = 1, None

    def __init__(self, exits: list[int], num_slots: int) -> None:
        self.rows, self.device = len(exits), torch.device("cpu")
        self._exits, self._running = exits, [[row, 0] for row in range(min(num_slots, len(exits)))]
        self.ran: list[list[int]] = []

    def advance(self) -> tuple[Tensor, Tensor]:
        self._running = [[row, step + 1] for row, step in self._running]
        self.ran.append([row for row, _ in self._running])
        certain = [80.0 if step >= self._exits[row] else -80.0 for row, step in self._running]
        return torch.tensor(self._running, dtype=torch.float32), torch.tensor(certain)

    def keep(self, rows: Tensor) -> None:
        assert len(rows) < len(self._running)
        self._running = [self._running[row] for row in rows.tolist()]

    def admit(self, rows: Tensor) -> None:
        self._running += [[row, 0] for row in rows.tolist()]


def schedule_by_hand(exits: list[int], num_slots: int) -> list[list[int]]:
    """Return the rows of each step, in slots that are never empty while a row waits."""
    remaining, waiting, running, schedule = dict(enumerate(exits)), list(range(len(exits))), [], []
    while waiting or running:
        while waiting and len(running) < num_slots:
            running.append(waiting.pop(0))
        schedule.append(sorted(running))
        for row in running:
            remaining[row] -= 1
        running = [row for row in running if remaining[row]]
    return schedule


@pytest.mark.parametrize(
    "exits",
    keep_one_quick(3, [[2, 1, 4, 1, 3, 2], [1, 1, 1, 1], [5, 5, 5], [4], [1, 5, 1, 5, 1, 1, 2], [3, 3, 1, 9], []]),
)
@pytest.mark.parametrize("num_slots", keep_one_quick(2, [None, 1, 2, 3, 10]))
def test_a_free_slot_is_filled_at_once(num_slots: int | None, exits: list[int]) -> None:
    """Use row numbers as logits: after exits, they differ from slot numbers."""
    stepper = QueueStepper(exits, num_slots or len(exits))
    steps = run_steps(stepper, parse_rule("quantile:0.5"), max_updates=5, run_all=False, places=num_slots)
    depths = [min(step, 5) for step in exits]
    expected = schedule_by_hand(depths, num_slots or len(exits)) or [[]]
    assert [sorted(rows) for rows in stepper.ran] == expected
    assert steps.exit_steps.tolist() == depths
    assert steps.rows.tolist() == [len(rows) for rows in expected]
    for row, depth in enumerate(depths):
        assert steps.logits[row, :depth].tolist() == [[row, step] for step in range(1, depth + 1)]
        assert steps.logits[row, depth:].isnan().all()


def test_the_trace_contains_executed_rows_and_macs() -> None:
    model, (cells, _) = build_puzzle_model(), draw_puzzles(ROWS)
    rule = choose_rule(model, "correct", cells)
    with torch.no_grad():
        together, refilled = (model(input_ids=cells, exit_rule=rule, places=num_slots) for num_slots in (None, 3))
    expected_rows = [len(rows) for rows in schedule_by_hand(refilled.exit_steps.tolist(), 3)]
    ran, works = refilled.trace.executed, [model.price(output.trace) for output in (together, refilled)]
    assert ran.rows.tolist() == expected_rows
    assert ran.steps == len(expected_rows) > 6 > together.trace.executed.steps - 1
    assert works[0] == works[1]
    assert float(works[0].full) == pytest.approx(ROWS * 6 * step_macs(model.config))
    assert float(works[1].executed) == pytest.approx(sum(expected_rows) * step_macs(model.config))
    for name in ("updates", "valid", "iterations_run"):
        assert torch.equal(getattr(refilled.trace, name), getattr(together.trace, name)), name
    probabilities, expected = (output.trace.halting.probabilities for output in (refilled, together))
    torch.testing.assert_close(probabilities, expected)


def test_only_puzzles_in_slots_have_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that waiting puzzles are stored as cells, not as states, which are many times as large."""
    model, (cells, _) = build_puzzle_model(), draw_puzzles(40)
    batch_sizes, step = [], model.step
    monkeypatch.setattr(
        model, "step", lambda *states: batch_sizes.append({len(part) for part in states}) or step(*states)
    )
    with torch.no_grad():
        model(input_ids=cells, exit_rule="patience:1", places=4)
    assert max(map(max, batch_sizes)) == 4
    assert all(len(sizes) == 1 for sizes in batch_sizes)


def test_kinds_move_with_their_puzzles() -> None:
    model = build_puzzle_model(puzzle_kinds=3)
    cells, kinds = draw_puzzles(9)[0], torch.arange(9) % 3
    rule = choose_rule(model, "correct", cells)
    with torch.no_grad():
        dense = model(input_ids=cells, puzzle_kinds=kinds, exit_rule=rule, run_all_steps=True)
        check_same(model(input_ids=cells, puzzle_kinds=kinds, exit_rule=rule, places=2), dense)


def test_gradients_equal_those_without_slots() -> None:
    """Compare gradients, which in-place replacement of states would change."""
    gradients = []
    for num_slots in (None, 3):
        model = build_puzzle_model()
        model(input_ids=draw_puzzles(7)[0], exit_rule="patience:1", places=num_slots).logits.sum().backward()
        gradients.append([weight.grad for weight in model.network.parameters()])
    for with_all, with_three in zip(*gradients, strict=True):
        torch.testing.assert_close(with_three, with_all)


def test_slots_without_waiting_rows_are_refused() -> None:
    model, (cells, _) = build_puzzle_model(), draw_puzzles(4)
    with pytest.raises(ValueError, match="places=0"):
        model(input_ids=cells, places=0)
    nobody_waits = "places=2: needs early exits"
    with pytest.raises(ValueError, match=nobody_waits):
        model(input_ids=cells, places=2, run_all_steps=True)
    with pytest.raises(ValueError, match=nobody_waits):
        model.train()(input_ids=cells, places=2)
    with pytest.raises(ValueError, match=nobody_waits):
        build_recurrent()(inputs=draw_examples(4), labels=torch.tensor([0, 1, 1, 0]), places=2)


def test_evaluation_with_slots_has_the_loss_at_the_exit() -> None:
    """Compare each puzzle's loss with that of a model of as many steps as it takes."""
    model, (cells, labels) = build_puzzle_model(), draw_puzzles(ROWS)
    rule = choose_rule(model, "correct", cells)
    model.config.places = 3
    with torch.no_grad():
        output = model(input_ids=cells, labels=labels, exit_rule=rule)
        losses = []
        for row, depth in enumerate(output.exit_steps.tolist()):
            carry: dict[str, Tensor] = {}
            for _ in range(depth):
                carry = carry and {**carry, "halted": torch.tensor([False])}
                step = model(input_ids=cells[row : row + 1], labels=labels[row : row + 1], carry=carry)
                carry = step.carry
            losses.append(step.loss_parts)
    assert max(output.trace.executed.rows.tolist()) == 3
    for part, value in output.loss_parts.items():
        torch.testing.assert_close(value, torch.stack([loss[part] for loss in losses]).mean(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(output.loss, sum(output.loss_parts.values()))


def test_configured_slots_apply_to_calls_with_exits_only() -> None:
    model, (cells, labels) = build_puzzle_model(), draw_puzzles(6)
    model.config.places = 2
    with torch.no_grad():
        assert model(input_ids=cells).trace.executed.rows[0] == 2
        assert model(input_ids=cells, places=4).trace.executed.rows[0] == 4
        for everything in (model(input_ids=cells, run_all_steps=True), model.train()(input_ids=cells, labels=labels)):
            assert everything.trace.executed.rows.tolist() == [6] * 6


@pytest.mark.parametrize("refills", [True, False])
def test_exit_rules_are_timed_with_waiting_examples(refills: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a refilling model gets all timed examples at once, and others a batch at a time."""
    model, calls = build_puzzle_model(), []

    def forward(input_ids: Tensor, places: int | None = None, **_: Any) -> None:
        calls.append((len(input_ids), places))

    monkeypatch.setattr(model, "forward", forward)
    if not refills:
        monkeypatch.delattr(TrmForPuzzles, "refills")
    trainer = SimpleNamespace(
        accelerator=SimpleNamespace(unwrap_model=lambda model: model), model=model,
        args=SimpleNamespace(device=torch.device("cpu")), model_inputs=dict, prepare_batch=dict,
        data_collator=lambda rows: {"input_ids": torch.stack(rows)}, autocast_smart_context_manager=nullcontext,
        is_world_process_zero=lambda: False,
    )  # fmt: skip
    monkeypatch.setattr(exit_study, "REPETITIONS", 1)
    monkeypatch.setattr(exit_study, "WARM_UP", 0)
    timings = exit_study.measure(trainer, list(draw_puzzles(10)[0]), [parse_rule("fixed:1")], 10, exit_study.BATCHES)
    assert set(timings["fixed:1"]) == set(exit_study.BATCHES)
    of_batches = {(1, None), (8, None), (2, None), (10, None)}
    assert set(calls) == ({(10, places) for places in exit_study.BATCHES} if refills else of_batches)
