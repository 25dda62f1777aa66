"""What is known of tiny recursive models."""

from adadepth.config import BudgetUnit
from adadepth.families.registry import Budgeting, Family
from adadepth.families.trm.settings import TrmSettings

FAMILY = Family(
    settings=TrmSettings,
    config="adadepth.families.trm.configuration:TrmConfig",
    heads={"puzzle": "adadepth.families.trm.modeling:TrmForPuzzles"},
    loss_parts={"halt_loss": "halt_loss_weight"},
    budget=Budgeting(
        fitted=(BudgetUnit.updates, BudgetUnit.macs),
        fits_target=True,
        checks=("adadepth.families.trm.checks:check_target",),
    ),
    depth="num_steps",
    checks=("adadepth.families.trm.checks:check_slots",),
    weights_from="adadepth.families.trm.convert:rename_weights",
    advice="a Q head tells puzzles apart only after it has seen some solved: train longer, or with fewer cycles",
)
