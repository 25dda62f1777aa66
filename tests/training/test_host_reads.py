"""Host reads of a whole training update: those of its model, and at a log those of the logged values."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.host_reads_support import count_update_reads

# Reads of the model in an update (docs/guide.md lists them), and reads of a log's extensions. An update brings
# much to the device, and waits for none of it.
CASES = {
    "ponder_tiny": (0, 0),
    "ponder_tiny trainer.gradient_accumulation_steps=2 trainer.ema_decay=0.9": (0, 0),
    "act_hops": (2, 1),  # which tokens have a class, and which updates of them ran: losses after every update
    "act_tiny model.act_penalty=0 budget.target=3": (1, 1),  # which words are hidden
    "trm_tiny": (0, 1),
    "loop_hops": (2, 0),  # transformers' check of the mask; which tokens have a class
    "loop_tiny": (2, 0),
    "loop_tiny model.train_loops=drawn model.objective=last": (3, 0),
    "loop_lengths": (2, 0),
    "par_network": (3, 0),  # which positions have a target, and two tails
    "par_tiny search.stages=[search]": (3, 0),
    "adalayers_tiny features.cache=false": (2, 0),  # which layers are mixed, and transformers' check of the mask
}
# The loss, the gradients' norm, whether losses were finite and near the first one, their parts, and tokens.
LOG = 6


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_an_update_reads_only_what_its_model_reads(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    updates = count_update_reads(*case.split(), folder=tmp_path, patch=monkeypatch, updates=6, logged_every=3)
    reads, logged = CASES[case]
    assert [update.reads.total() for update in updates] == [reads, reads, reads + LOG + logged, reads, reads], updates
    assert [update.moves.total() for update in updates[1:]] == [0] * 4, updates
