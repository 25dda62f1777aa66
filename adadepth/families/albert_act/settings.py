"""The settings of ACT-ALBERT."""

from dataclasses import dataclass
from enum import StrEnum

from adadepth.choices import CapRemainder, StateRule
from adadepth.declaration import FINITE, OPEN_SHARE, at_least, setting
from adadepth.families.shared.albert.settings import AlbertSettings

PenaltyReduction = StrEnum("PenaltyReduction", ["sum_tokens", "mean_tokens"])
HaltingInput = StrEnum("HaltingInput", ["block_output", "block_input"])
HaltingScope = StrEnum("HaltingScope", ["token", "sequence"])
Execution = StrEnum("Execution", ["auto", "dense", "ragged"])
Pooling = StrEnum("Pooling", ["first", "mean"])
PositionInit = StrEnum("PositionInit", ["normal", "sinusoidal"])


@dataclass
class AlbertActSettings(AlbertSettings):
    """ACT-ALBERT: one shared ALBERT block applied until every token has halted (Simoulin & Crabbé 2021)."""

    name: str = setting("albert_act", "the family")
    act_epsilon: float = setting(0.01, "a token halts when its summed probability exceeds 1 - act_epsilon", OPEN_SHARE)
    act_penalty: float = setting(1e-3, "tau, weight of the ponder cost N + R in the loss", at_least(0), hub=0.0)
    readout_weight: float = setting(
        0.0, "of the loss that reads the head after every iteration; 0: only the last one is read", at_least(0)
    )
    penalty_reduction: PenaltyReduction = setting(
        PenaltyReduction.sum_tokens, "over tokens; always a mean over sequences"
    )
    cap_remainder: CapRemainder = setting(
        CapRemainder.reference, "what a token that reaches L without halting pays and weighs"
    )
    state_rule: StateRule = setting(StateRule.single, "how the iterations' states are mixed")
    halting_input: HaltingInput = setting(HaltingInput.block_output, "what the halting unit reads")
    halting_scope: HaltingScope = setting(HaltingScope.token, "one decision a token, or one a sequence")
    halt_bias_init: float = setting(0.0, "initial halting bias; negative starts deep, positive starts shallow", FINITE)
    recall: bool = setting(False, "the block reads the embedded input again in every iteration")
    fixed_depth: int | None = setting(None, "updates of every token, and nobody halts: the rival of equal work")
    position_init: PositionInit = setting(
        PositionInit.normal, "initial position embeddings; sinusoidal: neighbours are alike"
    )
    execution: Execution = setting(Execution.auto, "update all tokens until the last has halted, or running ones only")
    pooling: Pooling = setting(
        Pooling.first,
        "what the class of a sequence is read from: its first token, pooled, or the mean of all real ones",
    )
