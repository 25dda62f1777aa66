"""The alternatives that the arithmetic of halting knows, by name; imports no torch, so that settings can list them."""

from enum import StrEnum

# What a unit that reaches the cap without halting pays and weighs; `adadepth.halting.act`.
CapRemainder = StrEnum("CapRemainder", ["reference", "penalty", "forced"])
# How the states of the iterations are mixed; `adadepth.halting.act`.
StateRule = StrEnum("StateRule", ["single", "graves", "accumulated", "basic"])
# What becomes of the mass beyond the last step; `adadepth.halting.distribution`.
Truncation = StrEnum("Truncation", ["renormalise", "leftover", "none"])
# Which way the divergence from the prior is measured; `adadepth.halting.distribution`.
KLDirection = StrEnum("KLDirection", ["posterior_prior", "prior_posterior"])
# What the halting distribution is drawn to; `adadepth.halting.distribution`.
Prior = StrEnum("Prior", ["geometric", "uniform"])
# How the temperature of supernet gates falls; `adadepth.families.par_xl.gates`.
TauSchedule = StrEnum("TauSchedule", ["exponential", "linear", "cosine"])
