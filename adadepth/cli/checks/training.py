"""Checks that the settings of the trainer are consistent with each other."""

import os
from collections.abc import Iterator

from adadepth.config import ExperimentConfig, Mode, Task, TrainerConfig
from adadepth.config.declaration import format_value
from adadepth.config.experiment import LoraConfig, Optimizer, Precision, SaveStrategy, Schedule
from adadepth.config.modes import modes
from adadepth.metrics.directions import find_unknown_direction, is_contradicted
from adadepth.metrics.task_metrics import SCORE


def check_trainer(config: ExperimentConfig) -> Iterator[str]:
    """Check that the trainer's settings of evaluation, saving, schedule and distributed training are consistent."""
    trainer = config.trainer
    if trainer.eval_strategy == "steps" and trainer.eval_steps is None:
        yield "trainer.eval_steps: required by trainer.eval_strategy=steps"
    if trainer.load_best_model_at_end:
        yield from _check_best_model(config)
    yield from _check_selection(config)
    if trainer.early_stopping_patience is not None and not trainer.load_best_model_at_end:
        yield "trainer.early_stopping_patience: needs trainer.load_best_model_at_end=true"
    if trainer.early_stopping_threshold and trainer.early_stopping_patience is None:
        yield "trainer.early_stopping_threshold: only used with trainer.early_stopping_patience"
    if trainer.optimizer is Optimizer.adam_atan2 and trainer.adam_epsilon != TrainerConfig.adam_epsilon:
        unread = f"trainer.adam_epsilon={trainer.adam_epsilon:g}: trainer.optimizer=adam_atan2 has none"
        yield f"{unread}; set it to {TrainerConfig.adam_epsilon:g}, the default"
    yield from _check_muon(trainer)
    yield from _check_lora(config)
    yield from _check_plateau(config)
    yield from _check_hub(config)
    if trainer.precision is Precision.fp16 and trainer.use_cpu:
        yield "trainer.precision=fp16: needs a GPU, but trainer.use_cpu=true; use fp32 or bf16"
    if trainer.fsdp and trainer.deepspeed:
        yield "trainer.fsdp and trainer.deepspeed: choose one"
    if trainer.fsdp and not modes()[config.mode].describes_training:
        yield f"trainer.fsdp=true: only used with mode=train, but mode={config.mode}"
    if trainer.fsdp and config.task is Task.architecture_search:
        yield (
            "trainer.fsdp=true: not supported in an architecture search, which reads the gates between the steps "
            "of the model; the derived network supports it as a language model"
        )
    if trainer.ema_decay is not None and trainer.deepspeed:
        yield f"trainer.ema_decay={trainer.ema_decay}: cannot be combined with trainer.deepspeed"
    for name in ("deepspeed", "fsdp_config"):
        value = getattr(trainer, name)
        is_device = isinstance(value, str) and os.path.exists(value) and not os.path.isfile(value)
        if is_device or not isinstance(value, dict | str | None):
            yield f"trainer.{name}={format_value(value)}: must be a JSON file or a mapping"
    if trainer.dataloader_prefetch_factor is not None and config.runtime.num_workers == 0:
        yield "trainer.dataloader_prefetch_factor: needs runtime.num_workers of at least 1"
    if trainer.dataloader_persistent_workers and config.runtime.num_workers == 0:
        yield "trainer.dataloader_persistent_workers=true: needs runtime.num_workers of at least 1"


def _check_muon(trainer: TrainerConfig) -> Iterator[str]:
    """Check that Muon has whole matrices, and that its learning rate is used."""
    if trainer.optimizer is not Optimizer.muon:
        if trainer.muon_learning_rate is not None:
            yield f"trainer.muon_learning_rate={trainer.muon_learning_rate:g}: only used with trainer.optimizer=muon"
        return
    for name in ("fsdp", "deepspeed"):
        if getattr(trainer, name):
            split = f"trainer.optimizer=muon: needs whole matrices, which trainer.{name} splits"
            yield f"{split}; set trainer.optimizer=adamw"


def _check_lora(config: ExperimentConfig) -> Iterator[str]:
    """Check that adapters have pretrained weights to adapt, and that no other setting freezes or splits these."""
    lora, trainer = config.trainer.lora, config.trainer
    if lora.rank is None:
        changed = [name for name, value in vars(lora).items() if value != getattr(LoraConfig(), name)]
        yield from (f"trainer.lora.{name}: required by trainer.lora.{changed[0]}" for name in ("rank",) if changed)
        return
    key = f"trainer.lora.rank={lora.rank}"
    if not modes()[config.mode].describes_training:
        return  # checkpoints have their adapters in their weights; like a learning rate, the rank has no effect
    if config.mode is not Mode.train or config.task is Task.architecture_search:
        yield f"{key}: only with mode=train and another task than architecture_search"
    if config.model.pretrained is None:
        yield f"model.pretrained: required by {key}"
    for name in ("fsdp", "deepspeed"):
        if getattr(trainer, name):
            yield f"{key}: cannot be combined with trainer.{name}"
    if config.halting.alone:
        yield f"{key}: cannot be combined with halting.alone"


def _check_hub(config: ExperimentConfig) -> Iterator[str]:
    trainer = config.trainer
    if not trainer.push_to_hub:
        for name in ("hub_model_id", "hub_private_repo"):
            if (value := getattr(trainer, name)) is not None:
                yield f"trainer.{name}={value}: only used with trainer.push_to_hub=true"
        return
    if config.mode is not Mode.train or config.task is Task.architecture_search or config.seeds > 1:
        yield (
            "trainer.push_to_hub=true: only with mode=train, seeds=1 and another task than architecture_search; "
            "`hf upload NAME RUN/model` uploads the model of any run"
        )
    if config.runtime.offline:
        yield "trainer.push_to_hub=true: cannot be combined with runtime.offline=true"


def _check_plateau(config: ExperimentConfig) -> Iterator[str]:
    trainer = config.trainer
    if trainer.schedule is not Schedule.plateau:
        if trainer.plateau_patience is not None:
            warmup = " trainer.warmup_steps=0" if trainer.warmup_steps else ""
            patience = f"trainer.plateau_patience={trainer.plateau_patience}"
            yield f"{patience}: only used with trainer.schedule=plateau{warmup}"
        return
    if trainer.plateau_patience is None:
        yield "trainer.plateau_patience: required by trainer.schedule=plateau"
    if trainer.eval_strategy == "no" or trainer.metric_for_best_model is None:
        yield "trainer.schedule=plateau: needs trainer.eval_strategy and trainer.metric_for_best_model"
    if trainer.warmup_steps:
        yield f"trainer.warmup_steps={trainer.warmup_steps}: trainer.schedule=plateau has no warm-up; set it to 0"


def _check_selection(config: ExperimentConfig) -> Iterator[str]:
    """Check that the direction of the selection metric is right, so that the best model is kept, not the worst.

    A resumed run keeps its settings and is not checked.
    """
    metric, greater = config.trainer.metric_for_best_model, config.trainer.greater_is_better
    if metric is None or config.resume is not None or not modes()[config.mode].describes_training:
        return
    name, metrics = metric.removeprefix("eval_"), getattr(config.dataset, "metrics", ())
    if unknown := find_unknown_direction(name, metrics):
        if name == SCORE:  # errors count in it with a minus sign
            yield (
                f"trainer.metric_for_best_model={metric}: {unknown}, so it cannot be part of a score; name one metric, "
                "and set trainer.greater_is_better"
            )
        elif greater is None:
            yield f"trainer.greater_is_better: required by trainer.metric_for_best_model={metric}, because {unknown}"
    elif greater is not None and is_contradicted(name, greater, metrics):
        better = "lower" if greater else "higher"
        yield (
            f"trainer.greater_is_better={str(greater).lower()}: trainer.metric_for_best_model={metric} is better "
            f"if {better}; null chooses the direction of every metric"
        )


def selects_by_metric(config: ExperimentConfig) -> bool:
    """Return whether a new training selects by a metric: the best model, checkpoints, the learning rate or its end.

    A resumed run keeps its settings, so it counts as one that does not.
    """
    trainer = config.trainer
    selects = (
        trainer.load_best_model_at_end
        or trainer.save_strategy is SaveStrategy.best
        or trainer.early_stopping_patience is not None
        or trainer.schedule is Schedule.plateau
    )
    return selects and config.mode is Mode.train and config.resume is None


def _check_best_model(config: ExperimentConfig) -> Iterator[str]:
    trainer = config.trainer
    because = "because trainer.load_best_model_at_end=true"
    if trainer.eval_strategy == "no":
        yield f"trainer.eval_strategy=no: must be steps or epoch, {because}"
    elif trainer.save_strategy == "best":
        return
    elif trainer.save_strategy.value != trainer.eval_strategy.value:
        yield (
            f"trainer.save_strategy={trainer.save_strategy}: must equal trainer.eval_strategy={trainer.eval_strategy}, "
            f"{because}"
        )
    elif trainer.eval_strategy == "steps" and trainer.eval_steps and trainer.save_steps % trainer.eval_steps:
        yield (
            f"trainer.save_steps={trainer.save_steps}: must be a multiple of trainer.eval_steps={trainer.eval_steps}, "
            f"{because}"
        )
