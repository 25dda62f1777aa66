"""The settings of ACT-ALBERT."""

from dataclasses import dataclass
from enum import StrEnum

from adadepth.choices import CapRemainder, StateRule
from adadepth.config import family_name
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

    name: str = family_name("albert_act")
    act_epsilon: float = setting(
        0.01, "a token halts when its summed probability exceeds 1 - act_epsilon", OPEN_SHARE,
        more="Graves 2016 uses 0.01.",
    )  # fmt: skip
    act_penalty: float = setting(
        1e-3, "tau, weight of the ponder cost N + R in the loss", at_least(0), hub=0.0,
        more="The paper trains with 1e-3, 5e-4, 2.5e-4 for 6, 12, 24 iterations.",
    )  # fmt: skip
    readout_weight: float = setting(
        0.0, "of the loss that reads the head after every iteration; 0: only the last one is read", at_least(0),
        more="Of the loss part `readouts`: after every iteration that a unit ran; see "
        "`adadepth.families.albert_act.readouts`.",
    )  # fmt: skip
    penalty_reduction: PenaltyReduction = setting(
        PenaltyReduction.sum_tokens,
        "over tokens; always a mean over sequences",
        more="`sum_tokens`: summed over a sequence's tokens, averaged over sequences (the paper); `mean_tokens`: "
        "averaged over tokens (Universal Transformers), independent of the sequence length.",
    )
    cap_remainder: CapRemainder = setting(
        CapRemainder.reference,
        "what a token that reaches L without halting pays and weighs",
        more="`reference`: no remainder, hence no gradient of the cost; `penalty`: 1 - h in the cost only; `forced`: "
        "also as the weight of its last output.",
    )
    state_rule: StateRule = setting(
        StateRule.single,
        "how the iterations' states are mixed",
        more="`single`: the interpolated state feeds the next iteration (the paper); `graves`: weighted sum of the "
        "outputs, halted states copied; `accumulated`, `basic`: the two rules of tensor2tensor's Universal "
        "Transformer, where halted states keep moving.",
    )
    halting_rule: str = setting(
        "act",
        "what of a halting probability a token's sum grows by: act, or NAME[:PARAMETER] of an installed package",
        more="`act`: all of it (Graves 2016); see `adadepth.halting.rules`.",
    )
    halting_input: HaltingInput = setting(
        HaltingInput.block_output,
        "what the halting unit reads",
        more="`block_output`: the paper; `block_input`: Universal Transformers.",
    )
    halting_scope: HaltingScope = setting(
        HaltingScope.token,
        "one decision a token, or one a sequence",
        more="A whole `sequence` halts on its tokens' mean probability.",
    )
    halt_bias_init: float = setting(
        0.0, "initial halting bias; negative starts deep, positive starts shallow", FINITE,
        more="0 in the paper, where at first every token halts at its second update; 1 in Universal Transformers.",
    )  # fmt: skip
    recall: bool = setting(
        False,
        "the block reads the embedded input again in every iteration",
        more='x_{n-1} + x_0 (Bansal et al. 2022, arXiv 2202.05826, "recall"), without which a long recurrence forgets '
        "what it was asked.",
    )
    fixed_depth: int | None = setting(
        None, "updates of every token, and nobody halts: the rival of equal work", more="ALBERT of that depth."
    )
    position_init: PositionInit = setting(
        PositionInit.normal,
        "initial position embeddings; sinusoidal: neighbours are alike",
        more="`normal`: as ALBERT's. `sinusoidal`: see `sinusoids` in `adadepth.families.shared.albert.block`; with "
        "more than two token types, rows and columns of a grid.",
    )
    execution: Execution = setting(
        Execution.auto,
        "update all tokens until the last has halted, or running ones only",
        more="`dense` and `ragged`, with the same results; `auto` is ragged where that is faster. A state rule whose "
        "halted states keep moving runs dense.",
    )
    pooling: Pooling = setting(
        Pooling.first,
        "what the class of a sequence is read from: its first token, pooled, or the mean of all real ones",
    )
