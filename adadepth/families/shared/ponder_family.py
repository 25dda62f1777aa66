"""What the families with PonderNet's halting distribution say of themselves alike."""

from adadepth.config import BudgetUnit
from adadepth.families.registry import Budgeting

BUDGET = Budgeting(
    trained=(BudgetUnit.updates, BudgetUnit.macs),
    fitted=(BudgetUnit.updates, BudgetUnit.macs),
    checks=("adadepth.families.shared.ponder_checks:check_budget",),
)
ADVICE = (
    "model.prior=uniform keeps later steps trained; budget=depth holds a mean depth; a second stage trains the halting "
    "head alone"
)
