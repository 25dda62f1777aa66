"""Run by each of two processes: one update on two processes, and a resumed run; the first one saves what came out."""

from pathlib import Path

import torch
import transformers
from packaging.version import Version

from tests.training.gradients_support import budget_states, first_update
from tests.training.support import tiny_trainer


def resume_is_exact(folder: Path) -> bool | None:
    """Whether a run resumed in its second epoch ends with the weights of the whole run; None: it cannot be tried."""
    overrides = ("trainer.max_steps=8", "trainer.save_strategy=steps", "trainer.save_steps=1")
    overrides += ("trainer.save_total_limit=null", "model.hidden_dropout_prob=0.1", "trainer.num_train_epochs=9")
    whole = tiny_trainer(folder / "whole", *overrides)
    whole.train()
    assert whole.state.epoch > 1, "the resumed step must lie in a later epoch"
    # transformers 5.17 loads an optimizer's state onto "cpu:0" where several CPU processes train, which torch refuses.
    if Version(transformers.__version__) < Version("5.23"):
        return None
    resumed = tiny_trainer(folder / "resumed", *overrides)
    resumed.train(resume_from_checkpoint=str(folder / "whole" / "checkpoint-7"))
    return all(torch.equal(p, resumed.model.get_parameter(name)) for name, p in whole.model.named_parameters())


def main(folder: Path) -> None:
    gradients, logged, metrics = first_update(folder / "two", 4, 1)
    budget = budget_states(folder / "budget of two", 4, 1)
    untrained = tiny_trainer(folder / "untrained", "trainer.max_steps=1")
    untrained.evaluate()
    exact = resume_is_exact(folder)
    if untrained.is_world_process_zero():
        statistics = untrained.last_reports["held_out"].statistics
        result = {
            "gradients": gradients,
            "logged": logged,
            "metrics": metrics,
            "untrained": statistics,
            "budget": budget,
        }
        torch.save(result | {"exact": exact}, folder / "two.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
