"""Run by each of two processes: some updates over streams, and a resumed run; the first one saves what came out."""

from pathlib import Path

import torch

from tests.training.stream_support import JOINT, TRAINING_ONLY, stream_config, stream_trainer
from tests.training.support import losses, parameters


def main(folder: Path) -> None:
    sizes = ("trainer.per_device_train_batch_size=4", "trainer.per_device_eval_batch_size=4", "trainer.max_steps=5")
    saving = ("trainer.save_strategy=steps", "trainer.save_steps=1", "trainer.save_total_limit=null")
    config = stream_config(folder, *TRAINING_ONLY, *JOINT, *sizes, *saving)
    trainer = stream_trainer(config, folder / "two")
    trainer.train()
    trained, metrics = parameters(trainer), trainer.evaluate()
    resumed = stream_trainer(config, folder / "resumed")
    resumed.train(resume_from_checkpoint=str(folder / "two" / "checkpoint-3"))
    exact = all(torch.equal(value, parameters(resumed)[name]) for name, value in trained.items())
    if trainer.is_world_process_zero():
        result = {"parameters": trained, "losses": losses(trainer), "metrics": metrics, "exact": exact}
        torch.save(result, folder / "two.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
