"""The training loop: fields of transformers' own arguments, and what is translated for it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from adadepth.declaration import BELOW_ONE, OPEN_SHARE, POSITIVE, Allowed, at_least, setting

Optimizer = StrEnum("Optimizer", ["adamw", "adam", "adam_atan2", "lamb"])
Schedule = StrEnum("Schedule", ["linear", "reference_linear", "constant", "cosine", "plateau"])
Precision = StrEnum("Precision", ["auto", "bf16", "fp16", "fp32"])
EvalStrategy = StrEnum("EvalStrategy", ["no", "steps", "epoch"])
SaveStrategy = StrEnum("SaveStrategy", ["no", "steps", "epoch", "best"])
_UPDATES = Allowed(lambda value: value == -1 or value >= 1, "at least 1, or -1 for num_train_epochs")


@dataclass
class BorrowedConfig:
    """Fields of ``transformers.TrainingArguments`` under their own names."""

    max_steps: int = setting(300, "optimizer updates; -1: num_train_epochs decides", _UPDATES, debug=2)
    num_train_epochs: float = setting(3.0, "with max_steps=-1", POSITIVE)
    per_device_train_batch_size: int = setting(16, "sequences a device and micro-batch", at_least(1), debug=4)
    per_device_eval_batch_size: int = setting(32, "sequences a device", at_least(1), neutral=True, debug=4)
    gradient_accumulation_steps: int = setting(1, "micro-batches an update", at_least(1), debug=1)
    learning_rate: float = setting(1e-3, "peak", POSITIVE)
    weight_decay: float = setting(0.01, "of matrices; see decay_vectors", at_least(0))
    adam_beta1: float = setting(0.9, "decay of the first moment, of either optimizer", BELOW_ONE)
    adam_beta2: float = setting(0.999, "decay of the second moment", BELOW_ONE)
    adam_epsilon: float = setting(1e-6, "added to the root of the second moment", POSITIVE)
    max_grad_norm: float = setting(1.0, "global norm, clipped once per update; 0: no clipping", at_least(0))
    warmup_steps: float = setting(0, "updates; below 1: share of all updates", at_least(0), debug=0)
    logging_steps: int = setting(
        10, "updates between two lines of training metrics", at_least(1), neutral=True, debug=1
    )
    eval_strategy: EvalStrategy = setting(
        EvalStrategy.steps, "evaluate every eval_steps updates, every epoch, or never", debug=EvalStrategy.steps
    )
    eval_steps: int | None = setting(100, "updates", at_least(1), debug=2)
    eval_on_start: bool = setting(True, "also evaluates the untrained model: its depth explains collapsed runs")
    save_strategy: SaveStrategy = setting(
        SaveStrategy.steps, "best: whenever the best metric improves", debug=SaveStrategy.steps
    )
    save_steps: int = setting(
        100, "updates; a multiple of eval_steps if the best model is loaded at the end", at_least(1), debug=2
    )
    save_total_limit: int | None = setting(
        2, "the best and the newest checkpoint are always kept", at_least(1), neutral=True
    )
    load_best_model_at_end: bool = setting(True, "report and keep the best evaluated weights, not the last")
    metric_for_best_model: str | None = setting("eval_loss", "under the name transformers knows")
    greater_is_better: bool | None = setting(False, "of metric_for_best_model")
    tf32: bool | None = setting(None, "Ampere and later; None: torch's default")
    gradient_checkpointing: bool = setting(False, "recompute the block in the backward pass", neutral=True)
    torch_compile_backend: str | None = setting(None, "with runtime.compile", neutral=True)
    torch_compile_mode: str | None = setting(None, "with runtime.compile", neutral=True)
    ddp_backend: str | None = setting(None, "None: nccl on GPUs, gloo on CPUs", neutral=True)
    ddp_find_unused_parameters: bool | None = setting(False, "True hides parameters that never train", neutral=True)
    ddp_bucket_cap_mb: int | None = setting(None, "size of a gradient bucket", neutral=True)
    ddp_broadcast_buffers: bool | None = setting(None, "None: unless gradients are checkpointed")
    ddp_timeout: int = setting(1800, "seconds", at_least(1), neutral=True)
    fsdp: bool = setting(False, "shard parameters over processes")
    fsdp_config: Any = setting(None, "FSDP's own settings: a JSON file or a mapping")
    deepspeed: Any = setting(None, "a DeepSpeed configuration: a JSON file or a mapping")
    dataloader_drop_last: bool = setting(False, "leave out an incomplete last batch")
    dataloader_pin_memory: bool = setting(True, "faster copies to a GPU", neutral=True)
    dataloader_persistent_workers: bool = setting(False, "keep workers from one epoch to the next", neutral=True)
    dataloader_prefetch_factor: int | None = setting(
        None, "batches a worker, with runtime.num_workers > 0", at_least(1), neutral=True
    )
    full_determinism: bool = setting(False, "slower kernels, the same bits")
    use_cpu: bool = setting(False, "ignore GPUs")
    disable_tqdm: bool | None = setting(None, "None: a bar where there is a terminal", neutral=True)
    push_to_hub: bool = setting(False, "upload the model and its card to the Hugging Face hub at the end", neutral=True)
    hub_model_id: str | None = setting(None, "its name there, OWNER/NAME; None: the experiment's", neutral=True)
    hub_private_repo: bool | None = setting(None, "who sees a new one; None: as set on the hub", neutral=True)


@dataclass
class TrainerConfig(BorrowedConfig):
    """What transformers' trainer has, and what adadepth.training translates for it."""

    optimizer: Optimizer = setting(
        Optimizer.adamw,
        "adam: weight decay is a part of the gradient; adam_atan2: of tiny recursive models, without adam_epsilon; "
        "lamb: ALBERT's published recipe",
    )
    decay_vectors: bool = setting(False, "weight_decay on biases and layer norms, too")
    ema_decay: float | None = setting(
        None, "evaluate and keep an exponential moving average of the weights, of this decay an update", OPEN_SHARE
    )
    schedule: Schedule = setting(
        Schedule.linear, "reference_linear decays from step 0; plateau when the metric stops improving"
    )
    plateau_patience: int | None = setting(
        None, "evaluations without improvement before the rate is halved", at_least(1)
    )
    plateau_min_lr: float = setting(1e-6, "lowest rate of schedule=plateau", at_least(0))
    precision: Precision = setting(Precision.auto, "auto: bf16 where supported, else fp16 on a GPU, else fp32")
    time_budget_minutes: float | None = setting(None, "stop, save and evaluate when it is spent", POSITIVE)
    early_stopping_patience: int | None = setting(None, "evaluations without improvement before stopping", at_least(1))
    early_stopping_threshold: float = setting(0.0, "what counts as improvement", at_least(0))
    profiler: bool = setting(False, "write a trace of a few updates, which ui.perfetto.dev opens", neutral=True)
    halting_statistics: bool = setting(True, "depth per token class at every evaluation", neutral=True)
