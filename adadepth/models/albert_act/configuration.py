"""Configuration of ACT-ALBERT."""

from __future__ import annotations

from huggingface_hub.dataclasses import strict

from adadepth.errors import ConfigError
from adadepth.models.albert_act.settings import AlbertActSettings
from adadepth.models.shared.albert.configuration import AlbertShape

# State rules under which a halted token's state stays as it is.
FREEZING_RULES = ("single", "graves")


@strict
class AlbertActConfig(AlbertShape, settings=AlbertActSettings):
    """Configuration of ACT-ALBERT, which updates each token until it halts (Simoulin & Crabbé 2021).

    Field names are those of the published checkpoints (`asi/albert-act-{tiny,small,base}`). Published configurations do
    not contain the halting switches, so the defaults of these are the published behaviour.
    """

    # Fields that stock trainers cannot gather or do not need; they keep the logits.
    keys_to_ignore_at_inference = [
        "trace", "loss_parts", "ponder_cost", "token_losses", "readout_states",
        "unit_slots", "step_logits", "halting_logits", "exit_steps",
    ]  # fmt: skip

    # The settings of `AlbertActSettings`, described there; the defaults here apply to a file that lacks the field.
    act_epsilon: int | float = 0.01
    act_penalty: int | float = 0.0
    readout_weight: int | float = 0.0
    penalty_reduction: str = "sum_tokens"
    cap_remainder: str = "reference"
    state_rule: str = "single"
    halting_rule: str = "act"
    halting_unit: str = "linear"
    halting_input: str = "block_output"
    halting_scope: str = "token"
    halt_bias_init: int | float = 0.0
    recall: bool = False
    fixed_depth: int | None = None
    position_init: str = "normal"
    execution: str = "auto"
    pooling: str = "first"

    def __post_init__(self, **kwargs: object) -> None:
        super().__post_init__(**kwargs)
        if self.fixed_depth is not None and not 1 <= self.fixed_depth <= self.num_hidden_layers:
            raise ConfigError(
                f"fixed_depth={self.fixed_depth} must lie between 1 and num_hidden_layers={self.num_hidden_layers}"
            )
        refuse_ragged(self)

    @property
    def has_columns(self) -> bool:
        """Whether tokens are cells of a grid: their types are columns, and their positions rows."""
        return self.type_vocab_size > 2


def refuse_ragged(config: AlbertActConfig) -> None:
    """Raise an error if ragged execution, which skips halted tokens, would change the results of the state rule.

    Raises:
        ConfigError: If the execution is `ragged` and the state rule does not freeze halted tokens.
    """
    if config.execution == "ragged" and config.state_rule not in FREEZING_RULES:
        raise ConfigError(
            f"execution='ragged' needs state_rule {' or '.join(FREEZING_RULES)}: the halted states of "
            f"{config.state_rule!r} keep changing"
        )
