"""Depth and compute of a model in a plain `transformers.Trainer`."""

from __future__ import annotations

import inspect
import weakref
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import CallbackHandler

from adadepth.evaluation.evaluation import Statistics, build_statistics
from adadepth.evaluation.scorer import Units
from adadepth.halting.trace import DepthTrace
from adadepth.metrics.architectures import flatten_search
from adadepth.metrics.depth_statistics import flatten
from adadepth.metrics.unit_costs import UNIT_MACS, compute_unit_macs
from adadepth.models.contract import DepthModel
from adadepth.runtime.devices import move_to_float64_device, select_float64_device
from adadepth.runtime.distributed import all_reduce_sum
from adadepth.training.trackers.main_metrics import CHARTED

# Logged beside the metrics of the recommended charts.
_SPREAD = tuple(f"halting/all/{name}" for name in ("n", "std", "p10", "median", "p90", "at_cap"))
_LOGGED = {*CHARTED, *_SPREAD, *UNIT_MACS, "halting/remainder", "cost/executed_over_dense"}


class DepthCallback(TrainerCallback):
    """Log depth and compute of a model of this package in a plain `transformers.Trainer`.

    `Trainer(..., callbacks=[DepthCallback()])` adds about a dozen metrics to every training log and to the metrics of
    `evaluate` and `predict`, such as `halting/all/mean`, `cost/adaptive_over_full` and `cost/macs_per_token`. Their
    names are those of `docs/statistics.md`, in an evaluation after its prefix: `eval_halting/all/mean`. They cover all
    micro-batches since the last log. `state.log_history` and all trackers of `report_to` get them, too. An early-exit
    or looped model runs all exits or loops in training, so its training logs have full depth.

    The model records its depths through a forward hook, which is removed with the trainer. Sums stay on the device
    until a log.
    """

    def __init__(self) -> None:
        self._model: Any = None
        self._unhook: weakref.finalize[..., Any] | None = None
        self._latest: list[DepthTrace] = []  # of the last forward pass, until the event after it
        self._training: Statistics | None = None
        self._evaluation: Statistics | None = None

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Read traces of the model, and move before the trackers, which send a log as it is when their turn comes.

        Raises:
            ValueError: If the trainer's model has no depth trace.
        """
        self._read_traces(kwargs["model"])
        callbacks = _find_handler().callbacks
        callbacks.remove(self)
        callbacks.insert(0, self)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Read traces of the model that `model_init` may have built."""
        if self._model is not None:
            self._read_traces(kwargs["model"])

    def on_substep_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Add a micro-batch that is not the last one of its optimiser step."""
        self._training = self._add_latest(self._training)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Add the last micro-batch of an optimiser step."""
        self._training = self._add_latest(self._training)

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Add a batch of an evaluation."""
        self._evaluation = self._add_latest(self._evaluation)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Add the metrics to a log of training or evaluation, and to its entry in `state.log_history`."""
        assert logs is not None
        if self._evaluation is not None:
            metrics = self._drain_evaluation(logs)
        elif self._training is not None and "loss" in logs:
            metrics, self._training = _summarise(self._training), None
        else:
            return
        logs |= metrics
        state.log_history[-1] |= metrics

    def on_predict(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, Any],
        **kwargs: Any,
    ) -> None:
        """Add the metrics to those that `predict` returns."""
        if self._evaluation is not None:
            metrics |= self._drain_evaluation(metrics)

    def _read_traces(self, model: nn.Module) -> None:
        """Register the hook that stores the trace of every forward pass of a model.

        Raises:
            ValueError: If neither the model nor a module in it, as in a model of PEFT, has a depth trace.
        """
        models = [module for module in model.modules() if isinstance(module, DepthModel)]
        if not models:
            raise ValueError(f"DepthCallback: {type(model).__name__} has no depth trace; use a model of adadepth")
        if models[0] is self._model:
            return
        if self._unhook is not None:
            self._unhook()
        self._model = models[0]
        hook = self._model.register_forward_hook(partial(_store_trace, self._latest))
        self._unhook = weakref.finalize(self, hook.remove)

    def _add_latest(self, statistics: Statistics | None) -> Statistics:
        """Add the trace of the last forward pass to statistics, which are built if there are none since the last log.

        Raises:
            ValueError: If the trainer did not begin with this callback.
        """
        if not self._latest:
            raise ValueError(
                "DepthCallback: it has not seen a forward pass of the model; pass it as Trainer(callbacks=[...]), "
                "not to add_callback"
            )
        device = self._latest[0].updates.device
        trace = move_to_float64_device(self._latest.pop(), device)
        if statistics is None:
            statistics = build_statistics(self._model, ("all",), 0, select_float64_device(device))
        with torch.no_grad():
            units = Units({"all": torch.ones_like(trace.valid)})
            statistics.add(trace, units, self._model.price(trace))
        return statistics

    def _drain_evaluation(self, metrics: dict[str, Any]) -> dict[str, float]:
        """Return the metrics of the evaluation that has ended, with the prefix of its runtime, such as `eval_`."""
        assert self._evaluation is not None
        runtime = next(name for name in metrics if name.endswith("_runtime"))
        summary, self._evaluation = _summarise(self._evaluation), None
        return {f"{runtime.removesuffix('runtime')}{name}": value for name, value in summary.items()}


def _find_handler() -> CallbackHandler:
    """Return the handler that runs the present event, which no event passes to callbacks, from the call stack."""
    frame = inspect.currentframe()
    while frame is not None and not isinstance(frame.f_locals.get("self"), CallbackHandler):
        frame = frame.f_back
    assert frame is not None, "transformers runs callbacks from a CallbackHandler"
    handler: CallbackHandler = frame.f_locals["self"]
    return handler


def _store_trace(latest: list[DepthTrace], model: nn.Module, inputs: Any, outputs: Any) -> None:
    """Replace the stored trace by that of a forward pass.

    Raises:
        ValueError: If the output has no trace.
    """
    if (trace := getattr(outputs, "trace", None)) is None:
        raise ValueError(
            f"DepthCallback: the output of {type(model).__name__} has no depth trace; it needs a model with a head "
            "and return_dict=True"
        )
    latest[:] = [trace]


def _summarise(statistics: Statistics) -> dict[str, float]:
    """Return the main metrics of all processes by name."""
    all_reduce_sum(statistics.tensors())
    summary = statistics.summary()
    summary["cost"] |= compute_unit_macs(summary)
    metrics = flatten_search(summary) if summary["unit"] == "architecture" else flatten(summary)
    return {name: value for name, value in metrics.items() if name in _LOGGED and isinstance(value, int | float)}
