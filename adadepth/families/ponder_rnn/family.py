"""What is known of the recurrent PonderNet."""

from adadepth.config import BudgetUnit
from adadepth.families.ponder_rnn.settings import PonderRnnSettings
from adadepth.families.registry import Budgeting, Family

FAMILY = Family(
    name="ponder_rnn",
    settings=PonderRnnSettings,
    config="adadepth.families.ponder_rnn.configuration:PonderRnnConfig",
    heads={"classification": "adadepth.families.ponder_rnn.modeling:PonderRnnForClassification"},
    loss_parts={"kl_loss": None},
    budget=Budgeting(
        trained=(BudgetUnit.updates, BudgetUnit.macs),
        fitted=(BudgetUnit.updates, BudgetUnit.macs),
        checks=("adadepth.families.shared.ponder_checks:check_budget",),
    ),
    depth="num_steps",
    reads=frozenset({"halting"}),
    reads_vectors=True,
    checks=("adadepth.families.shared.ponder_checks:check_prior",),
    advice="model.prior=uniform keeps later steps trained; budget=depth holds a mean depth; a second stage trains the "
    "halting head alone",
)
