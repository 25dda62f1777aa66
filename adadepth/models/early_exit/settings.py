"""Settings of early-exit models, and their validation."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from adadepth.config import ExperimentConfig, Mode, family_name
from adadepth.config.choices import Pooling
from adadepth.config.declaration import SHARE, at_least, between, setting
from adadepth.config.kinds import classifies_sequences
from adadepth.errors import CheckpointError, ConfigError
from adadepth.models.shared.halting_settings import find_loss_problems, find_unit_problems
from adadepth.models.shared.network_settings import NetworkSettings, check_network
from adadepth.runtime.json_files import read_json

ExitHeads = StrEnum("ExitHeads", ["shared", "norm", "own", "mlp"])
ExitCurriculum = StrEnum("ExitCurriculum", ["none", "rotational", "gradual"])
ExitCachePolicy = StrEnum("ExitCachePolicy", ["all", "frozen", "deferred"])
DropoutGrowth = StrEnum("DropoutGrowth", ["none", "exponential"])
TrainedPart = StrEnum("TrainedPart", ["all", "exits"])


@dataclass
class EarlyExitSettings(NetworkSettings):
    """An encoder or decoder of transformers with an exit after all or some of its layers."""

    name: str = family_name("early_exit")
    embedding_size: int | None = setting(
        None, "E, width of the word embeddings of ALBERT and ELECTRA; None: hidden_size", at_least(1), shape=True
    )
    exit_layers: list[int] | None = setting(
        None, "layers with an exit after them, counted from 1; None: all. The last layer always has one", shape=True
    )
    exit_heads: ExitHeads = setting(
        ExitHeads.shared,
        "what an early exit reads its state with: final norm and head of the last exit, a norm of its own, also a head "
        "of its own, or also a feed-forward layer before both",
        shape=True,
        more="`shared`: LayerSkip (arXiv 2404.16710); `own`: DeeBERT; `norm`, `mlp`: EE-LLM (arXiv 2312.04916).",
    )
    pooling: Pooling = setting(
        Pooling.first,
        "state that a classifier of texts reads after a layer of an encoder: of the first token, or the mean of all",
        shape=True,
        later=True,
        more="The network's own head reads the mean in place of the first token.",
    )
    exit_rule: str | None = setting(
        None,
        "which exit's prediction counts; None: that of the last one",
        more="The rule where a call names none, as `adadepth.halting.exit_rules.parse_rule` reads it.",
    )
    exit_gate: bool = setting(
        False,
        "a unit that learns at every exit whether its prediction is right, for exit_rule=correct",
        shape=True,
        more="BERxiT (Xin et al. 2021) calls it learning to exit; the loss is in `adadepth.models.early_exit.losses`.",
    )
    halting_unit: str = setting(
        "linear",
        "unit that computes the gate's logit: linear, mlp, or NAME[:PARAMETER] of an installed package",
        shape=True,
        later=True,
        more="`linear` is w h + b; see `adadepth.halting.units`.",
    )
    cache_policy: ExitCachePolicy = setting(
        ExitCachePolicy.all,
        "what later tokens read of a token that skipped layers in decoding: it runs all layers, keeps the state of its "
        "exit, or runs the others once a later token needs them",
        more="The policies are those of `adadepth.models.early_exit.cache`.",
    )
    exit_weights: str = setting(
        "linear",
        "weights of the losses of the exits: last, uniform, linear, sqrt, inverse, inverse_sqrt, sum, layerskip, or "
        "NAME[:PARAMETER] of an installed package",
        more="The equations are those of `adadepth.halting.step_losses` and `adadepth.models.early_exit.losses`.",
    )
    exit_scale: float = setting(1.0, "e_scale, factor of the weights of all exits but the last", at_least(0))
    exit_curriculum: ExitCurriculum = setting(
        ExitCurriculum.none,
        "which exits have a loss in an optimiser step: all, every R-th in turn, or more and more from the last on",
    )
    rotation: int = setting(4, "R of exit_curriculum=rotational", at_least(1))
    layer_dropout: float = setting(
        0.0, "p_max, probability that a text skips the last layer in training; less in earlier layers", SHARE
    )
    dropout_growth: DropoutGrowth = setting(
        DropoutGrowth.none, "how layer_dropout grows over the optimiser steps; LayerSkip from scratch: exponential"
    )
    distillation: float = setting(
        0.0, "weight of the divergence of early predictions from the last one, beside their losses", at_least(0)
    )
    distillation_temperature: float = setting(1.0, "temperature of distillation", between(1e-3, 1e3))
    trains: TrainedPart = setting(
        TrainedPart.all,
        "what learns: all weights, or those of early exits, which begin as the last one's (EE-Tuning)",
        more="`exits` is EE-Tuning (arXiv 2402.00518); it needs model.exit_heads other than shared.",
    )
    save_base: bool = setting(
        True, "save the network with the exits; false, with trains=exits: store only its name and hash"
    )


def fix_last_exit(model: EarlyExitSettings, depth: int) -> dict[str, Any]:
    """Return the settings of the network that ends at exit `depth`, and trains with its last head alone.

    Raises:
        ConfigError: If only exits learn.
    """
    if model.trains is TrainedPart.exits:
        raise ConfigError(
            "model.trains=exits: each exit trains alone on a frozen network, so exit_rules=[fixed:N] is its baseline"
        )
    exits = range(1, depth + 1) if model.exit_layers is None else sorted(set(model.exit_layers))
    return {
        "num_hidden_layers": exits[depth - 1] if depth <= len(exits) else model.num_hidden_layers,
        "exit_layers": [],  # the last layer always has an exit
        "exit_heads": ExitHeads.shared,
        "exit_rule": None,
        "exit_gate": False,
        "halting_unit": EarlyExitSettings.halting_unit,
        "exit_weights": "last",
        "exit_curriculum": ExitCurriculum.none,
        "layer_dropout": 0.0,
        "dropout_growth": DropoutGrowth.none,
        "distillation": 0.0,
    }


def check_early_exit(config: ExperimentConfig) -> Iterator[str]:
    """Check that sizes are set or come from a pretrained network, and that the settings of training fit together.

    A checkpoint has settings of its own, so in other modes than training only its loading compares them with overrides.
    """
    model = config.model
    assert isinstance(model, EarlyExitSettings)
    if config.mode is not Mode.train:
        return
    has_own_matrices = model.exit_heads in (ExitHeads.own, ExitHeads.mlp)
    yield from check_network(config, adapts_frozen=model.trains is TrainedPart.exits and has_own_matrices)
    if not model.save_base:
        yield from _check_apart(config)
    layers = _read_layer_count(model)
    for layer in model.exit_layers or ():
        if layer < 1 or (layers is not None and layer > layers):
            yield f"model.exit_layers={model.exit_layers}: layers are counted from 1{f' to {layers}' if layers else ''}"
            break
    if model.trains is TrainedPart.exits and model.exit_heads is ExitHeads.shared and not model.exit_gate:
        yield "model.exit_heads=shared: must be norm, own or mlp, because model.trains=exits without model.exit_gate"
    early = range(1, layers or 0) if model.exit_layers is None else model.exit_layers
    yield from find_unit_problems(model.halting_unit, "exit_gate", model.exit_gate)
    if model.exit_gate and layers is not None and {*early} <= {layers}:
        yield f"model.exit_gate=true: needs at least 2 exits, but model.exit_layers={model.exit_layers} has 1"
    if model.distillation and layers is not None and {*early} <= {layers}:
        exits = f"model.exit_layers={model.exit_layers} has 1"
        yield f"model.distillation={model.distillation:g}: needs at least 2 exits, but {exits}"
    if model.trains is TrainedPart.exits and model.layer_dropout:
        yield f"model.layer_dropout={model.layer_dropout:g}: must be 0, because model.trains=exits"
    yield from find_loss_problems("model.exit_weights", model.exit_weights)
    if model.trains is TrainedPart.exits and model.exit_weights == "last":
        yield "model.exit_weights=last: must be another one, because model.trains=exits"
    if model.exit_weights == "layerskip" and layers == 1:
        yield "model.exit_weights=layerskip: must be another one, because model.num_hidden_layers=1 has the weight 0"
    if model.exit_curriculum is not ExitCurriculum.none:
        if model.exit_weights == "last":
            yield f"model.exit_curriculum={model.exit_curriculum}: must be none, because model.exit_weights=last"
        if model.trains is TrainedPart.exits:
            yield f"model.exit_curriculum={model.exit_curriculum}: must be none, because model.trains=exits"
    if model.pooling is not Pooling.first and not classifies_sequences(config):
        yield f"model.pooling={model.pooling}: only used for classification of whole sequences"
    if not model.layer_dropout and model.dropout_growth is not DropoutGrowth.none:
        yield f"model.dropout_growth={model.dropout_growth}: read only with model.layer_dropout above 0"


def _read_layer_count(model: EarlyExitSettings) -> int | None:
    """Return the number of layers, or None if only loading the network tells it, as for an id of the hub."""
    if model.num_hidden_layers is not None or model.pretrained is None:
        return model.num_hidden_layers
    try:
        network = read_json(Path(model.pretrained, "config.json"), dict[str, object], allow_nan=True)
    except CheckpointError:  # reported when the network is loaded
        return None
    layers = network.get("num_hidden_layers")
    return layers if isinstance(layers, int) else None


def _check_apart(config: ExperimentConfig) -> Iterator[str]:
    """Yield an error for each setting that keeps exits from being saved without their network."""
    model: Any = config.model
    if model.trains is not TrainedPart.exits:
        yield "model.save_base=false: only with model.trains=exits, which leaves the network as it is stored elsewhere"
    if model.pretrained is None:
        yield "model.pretrained: required by model.save_base=false"
    if (rank := config.trainer.lora.rank) is not None:
        alone = "the folder adapter/ of the run has the exits alone"
        yield f"model.save_base=false: cannot be combined with trainer.lora.rank={rank}; {alone}"


def list_movable_exit_metrics(described: Any) -> tuple[str, ...] | None:
    """Return the metrics of an evaluation that training can change, or None if it can change all of them.

    On a frozen network, the predictions of the last exit never change. Those of early exits with the shared head do not
    change either, so that only an exit rule that reads the gate moves exits.

    Args:
        described: Settings or configuration of the model.
    """
    if described.trains != TrainedPart.exits:
        return None
    rule = str(described.exit_rule).partition(":")[0]
    if described.exit_heads == ExitHeads.shared:
        return None if rule == "correct" else ("loss", "gate_loss")
    return ("loss", "task_loss", "distillation_loss", "gate_loss") if described.exit_rule is None else None
