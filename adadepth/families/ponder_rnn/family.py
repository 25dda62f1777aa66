"""The settings of the recurrent PonderNet."""

from dataclasses import dataclass
from enum import StrEnum

from adadepth.families.registry import Family
from adadepth.families.shared.ponder import ADVICE, BUDGET, PonderSettings
from adadepth.settings import ModelConfig, family_name
from adadepth.settings.declaration import at_least, setting

Cell = StrEnum("Cell", ["tanh", "gru"])


@dataclass
class PonderRnnSettings(PonderSettings, ModelConfig):
    """The recurrent cell of PonderNet's parity experiment."""

    name: str = family_name("ponder_rnn")
    hidden_size: int = setting(128, "H, units of the cell", at_least(1), shape=True, debug=16)
    num_steps: int = setting(20, "N, most steps", at_least(1))
    cell: Cell = setting(Cell.tanh, "the papers' plain cell, or a gated one", shape=True)


FAMILY = Family(
    settings=PonderRnnSettings,
    config="adadepth.families.ponder_rnn.modeling:PonderRnnConfig",
    heads={"classification": "adadepth.families.ponder_rnn.modeling:PonderRnnForClassification"},
    loss_parts={"kl_loss": None},
    budget=BUDGET,
    depth="num_steps",
    reads=frozenset({"halting"}),
    reads_vectors=True,
    checks=("adadepth.families.shared.ponder:check_prior",),
    advice=ADVICE,
)
