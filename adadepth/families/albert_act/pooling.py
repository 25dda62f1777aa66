"""The mean of a sequence's tokens, which a class can be read from in place of the first one.

Simoulin & Crabbé's fine-tuning has it as `use_bos=False`, there with padding in the mean. Shape legend: B batch, T
tokens, H width.
"""

from __future__ import annotations

from torch import Tensor

from adadepth.errors import ConfigError
from adadepth.families.albert_act.configuration import AlbertActConfig


def mean_of_tokens(states: Tensor, real: Tensor) -> Tensor:
    """The mean state of the tokens that are real, (B, T, H) and boolean (B, T) to (B, H); 0 where there are none."""
    kept = states.masked_fill(~real.unsqueeze(-1), 0.0)  # padding may hold anything, NaN too
    return kept.sum(dim=1) / real.sum(dim=1, keepdim=True).clamp(min=1)


def refuse_steps(config: AlbertActConfig) -> None:
    """Refuse to read a sequence after every iteration where it is not read from its first token.

    Raises:
        ConfigError: Naming the setting.
    """
    if config.pooling == "mean":
        raise ConfigError("pooling=mean: exit rules and readouts read the first token, which pooling=first takes")
