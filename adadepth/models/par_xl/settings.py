"""Settings of the PAR Transformer-XL, and their validation."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from adadepth.budget.target import NO_BUDGET
from adadepth.config import (
    Activation,
    Attention,
    ExperimentConfig,
    ModelConfig,
    SearchConfig,
    Task,
    family_name,
)
from adadepth.config.declaration import BELOW_ONE, POSITIVE, at_least, copy_field, setting
from adadepth.config.experiment import DistanceConfig, EvalStrategy, GateConfig, GatePath, SearchMethod, Stage

AttentionScale = StrEnum("AttentionScale", ["sqrt", "linear"])
OutputActivation = StrEnum("OutputActivation", ["none", "relu"])
BranchNorm = StrEnum("BranchNorm", ["per_branch", "paper"])
Initializer = StrEnum("Initializer", ["normal", "glorot"])


@dataclass
class ParXLSettings(ModelConfig):
    """PAR-XL: a Transformer-XL whose blocks are attention, feed-forward or identity (Mandava et al. 2020)."""

    name: str = family_name("par_xl")
    architecture: str | None = setting(
        None,
        "operations of the blocks, one of s, f and - each; None: the supernet with all operations",
        shape=True,
        more="`s`: attention, `f`: feed-forward, `-`: identity.",
    )
    vocab_size: int | None = setting(
        None, "V, vocabulary size; None: that of the tokenizer", at_least(5), shape=True, hub=12000
    )
    hidden_size: int = setting(128, "d, width of the blocks and their states", at_least(1), shape=True, debug=16)
    num_hidden_layers: int = setting(
        6, "N, number of blocks of the supernet; of an architecture, its number of characters", at_least(1)
    )
    num_attention_heads: int = setting(4, "must divide hidden_size", at_least(1), shape=True, debug=2)
    intermediate_size: int = setting(512, "inner width of the feed-forward blocks", at_least(1), shape=True, debug=32)
    hidden_act: Activation = setting(Activation.relu, "activation of the feed-forward blocks")
    memory_length: int = setting(16, "M, number of memory positions before the segment", at_least(0), debug=8)
    cutoffs: list[int] = setting(
        [],
        "cutoffs of the adaptive softmax, where rarer words begin; []: a plain softmax",
        shape=True,
        debug=[50, 200],
        more="A cutoff is the first word of a tail, with ids sorted by frequency.",
    )
    cutoff_clusters: int | None = setting(
        None,
        "number of clusters, with cutoffs of least compute for the training text; None: use cutoffs",
        at_least(2),
        in_model=False,
        more="The most frequent words form one of the clusters.",
    )
    proj_factor: int = setting(
        4,
        "factor by which each cluster of rarer words is narrower",
        at_least(1),
        shape=True,
        more="The factor is relative to the previous cluster.",
    )
    proj_dims: list[int] | None = setting(
        None,
        "widths of the clusters of rarer words; None: use proj_factor",
        shape=True,
        debug=[4, 1],
        more="There is one width per tail; a tail as wide as the states has no projection.",
    )
    softmax_bias: bool = setting(False, "add biases to the output layer", shape=True)
    tie_word_embeddings: bool = setting(
        False,
        "share the matrix of input and output embeddings",
        shape=True,
        more="The embedding then has the same clusters.",
    )
    hidden_dropout_prob: float = setting(0.1, "dropout after the embeddings and every branch", BELOW_ONE)
    output_dropout_prob: float | None = setting(
        None,
        "dropout before the output layer; None: hidden_dropout_prob",
        BELOW_ONE,
        more="The original has no dropout before the output layer.",
    )
    attention_probs_dropout_prob: float = setting(0.0, "dropout of the attention weights", BELOW_ONE)
    activation_dropout_prob: float = setting(0.0, "dropout inside the feed-forward blocks", BELOW_ONE)
    attention_scale: AttentionScale = setting(
        AttentionScale.sqrt,
        "divisor of attention scores; sqrt: sqrt(d / heads); linear: as in the original",
        more="`linear`: d / heads.",
    )
    attention_out_act: OutputActivation = setting(
        OutputActivation.none, "activation after the last projection of attention; relu: as in the original"
    )
    branch_norm: BranchNorm = setting(
        BranchNorm.per_branch,
        "one norm per branch, or one after the mixture of branches",
        shape=True,
        more="`per_branch`: mixes LN(x + branch(x)) of each branch and x; `paper`: one norm after the mixture, "
        "LN(x + sum of weighted branches), also for the identity.",
    )
    share_position_bias: bool = setting(
        True,
        "share the biases u and v between all blocks (Transformer-XL)",
        shape=True,
        more="These are the biases of content and position (Dai et al. 2019); otherwise each block has its own pair.",
    )
    projection_bias: bool = setting(
        False,
        "add biases to the projections of attention",
        shape=True,
        more="There are five projections: queries, keys, values, positions, output.",
    )
    layer_norm_eps: float = setting(1e-5, "constant added to the variance in every layer norm", POSITIVE)
    initializer: Initializer = setting(
        Initializer.normal,
        "initialisation: normal with initializer_range; glorot: as in the original, by shape",
        more="`glorot` is Glorot & Bengio 2010, with the defaults of Keras for every kind of weight.",
    )
    initializer_range: float = setting(0.02, "standard deviation of normal initial weights", POSITIVE)
    attn_implementation: Attention | None = setting(
        None, "attention implementation; None: the fastest available one", in_model=False
    )


@dataclass
class ParXLFields(GateConfig, DistanceConfig, ParXLSettings):
    """Fields of a PAR-XL configuration: the model settings, and the run's settings of distances, gates and costs."""

    gate_path: GatePath = copy_field(SearchConfig, "path")
    gate_seed: int = setting(0, "random seed of the noise and paths of the gates, the same on all ranks", at_least(0))
    latency_weight: float = copy_field(SearchConfig, "latency_weight")
    operation_costs: list[float] | None = setting(
        None, "costs of attention, feed-forward and identity in one unit; in seconds with a budget"
    )


def check_settings(config: ExperimentConfig) -> Iterator[str]:
    """Yield errors for inconsistent sizes, and for gate settings without a supernet."""
    model = config.model
    assert isinstance(model, ParXLSettings)
    heads, hidden = model.num_attention_heads, model.hidden_size
    if heads >= 1 and hidden % heads:
        yield f"model.num_attention_heads={heads}: must divide model.hidden_size={hidden}"
    cutoffs = model.cutoffs
    if any(cutoff < 1 for cutoff in cutoffs) or cutoffs != sorted(set(cutoffs)):
        yield f"model.cutoffs={cutoffs}: must be positive and increase"
    tails = len(cutoffs) if model.cutoff_clusters is None else model.cutoff_clusters - 1
    if cutoffs and model.cutoff_clusters is not None:
        yield f"model.cutoff_clusters={model.cutoff_clusters}: chooses the cutoffs; set model.cutoffs=[]"
    if (widths := model.proj_dims) is not None:
        if model.proj_factor != ParXLSettings.proj_factor:
            yield f"model.proj_factor={model.proj_factor}: only used without model.proj_dims={widths}"
        if len(widths) != tails or min(widths, default=1) < 1:
            yield f"model.proj_dims={widths}: must be {tails} positive widths, one per tail"
    if model.architecture is None:
        yield from _check_search(config)
        return
    if config.checkpoint is not None:
        return
    if config.task is Task.architecture_search:
        yield (
            f"model.architecture={model.architecture}: task=architecture_search searches for it; to train one "
            "network, use --config-name par_network"
        )
    elif config.search != SearchConfig():
        yield (
            "search: only used by a supernet, which has no model.architecture, as in --config-name par_tiny; "
            "leave it out for one network"
        )


def check_budget(config: ExperimentConfig) -> Iterator[str]:
    """Yield errors for a latency budget outside a search, or together with a fixed latency weight or early stopping."""
    target = f"budget.target={config.budget.target:g}"
    if config.task is not Task.architecture_search:
        yield (
            f"{target}: par_xl supports it only in an architecture search, e.g. --config-name par_tiny; not "
            f"task={config.task}"
        )
    if (share := config.search.stop_unchanged) is not None:
        unheld = f"search.stop_unchanged={share:g} may end the search before its schedule"
        yield f"{target}: {unheld}; set search.stop_unchanged=null"
    if weight := config.search.latency_weight:
        price = f"search.latency_weight={weight:g} also penalises latency"
        yield f"{target}: {price}; set search.latency_weight=0, or {NO_BUDGET}"


def _check_search(config: ExperimentConfig) -> Iterator[str]:
    """Yield errors for invalid settings of an architecture search."""
    search, is_search = config.search, config.task is Task.architecture_search
    if search.method is SearchMethod.two_phase:
        if search.gate_learning_rate is None:
            yield "search.gate_learning_rate: required by search.method=two_phase, e.g. 1e-2"
        if config.trainer.max_steps == -1:
            yield "trainer.max_steps=-1: search.method=two_phase needs the number of updates"
    if search.stop_unchanged is not None and config.trainer.eval_strategy is EvalStrategy.no:
        yield f"search.stop_unchanged={search.stop_unchanged:g}: compares evaluations, but trainer.eval_strategy=no"
    if search.latency_weight > 0 and not is_search:
        yield f"search.latency_weight={search.latency_weight}: only used with task=architecture_search"
    if is_search and not search.stages:
        yield f"search.stages=[]: at least one is needed, of {', '.join(Stage)}"
    for shape in search.shapes:
        if len(shape) != 3 or shape[0] < 1 or shape[1] < 0 or shape[2] < 1:
            yield f"search.shapes={shape}: must be [length, memory, batch], e.g. [64, 640, 1]"
