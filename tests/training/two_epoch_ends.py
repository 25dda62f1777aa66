"""Run by each of two processes: two epochs whose last batch is incomplete; the first one saves gradients and logs."""

from pathlib import Path

import torch

from tests.training.gradients_support import CASES, trained


def main(folder: Path) -> None:
    found = {}
    for name, case in CASES.items():
        found[name] = trained(folder / f"two {name}", name, 2 // case.accumulation, case.accumulation)
    if torch.distributed.get_rank() == 0:
        torch.save(found, folder / "two.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
