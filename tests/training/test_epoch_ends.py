"""Gradients of an epoch's incomplete last batch, which do not depend on the number of processes."""

import pytest
import torch

from tests.training.gradients_support import CASES, train_two_epochs
from tests.training.processes_support import run_on_processes

PARTS = ("loss", "mlm_loss", "sop_loss", "ponder_loss")


@pytest.mark.slow
def test_two_processes_end_an_epoch_as_one_does(tmp_path):
    run_on_processes("two_epoch_ends", tmp_path)
    two = torch.load(tmp_path / "two.pt", weights_only=False)
    for name, case in CASES.items():
        gradients, log = train_two_epochs(tmp_path / f"one {name}", name, 4, 1)
        updates = case.examples // 4 if "left out" in name else -(-case.examples // 4)
        assert len(log) == len(two[name][1]) == 2 * updates, name
        for ours, theirs in zip(log, two[name][1], strict=True):
            for part in [*PARTS, "budget/measured"]:
                if part in ours:
                    assert theirs[part] == pytest.approx(ours[part], rel=1e-5), (name, part)
        for parameter, gradient in gradients.items():
            actual = two[name][0][parameter]
            torch.testing.assert_close(actual, gradient, atol=2e-6, rtol=1e-3, msg=f"{name} {parameter}")
