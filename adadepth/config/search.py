"""Supernets: what their gates do in training, and what becomes of their choice."""

from dataclasses import dataclass
from enum import StrEnum

from adadepth.choices import TauSchedule
from adadepth.declaration import BELOW_ONE, POSITIVE, SHARE, Allowed, at_least, setting

SearchMethod = StrEnum("SearchMethod", ["joint", "two_phase"])
GatePath = StrEnum("GatePath", ["soft", "sampled"])
Costs = StrEnum("Costs", ["measured", "macs"])
Stage = StrEnum("Stage", ["search", "derive", "retrain", "compare"])
RetrainFrom = StrEnum("RetrainFrom", ["scratch", "supernet"])
BaselineArchitecture = StrEnum("BaselineArchitecture", ["alternating", "paper_rule", "sandwich", "random"])
_UP_TO_HALF = Allowed(lambda value: 0 < value <= 0.5, "above 0 and at most 0.5")


@dataclass
class GateConfig:
    """What the gates of a supernet do in training; the configuration of a model says it, too."""

    straight_through: bool = setting(False, "forward the largest gate alone, backward the soft ones")
    tau_start: float = setting(1.0, "temperature of the gates in the first update", POSITIVE)
    tau_end: float = setting(0.1, "temperature of the gates in the last update", POSITIVE)
    tau_schedule: TauSchedule = setting(
        TauSchedule.exponential, "how the temperature falls", more="See `adadepth.halting.gates.gate_temperature`."
    )


@dataclass
class SearchConfig(GateConfig):
    """How a supernet's blocks choose their operation, and what becomes of the choice."""

    method: SearchMethod = setting(
        SearchMethod.joint, "gates with the weights on the same data, or in turns on held-out data"
    )
    path: GatePath = setting(
        GatePath.soft,
        "run all branches and mix them, or one drawn branch a block",
        more="In training; `soft` mixes them with noisy weights.",
    )
    gate_learning_rate: float | None = setting(
        None, "constant; None: that of the weights, which two_phase does not allow", POSITIVE
    )
    gate_weight_decay: float = setting(0.0, "of the gates", at_least(0))
    gate_beta1: float = setting(0.9, "decay of the gates' first moment", BELOW_ONE)
    weights_only: float = setting(
        0.25, "two_phase: updates before the gates learn; below 1: share of all updates", at_least(0)
    )
    architecture_share: float = setting(0.2, "two_phase: of the text and of the updates, for the gates", _UP_TO_HALF)
    stop_unchanged: float | None = setting(
        None, "end where this share of blocks kept their operation since the evaluation before; the paper: 0.75", SHARE
    )
    latency_weight: float = setting(
        0.0, "weight of the expected time, as a multiple of the alternating network's, in the loss", at_least(0)
    )
    latency_costs: Costs = setting(Costs.measured, "time of a block on this machine, or its multiply-accumulates")
    sampled_paths: int = setting(4, "evaluated paths drawn from the gates", at_least(1), debug=2)
    seed_evaluation: bool = setting(
        False, "also evaluate as the original did: noisy gates, mean of the batches' perplexities"
    )
    stages: list[Stage] = setting(list(Stage), "those already done are not done again", neutral=True)
    retrain_from: RetrainFrom = setting(RetrainFrom.scratch, "the derived network's initial weights")
    retrain_steps: int | None = setting(None, "updates of each retrained network; None: trainer.max_steps", at_least(1))
    baselines: list[BaselineArchitecture] = setting(list(BaselineArchitecture), "retrained too")
    paper_ratio: int = setting(5, "paper_rule: one attention block in so many", at_least(1))
    shapes: list[list[int]] = setting(
        [], "[length, memory, batch] of costs; the first makes baselines", debug=[[8, 8, 2]]
    )
    timing_repeats: int = setting(20, "runs of which a latency is the median", at_least(1), neutral=True, debug=2)
