"""What the settings of a model need of each other, and of the task."""

import os
from collections.abc import Iterator

from adadepth.config import (
    AdaLayersModelConfig,
    AlbertActModelConfig,
    AlbertModelConfig,
    Attention,
    ContextConfig,
    Execution,
    ExperimentConfig,
    FeaturesConfig,
    GatePath,
    HaltingConfig,
    HaltingHead,
    Head,
    Mode,
    ParXLModelConfig,
    PonderAlbertModelConfig,
    PonderSettings,
    Prior,
    SearchConfig,
    SearchMethod,
    Stage,
    StateRule,
    Task,
    positions_read,
)

_SIZES = (
    "embedding_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "max_position_embeddings",
)  # fmt: skip


def check_model(config: ExperimentConfig) -> Iterator[str]:
    """What the prior and the second stage read, and sizes of the ALBERT families."""
    yield from _check_halting(config)
    model = config.model
    if isinstance(model, PonderSettings) and model.prior is Prior.uniform:
        yield from _check_uniform_prior(model)
    if isinstance(model, PonderAlbertModelConfig):
        head, layers = model.halting_head, model.halting_head_layers
        if layers > 1 and head is not HaltingHead.linear_cat:
            yield f"model.halting_head_layers={layers}: read only with model.halting_head=linear_cat"
    if not isinstance(model, AlbertModelConfig):
        return
    if isinstance(model, AlbertActModelConfig) and model.execution is Execution.ragged:
        yield from _check_ragged(config, model)
    if model.pretrained is None and config.mode is Mode.train:
        for name in _SIZES:
            if getattr(model, name) is None:
                yield f"model.{name}: a value is missing; without model.pretrained there is nothing to take it from"
    heads, hidden, positions = model.num_attention_heads, model.hidden_size, model.max_position_embeddings
    if heads is not None and hidden is not None and heads >= 1 and hidden % heads:
        yield f"model.num_attention_heads={heads}: must divide model.hidden_size={hidden}"
    key, needed = positions_read(config.dataset)
    if positions is not None and needed > positions:
        yield f"{key}={needed}: the model has only model.max_position_embeddings={positions} positions"


def _check_uniform_prior(model: PonderSettings) -> Iterator[str]:
    probability = model.target_halt_probability
    if probability is not None:
        yield (
            f"model.target_halt_probability={probability}: read only with model.prior=geometric; with "
            "model.prior=uniform set it to null"
        )


def _check_ragged(config: ExperimentConfig, model: AlbertActModelConfig) -> Iterator[str]:
    setting = "model.execution=ragged"
    if model.state_rule not in (StateRule.single, StateRule.graves):
        yield f"{setting}: needs model.state_rule=single or graves; halted states of {model.state_rule} keep moving"
    if model.attn_implementation is Attention.flex_attention:
        yield f"{setting}: needs model.attn_implementation eager, sdpa or flash_attention_2, not flex_attention"
    if config.runtime.compile:
        yield f"{setting}: not with runtime.compile=true, whose graph has one shape; set model.execution=auto"


def _check_halting(config: ExperimentConfig) -> Iterator[str]:
    """The second stage trains the halting head of a model that has been trained."""
    halting, model = config.halting, config.model
    if not halting.alone:
        if halting != HaltingConfig():
            yield "halting: read only with halting.alone=true"
        return
    if config.mode is not Mode.train:
        yield f"halting.alone=true: read only with mode=train, but mode={config.mode}"
    if not isinstance(model, PonderSettings):
        yield f"halting.alone=true: needs a model with halting logits, ponder_albert or ponder_rnn, not {model.name}"
    elif model.pretrained is None:
        yield "model.pretrained: halting.alone=true needs it, the folder of a trained model, e.g. RUN/model"


def check_adalayers(config: ExperimentConfig) -> Iterator[str]:
    """What Adalayers and the cache of states need of each other."""
    model, features = config.model, config.features
    if not isinstance(model, AdaLayersModelConfig):
        if features != FeaturesConfig():
            yield f"features: read only with a frozen base, model=adalayers_*, but model={model.name}"
        return
    if model.pretrained is not None:
        yield f"model.pretrained={model.pretrained}: the base is named by model.base_model"
    if features.cache and not model.freeze_base_model:
        yield (
            "features.cache=true: with model.freeze_base_model=false the base's states change at every update; "
            "set features.cache=false"
        )
    heads, width = model.attention_heads_num, model.project_dim
    if model.head is Head.attention and heads >= 1 and width % heads:
        yield f"model.attention_heads_num={heads}: must divide model.project_dim={width}"
    if model.layers_num is not None and not model.seed_compat:
        yield f"model.layers_num={model.layers_num}: read only with model.seed_compat=true; else it is the base's"


def check_par_xl(config: ExperimentConfig) -> Iterator[str]:
    """Sizes of PAR-XL, and what is read with it only."""
    model = config.model
    if not isinstance(model, ParXLModelConfig):
        if config.context != ContextConfig():
            yield f"context: read only with a model that remembers, model=par_xl_*, but model={model.name}"
        return
    heads, hidden = model.num_attention_heads, model.hidden_size
    if heads >= 1 and hidden % heads:
        yield f"model.num_attention_heads={heads}: must divide model.hidden_size={hidden}"
    cutoffs = model.cutoffs
    if any(cutoff < 1 for cutoff in cutoffs) or cutoffs != sorted(set(cutoffs)):
        yield f"model.cutoffs={cutoffs}: must be positive and increase"
    if model.architecture is not None and config.task is Task.architecture_search:
        yield f"model.architecture={model.architecture}: task=architecture_search searches it; use task=language_model"


def check_search(config: ExperimentConfig) -> Iterator[str]:
    """How gates learn is read only where there are gates, and each setting only where it means something."""
    search, is_search = config.search, config.task is Task.architecture_search
    has_gates = isinstance(config.model, ParXLModelConfig) and config.model.architecture is None
    if not has_gates:
        if search != SearchConfig():
            yield (
                "search: read only with a supernet, model=par_xl_* without model.architecture; one network trains with "
                "--config-name par_network"
            )
        return
    if search.method is SearchMethod.two_phase:
        if search.gate_learning_rate is None:
            yield "search.gate_learning_rate: search.method=two_phase needs it, e.g. 1e-2"
        if config.trainer.max_steps == -1:
            yield "trainer.max_steps=-1: search.method=two_phase needs the number of updates"
    if search.latency_weight > 0 and not is_search:
        yield f"search.latency_weight={search.latency_weight}: read only with task=architecture_search"
    if is_search and not search.stages:
        yield f"search.stages=[]: at least one is needed, of {', '.join(Stage)}"
    for shape in search.shapes:
        if len(shape) != 3 or shape[0] < 1 or shape[1] < 0 or shape[2] < 1:
            yield f"search.shapes={shape}: must be [length, memory, batch], e.g. [64, 640, 1]"
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if several and search.path is GatePath.sampled and not config.trainer.ddp_find_unused_parameters:
        yield "trainer.ddp_find_unused_parameters: search.path=sampled leaves parameters unused, set it to true"
