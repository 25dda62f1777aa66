"""ExecuTorch programs of models, for phones and other small devices.

A program reads one text or puzzle at a time, and computes all its updates, because its parts for XNNPACK have no
branches.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from torch import Tensor

from adadepth.config.export import ExportConfig
from adadepth.contrib.engines.programs import build_program, make_example, prepare_model, trace_program
from adadepth.errors import ConfigError
from adadepth.models.early_exit.classifiers import EarlyExitForTokenClassification
from adadepth.models.looped.heads import LoopedForTokenClassification

FILE = "model.pte"
_LONGEST = 512  # tokens; the runtime reserves memory for a text of this length, which grows with its square


def write_executorch(model: Any, folder: Path, source: Path, settings: ExportConfig) -> None:
    """Write a model as an ExecuTorch program with XNNPACK, with the outputs logits, and depths if they vary.

    Raises:
        ConfigError: If no program can express the model, or its exit rule.
    """
    del source, settings
    if isinstance(model, EarlyExitForTokenClassification | LoopedForTokenClassification):
        kind = f"model_type={model.config.model_type}"
        raise ConfigError(
            f"{kind}: export.format=executorch has no sizes that depend on the text, as labels of tokens need"
        )
    model = prepare_model(model, "executorch")
    example, longest = make_example(model), model.longest_sequence or _LONGEST
    if "position_ids" in example:  # positions are rows of a grid
        longest *= model.config.type_vocab_size
    traced = trace_program(build_program(model), example, min(longest, _LONGEST))
    traced = traced.run_decompositions({torch.ops.aten.gelu.default: _expand_gelu})
    edge = to_edge_transform_and_lower(
        traced, partitioner=[XnnpackPartitioner()], compile_config=EdgeCompileConfig(_check_ir_validity=False)
    )
    with (folder / FILE).open("wb") as file:
        edge.to_executorch().write_to_file(file)


def _expand_gelu(x: Tensor, *, approximate: str = "none") -> Any:
    """Compute the tanh approximation of GELU in parts, because XNNPACK computes the exact GELU instead of it."""
    if approximate != "tanh":
        return NotImplemented  # torch.export then keeps the operator
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))
