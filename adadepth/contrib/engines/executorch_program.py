"""ExecuTorch programs of models, for phones and other small devices.

A program computes all updates of every row, because its parts for XNNPACK have no branches.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower

from adadepth.config.export import ExportConfig
from adadepth.contrib.engines.programs import build_program, make_example, prepare_model, trace_program

FILE = "model.pte"


def write_executorch(model: Any, folder: Path, source: Path, settings: ExportConfig) -> None:
    """Write a model as an ExecuTorch program with XNNPACK, with the outputs logits, and depths if they vary.

    Raises:
        ConfigError: If no program can express the model, or its exit rule.
    """
    del source, settings
    prepare_model(model, "executorch")
    traced = trace_program(build_program(model), make_example(model))
    edge = to_edge_transform_and_lower(
        traced, partitioner=[XnnpackPartitioner()], compile_config=EdgeCompileConfig(_check_ir_validity=False)
    )
    with (folder / FILE).open("wb") as file:
        edge.to_executorch().write_to_file(file)
