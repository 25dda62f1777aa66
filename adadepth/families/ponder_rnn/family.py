"""What is known of the recurrent PonderNet."""

from adadepth.families.ponder_rnn.settings import PonderRnnSettings
from adadepth.families.registry import Family
from adadepth.families.shared import ponder_family

FAMILY = Family(
    settings=PonderRnnSettings,
    config="adadepth.families.ponder_rnn.configuration:PonderRnnConfig",
    heads={"classification": "adadepth.families.ponder_rnn.modeling:PonderRnnForClassification"},
    loss_parts={"kl_loss": None},
    budget=ponder_family.BUDGET,
    depth="num_steps",
    reads=frozenset({"halting"}),
    reads_vectors=True,
    checks=("adadepth.families.shared.ponder_checks:check_prior",),
    advice=ponder_family.ADVICE,
)
