"""Run by torchrun: one update on two processes; the first one saves what came out."""

import sys
from pathlib import Path

import torch

from tests.training.support import tiny_trainer
from tests.training.test_normalisation import first_update


def main(folder: Path) -> None:
    gradients, logged, metrics = first_update(folder / "two", 4, 1, "trainer.use_cpu=true")
    untrained = tiny_trainer(folder / "untrained", "trainer.max_steps=1", "trainer.use_cpu=true")
    untrained.evaluate()
    if untrained.is_world_process_zero():
        statistics = untrained.last_report.statistics
        result = {"gradients": gradients, "logged": logged, "metrics": metrics, "untrained": statistics}
        torch.save(result, folder / "two.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
