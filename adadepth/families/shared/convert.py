"""The file beside a saved configuration by which transformers finds the classes of a model of this package.

With this package imported nobody reads it, and nothing in this package ever runs it. Without, transformers says that
the model has code of its own, and runs these lines if the user trusts them; they hold no code of a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedConfig

from adadepth.errors import CheckpointError, nearest
from adadepth.families.registry import families, load

MODULE = "modeling_adadepth"
_CODE = '''"""The classes of this model are in the package adadepth: this file imports it, and has no other code."""

try:
    import adadepth
except ImportError as error:
    raise ImportError(
        "this model needs the package adadepth: install it from a clone or a wheel, then `import adadepth`"
    ) from error


def __getattr__(name):
    return getattr(adadepth, name)
'''


def auto_map(model_type: str) -> dict[str, str]:
    """Auto class of transformers -> the class that the file names, as configurations say it."""
    about = families()[model_type]
    places = {"AutoConfig": about.config, **about.auto_classes()}
    return {auto: f"{MODULE}.{place.rpartition(':')[2]}" for auto, place in places.items()}


def write_module(folder: Path) -> None:
    """Write the file."""
    (folder / f"{MODULE}.py").write_text(_CODE, encoding="utf-8")


def convert_reference_state_dict(
    model_type: str, state_dict: Mapping[str, Tensor], *, pooler_transpose: bool = False
) -> dict[str, Tensor]:
    """Rename an original's parameters to this project's layout.

    `albert_act` takes two layouts: that of the published ACT-ALBERT checkpoints, which is this project's own but for a
    legacy buffer, and that of any single-group ALBERT of transformers, which has no halting unit: load the result
    with `strict=False` and the unit keeps its initialisation. `albert` is the way back: from ACT-ALBERT's layout to
    that of transformers, without the halting unit. `ponder_albert` takes the reference classifier's. `adalayers` takes
    either reference model's: the distribution becomes a vector, and of the base the encoder is left.

    Args:
        model_type: The family whose layout is wanted: `albert_act`, `albert`, `ponder_albert` or `adalayers`.
        state_dict: Parameters by their original names.
        pooler_transpose: Transpose the pooler's weight. The conversion that produced the published checkpoints left
            this square matrix as TensorFlow stores it, and nothing fails when it is used the wrong way round.

    Raises:
        CheckpointError: For an unknown family, a checkpoint with more than one layer group, or a name that the
            reference classifier does not have.
    """
    known = {name: family.weights_from for name, family in families().items() if family.weights_from is not None}
    if model_type not in known:
        raise CheckpointError(
            f"model_type={model_type!r} has no reference layout; known are {', '.join(known)}"
            f"{nearest(model_type, known)}"
        )
    return load(known[model_type])(state_dict, pooler_transpose)


def convert_reference_config(model_type: str, config: Mapping[str, Any]) -> PreTrainedConfig:
    """Read an original's configuration.

    ACT-ALBERT's activation `gelu` is the tanh form that TensorFlow trained with. Adalayers comes with `seed_compat`.

    Raises:
        CheckpointError: For an unknown family, or an Adalayers head with a conditional random field.
    """
    known = {name: family.config_from for name, family in families().items() if family.config_from is not None}
    if model_type not in known:
        raise CheckpointError(
            f"model_type={model_type!r} has no reference configuration; known are {' and '.join(known)}"
        )
    return load(known[model_type])({name: value for name, value in config.items() if name != "model_type"})
