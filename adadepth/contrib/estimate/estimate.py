"""`mode=estimate`: what a training costs, before anything is prepared or allocated: memory, operations, days.

The model is made without weights and its own step runs on fake tensors, see `adadepth.contrib.estimate.rehearsal`:
forward pass, loss, backward pass and optimiser on a micro-batch of the longest examples, nobody halting before the last
update.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from adadepth.contrib.estimate.devices import Held, capacity, days, device_of, most_rows, peak_of, per_device
from adadepth.contrib.estimate.mode import estimate_settings
from adadepth.contrib.estimate.rehearsal import KnownNumbers, Ledger
from adadepth.contrib.estimate.subject import Subject, subject_of
from adadepth.errors import ConfigError
from adadepth.families.contract import ReadsCachedStates, Remembers
from adadepth.families.folder import without_weights
from adadepth.halting.trace import DepthTrace
from adadepth.report.table import format_duration, number
from adadepth.settings import ExperimentConfig
from adadepth.settings.experiment import Precision
from adadepth.system.console import say
from adadepth.training.optimization import build_optimizer

_GIB, _MIB, _DAY = 2**30, 2**20, 86400
_GIGA = 1e9
_ENCODED = ("input_ids", "attention_mask", "token_type_ids")
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Rehearsed(NamedTuple):
    """What a micro-batch of so many rows takes.

    Attributes:
        held: Bytes when the most live.
        operations: Of forward and backward pass.
        work: Multiply-accumulates of a forward pass at full depth, by the model's own cost model.
        tokens: Of the micro-batch.
        parameters: All of them, and those that train.
        gradients: Bytes of all gradients.
        largest_block: Bytes of the weights of the largest block.
    """

    held: Held
    operations: int
    work: float
    tokens: int
    parameters: tuple[int, int]
    gradients: int
    largest_block: int


def say_estimate(config: ExperimentConfig) -> None:
    """Say what the training that the configuration describes costs.

    Raises:
        ConfigError: If a device has not so much memory, with the micro-batch that would fit.
    """
    found = estimated(config)
    say(estimate_lines(config, found))
    if found["fits"] is False:
        needed, device = f"{found['held']['total'] / _GIGA:,.1f} GB", estimate_settings(config).device
        of_device = f"{(capacity(device_of(device)) or 0) / _GIGA:,.0f} GB of {device}"
        rows = config.trainer.per_device_train_batch_size
        raise ConfigError(
            f"trainer.per_device_train_batch_size={rows}: takes {needed}, more than the {of_device}; "
            f"{_advice(found['rows_that_fit'])}"
        )


def estimated(config: ExperimentConfig) -> dict[str, Any]:
    """What a training costs.

    Returns:
        `length`, tokens of a row; `parameters` and `trained`; `macs_per_token` at full depth, forward;
        `operations_per_token` of a training step;
        `held`, bytes a device when it holds the most; `fits`, None where the device's memory is not known, and
        `rows_that_fit`, fewer where the configuration's do not; `tokens_per_second` of all devices at `share` of their
        peak; `tokens` of the whole training and `days`, None where data decide how many steps there are.

    Raises:
        ConfigError: If the step cannot be rehearsed, or what only data say is missing.
    """
    wanted = estimate_settings(config)
    device = device_of(wanted.device)
    subject, rows = subject_of(config), config.trainer.per_device_train_batch_size
    found = rehearse_step(config, subject, rows)
    held, limit = _on_device(config, found), capacity(device)
    per_token = found.operations / found.tokens
    speed = wanted.share * peak_of(device, precision_of(config), bool(config.trainer.tf32)) * wanted.devices / per_token
    tokens = _tokens(config, subject, found.tokens)
    fits = None if limit is None else held.total <= limit
    return {
        "length": found.tokens // rows,
        "parameters": found.parameters[0],
        "trained": found.parameters[1],
        "macs_per_token": found.work / found.tokens,
        "operations_per_token": per_token,
        "held": held._asdict() | {"total": held.total},
        "fits": fits,
        "rows_that_fit": rows if fits is not False else rows_that_fit(config, subject, held.total, limit or 0),
        "tokens_per_second": speed,
        "tokens": tokens,
        "days": None if tokens is None else days(tokens, speed),
    }


def rows_that_fit(config: ExperimentConfig, subject: Subject, of_rows: float, limit: float) -> int | None:
    """The largest power of two of rows whose micro-batch fits into so many bytes; None: not one row does.

    Args:
        config: The experiment.
        subject: Its model and batches.
        of_rows: Bytes that a micro-batch of the configuration's rows takes.
        limit: Bytes that there are.
    """
    rows = config.trainer.per_device_train_batch_size
    if rows == 1:
        return None
    few = max(rows // 4, 1)
    of_few = _on_device(config, rehearse_step(config, subject, few)).total
    return most_rows(rows, few, of_rows, of_few, limit)


def _advice(rows: int | None) -> str:
    """What fits instead, `rows_that_fit`."""
    if rows is None:
        return "not even one row fits"
    return f"trainer.per_device_train_batch_size={rows} fits"


def advise_batch(config: ExperimentConfig, limit: float, precision: str) -> str:
    """Say which batch fits into so many bytes where that of the configuration does not; see `fitting_rows`."""
    return _advice(fitting_rows(config, limit, precision))


def fitting_rows(config: ExperimentConfig, limit: float, precision: str) -> int | None:
    """`rows_that_fit` of a training in one process, and in this precision, whose rows do not fit."""
    trainer = dataclasses.replace(config.trainer, precision=Precision(precision))
    config = dataclasses.replace(config, trainer=trainer)
    subject = subject_of(config)
    held = _on_device(config, rehearse_step(config, subject, config.trainer.per_device_train_batch_size))
    return rows_that_fit(config, subject, held.total, limit)


def _on_device(config: ExperimentConfig, found: Rehearsed) -> Held:
    devices = estimate_settings(config).devices
    return per_device(found.held, devices, config.trainer.fsdp, found.gradients, found.largest_block)


def _tokens(config: ExperimentConfig, subject: Subject, of_batch: int) -> float | None:
    """Tokens of all steps; None where nobody knows how many there are."""
    trainer = config.trainer
    of_step = of_batch * trainer.gradient_accumulation_steps * estimate_settings(config).devices
    if trainer.max_steps > 0:
        return float(trainer.max_steps * of_step)
    if subject.examples is None:
        return None
    return trainer.num_train_epochs * subject.examples * of_batch / trainer.per_device_train_batch_size


def precision_of(config: ExperimentConfig) -> str:
    """That of the products; `auto` is bf16, which all devices of the table have."""
    asked = config.trainer.precision
    return "bf16" if asked is Precision.auto else str(asked)


# ---- a step without memory


def rehearse_step(config: ExperimentConfig, subject: Subject, rows: int) -> Rehearsed:
    """Run a step of the real code on fake tensors.

    Raises:
        ConfigError: If the model reads of its weights how to go on.
    """
    real = subject.batch(rows)
    with FakeTensorMode():
        with without_weights():
            model = subject.build()
        model.tie_weights()  # left out with the drawing of weights
        set_for_training(config, model)
        known = KnownNumbers()
        with known, Ledger() as ledger:
            return _step(config, model, ledger, known, real)


def set_for_training(config: ExperimentConfig, model: Any) -> None:
    """Set a model as it is trained at the end: in training mode, at full depth, every place computed."""
    if hasattr(model.config, "execution"):
        model.config.execution = "dense"
    model.train()
    model.set_step(1, 1)
    if config.trainer.gradient_checkpointing:
        if not model.supports_gradient_checkpointing:
            name = model.config.model_type
            raise ConfigError(
                f"trainer.gradient_checkpointing=true: model={name} computes nothing again; leave it false"
            )
        model.gradient_checkpointing_enable({"use_reentrant": False})


def _step(
    config: ExperimentConfig, model: Any, ledger: Ledger, known: KnownNumbers, real: Mapping[str, Tensor]
) -> Rehearsed:
    parameters = list(model.parameters())
    trained = [each for each in parameters if each.requires_grad]
    for tensor in (*parameters, *model.buffers()):
        ledger.add(tensor)
    for each in trained:
        ledger.watch(each)
    weights, gradients = ledger.now, sum(each.nbytes for each in trained)
    read = inspect.signature(model.forward).parameters  # the rest of a batch is for statistics
    inputs = {name: known.fake(value) for name, value in real.items() if name in read}
    dtype = _DTYPES.get(precision_of(config))
    with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
        inputs |= carried_inputs(config, model, inputs)
        ledger.begin()
        outputs = model(**inputs)
        work = _full_work(model, outputs.trace, known)
    outputs.loss.backward()
    del outputs
    operations = ledger.operations
    at_once = gradients if config.trainer.gradient_accumulation_steps > 1 else ledger.gradients_at_peak
    activations = ledger.peak - weights - ledger.gradients_at_peak
    kept, after = _optimizer_bytes(config, model, trained, ledger)
    optimizer = kept + (weights if config.trainer.ema_decay is not None else 0)
    moments = [Held(weights, at_once, optimizer, activations), Held(weights, gradients, optimizer, after)]
    return Rehearsed(
        max(moments, key=lambda held: held.total),
        operations,
        work,
        _tokens_of(real),
        (_distinct(parameters), _distinct(trained)),
        gradients,
        _largest_block(model),
    )


def carried_inputs(config: ExperimentConfig, model: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What a step gets from the one before, as in the middle of a training: memory, slots, states of a frozen base."""
    if isinstance(model, ReadsCachedStates) and config.features.cache:
        with torch.no_grad():
            given = {name: inputs[name] for name in _ENCODED if name in inputs}
            states = model.base_states(model.states_to_read(), **given)
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


def _optimizer_bytes(
    config: ExperimentConfig, model: Any, trained: list[nn.Parameter], ledger: Ledger
) -> tuple[int, int]:
    """Bytes of the optimizer's state, and the most that a step of it takes beside state, weights and gradients."""
    optimizer = build_optimizer(model, config.trainer)
    before = ledger.now
    ledger.begin()
    if config.trainer.max_grad_norm:
        nn.utils.clip_grad_norm_(trained, config.trainer.max_grad_norm)
    optimizer.step()
    state = ledger.now - before
    return state, max(ledger.peak - ledger.now, 0)


def _full_work(model: Any, trace: DepthTrace, known: KnownNumbers) -> float:
    """Multiply-accumulates of a batch in which every unit is updated as often as can be."""
    from torch.utils import _pytree as pytree
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():

        def as_real(tensor: Tensor) -> Tensor:
            numbers = known.real(tensor)
            return torch.ones(tensor.shape, dtype=tensor.dtype) if numbers is None else numbers

        whole: DepthTrace = pytree.tree_map_only(Tensor, as_real, trace)
        updates = (whole.valid * trace.max_updates).to(whole.updates.dtype)
        return float(model.price(dataclasses.replace(whole, updates=updates)).full)


def _tokens_of(batch: Mapping[str, Tensor]) -> int:
    """Places of a micro-batch; of vectors, their values."""
    read = batch["input_ids"] if "input_ids" in batch else batch["inputs"]
    return read.numel()


def _distinct(parameters: list[nn.Parameter]) -> int:
    return sum(each.numel() for each in {id(each): each for each in parameters}.values())


def _largest_block(model: nn.Module) -> int:
    """Bytes of the weights of the largest member of a list of blocks, or of what is none."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    sizes = [sum(each.nbytes for each in block.parameters()) for blocks in lists for block in blocks]
    return max(sizes, default=sum(each.nbytes for each in model.parameters()))


# ---- words


def estimate_lines(config: ExperimentConfig, found: Mapping[str, Any]) -> str:
    """The estimate as lines of a table."""
    wanted, held = estimate_settings(config), found["held"]
    trainer, several = config.trainer, wanted.devices > 1
    batch = f"{trainer.per_device_train_batch_size} rows of {found['length']:,}"
    how = [precision_of(config), batch]
    how += ["gradient checkpointing"] if trainer.gradient_checkpointing else []
    how += [f"{wanted.devices} devices, {'sharded' if trainer.fsdp else 'each with a copy'}"] if several else []
    lines = [
        ("parameters", f"{found['parameters']:,} ({found['trained']:,} are trained)"),
        ("multiply-accumulates a token", f"{found['macs_per_token']:,.0f} (forward, full depth)"),
        ("operations a token", f"{found['operations_per_token']:,.0f} (a step of training)"),
        *((f"memory: {name}", _bytes(held[name])) for name in Held._fields if held[name]),
        ("memory a device", f"{_bytes(held['total'])} at its peak"),
        ("tokens a second", f"{found['tokens_per_second']:,.0f} at {wanted.share:.0%} of {_peak(config)}"),
        ("training", _length(found)),
    ]
    width = max(len(name) for name, _ in lines)
    written = [f"{name:<{width}}  {value}" for name, value in lines]
    return "\n".join([f"estimate of {config.name}: {', '.join(how)}", *written])


def _peak(config: ExperimentConfig) -> str:
    wanted = estimate_settings(config)
    name = wanted.device if isinstance(wanted.device, str) else f"{wanted.device:g} TFLOPS"
    return f"{wanted.devices} x {name}" if wanted.devices > 1 else str(name)


def _length(found: Mapping[str, Any]) -> str:
    if found["days"] is None:
        return "data decide how many steps, see trainer.num_train_epochs"
    length = format_duration(found["days"] * _DAY) if found["days"] < 1 else f"{number(found['days'], 1)} days"
    return f"{found['tokens']:,.0f} tokens, {length}"


def _bytes(size: float) -> str:
    return f"{size / _GIB:,.2f} GiB" if size >= _GIB else f"{size / _MIB:,.1f} MiB"
