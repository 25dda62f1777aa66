"""Settings of looped (recurrent-depth) language models, and their validation."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from adadepth.config import Activation, Attention, ExperimentConfig, Mode, ModelConfig, family_name
from adadepth.config.declaration import OPEN_SHARE, POSITIVE, at_least, between, setting
from adadepth.errors import ConfigError
from adadepth.halting.step_losses import parse_step_loss
from adadepth.models.looped.cache_policies import parse_policy
from adadepth.models.shared.halting_settings import find_loss_problems, find_unit_problems

_GATE_RULES = ("quantile", "hazard", "sample", "expectation")  # exit rules that read the halting unit
START_STD = (2 / 5) ** 0.5  # of Huginn's first states

Norms = StrEnum("Norms", ["pre", "branch", "sandwich"])
StateNorm = StrEnum("StateNorm", ["none", "fed", "read"])
Injection = StrEnum("Injection", ["none", "add", "linear", "restart"])
StartState = StrEnum("StartState", ["input", "zeros", "drawn"])
Queries = StrEnum("Queries", ["state", "previous"])
LoopedInitializer = StrEnum("LoopedInitializer", ["normal", "scaled"])
Objective = StrEnum("Objective", ["last", "mean", "geometric", "gate", "gate_alone"])
TrainLoops = StrEnum("TrainLoops", ["fixed", "drawn", "length"])
Curriculum = StrEnum("Curriculum", ["none", "linear", "sqrt"])
GeometricTruncation = StrEnum("GeometricTruncation", ["leftover", "renormalise"])
GateLoss = StrEnum("GateLoss", ["gain", "ponder"])
Pairing = StrEnum("Pairing", ["next", "later", "made"])


@dataclass
class LoopedSettings(ModelConfig):
    """Looped decoder: prelude layers, then core layers applied N times, then coda layers."""

    name: str = family_name("looped")
    vocab_size: int | None = setting(
        None, "V, vocabulary size; None: that of the tokenizer", at_least(2), shape=True, hub=49152
    )
    prelude: int = setting(
        0, "P, number of layers before the loop; their output is the input e of every loop", at_least(0), shape=True
    )
    core: int = setting(
        2,
        "C, number of layers in a loop; in a pretrained decoder, those directly before the coda",
        at_least(1),
        shape=True,
    )
    coda: int = setting(0, "K, number of layers after the loop, run for every prediction", at_least(0), shape=True)
    low_layers: int = setting(
        0,
        "number of layers of a second stack, the low-level one of HRM-Text, applied before the core in every loop",
        at_least(0),
        shape=True,
        later=True,
        more="It updates a second state z_L: z_L = rms(L(z_L + s)), `low_cycles` times. The core then reads s + z_L.",
    )
    low_cycles: int = setting(1, "number of applications of the low-level stack in a loop", at_least(1))
    num_loops: int = setting(4, "N, maximum number of loops of a token", at_least(1), debug=2)
    loop_lora_rank: int | None = setting(
        None,
        "rank of the low-rank change of every matrix of the core in each loop; None: all loops are the same",
        at_least(1),
        shape=True,
        later=True,
        more="Relaxed recursion (arXiv 2410.20672); see `adadepth.models.looped.loop_adapters`.",
    )
    hidden_size: int | None = setting(
        None, "D, width; None: that of model.pretrained", at_least(1), shape=True, hub=128, debug=16
    )
    num_attention_heads: int | None = setting(
        None,
        "number of attention heads, a divisor of hidden_size unless head_dim is given; None: that of model.pretrained",
        at_least(1),
        shape=True,
        hub=4,
        debug=2,
    )
    num_key_value_heads: int | None = setting(
        None, "number of key and value heads; None: as many as query heads", at_least(1), shape=True
    )
    head_dim: int | None = setting(
        None, "width of a head; None: hidden_size / num_attention_heads", at_least(2), shape=True
    )
    intermediate_size: int | None = setting(
        None,
        "F, inner width of the gated feed-forward layers; None: that of model.pretrained",
        at_least(1),
        shape=True,
        hub=512,
        debug=32,
    )
    hidden_act: Activation = setting(Activation.silu, "activation of the gates of feed-forward layers")
    attention_gate: bool = setting(
        False,
        "multiply the output of attention by sigmoid(W u), u the input of attention, before its last product",
        shape=True,
        later=True,
    )
    norm_weights: bool = setting(True, "learn a weight for every feature in every norm", shape=True, later=True)
    norms: Norms = setting(
        Norms.pre,
        "position of the norms of a layer: before the branches, also after them, or also after the sums",
        shape=True,
        more="`pre`: x + f(rms(x)); `branch`: x + rms(f(rms(x))) (Ouro); `sandwich`: rms(x + f(rms(x))) (Huginn).",
    )
    state_norm: StateNorm = setting(
        StateNorm.none,
        "final norm between loop and coda: none, for the output only, or also for the fed-back state",
        shape=True,
        more="`read` is Huginn's, before and after the coda; `fed` is Ouro's.",
    )
    injection: Injection = setting(
        Injection.none,
        "injection of the input e into a loop: none, s + e, A [s, e], or e only",
        shape=True,
        more="`linear` is Huginn's adapter; with `restart` a loop reads the previous loop only through `queries`.",
    )
    start: StartState = setting(
        StartState.input,
        "state before the first loop: the input e, zeros, or random",
        more="Random states come from a normal distribution truncated at three standard deviations. "
        "Training samples new ones; otherwise they depend on the position.",
    )
    draw_seed: int = setting(
        0,
        "random seed of initial states outside training, which are the same in every row, and of random numbers "
        "of loops and their steps",
        at_least(0),
    )
    start_std: float = setting(
        START_STD,
        "standard deviation of random initial states",
        POSITIVE,
        more="The default sqrt(2/5) is that of Huginn's embeddings times sqrt(D).",
    )
    queries: Queries = setting(
        Queries.state,
        "input of the attention queries: the input of the layer, or the final state of the previous loop",
        more="`previous`: fully looped transformers (arXiv 2605.18797); the first loop uses the input of the layer.",
    )
    damping: float | None = setting(
        1.0,
        "damping factor of a loop; None: 1 / number of loops",
        between(1e-3, 1),
        more="s + damping (g(s) - s): the damped substeps of arXiv 2605.23872.",
    )
    gate: bool = setting(False, "add a halting unit that reads the state after every loop", shape=True)
    halting_unit: str = setting(
        "linear",
        "unit that computes the halting logit: linear, mlp, or NAME[:PARAMETER] of an installed package",
        shape=True,
        later=True,
        more="`linear` is w s + b; see `adadepth.halting.units`.",
    )
    exit_rule: str | None = setting(
        None,
        "exit rule that selects the loop of the prediction; None: the last loop",
        more="It is the default rule of calls, in the syntax of `adadepth.halting.exit_rules.parse_rule`.",
    )
    cache_policy: str = setting(
        "all",
        "cache policy: which states of an exited token later tokens read: all, frozen, last, mean, first or ring:K",
        more="With a policy other than `all` a token that has exited runs no further loops. The equations are those of "
        "`adadepth.models.looped.cache`.",
    )
    objective: str = setting(
        "last",
        "weights of the losses of loops: last, mean, geometric, gate (by the halting unit), gate_alone (trains that "
        "unit only), or a loss over exits: uniform, linear, sqrt, inverse, inverse_sqrt, sum, layerskip, or "
        "NAME[:PARAMETER] of an installed package",
        more="The equations are those of `adadepth.models.looped.objectives` and `adadepth.halting.step_losses`.",
    )
    geometric_share: float = setting(
        0.3,
        "g of objective=geometric and of the prior of gate_loss=ponder: each loop has 1 - g times the weight of the "
        "previous one",
        OPEN_SHARE,
    )
    geometric_truncation: GeometricTruncation = setting(
        GeometricTruncation.leftover,
        "objective=geometric: the last loop gets the weight of all later ones, or all weights are divided by their sum",
        later=True,
        hub="renormalise",
        more="`leftover` is that of arXiv 2607.20519. Runs and models of versions without the setting have "
        "`renormalise`.",
    )
    entropy_weight: float = setting(
        0.05,
        "beta, weight of the entropy with objective=gate, and of the divergence with gate_loss=ponder",
        at_least(0),
    )
    gate_loss: GateLoss = setting(
        GateLoss.gain,
        "objective=gate_alone: learn the gain of loops, or ponder: lower the expected loss, near a geometric prior",
        more="`ponder` is PonderNet's loss on the frozen network, with geometric_share as the halting probability of "
        "the prior and entropy_weight as the weight of the divergence.",
    )
    gate_pairing: Pairing = setting(
        Pairing.next,
        "objective=gate_alone: learn the gain of the next loop; later: of the best later loop; made: of the current "
        "loop",
        more="`made` follows the equation in the Ouro paper.",
    )
    gate_gain: float = setting(
        0.005,
        "objective=gate_alone: gain in nats at which the gate learns to continue with a probability of one half",
        at_least(0),
        more="The default is that of the Ouro paper, with which a token without any gain continues with a probability "
        "of .44. With 0.05 the probability is .08.",
    )
    train_loops: TrainLoops = setting(
        TrainLoops.fixed,
        "number of loops of a text in training: N, random for each text, around N, or the number that its length needs",
        more="`drawn`: 1 + Poisson(rate), ln rate normal with mean ln N - spread^2/2 (Huginn), sampled for every "
        "text of an optimiser step. `length`: the `text_loops` of the data (arXiv 2409.15647); evaluations run N "
        "loops. The loss of a text is that of its last loop.",
    )
    loop_spread: float = setting(0.5, "train_loops=drawn: standard deviation of the logarithm of the rate", at_least(0))
    loop_curriculum: Curriculum = setting(
        Curriculum.none,
        "growth of the number of loops in training, from 1 to N: none, linear, or slow at first (1 - sqrt)",
        more="The number is ceil(N f(x)), where x is the elapsed share of the growth: f = x, or 1 - sqrt(1 - x) "
        "(arXiv 2511.07384). It is the mean of random numbers.",
    )
    curriculum_share: float = setting(
        0.5, "share of all optimiser steps in which loop_curriculum grows", between(1e-3, 1)
    )
    backprop_loops: int | None = setting(
        None,
        "number of last loops with gradients in training; None: all",
        at_least(1),
        more="Without injection, prelude and embedding then learn nothing from texts with more loops.",
    )
    low_backprop: list[int] | None = setting(
        None,
        "number of last low-level cycles with gradients in training, for each of the last loops; None: all cycles",
        more="It is 1 in earlier loops. This is `L_bp_cycles` of HRM-Text.",
    )
    prefix_lm: bool = setting(
        False,
        "accept token_type_ids: tokens of type 1, such as those of a prompt, attend to each other in both directions",
        more="Without token_type_ids, as in runs of the command line, attention is causal.",
    )
    max_position_embeddings: int = setting(2048, "longest text", at_least(1))
    sliding_window: int | None = setting(
        None,
        "number of last tokens that a token attends to, itself included; None: all",
        at_least(1),
        later=True,
        more="With every loop, a token then depends on tokens further away. Compute counts all tokens, because masked "
        "attention computes them.",
    )
    rope_theta: float = setting(10000.0, "base of the rotary positions", POSITIVE)
    rope_pairs: bool = setting(
        False,
        "rotate neighbouring features by rotary positions; false: features of the two halves of a head",
        shape=True,
    )
    qk_bias: bool = setting(False, "add biases of queries and keys, before the rotation", shape=True)
    scale_embeddings: bool = setting(False, "multiply embeddings by sqrt(D)")
    embedding_scale: float | None = setting(
        None,
        "factor of the embeddings; None: that of model.pretrained, or sqrt(D) with scale_embeddings and 1 without",
        POSITIVE,
    )
    tie_word_embeddings: bool = setting(False, "share the matrix of input and output embeddings", shape=True)
    rms_norm_eps: float = setting(1e-6, "constant added to the mean square in every norm", POSITIVE)
    initializer: LoopedInitializer = setting(
        LoopedInitializer.normal,
        "initialisation: normal with initializer_range, or Huginn's, scaled by width and depth",
        more="`scaled`: standard deviation sqrt(2/(5 D)), truncated at three, divided by sqrt(2 (P + N C + K)) for "
        "the last product of a branch (Takase et al.).",
    )
    initializer_range: float = setting(0.02, "standard deviation of normal initial weights", POSITIVE)
    attn_implementation: Attention | None = setting(
        None, "attention implementation; None: the fastest available one", in_model=False
    )


def fix_loops(model: LoopedSettings, depth: int) -> dict[str, Any]:
    """Return the settings of the network that trains and runs with `depth` loops for every token.

    Raises:
        ConfigError: If only the halting unit learns.
    """
    if model.objective == Objective.gate_alone:
        raise ConfigError("model.objective=gate_alone: trains no network; compare with exit_rules=[fixed:N] instead")
    return {
        "num_loops": depth,
        "exit_rule": None,
        "objective": "last",
        "train_loops": TrainLoops.fixed,
        "loop_curriculum": Curriculum.none,
        "curriculum_share": LoopedSettings.curriculum_share,
    }


def check_looped(config: ExperimentConfig) -> Iterator[str]:
    """Yield errors for missing sizes and for inconsistent settings of a looped model."""
    model = config.model
    assert isinstance(model, LoopedSettings)
    if model.pretrained is None:
        for name in ("hidden_size", "num_attention_heads", "intermediate_size"):
            if getattr(model, name) is None:
                yield f"model.{name}=null: required, unless model.pretrained names a decoder"
    if _reads_gate(model) and not model.gate and config.checkpoint is None:  # loading compares a checkpoint with it
        yield f"model.exit_rule={model.exit_rule}: needs a halting unit, which model.gate=true gives"
    yield from find_unit_problems(model.halting_unit, "gate", model.gate)
    if model.objective in (Objective.gate, Objective.gate_alone) and not model.gate:
        yield f"model.objective={model.objective}: needs a halting unit, which model.gate=true gives"
    if model.objective == Objective.gate_alone and (rank := config.trainer.lora.rank) is not None:
        yield f"trainer.lora.rank={rank}: cannot be combined with objective=gate_alone, which freezes all matrices"
    if model.objective == Objective.gate_alone and model.num_loops == 1 and config.mode is Mode.train:
        yield "model.num_loops=1: a gate has nothing to compare, and model.objective=gate_alone needs at least 2 loops"
    if config.mode is Mode.train:
        yield from _check_objective(model)
    if model.loop_lora_rank is not None and model.cache_policy != "all":
        yield f"model.cache_policy={model.cache_policy}: must be all with model.loop_lora_rank={model.loop_lora_rank}"
    try:
        parse_policy(model.cache_policy)
    except ConfigError as error:
        yield f"model.{error}"
    if model.train_loops is not TrainLoops.fixed and model.objective != Objective.last:
        yield f"model.train_loops={model.train_loops}: needs model.objective=last, not {model.objective}"
    yield from _check_low_level(model)
    if model.loop_curriculum is Curriculum.none and model.curriculum_share != LoopedSettings.curriculum_share:
        yield f"model.curriculum_share={model.curriculum_share:g}: only used with model.loop_curriculum"
    if model.loop_curriculum is not Curriculum.none and model.train_loops is TrainLoops.length:
        yield f"model.loop_curriculum={model.loop_curriculum}: must be none with train_loops=length"
    if model.loop_curriculum is not Curriculum.none and model.objective == Objective.gate_alone:
        yield f"model.loop_curriculum={model.loop_curriculum}: objective=gate_alone compares loops; set it to none"
    if model.queries is Queries.state and model.injection is Injection.restart:
        yield (
            "model.injection=restart: every loop would be the same; set model.queries=previous to pass on the "
            "previous loop"
        )


def warn_of_untrained_gate(config: ExperimentConfig) -> Iterator[str]:
    """Yield a warning if a looped model has a halting unit that its objective does not train.

    A matched baseline of fixed depth does not use its halting unit.
    """
    model = config.model
    assert isinstance(model, LoopedSettings)
    if model.gate and config.rival_of is None and model.objective not in (Objective.gate, Objective.gate_alone):
        yield f"the gate is not trained by model.objective={model.objective}; model.objective=gate trains it"


def _check_objective(model: LoopedSettings) -> Iterator[str]:
    """Yield errors for an objective that does not exist or has no loss with one loop, and for settings of others."""
    names, text = tuple(Objective), model.objective
    for name in ("gate_loss", "gate_pairing", "gate_gain"):
        if (value := getattr(model, name)) == getattr(LoopedSettings, name):
            continue
        if text != Objective.gate_alone:
            yield f"model.{name}={value}: only used with objective=gate_alone"
        elif name != "gate_loss" and model.gate_loss is GateLoss.ponder:
            yield f"model.{name}={value}: only used with gate_loss=gain"
    if problems := list(find_loss_problems("model.objective", text, names)):
        yield from problems
        return
    if text in names or parse_step_loss(text).weigh_depths([1]) != [0.0]:
        return
    if model.num_loops == 1:
        yield f"model.num_loops=1: must be at least 2, because model.objective={text} has the weight 0 at loop 1"
    if model.loop_curriculum is not Curriculum.none:
        curriculum = f"model.loop_curriculum={model.loop_curriculum}"
        yield f"{curriculum}: must be none, because model.objective={text} has the weight 0 at loop 1"


def _check_low_level(model: LoopedSettings) -> Iterator[str]:
    """Yield errors for inconsistent settings of the low-level stack."""
    if not model.low_layers:
        for name in ("low_cycles", "low_backprop"):
            if (value := getattr(model, name)) != getattr(LoopedSettings, name):
                yield f"model.{name}={value}: only used with model.low_layers"
    if problem := find_low_backprop_problem(model.low_backprop):
        yield f"model.{problem}"
    if model.low_backprop is not None and model.train_loops is not TrainLoops.fixed:
        yield f"model.low_backprop={model.low_backprop}: needs model.train_loops=fixed"


def find_low_backprop_problem(cycles: list[int] | None) -> str | None:
    """Return why numbers of low-level cycles with gradients are not allowed, or None if they are."""
    if cycles is None or (cycles and min(cycles) >= 0):
        return None
    return f"low_backprop={cycles}: must be one or more numbers of at least 0"


def list_movable_gate_metrics(described: Any) -> tuple[str, ...] | None:
    """Return the metrics of an evaluation that training can change, or None if it can change all of them.

    The objective `gate_alone` changes no prediction. It moves exits, if the exit rule reads the halting unit.

    Args:
        described: Settings or configuration of the model.
    """
    return ("loss",) if described.objective == Objective.gate_alone and not _reads_gate(described) else None


def _reads_gate(described: Any) -> bool:
    """Return whether the exit rule of settings or of a configuration reads the halting unit."""
    return str(described.exit_rule).partition(":")[0] in _GATE_RULES
