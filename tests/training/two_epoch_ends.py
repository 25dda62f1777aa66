"""Module run by each of two processes: two epochs with an incomplete last batch; the first one saves gradients and
logs.
"""

from pathlib import Path

import torch

from tests.training.gradients_support import CASES, train_two_epochs


def main(folder: Path) -> None:
    results = {}
    for name, case in CASES.items():
        results[name] = train_two_epochs(folder / f"two {name}", name, 2 // case.accumulation, case.accumulation)
    if torch.distributed.get_rank() == 0:
        torch.save(results, folder / "two.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
