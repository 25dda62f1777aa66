"""Settings of ACT-ALBERT, and their validation."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from adadepth.config import Attention, ExperimentConfig, family_name
from adadepth.config.choices import CapRemainder, Pooling, StateRule
from adadepth.config.declaration import FINITE, OPEN_SHARE, at_least, setting
from adadepth.config.kinds import classifies_sequences, get_problem
from adadepth.errors import ConfigError
from adadepth.halting.rules import halting_rule
from adadepth.models.shared.albert.settings import AlbertSettings
from adadepth.models.shared.halting_settings import find_unit_problems

PenaltyReduction = StrEnum("PenaltyReduction", ["sum_tokens", "mean_tokens"])
HaltingInput = StrEnum("HaltingInput", ["block_output", "block_input"])
HaltingScope = StrEnum("HaltingScope", ["token", "sequence"])
ExecutionMode = StrEnum("ExecutionMode", ["auto", "dense", "ragged"])
PositionInit = StrEnum("PositionInit", ["normal", "sinusoidal"])


@dataclass
class AlbertActSettings(AlbertSettings):
    """ACT-ALBERT: one shared ALBERT block that is applied until every token has halted (Simoulin & Crabbé 2021)."""

    name: str = family_name("albert_act")
    act_epsilon: float = setting(
        0.01,
        "a token halts when its summed probability exceeds 1 - act_epsilon",
        OPEN_SHARE,
        more="Graves 2016 uses 0.01.",
    )
    act_penalty: float = setting(
        1e-3,
        "tau, weight of the ponder cost N + R in the loss",
        at_least(0),
        hub=0.0,
        more="The paper uses 1e-3, 5e-4 and 2.5e-4 for 6, 12 and 24 iterations.",
    )
    readout_weight: float = setting(
        0.0,
        "weight of the loss of the head after every iteration; 0: only the last iteration has a loss",
        at_least(0),
        more="The loss part `readouts` covers every iteration that a unit ran; see "
        "`adadepth.models.albert_act.recurrence`.",
    )
    penalty_reduction: PenaltyReduction = setting(
        PenaltyReduction.sum_tokens,
        "reduction of the ponder cost over tokens; over sequences it is always a mean",
        more="`sum_tokens`: summed over a sequence's tokens, averaged over sequences (the paper); `mean_tokens`: "
        "averaged over tokens (Universal Transformers), independent of the sequence length.",
    )
    cap_remainder: CapRemainder = setting(
        CapRemainder.reference,
        "cost and output weight of a token that reaches L without halting",
        more="`reference`: no remainder, hence no gradient of the cost; `penalty`: 1 - h in the cost only; `forced`: "
        "also as the weight of its last output.",
    )
    state_rule: StateRule = setting(
        StateRule.single,
        "rule that mixes the states of the iterations",
        more="`single`: the interpolated state feeds the next iteration (the paper); `graves`: weighted sum of the "
        "outputs, halted states copied; `accumulated`, `basic`: the two rules of tensor2tensor's Universal "
        "Transformer, where halted states keep changing.",
    )
    halting_rule: str = setting(
        "act",
        "rule that adds halting probabilities to the halting sum: act, or NAME[:PARAMETER] of an installed package",
        more="`act` adds the full probability (Graves 2016); see `adadepth.halting.rules`.",
    )
    halting_unit: str = setting(
        "linear",
        "unit that predicts the halting probability: linear, mlp, or NAME[:PARAMETER] of an installed package",
        shape=True,
        later=True,
        more="`linear` is sigmoid(w y + b) of the paper; see `adadepth.halting.units`.",
    )
    halting_input: HaltingInput = setting(
        HaltingInput.block_output,
        "input of the halting unit",
        more="`block_output`: the paper; `block_input`: Universal Transformers.",
    )
    halting_scope: HaltingScope = setting(
        HaltingScope.token,
        "one halting decision per token, or one per sequence",
        more="A `sequence` halts as a whole, on the mean probability of its tokens.",
    )
    halt_bias_init: float = setting(
        0.0,
        "initial halting bias; negative starts deep, positive starts shallow",
        FINITE,
        more="The paper uses 0, with which most tokens first halt after two or three updates; Universal "
        "Transformers use 1.",
    )
    recall: bool = setting(
        False,
        "add the embedded input to the state in every iteration",
        more='x_{n-1} + x_0 (Bansal et al. 2022, arXiv 2202.05826, "recall"), without which a long recurrence forgets '
        "what it was asked.",
    )
    fixed_depth: int | None = setting(
        None,
        "number of updates of every token, without halting: a compute-matched baseline; None: adaptive depth",
        more="The model is then ALBERT of that depth.",
    )
    position_init: PositionInit = setting(
        PositionInit.normal,
        "initial position embeddings; sinusoidal: neighbouring positions are similar",
        more="`normal`: as ALBERT's. `sinusoidal`: see `sinusoids` in `adadepth.models.shared.albert.block`; with "
        "more than two token types, rows and columns of a grid.",
    )
    execution: ExecutionMode = setting(
        ExecutionMode.auto,
        "dense: update all tokens until the last one has halted; ragged: update running tokens only",
        more="`dense` and `ragged` give the same results; `auto` is ragged where that is faster. State rules with "
        "changing halted states run dense.",
    )
    pooling: Pooling = setting(
        Pooling.first,
        "input of sequence classification: the pooled first token, or the mean of all real tokens",
    )


def fix_updates(model: AlbertActSettings, depth: int) -> dict[str, Any]:
    """Return the settings of the network in which every token gets `depth` updates, without halting."""
    return {"fixed_depth": depth, "num_hidden_layers": depth}


def check_execution(config: ExperimentConfig) -> Iterator[str]:
    """Yield an error for each setting that ragged execution (which skips halted tokens) does not support."""
    model = config.model
    assert isinstance(model, AlbertActSettings)
    if model.execution is not ExecutionMode.ragged:
        return
    setting = "model.execution=ragged"
    if model.state_rule not in (StateRule.single, StateRule.graves):
        yield f"{setting}: needs model.state_rule=single or graves; halted states of {model.state_rule} keep changing"
    if model.attn_implementation is Attention.flex_attention:
        yield f"{setting}: needs model.attn_implementation eager, sdpa or flash_attention_2, not flex_attention"
    if config.runtime.compile:
        yield (
            f"{setting}: cannot be combined with runtime.compile=true, because a compiled graph has fixed shapes; set "
            "model.execution=auto"
        )


def check_halting(config: ExperimentConfig) -> Iterator[str]:
    """Yield errors for an unknown halting rule or unit, or for parameters that it does not have."""
    model = config.model
    assert isinstance(model, AlbertActSettings)
    try:
        halting_rule(model.halting_rule)
    except ConfigError as error:
        yield f"model.halting_rule={model.halting_rule}: {error}"
    yield from find_unit_problems(model.halting_unit)


def check_readouts(config: ExperimentConfig) -> Iterator[str]:
    """Yield an error if intermediate predictions are trained (`readout_weight`) in question answering."""
    model = config.model
    assert isinstance(model, AlbertActSettings)
    if get_problem(config.dataset) == "question_answering" and model.readout_weight:
        yield f"model.readout_weight={model.readout_weight:g}: question answering has no readouts; set it to 0"


def check_pooling(config: ExperimentConfig) -> Iterator[str]:
    """Yield errors for mean pooling in tasks or with options that read only the first token."""
    model = config.model
    assert isinstance(model, AlbertActSettings)
    if model.pooling is Pooling.first:
        return
    if not classifies_sequences(config):
        yield f"model.pooling={model.pooling}: only used for classification of whole sequences"
    if model.readout_weight:
        yield (
            f"model.readout_weight={model.readout_weight:g}: readouts read the first token; set it to 0 or "
            "model.pooling=first"
        )
