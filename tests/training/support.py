"""Support for training tests: tiny set-ups with the embedded corpus, a real tokenizer and the shipped configuration."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file
from transformers import set_seed

from adadepth import tasks
from adadepth.config import ExperimentConfig
from adadepth.data import load_pretraining_data
from adadepth.metrics.metric_names import SPEEDUPS
from adadepth.metrics.unit_costs import TIME
from adadepth.models.build import build_pretraining_model
from adadepth.runs.checkpoints import checkpoints, get_checkpoint_step
from adadepth.runs.directory import CHECKPOINTS, RECORD, read_record, write_jsonable
from adadepth.tasks.pretrain import build_pretraining_session
from adadepth.training.arguments import training_arguments
from adadepth.training.callbacks import EpochCallback
from adadepth.training.extension import Extension
from adadepth.training.trainer import DepthTrainer
from tests.configs.support import configured

Kind = TypeVar("Kind")

TINY = (
    "model=albert_act_tiny", "dataset=python_docs", "trainer=short", "budget=none", "debug=default",
    "dataset.max_documents=12", "dataset.sequence_length=64", "model.act_penalty=0.01", "trainer.disable_tqdm=true",
    "trainer.eval_on_start=false", "trainer.load_best_model_at_end=false", "trainer.eval_strategy=no",
    "trainer.save_strategy=no",
)  # fmt: skip


def build_tiny_config(*overrides: str) -> ExperimentConfig:
    """Return a configuration at the debug width on a dozen documents."""
    return configured("act_tiny", *TINY, *overrides)


def find_extension(trainer: DepthTrainer, kind: type[Kind]) -> Kind:
    """Return the one extension of a kind that a trainer has."""
    (match,) = (extension for extension in trainer.extensions if isinstance(extension, kind))
    return match


def build_tiny_trainer(folder: Path, *overrides: str, extensions: Sequence[Extension] = ()) -> DepthTrainer:
    """Build a trainer as the pretraining task does, without the run's folder."""
    config = build_tiny_config(*overrides)
    args = training_arguments(config, folder)
    set_seed(config.seed)
    data = load_pretraining_data(config.dataset, config.tokenizer, config.seed)
    epochs = EpochCallback()
    model = build_pretraining_model(config.model, len(data.tokenizer))
    session = build_pretraining_session(config, args, data, model).with_extensions()
    trainer = DepthTrainer(
        session.model,
        args,
        data,
        session.evaluation_sets,
        session.start_evaluation,
        config.trainer,
        [epochs],
        extensions=(*extensions, *session.extensions),
    )
    epochs.trainer = trainer
    return trainer


def run_config(config: ExperimentConfig) -> tuple[Path, float | None]:
    """Run a configuration in this process, and return the one run directory that it makes, and its metric."""
    output = Path(config.output_dir)
    earlier = set(output.rglob(RECORD))
    metric = tasks.run(config)
    (record,) = set(output.rglob(RECORD)) - earlier
    return record.parent, metric


def run_debug(folder: Path, root: str, *overrides: str) -> tuple[Path, float | None]:
    """Run a configuration at the debug length with output in a folder; see `run_config`."""
    fixed = ("debug=default", f"output_dir={folder}", "trainer.disable_tqdm=true")
    return run_config(configured(root, *fixed, *overrides))


def mark_interrupted(run: Path) -> Path:
    """Mark a finished run as interrupted, so that a resume makes again what the caller took away."""
    write_jsonable(run / RECORD, read_record(run) | {"status": "interrupted"})
    return run


def copy_interrupted_run(step: int, run: Path, folder: Path) -> Path:
    """Copy a finished run as it was when it was interrupted behind the checkpoint of an update."""
    copy = folder / run.parent.name / run.name
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("figures", "model"))
    for checkpoint in checkpoints(copy / CHECKPOINTS):
        if get_checkpoint_step(checkpoint) > step:
            shutil.rmtree(checkpoint)
    return mark_interrupted(copy)


def assert_same_end(run: Path, expected: Path) -> None:
    """Check equal bits in the saved model and the last checkpoint, and equal logs except for times."""
    last = max(checkpoints(expected / CHECKPOINTS), key=get_checkpoint_step)
    for folder in (expected / "model", last):
        for file in folder.glob("*.safetensors"):
            reference, weights = load_file(file), load_file(run / file.relative_to(expected))
            assert reference.keys() == weights.keys()
            assert all(torch.equal(weights[name], value) for name, value in reference.items()), file.name
    assert read_log(run) == read_log(expected)


def read_log(run: Path) -> list[dict[str, Any]]:
    """Return the lines that a run logged, without times."""
    logged = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    timed = ("time", "per_second", "runtime", TIME, *SPEEDUPS.values())
    return [{name: value for name, value in line.items() if not name.endswith(timed)} for line in logged]


def clone_parameters(trainer):
    return {name: value.detach().clone() for name, value in trainer.model.named_parameters()}


def collect_losses(trainer):
    return {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}
