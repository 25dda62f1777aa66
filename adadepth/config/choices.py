"""Enumerations of named options that several settings share, or that code with torch implements."""

from enum import StrEnum

# Cost and weight of the remainder of a unit that reaches the cap without halting; `adadepth.halting.act`.
CapRemainder = StrEnum("CapRemainder", ["reference", "penalty", "forced"])
# Mixture of the states of the iterations; `adadepth.halting.act`.
StateRule = StrEnum("StateRule", ["single", "graves", "accumulated", "basic"])
# Treatment of the probability beyond the last step; `adadepth.halting.distribution`.
Truncation = StrEnum("Truncation", ["renormalise", "leftover", "none", "palbert"])
# Direction of the divergence from the prior; `adadepth.halting.distribution`.
KLDirection = StrEnum("KLDirection", ["posterior_prior", "prior_posterior"])
# Prior of the halting distribution; `adadepth.halting.distribution`.
Prior = StrEnum("Prior", ["geometric", "uniform"])
# Schedule of the temperature of supernet gates; `adadepth.models.par_xl.gates`.
TauSchedule = StrEnum("TauSchedule", ["exponential", "linear", "cosine"])
# State that a classifier of sequences reads: of the first token, or the mean over all real tokens.
Pooling = StrEnum("Pooling", ["first", "mean"])
