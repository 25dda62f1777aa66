"""Conversion of checkpoints of other implementations, and the module saved with models that imports this package.

This package never runs that module. If the package has not been imported, transformers reports that the model has
custom code, and runs the module if the user trusts it. The module contains no model code.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedConfig

from adadepth.errors import CheckpointError, nearest
from adadepth.models.registry import families

MODULE = "modeling_adadepth"
_CODE = '''"""Imports the classes of this model from the package adadepth."""

try:
    import adadepth
except ImportError as error:
    raise ImportError(
        "this model needs the package adadepth; install it from a clone or a wheel, then `import adadepth`"
    ) from error


def __getattr__(name):
    return getattr(adadepth, name)
'''


def auto_map(model_type: str) -> dict[str, str]:
    """Return the `auto_map` of a configuration: the model class for each Auto class of transformers."""
    spec = families()[model_type]
    classes = {"AutoConfig": spec.config, **spec.auto_classes()}
    return {auto: f"{MODULE}.{importer().__name__}" for auto, importer in classes.items()}


def write_module(folder: Path) -> None:
    """Write a small Python module into a model folder that makes transformers import this package."""
    (folder / f"{MODULE}.py").write_text(_CODE, encoding="utf-8")


def convert_reference_state_dict(
    model_type: str, state_dict: Mapping[str, Tensor], *, pooler_transpose: bool = False
) -> dict[str, Tensor]:
    """Rename the weights of another implementation's checkpoint to the names of this package.

    `albert_act` reads two layouts. The layout of published ACT-ALBERT checkpoints differs only by a legacy buffer. The
    layout of a single-group ALBERT of transformers has no halting head. Load the result with `strict=False`, so that
    the halting head keeps its initialisation. `albert` converts ACT-ALBERT to the layout of transformers, without the
    halting head. `ponder_albert` reads the reference classifier. `adalayers` reads both reference models. It converts
    the distribution to a vector and keeps only the encoder of the base.

    Args:
        model_type: Family of the result: `albert_act`, `albert`, `ponder_albert` or `adalayers`.
        state_dict: Parameters by their original names.
        pooler_transpose: Whether to transpose the weight of the pooler. The published checkpoints contain this square
            matrix in the orientation of TensorFlow. Loading it untransposed causes no error, but is wrong.

    Raises:
        CheckpointError: If the family is unknown, the checkpoint has more than one layer group, or a parameter name
            does not exist in the reference classifier.
    """
    converters = {name: family.weights_from for name, family in families().items() if family.weights_from is not None}
    if model_type not in converters:
        raise CheckpointError(
            f"model_type={model_type!r} cannot be converted from a reference checkpoint; supported are "
            f"{', '.join(converters)}{nearest(model_type, converters)}"
        )
    return converters[model_type]()(state_dict, pooler_transpose)


def convert_reference_config(model_type: str, config: Mapping[str, Any]) -> PreTrainedConfig:
    """Convert the configuration of another implementation to that of this package.

    The activation `gelu` of ACT-ALBERT becomes TensorFlow's tanh form. For Adalayers, `seed_compat` is set.

    Raises:
        CheckpointError: If the family is unknown, or an Adalayers head has a conditional random field.
    """
    readers = {name: family.config_from for name, family in families().items() if family.config_from is not None}
    if model_type not in readers:
        raise CheckpointError(
            f"model_type={model_type!r} has no reference configuration; supported are {' and '.join(readers)}"
        )
    return readers[model_type]()({name: value for name, value in config.items() if name != "model_type"})
