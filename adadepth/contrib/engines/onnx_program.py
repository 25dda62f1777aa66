"""ONNX programs of models for ONNX Runtime.

A model whose texts or puzzles exit as a whole becomes a graph with one `If` per step: its branch runs the step while a
row of the batch runs, and otherwise passes its tensors on. All other models are one graph without branches.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx
import torch
from onnx.inliner import inline_local_functions
from onnxruntime.quantization import quantize_dynamic
from torch import Tensor, nn

from adadepth.config.export import ExportConfig
from adadepth.contrib.engines.onnx_graph import StepGraph
from adadepth.contrib.engines.programs import build_program, get_exit_rule, make_example, prepare_model, trace_program
from adadepth.contrib.engines.text_steps import Carried, FirstStep, NextStep, Steps, select_steps
from adadepth.halting.exit_decisions import ExitRule
from adadepth.halting.exit_rules import Fixed

FILE = "model.onnx"
_GIGABYTE = 2**30


def write_onnx(model: Any, folder: Path, source: Path, settings: ExportConfig) -> None:
    """Write a model as an ONNX program with the inputs of its forward pass, and the outputs `logits` and `depth`.

    With `export.weights=int8`, ONNX Runtime quantises the weights of all matrix products with constants.

    Raises:
        ConfigError: If no program can express the model, or its exit rule.
    """
    del source
    model = prepare_model(model, "onnx")
    steps, rule = select_steps(model), get_exit_rule(model)
    with _hide_converter_messages():
        if steps is not None and rule is not None and not rule.mixes and not isinstance(rule, Fixed):
            proto = convert_steps(steps, rule, make_example(model))
        else:
            program, example = build_program(model), make_example(model)
            proto = convert(program, example, [*example], ["logits", "depth"][: 1 + program.has_depth])
        _name_sizes(proto)
        save_program(proto, folder / FILE, settings.weights or "f32")


def convert(program: nn.Module, example: Any, inputs: Sequence[str], outputs: Sequence[str]) -> Any:
    """Convert a module to an ONNX model, whose inputs and outputs have the given names.

    Returns:
        `onnx.ModelProto` without local functions. Sizes that may differ from those of the example have names.
    """
    traced = trace_program(program, example)
    converted = torch.onnx.export(
        traced, dynamo=True, verbose=False, input_names=[*inputs], output_names=[*outputs], external_data=False
    )
    assert converted is not None
    proto = converted.model_proto
    proto = inline_local_functions(proto) if proto.functions else proto  # which takes at most two gigabytes
    del proto.graph.value_info[:]
    return proto


def convert_steps(steps: Steps, rule: ExitRule, example: Mapping[str, Tensor]) -> Any:
    """Convert the steps of a model to an ONNX model that runs a step only while a row of the batch runs."""
    first = FirstStep(steps, rule, [*example])
    with torch.no_grad():
        num_states = len(steps.advance(1, *steps.begin(example)).states)
        first_values = first(*example.values())
    names = [*Carried._fields[:-1], *(f"state_{number}" for number in range(num_states))]
    constants = [f"constant_{number}" for number in range(len(first_values) - len(names))]
    before, after = [*names, *constants], [f"next_{name}" for name in names]
    graph, later = StepGraph(convert(first, example, [*example], before)), None
    values = [f"step_1/{name}" for name in before]
    for step in range(2, steps.model.max_updates + 1):
        if later is None or not steps.are_alike:
            later = convert(NextStep(steps, rule, step, num_states), first_values, before, after)
        values = [*graph.add_branch(step, later, values), *values[len(names) :]]
    carried = dict(zip(names, values, strict=False))
    return graph.finish({name: carried[name] for name in ("logits", "depth")})


def _name_sizes(proto: Any) -> None:
    """Give the sizes of inputs and outputs that may vary the names `batch` and `length`."""
    names: dict[str, str] = {}
    for value in (*proto.graph.input, *proto.graph.output):
        for axis, size in enumerate(value.type.tensor_type.shape.dim):
            if size.dim_param:
                size.dim_param = names.setdefault(size.dim_param, ("batch", "length")[axis])


def save_program(proto: Any, path: Path, weights: str) -> None:
    """Write an ONNX model, with weights of more than a gigabyte in a file beside it, in int8 if requested."""
    size = sum(len(weight.raw_data) for weight in proto.graph.initializer)
    beside = {"save_as_external_data": size > _GIGABYTE, "location": f"{path.name}.data"}
    if weights == "f32":
        onnx.save_model(proto, path, **beside)
        return
    with TemporaryDirectory() as temporary:
        full = Path(temporary) / path.name
        onnx.save_model(proto, full, **beside)
        quantize_dynamic(full, path, extra_options={"EnableSubgraph": True})


@contextmanager
def _hide_converter_messages() -> Iterator[None]:
    """Suppress warnings of the converters on their own code and on libraries that they do not find."""
    converters = [logging.getLogger(name) for name in ("torch.onnx", "torch.utils._pytree", "root", "onnxscript")]
    levels = [logger.level for logger in converters]
    for logger in converters:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(converters, levels, strict=True):
            logger.setLevel(level)
