"""Estimate of a training run's memory, operations and duration from fake tensors, without data.

The real training step runs on fake tensors, without weights; see `adadepth.contrib.estimate.fake_step`. The step covers
forward pass, loss, backward pass and optimiser. Its micro-batch has the longest examples, and no unit halts before the
last update.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from adadepth.config import ExperimentConfig
from adadepth.config.experiment import Precision
from adadepth.contrib.estimate.devices import (
    MemoryUse,
    compute_days,
    find_largest_batch,
    get_memory_bytes,
    get_peak_rate,
    resolve_device,
    split_over_devices,
)
from adadepth.contrib.estimate.fake_step import KnownValues, MemoryTracker
from adadepth.contrib.estimate.settings import get_estimate_settings
from adadepth.contrib.estimate.training_spec import TrainingSpec, build_training_spec
from adadepth.errors import ConfigError
from adadepth.halting.trace import DepthTrace
from adadepth.models.contract import ReadsCachedStates, Remembers
from adadepth.models.folder import skip_weight_loading
from adadepth.report.table import format_duration, number
from adadepth.runtime.console import RESULT, say
from adadepth.training.optimization import build_optimizer

_GIB, _MIB, _DAY = 2**30, 2**20, 86400
_GIGA = 1e9
_ENCODED = ("input_ids", "attention_mask", "token_type_ids")
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class StepCost(NamedTuple):
    """Memory and operations of one training step on a micro-batch.

    Attributes:
        memory: Bytes at the peak.
        operations: Operations of forward and backward pass.
        work: Multiply-accumulates of a forward pass at full depth, from the cost model of the model.
        tokens: Number of tokens of the micro-batch.
        parameters: Number of all parameters, and of trained ones.
        gradients: Bytes of all gradients.
        largest_block: Bytes of the weights of the largest block.
    """

    memory: MemoryUse
    operations: int
    work: float
    tokens: int
    parameters: tuple[int, int]
    gradients: int
    largest_block: int


def print_estimate(config: ExperimentConfig) -> None:
    """Print memory, operations and duration of the configured training run.

    Raises:
        ConfigError: If the estimate exceeds the memory of the device. The message names the micro-batch that fits.
    """
    estimate = estimate_training(config)
    say(format_estimate(config, estimate), RESULT)
    if estimate["fits"] is False:
        needed, device = f"{estimate['memory']['total'] / _GIGA:,.1f} GB", get_estimate_settings(config).device
        available = f"{(get_memory_bytes(resolve_device(device)) or 0) / _GIGA:,.0f} GB of {device}"
        rows = config.trainer.per_device_train_batch_size
        raise ConfigError(
            f"trainer.per_device_train_batch_size={rows}: needs {needed}, more than the {available}; "
            f"{_format_advice(estimate['rows_that_fit'])}"
        )


def estimate_training(config: ExperimentConfig) -> dict[str, Any]:
    """Estimate memory, operations and duration of the configured training run.

    Returns:
        `length`, the tokens of a row; `parameters` and `trained`; `macs_per_token` at full depth, forward;
        `operations_per_token` of a training step;
        `memory`, bytes per device at the peak; `fits`, None if the device's memory is unknown;
        `rows_that_fit`, fewer than the configured rows if these do not fit;
        `tokens_per_second` of all devices at `share` of their peak rate;
        `tokens` of the whole training and `days`, None if the number of steps depends on the data.

    Raises:
        ConfigError: If the step cannot run on fake tensors, or a value that depends on the data is missing.
    """
    settings = get_estimate_settings(config)
    device = resolve_device(settings.device)
    spec, rows = build_training_spec(config), config.trainer.per_device_train_batch_size
    cost = run_fake_step(config, spec, rows)
    memory, limit = _compute_device_memory(config, cost), get_memory_bytes(device)
    per_token = cost.operations / cost.tokens
    peak_rate = get_peak_rate(device, resolve_precision(config), bool(config.trainer.tf32))
    speed = settings.share * peak_rate * settings.devices / per_token
    tokens = _count_training_tokens(config, spec, cost.tokens)
    fits = None if limit is None else memory.total <= limit
    return {
        "length": cost.tokens // rows,
        "parameters": cost.parameters[0],
        "trained": cost.parameters[1],
        "macs_per_token": cost.work / cost.tokens,
        "operations_per_token": per_token,
        "memory": memory._asdict() | {"total": memory.total},
        "fits": fits,
        "rows_that_fit": rows if fits is not False else find_fitting_rows(config, spec, memory.total, limit or 0),
        "tokens_per_second": speed,
        "tokens": tokens,
        "days": None if tokens is None else compute_days(tokens, speed),
    }


def find_fitting_rows(config: ExperimentConfig, spec: TrainingSpec, needed: float, limit: float) -> int | None:
    """Return the largest power of two of rows per batch that fits into memory, or None if one row does not.

    Args:
        config: Configuration of the experiment.
        spec: Model and micro-batches of the training run.
        needed: Bytes of a micro-batch with the configured number of rows.
        limit: Available bytes.
    """
    rows = config.trainer.per_device_train_batch_size
    if rows == 1:
        return None
    few = max(rows // 4, 1)
    needed_of_few = _compute_device_memory(config, run_fake_step(config, spec, few)).total
    return find_largest_batch(rows, few, needed, needed_of_few, limit)


def _format_advice(rows: int | None) -> str:
    """Format advice on how many rows per batch fit into memory."""
    if rows is None:
        return "not even one row fits"
    return f"trainer.per_device_train_batch_size={rows} fits"


def advise_batch(config: ExperimentConfig, limit: float, precision: str) -> str:
    """Return advice on a batch size that fits into `limit` bytes; see `find_rows_in_one_process`."""
    return _format_advice(find_rows_in_one_process(config, limit, precision))


def find_rows_in_one_process(config: ExperimentConfig, limit: float, precision: str) -> int | None:
    """Return the number of batch rows that fit into the memory of one process at a precision.

    The configured number of rows must be too large to fit.
    """
    trainer = dataclasses.replace(config.trainer, precision=Precision(precision))
    config = dataclasses.replace(config, trainer=trainer)
    spec = build_training_spec(config)
    memory = _compute_device_memory(config, run_fake_step(config, spec, config.trainer.per_device_train_batch_size))
    return find_fitting_rows(config, spec, memory.total, limit)


def _compute_device_memory(config: ExperimentConfig, cost: StepCost) -> MemoryUse:
    devices = get_estimate_settings(config).devices
    return split_over_devices(cost.memory, devices, config.trainer.fsdp, cost.gradients, cost.largest_block)


def _count_training_tokens(config: ExperimentConfig, spec: TrainingSpec, batch_tokens: int) -> float | None:
    """Return the number of tokens in the whole training, or None if it depends on the data."""
    trainer = config.trainer
    step_tokens = batch_tokens * trainer.gradient_accumulation_steps * get_estimate_settings(config).devices
    if trainer.max_steps > 0:
        return float(trainer.max_steps * step_tokens)
    if spec.examples is None:
        return None
    return trainer.num_train_epochs * spec.examples * batch_tokens / trainer.per_device_train_batch_size


def resolve_precision(config: ExperimentConfig) -> str:
    """Return the precision of matrix products. `auto` becomes bf16, which all devices of the table support."""
    precision = config.trainer.precision
    return "bf16" if precision is Precision.auto else str(precision)


# ---- a step on fake tensors


def run_fake_step(config: ExperimentConfig, spec: TrainingSpec, rows: int) -> StepCost:
    """Run a training step on fake tensors, and return its memory and operations.

    Raises:
        ConfigError: If the model's control flow depends on its weights.
    """
    batch = spec.batch(rows)
    with FakeTensorMode():
        with skip_weight_loading():
            model = spec.build()
        model.tie_weights()  # `skip_weight_loading` skips it
        prepare_for_training(config, model)
        known_values = KnownValues()
        with known_values, MemoryTracker() as tracker:
            return _measure_step(config, model, tracker, known_values, batch)


def prepare_for_training(config: ExperimentConfig, model: Any) -> None:
    """Put a model into its most expensive training state: full depth and dense execution."""
    if hasattr(model.config, "execution"):
        model.config.execution = "dense"
    model.train()
    model.set_step(1, 1)
    if config.trainer.gradient_checkpointing:
        if not model.supports_gradient_checkpointing:
            name = model.config.model_type
            raise ConfigError(
                f"trainer.gradient_checkpointing=true: model={name} does not support recomputation; leave it false"
            )
        model.gradient_checkpointing_enable({"use_reentrant": False})


def _measure_step(
    config: ExperimentConfig, model: Any, tracker: MemoryTracker, known_values: KnownValues, batch: Mapping[str, Tensor]
) -> StepCost:
    parameters = list(model.parameters())
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    for tensor in (*parameters, *model.buffers()):
        tracker.add(tensor)
    for parameter in trained:
        tracker.watch_gradient(parameter)
    weights, gradients = tracker.now, sum(parameter.nbytes for parameter in trained)
    parameter_names = inspect.signature(model.forward).parameters  # the rest of a batch is for statistics
    inputs = {name: known_values.add_fake(value) for name, value in batch.items() if name in parameter_names}
    dtype = _DTYPES.get(resolve_precision(config))
    with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
        inputs |= compute_carried_inputs(config, model, inputs)
        tracker.reset_peak()
        outputs = model(**inputs)
        work = _compute_full_macs(model, outputs.trace, known_values)
    outputs.loss.backward()
    del outputs
    operations = tracker.operations
    peak_gradients = gradients if config.trainer.gradient_accumulation_steps > 1 else tracker.gradients_at_peak
    activations = tracker.peak - weights - tracker.gradients_at_peak
    state, step_bytes = _measure_optimizer(config, model, trained, tracker)
    optimizer = state + (weights if config.trainer.ema_decay is not None else 0)
    moments = [
        MemoryUse(weights, peak_gradients, optimizer, activations),
        MemoryUse(weights, gradients, optimizer, step_bytes),
    ]
    return StepCost(
        max(moments, key=lambda memory: memory.total),
        operations,
        work,
        _count_batch_tokens(batch),
        (_count_distinct(parameters), _count_distinct(trained)),
        gradients,
        _measure_largest_block(model),
    )


def compute_carried_inputs(config: ExperimentConfig, model: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a training step needs besides the batch: memory, slot states, or cached hidden states."""
    if isinstance(model, ReadsCachedStates) and config.features.cache:
        with torch.no_grad():
            encoded = {name: inputs[name] for name in _ENCODED if name in inputs}
            states = model.base_states(model.states_to_read(), **encoded)
        return {"states": states}
    if model.trains_in_slots:
        rows = len(inputs["input_ids"])
        slots: dict[str, Any] = {"draws": torch.rand(rows, 2), "carry": {}}
        with torch.no_grad():
            return slots | {"carry": model(**inputs, **slots).carry}
    if isinstance(model, Remembers):
        with torch.no_grad():
            return {"memory": model(**inputs, memory=None).memory}  # type: ignore[operator]
    return {}


def _measure_optimizer(
    config: ExperimentConfig, model: Any, trained: list[nn.Parameter], tracker: MemoryTracker
) -> tuple[int, int]:
    """Return the bytes of the optimizer state, and the extra bytes at the peak of an optimizer step."""
    optimizer = build_optimizer(model, config.trainer)
    before = tracker.now
    tracker.reset_peak()
    if config.trainer.max_grad_norm:
        nn.utils.clip_grad_norm_(trained, config.trainer.max_grad_norm)
    optimizer.step()
    state = tracker.now - before
    return state, max(tracker.peak - tracker.now, 0)


def _compute_full_macs(model: Any, trace: DepthTrace, known_values: KnownValues) -> float:
    """Return the multiply-accumulates of a batch at full depth."""
    from torch.utils import _pytree as pytree
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():

        def as_real(tensor: Tensor) -> Tensor:
            numbers = known_values.get_real(tensor)
            return torch.ones(tensor.shape, dtype=tensor.dtype) if numbers is None else numbers

        full_trace: DepthTrace = pytree.tree_map_only(Tensor, as_real, trace)
        updates = (full_trace.valid * trace.max_updates).to(full_trace.updates.dtype)
        return float(model.price(dataclasses.replace(full_trace, updates=updates)).full)


def _count_batch_tokens(batch: Mapping[str, Tensor]) -> int:
    """Count the positions of a micro-batch, or the values if its inputs are vectors."""
    tensor = batch["input_ids"] if "input_ids" in batch else batch["inputs"]
    return tensor.numel()


def _count_distinct(parameters: list[nn.Parameter]) -> int:
    return sum(parameter.numel() for parameter in {id(parameter): parameter for parameter in parameters}.values())


def _measure_largest_block(model: nn.Module) -> int:
    """Return the bytes of the model's largest block, or of the whole model if it has no list of blocks."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    sizes = [sum(parameter.nbytes for parameter in block.parameters()) for blocks in lists for block in blocks]
    return max(sizes, default=sum(parameter.nbytes for parameter in model.parameters()))


# ---- printed lines


def format_estimate(config: ExperimentConfig, estimate: Mapping[str, Any]) -> str:
    """Format the estimate as table lines."""
    settings, memory = get_estimate_settings(config), estimate["memory"]
    trainer, has_several = config.trainer, settings.devices > 1
    batch = f"{trainer.per_device_train_batch_size} rows of {estimate['length']:,}"
    conditions = [resolve_precision(config), batch]
    conditions += ["gradient checkpointing"] if trainer.gradient_checkpointing else []
    conditions += [f"{settings.devices} devices, {'sharded' if trainer.fsdp else 'replicated'}"] if has_several else []
    device = settings.device if isinstance(settings.device, str) else f"{settings.device:g} TFLOPS"
    peak = f"{settings.devices} x {device}" if has_several else device
    lines = [
        ("parameters", f"{estimate['parameters']:,} ({estimate['trained']:,} trained)"),
        ("multiply-accumulates per token", f"{estimate['macs_per_token']:,.0f} (forward, full depth)"),
        ("operations per token", f"{estimate['operations_per_token']:,.0f} (a training step)"),
        *((f"memory: {name}", _format_bytes(memory[name])) for name in MemoryUse._fields if memory[name]),
        ("memory per device", f"{_format_bytes(memory['total'])} at the peak"),
        ("tokens per second", f"{estimate['tokens_per_second']:,.0f} at {settings.share:.0%} of {peak}"),
        ("training", _format_length(estimate)),
    ]
    width = max(len(name) for name, _ in lines)
    rows = [f"{name:<{width}}  {value}" for name, value in lines]
    return "\n".join([f"estimate of {config.name}: {', '.join(conditions)}", *rows])


def _format_length(estimate: Mapping[str, Any]) -> str:
    if estimate["days"] is None:
        return "the number of steps depends on the data; see trainer.num_train_epochs"
    length = format_duration(estimate["days"] * _DAY) if estimate["days"] < 1 else f"{number(estimate['days'], 1)} days"
    return f"{estimate['tokens']:,.0f} tokens, {length}"


def _format_bytes(size: float) -> str:
    return f"{size / _GIB:,.2f} GiB" if size >= _GIB else f"{size / _MIB:,.1f} MiB"
