"""Modules for `torch.export` that have only tensors as inputs and outputs: a whole model, or one step of it.

A program returns the logits, and the number of updates of every token or text as `depth` if it is not the same for all.
Shape legend: B rows, T tokens, A rows that still run, C classes or words, k numbers that an exit rule remembers.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from adadepth.contrib.engines.text_steps import FixedSteps, select_steps
from adadepth.errors import ConfigError
from adadepth.halting.exit_rules import ExitRule, Fixed, Sample
from adadepth.models.albert_act.heads import AlbertActForMultipleChoice
from adadepth.models.albert_act.modeling import AlbertActPreTrainedModel
from adadepth.models.early_exit.word_model import WordModel
from adadepth.models.looped.task_model import LoopedTaskModel
from adadepth.models.par_xl.blocks import ParXLPreTrainedModel
from adadepth.models.ponder.rnn import PonderRnnForClassification
from adadepth.models.routed.modeling import RoutedModel
from adadepth.models.shared.encoders import select_accepted_inputs
from adadepth.models.trm.modeling import TrmForPuzzles

# Sizes of the example batch. Few other dimensions have them, and no dimension of size 1 is taken for a constant.
_ROWS, _TOKENS = 3, 7


class ModelProgram(nn.Module):
    """A model as a function of tensors: logits, and the depth if it varies.

    Args:
        model: Model in evaluation mode.
        names: Names of its inputs, in order.
        has_depth: Whether to return the number of updates of every token or text.
    """

    def __init__(self, model: Any, names: list[str], has_depth: bool) -> None:
        super().__init__()
        self.model, self.names, self.has_depth = model, names, has_depth
        # A fixed exit of all words needs no later layers.
        self.options = {"run_all_steps": False} if isinstance(model, WordModel) else {}

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the logits, (B, C) or (B, T, C), and int64 depths, (B,) or (B, T)."""
        output = self.model(**dict(zip(self.names, inputs, strict=True)), **self.options)
        logits = _get_logits(output)
        return (logits, output.trace.updates.long()) if self.has_depth else (logits,)


def prepare_model(model: Any, format_name: str) -> Any:
    """Return a copy of a model for programs: evaluation, float32 without gradients, and all tokens in every update.

    Raises:
        ConfigError: If no program can express the model, or its exit rule.
    """
    if problem := _find_problem(model):
        setting, reason = problem
        raise ConfigError(f"{setting}: export.format={format_name} {reason}")
    model = copy.deepcopy(model).eval().float().requires_grad_(False)
    if hasattr(model.config, "execution"):
        model.config.execution = "dense"
    with torch.no_grad():
        output = model(**make_example(model))  # Adalayers finds the layers with weight, which a program cannot
    if _get_logits(output) is None:
        kind = f"model_type={model.config.model_type}"
        raise ConfigError(f"{kind}: export.format={format_name} needs logits, which {type(model).__name__} has not")
    return model


def _get_logits(output: Any) -> Any:
    """Return the logits of a model's output, those of masked words if it has pretraining heads, or None."""
    logits = getattr(output, "logits", None)
    return getattr(output, "prediction_logits", None) if logits is None else logits


def _find_problem(model: Any) -> tuple[str, str] | None:
    """Return a setting with its value, and why no program can express it, or None if there is no such setting."""
    config, rule = model.config, get_exit_rule(model)
    kind = f"model_type={config.model_type}"
    if isinstance(model, RoutedModel):
        return kind, "has no program in which routers choose tokens"
    if isinstance(model, ParXLPreTrainedModel):
        return kind, "has no program of its relative attention"
    if isinstance(model, PonderRnnForClassification):
        return kind, "needs token ids as inputs, not vectors"
    if isinstance(model, AlbertActForMultipleChoice):
        return kind, "needs one text, not several choices"
    if isinstance(model, LoopedTaskModel) and config.start not in ("input", "zeros"):
        return f"start={config.start}", "needs a first state that is not drawn: input or zeros"
    if rule is None or isinstance(rule, Fixed):
        return None
    if isinstance(rule, Sample):
        return f"exit_rule={rule.label}", "has no program that draws random numbers"
    if isinstance(model, LoopedTaskModel | WordModel):
        return f"exit_rule={rule.label}", "needs a fixed exit, fixed:N"
    return None


def get_exit_rule(model: Any) -> ExitRule | None:
    """Return the exit rule of a model's configuration, or None if it has none."""
    return getattr(model.config, "parsed_exit_rule", None)


def build_program(model: Any) -> ModelProgram | FixedSteps:
    """Return the program of a whole model, in which every row runs all updates that the exit rule may need."""
    rule, names, steps = get_exit_rule(model), [*make_example(model)], select_steps(model)
    if steps is not None and isinstance(rule, Fixed):
        return FixedSteps(steps, rule.k, names)
    has_rule = rule is not None and not rule.mixes and not isinstance(rule, Fixed)
    halts = isinstance(model, AlbertActPreTrainedModel) and model.one_depth is None
    return ModelProgram(model, names, has_depth=has_rule or halts)


def make_example(model: Any) -> dict[str, Tensor]:
    """Return inputs of a model for tracing, int64 (B, T) each, by name. A grid has the rows of its cells, too."""
    length = model.longest_sequence
    shape = _ROWS, _TOKENS if length is None else min(_TOKENS, length)
    if isinstance(model, TrmForPuzzles):
        cells = torch.zeros(_ROWS, model.config.cells, dtype=torch.int64)
        kinds = {"puzzle_kinds": cells[:, 0].clone()} if model.config.puzzle_kinds > 1 else {}
        return {"input_ids": cells, **kinds}
    mask = torch.ones(shape, dtype=torch.int64)
    mask[0, -1] = 0
    inputs = {"input_ids": mask.clone(), "attention_mask": mask, "token_type_ids": torch.zeros_like(mask)}
    if isinstance(model, LoopedTaskModel):
        del inputs["token_type_ids"]  # they would mark a prefix
    if getattr(model.config, "has_columns", False):
        inputs["position_ids"] = torch.zeros_like(mask)
    for part in (model, getattr(model, "model", model)):
        inputs = select_accepted_inputs(part, inputs)
    return inputs


def trace_program(
    program: nn.Module, example: Mapping[str, Tensor] | tuple[Tensor, ...], longest: int | None = None
) -> ExportedProgram:
    """Return the exported program of a module.

    Args:
        program: Module in evaluation mode.
        example: Inputs by name, or tensors between two steps.
        longest: Largest number of tokens of a program for one text or puzzle at a time, whose memory is planned for
            it. By default, a program takes batches and texts of any size.
    """
    dynamic: tuple[dict[int, Any], ...]
    if not isinstance(example, Mapping):  # the other sizes may equal those of the example by chance
        inputs, sizes = example, (_ROWS, _TOKENS)
        dynamic = tuple({axis: Dim.AUTO for axis, size in enumerate(x.shape) if size in sizes} for x in inputs)
    elif longest is None:
        inputs, axes = tuple(example.values()), (0, 1) if "attention_mask" in example else (0,)
        dynamic = tuple(dict.fromkeys(axes[: x.dim()], Dim.DYNAMIC) for x in inputs)
    else:
        inputs = tuple(x[:1] for x in example.values())
        dynamic = ({1: Dim.DYNAMIC(max=longest)} if "attention_mask" in example else {},) * len(inputs)
    with torch.no_grad():
        return torch.export.export(program, inputs, dynamic_shapes=(dynamic,), strict=False)
