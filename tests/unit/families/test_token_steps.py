"""Readouts after every step are a capability: a token-level model that is no family of the package has them, too.

The model is a tagger with a table of states and an exit head, without any halting unit.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils import ModelOutput

from adadepth.families.shared.steps import run_steps, unit_fields
from adadepth.halting.exit_rules import parse_rule
from adadepth.halting.trace import DepthTrace, Execution
from adadepth.measure.exit_records import StepRecorder, merge
from adadepth.measure.exit_study import study

STEPS, CLASSES, WIDTH = 5, 3, 8
LENGTHS = torch.tensor([7, 4, 6])
VALID = torch.arange(7) < LENGTHS.unsqueeze(1)


@dataclass
class TaggerOutput(ModelOutput):
    """What the evaluation asks for, and nothing else."""

    logits: Tensor | None = None
    trace: DepthTrace | None = None
    unit_slots: Tensor | None = None
    step_logits: Tensor | None = None
    halting_logits: Tensor | None = None
    exit_steps: Tensor | None = None


class Tagger(nn.Module):
    """x <- tanh(W x), read by one linear map after every step; each token exits by itself."""

    exit_signals = frozenset({"logits"})

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.states = nn.Embedding(20, WIDTH)
        self.block = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)
        nn.init.orthogonal_(self.block.weight, gain=2.0)

    def forward(self, input_ids, attention_mask, labels=None, exit_rule="fixed:5", run_all_steps=False, generator=None):
        """Tag, token by token."""
        rule, slots = parse_rule(exit_rule), attention_mask.flatten().nonzero().squeeze(1)
        stepper = TaggerStepper(self, self.states(input_ids).flatten(0, 1)[slots])
        steps = run_steps(stepper, rule, max_updates=STEPS, run_all=run_all_steps, generator=generator)
        updates = torch.zeros(attention_mask.numel()).index_copy(0, slots, steps.exit_steps.float())
        trace = DepthTrace(
            "token", updates.view(attention_mask.shape), attention_mask.bool(), STEPS,
            execution=Execution(len(steps.rows), rows=steps.rows),
        )  # fmt: skip
        return TaggerOutput(trace=trace, **unit_fields(steps, rule, slots, tuple(attention_mask.shape)))


class TaggerStepper:
    """Its running tokens."""

    width, computed = 1, None

    def __init__(self, model: Tagger, state: Tensor) -> None:
        self.model, self.state = model, state
        self.rows, self.device = len(state), state.device

    def advance(self) -> tuple[Tensor, None]:
        """One step, without a halting logit."""
        self.state = torch.tanh(self.model.block(self.state))
        return self.model.head(self.state), None

    def keep(self, rows: Tensor) -> None:
        """Go on with these."""
        self.state = self.state[rows]


def batch() -> dict[str, Tensor]:
    ids = torch.randint(0, 20, VALID.shape, generator=torch.Generator().manual_seed(1))
    labels = torch.randint(0, CLASSES, VALID.shape, generator=torch.Generator().manual_seed(2))
    return {"input_ids": ids, "attention_mask": VALID.long(), "labels": labels.masked_fill(~VALID, -100)}


@torch.no_grad()
def test_tokens_that_leave_get_what_they_get_where_all_stay():
    model = Tagger()
    left, stayed = (model(**batch(), exit_rule="confidence:0.5", run_all_steps=every) for every in (False, True))
    assert left.exit_steps.equal(stayed.exit_steps)
    assert len(left.exit_steps.unique()) > 1
    assert left.logits.isnan().all(dim=-1).equal(~VALID)
    torch.testing.assert_close(left.logits[VALID], stayed.logits[VALID])
    assert left.trace.updates[VALID].equal(left.exit_steps.float())
    assert left.halting_logits is None


@torch.no_grad()
def test_its_exits_can_be_recorded_and_studied():
    model, examples = Tagger(), batch()
    recorder = StepRecorder()
    recorder.add({**examples, "index": torch.arange(3)}, model(**examples, run_all_steps=True))
    records = merge([recorder.parts()])
    assert len(records) == LENGTHS.sum()
    assert records.ran_every_step
    assert records.halting_logits is None
    rules = [parse_rule(text) for text in ("fixed:1", "fixed:3", "confidence:0.5", "patience:1")]

    def macs(records: Any, exit_steps: Tensor, reads: Collection[str]) -> float:
        return float(exit_steps.sum())

    found = study(records, rules, macs=macs, problem="classification", metrics=("accuracy",))
    depths = {row["rule"]: row["mean_updates"] for row in found["rows"] if row["rule"].startswith("fixed")}
    assert depths == {"fixed:1": 1.0, "fixed:3": 3.0}
