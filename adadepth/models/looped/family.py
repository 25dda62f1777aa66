"""Looped (recurrent-depth) causal language models: settings, their checks, and the family's descriptor."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from adadepth.config import Activation, Attention, BudgetUnit, ExperimentConfig, ModelConfig, family_name
from adadepth.config.declaration import OPEN_SHARE, POSITIVE, at_least, between, setting
from adadepth.errors import ConfigError
from adadepth.models.looped.cache_policies import parse_policy
from adadepth.models.registry import Budgeting, Family

Norms = StrEnum("Norms", ["pre", "branch", "sandwich"])
StateNorm = StrEnum("StateNorm", ["none", "fed", "read"])
Injection = StrEnum("Injection", ["none", "add", "linear", "restart"])
StartState = StrEnum("StartState", ["input", "zeros", "drawn"])
Queries = StrEnum("Queries", ["state", "previous"])
LoopedInitializer = StrEnum("LoopedInitializer", ["normal", "scaled"])
Objective = StrEnum("Objective", ["last", "mean", "geometric", "gate", "gate_alone"])
TrainLoops = StrEnum("TrainLoops", ["fixed", "drawn"])
Curriculum = StrEnum("Curriculum", ["none", "linear", "sqrt"])
Pairing = StrEnum("Pairing", ["next", "made"])


@dataclass
class LoopedSettings(ModelConfig):
    """A decoder whose middle layers, the core, are applied N times: prelude, core x N, coda."""

    name: str = family_name("looped")
    vocab_size: int | None = setting(
        None, "V, pieces; None: as many as the tokenizer has", at_least(2), shape=True, hub=49152
    )
    prelude: int = setting(
        0, "P, layers before the loop, whose result is the input e of every loop", at_least(0), shape=True
    )
    core: int = setting(
        2, "C, layers of a loop; of a pretrained decoder those right before the coda", at_least(1), shape=True
    )
    coda: int = setting(0, "K, layers after the loop, read anew for every prediction", at_least(0), shape=True)
    num_loops: int = setting(4, "N, most loops of a token", at_least(1), debug=2)
    hidden_size: int | None = setting(
        None, "D, width; None: that of model.pretrained", at_least(1), shape=True, hub=128, debug=16
    )
    num_attention_heads: int | None = setting(
        None,
        "must divide hidden_size, unless head_dim is given; None: those of model.pretrained",
        at_least(1),
        shape=True,
        hub=4,
        debug=2,
    )
    num_key_value_heads: int | None = setting(
        None, "heads of keys and values; None: as many as of queries", at_least(1), shape=True
    )
    head_dim: int | None = setting(None, "width of a head; None: hidden_size over the heads", at_least(2), shape=True)
    intermediate_size: int | None = setting(
        None,
        "F, inner width of the gated feed-forward layers; None: that of model.pretrained",
        at_least(1),
        shape=True,
        hub=512,
        debug=32,
    )
    hidden_act: Activation = setting(Activation.silu, "of the feed-forward layers' gates")
    norms: Norms = setting(
        Norms.pre,
        "where a layer has its norms: before its branches, also behind them, or also around the sums",
        shape=True,
        more="`pre`: x + f(rms(x)); `branch`: x + rms(f(rms(x))) (Ouro); `sandwich`: rms(x + f(rms(x))) (Huginn).",
    )
    state_norm: StateNorm = setting(
        StateNorm.none,
        "the final norm between loop and coda: none, for what is read, or for what is fed back, too",
        shape=True,
        more="`read`: Huginn, which applies it before and after the coda; `fed`: Ouro.",
    )
    injection: Injection = setting(
        Injection.none,
        "what a loop gets of its input e: nothing, s + e, A [s, e], or e alone",
        shape=True,
        more="`linear` is Huginn's adapter; with `restart` a loop knows the one before by `queries` only.",
    )
    start: StartState = setting(
        StartState.input,
        "the state before the first loop: the input e, zeros, or drawn",
        more="Drawn from a normal of standard deviation sqrt(2/5), cut at three; in training anew, else by position.",
    )
    draw_seed: int = setting(
        0,
        "of drawn states outside training, where a position has the same one in every row, and of drawn loops",
        at_least(0),
    )
    queries: Queries = setting(
        Queries.state,
        "what attention's queries are made of: the layer's own input, or the loop before's final state",
        more="`previous`: fully looped transformers (arXiv 2605.18797); the first loop has the layer's own input.",
    )
    damping: float | None = setting(
        1.0,
        "share of the way to its result that a loop goes; None: 1 over the number of loops",
        between(1e-3, 1),
        more="s + damping (g(s) - s): the damped substeps of arXiv 2605.23872.",
    )
    gate: bool = setting(False, "whether a halting unit reads the state after every loop", shape=True)
    exit_rule: str | None = setting(
        None,
        "which loop's prediction a token gets; None: the last one's",
        more="The rule where a call names none, as `adadepth.halting.exit_rules.parse_rule` reads it.",
    )
    cache_policy: str = setting(
        "all",
        "what later tokens read of a token that exited in calls with a cache: all, frozen, last, mean, first or ring:K",
        more="With a policy other than `all` a token that has exited runs no further loops. The equations are those of "
        "`adadepth.models.looped.cache`.",
    )
    objective: Objective = setting(
        Objective.last,
        "which loops' losses training weighs how: the last one, all alike, early ones more, or as the "
        "halting unit says; gate_alone trains that unit and nothing else",
        more="The equations are those of `adadepth.models.looped.objectives`.",
    )
    geometric_share: float = setting(0.3, "g of objective=geometric: a loop weighs 1 - g of the one before", OPEN_SHARE)
    entropy_weight: float = setting(0.05, "beta of objective=gate: what a nat of entropy is worth", at_least(0))
    gate_pairing: Pairing = setting(
        Pairing.next,
        "objective=gate_alone: a loop's unit learns what the next loop gains; made: what its own has",
        more="`made` is as Ouro prints it.",
    )
    train_loops: TrainLoops = setting(
        TrainLoops.fixed,
        "how many loops a text trains: N, or drawn for each text, around N",
        more="`drawn`: 1 + Poisson(rate), ln rate normal with mean ln N - spread^2/2 (Huginn), for every text of an "
        "update by itself. The loss is that of the last of them.",
    )
    loop_spread: float = setting(0.5, "train_loops=drawn: standard deviation of the logarithm of the rate", at_least(0))
    loop_curriculum: Curriculum = setting(
        Curriculum.none,
        "how the number of loops grows in training, from 1 to N: evenly, or slowly at first (1 - sqrt)",
        more="ceil(N f(x)) with x the share of the growth that is over: f = x, or 1 - sqrt(1 - x) (arXiv 2511.07384). "
        "Drawn numbers have it as their mean.",
    )
    curriculum_share: float = setting(0.5, "share of all steps in which loop_curriculum grows", between(1e-3, 1))
    backprop_loops: int | None = setting(
        None,
        "so many last loops of a text have gradients in training; None: all",
        at_least(1),
        more="Where nothing is injected, prelude and embedding then learn nothing from texts with more loops.",
    )
    max_position_embeddings: int = setting(2048, "longest text", at_least(1))
    rope_theta: float = setting(10000.0, "base of the rotary positions", POSITIVE)
    rope_pairs: bool = setting(
        False, "rotary positions turn neighbouring features; else those of the two halves of a head", shape=True
    )
    qk_bias: bool = setting(False, "biases of queries and keys, added before they are turned", shape=True)
    scale_embeddings: bool = setting(False, "multiply embeddings by sqrt(D)")
    tie_word_embeddings: bool = setting(False, "one matrix for input and output pieces", shape=True)
    rms_norm_eps: float = setting(1e-6, "added to the mean square of every norm", POSITIVE)
    initializer: LoopedInitializer = setting(
        LoopedInitializer.normal,
        "of weights: normal with initializer_range, or Huginn's, scaled by width and depth",
        more="`scaled`: standard deviation sqrt(2/(5 D)), cut at three, that of the products that end a branch over "
        "sqrt(2 (P + N C + K)) (Takase et al.).",
    )
    initializer_range: float = setting(0.02, "standard deviation of normal initial weights", POSITIVE)
    attn_implementation: Attention | None = setting(None, "None: the best that torch offers here", in_model=False)


def check_looped(config: ExperimentConfig) -> Iterator[str]:
    """Check that sizes are set or come from a pretrained decoder, and that the settings of loops fit together."""
    model = config.model
    assert isinstance(model, LoopedSettings)
    if model.pretrained is None:
        for name in ("hidden_size", "num_attention_heads", "intermediate_size"):
            if getattr(model, name) is None:
                yield f"model.{name}=null: must be given, unless model.pretrained names a decoder"
    reads_gate = str(model.exit_rule).partition(":")[0] in ("quantile", "sample", "expectation")
    if reads_gate and not model.gate:
        yield f"model.exit_rule={model.exit_rule}: needs a halting unit, which model.gate=true gives"
    if model.objective in (Objective.gate, Objective.gate_alone) and not model.gate:
        yield f"model.objective={model.objective}: needs a halting unit, which model.gate=true gives"
    try:
        parse_policy(model.cache_policy)
    except ConfigError as error:
        yield f"model.{error}"
    if model.train_loops is TrainLoops.drawn and model.objective is not Objective.last:
        yield f"model.train_loops=drawn: has model.objective=last, not {model.objective}"
    if model.loop_curriculum is Curriculum.none and model.curriculum_share != LoopedSettings.curriculum_share:
        yield f"model.curriculum_share={model.curriculum_share:g}: read only with model.loop_curriculum"
    if model.loop_curriculum is not Curriculum.none and model.objective is Objective.gate_alone:
        yield f"model.loop_curriculum={model.loop_curriculum}: objective=gate_alone compares loops; set it to none"
    if model.queries is Queries.state and model.injection is Injection.restart:
        yield "model.injection=restart: every loop would be the same; model.queries=previous tells it of the one before"


_MODELING, _HEADS = "adadepth.models.looped.modeling", "adadepth.models.looped.heads"

FAMILY = Family(
    settings=LoopedSettings,
    option="looped_mini",
    config="adadepth.models.looped.configuration:LoopedConfig",
    heads={
        "language_model": f"{_HEADS}:LoopedForCausalLM",
        "classification": f"{_HEADS}:LoopedForSequenceClassification",
        "tagging": f"{_HEADS}:LoopedForTokenClassification",
    },
    auto={"AutoModel": f"{_MODELING}:LoopedModel"},
    encoder=f"{_MODELING}:LoopedModel",
    public={"retrofit": "adadepth.models.looped.retrofit:retrofit"},
    tokenizer="transformers:PreTrainedTokenizerFast",
    budget=Budgeting(
        fitted=(BudgetUnit.updates, BudgetUnit.macs),
        fits_target=True,
    ),
    depth="num_loops",
    published=("ouro", "huginn_raven"),
    adopts="adadepth.models.looped.retrofit:build_from_decoder",
    text="blocks",
    checks=("adadepth.models.looped.family:check_looped",),
)
