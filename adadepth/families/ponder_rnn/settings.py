"""The settings of the recurrent PonderNet."""

from dataclasses import dataclass
from enum import StrEnum

from adadepth.config import ModelConfig
from adadepth.declaration import at_least, setting
from adadepth.families.shared.ponder_settings import PonderSettings

Cell = StrEnum("Cell", ["tanh", "gru"])


@dataclass
class PonderRnnSettings(PonderSettings, ModelConfig):
    """The recurrent cell of PonderNet's parity experiment."""

    name: str = setting("ponder_rnn", "the family")
    hidden_size: int = setting(128, "units of the cell", at_least(1), shape=True, debug=16)
    num_steps: int = setting(20, "N, most steps", at_least(1))
    cell: Cell = setting(Cell.tanh, "the papers' cell, or a gated one", shape=True)
