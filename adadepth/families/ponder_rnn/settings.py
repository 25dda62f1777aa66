"""The settings of the recurrent PonderNet."""

from dataclasses import dataclass
from enum import StrEnum

from adadepth.config import ModelConfig, family_name
from adadepth.declaration import at_least, setting
from adadepth.families.shared.ponder_settings import PonderSettings

Cell = StrEnum("Cell", ["tanh", "gru"])


@dataclass
class PonderRnnSettings(PonderSettings, ModelConfig):
    """The recurrent cell of PonderNet's parity experiment."""

    name: str = family_name("ponder_rnn")
    hidden_size: int = setting(128, "H, units of the cell", at_least(1), shape=True, debug=16)
    num_steps: int = setting(20, "N, most steps", at_least(1))
    cell: Cell = setting(Cell.tanh, "the papers' plain cell, or a gated one", shape=True)
