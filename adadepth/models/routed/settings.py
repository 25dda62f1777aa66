"""Settings of routed models, and their validation."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from adadepth.config import ExperimentConfig, Mode, family_name
from adadepth.config.declaration import FINITE, at_least, setting
from adadepth.errors import ConfigError
from adadepth.models.shared.network_settings import NetworkSettings, check_network

RouterKind = StrEnum("RouterKind", ["expert", "token", "threshold", "random"])
LayerSharing = StrEnum("LayerSharing", ["cycle", "sequence", "none"])
RouterNetwork = StrEnum("RouterNetwork", ["linear", "mlp"])
RouterGate = StrEnum("RouterGate", ["output", "update", "none"])
KeysAndValues = StrEnum("KeysAndValues", ["selected", "all", "first"])
CausalChoice = StrEnum("CausalChoice", ["router", "predictor"])
DepthBalance = StrEnum("DepthBalance", ["loss", "bias", "none"])
RoutedPart = StrEnum("RoutedPart", ["all", "routers"])

# Weights of the routers' losses: cross-entropy of the causal choice and balance of depths in MoR, excess over the
# capacity in Router-Tuning.
ROUTING_WEIGHTS = {"expert": 0.001, "token": 0.1, "threshold": 1.0, "random": 0.0}


@dataclass
class RoutedSettings(NetworkSettings):
    """An encoder or decoder of transformers in which routers choose the tokens that some parts process."""

    name: str = family_name("routed")
    router: RouterKind = setting(
        RouterKind.expert,
        "who chooses: each part its tokens (MoD, MoR), each token its depth once (MoR), each token for each part "
        "(Router-Tuning, FlexiDepth), or chance, as a control",
        shape=True,
        more="The equations are those of `adadepth.halting.routing`.",
    )
    recursions: int | None = setting(
        None,
        "R, number of routed parts between prelude and coda, which a token leaves for good (MoR); None: single layers "
        "are routed, each for itself (MoD)",
        at_least(1),
        shape=True,
    )
    sharing: LayerSharing = setting(
        LayerSharing.cycle,
        "weights of the recursions: the same layers in each, each layer R times in a row, or different layers",
        shape=True,
    )
    prelude: int = setting(0, "first layers that all tokens run; with recursions", at_least(0), shape=True)
    coda: int = setting(0, "last layers that all tokens run; with recursions", at_least(0), shape=True)
    routed_layers: list[int] | None = setting(
        None,
        "layers with a router without recursions, from 1; None: every second, or all but the first of router=threshold",
        shape=True,
    )
    capacities: list[float] | None = setting(
        None,
        "share of the tokens that each routed part processes in training, one number for all or one a part; None: 1, "
        "(R-1)/R, ... of recursions, 1/8 of single layers",
    )
    router_network: RouterNetwork = setting(
        RouterNetwork.linear, "form of a router: w h, or a hidden layer of width 2 D", shape=True
    )
    gating: RouterGate = setting(
        RouterGate.output,
        "how a chosen token changes: x + g B(x) (MoR), x + g (B(x) - x) (MoD), or B(x)",
        more="B(x) is the output of the part, with its residual connections, and g = gate_scale sigmoid(z).",
    )
    gate_scale: float = setting(0.1, "factor of the gate", FINITE)
    keys_and_values: KeysAndValues = setting(
        KeysAndValues.selected,
        "what a chosen token attends to: tokens chosen by the same part, all tokens, or those of the first recursion",
        more="See `adadepth.models.routed.spans`.",
    )
    causal_choice: CausalChoice = setting(
        CausalChoice.router,
        "what learns the choice without later tokens of router=expert: the router itself, or a predictor of its own "
        "that changes nothing else",
        shape=True,
    )
    choice_bias: float = setting(
        0.0, "added to the logits of choices in evaluation; more gives more depth, and budget.target fits it", FINITE
    )
    adapter_size: int | None = setting(
        None,
        "inner width of a feed-forward layer for the tokens that skip a layer (FlexiDepth); with router=threshold",
        at_least(1),
        shape=True,
    )
    routing_weight: float | None = setting(
        None,
        "weight of the routers' loss; None: .001 of router=expert, .1 of token, 1 of threshold",
        at_least(0),
        more="The loss is the cross-entropy of the causal choice, the balance of depths, or what exceeds the capacity; "
        "with adapters the squared number of layers (FlexiDepth).",
    )
    z_weight: float = setting(0.0, "weight of the squared router logits; MoR: 1e-5 with router=token", at_least(0))
    balance: DepthBalance = setting(
        DepthBalance.loss, "what balances the depths of router=token: a loss, or a bias of the choice"
    )
    bias_step: float = setting(0.001, "step of balance=bias in an optimiser step", at_least(0))
    measure_leak: bool = setting(
        False,
        "in evaluation, also choose the largest scores of whole rows, later tokens included, and report the loss",
        more="The choice of router=expert in training, which no generation can make. It costs a second forward pass.",
    )
    trains: RoutedPart = setting(
        RoutedPart.all, "what learns: all weights, or routers and adapters (Router-Tuning, FlexiDepth)"
    )


# Bias with which every token is chosen in evaluation, whatever its logit.
_CHOOSES_ALL = 1e4


def fix_routed_parts(model: RoutedSettings, depth: int) -> dict[str, Any]:
    """Return the settings of the network that has `depth` routed parts, and processes all tokens in them.

    Parts that all tokens run stay. Gates are left out, so that it is an ordinary network without routers.

    Raises:
        ConfigError: If only routers learn, or if no part would be left.
    """
    if model.trains is RoutedPart.routers:
        raise ConfigError("model.trains=routers: freezes the network, so its control is model.router=random")
    return _fix_parts(model, depth) | {
        "router": RouterKind.expert,
        "capacities": [1.0],
        "choice_bias": _CHOOSES_ALL,
        "causal_choice": CausalChoice.router,
        "gating": RouterGate.none,
        "routing_weight": 0.0,
        "z_weight": 0.0,
        "balance": DepthBalance.loss,
        "bias_step": RoutedSettings.bias_step,
        "adapter_size": None,
        "measure_leak": False,
    }


def _fix_parts(model: RoutedSettings, depth: int) -> dict[str, Any]:
    """Return the settings of a network with `depth` recursions, or with `depth` layers in place of all routed ones."""
    if model.recursions is not None:
        if depth == 0:
            raise ConfigError(f"model.recursions={model.recursions}: there is no network of 0 recursions")
        if model.sharing is not LayerSharing.none:
            return {"recursions": depth}
        fixed = model.prelude + model.coda
        core = (_count_layers(model) - fixed) // model.recursions
        return {"recursions": depth, "num_hidden_layers": fixed + core * depth}
    layers = _count_layers(model)
    routed = list_routed_layers(replace(model, num_hidden_layers=layers)) or []
    remaining = layers - len(routed) + depth
    if remaining == 0:
        raise ConfigError(f"model.routed_layers={model.routed_layers}: no layer would be left at depth 0")
    return {"num_hidden_layers": remaining, "routed_layers": [*range(remaining - max(depth, 1) + 1, remaining + 1)]}


def _count_layers(model: RoutedSettings) -> int:
    """Return the number of layers of a network, which may be that of `model.pretrained`."""
    if model.num_hidden_layers is not None:
        return model.num_hidden_layers
    from adadepth.models.folder import read_config  # imports transformers, which `--help` does not need

    layers: int = read_config("model.pretrained", str(model.pretrained)).get_text_config().num_hidden_layers
    return layers


def check_routing(model: Any) -> Iterator[str]:
    """Check settings or a configuration against each other; yield one line per mistake."""
    router, recursions = model.router, model.recursions
    layers = list_routed_layers(model)
    parts = recursions or (None if layers is None else len(layers))
    if recursions is None and (model.prelude or model.coda):
        yield f"prelude={model.prelude}, coda={model.coda}: read only with recursions"
    if recursions is not None and model.routed_layers is not None:
        yield f"routed_layers={model.routed_layers}: read only without recursions"
    if recursions is not None and model.num_hidden_layers is not None:
        core = model.num_hidden_layers - model.prelude - model.coda
        if core < 1:
            yield (
                f"prelude + coda = {model.prelude + model.coda}: must be less than num_hidden_layers="
                f"{model.num_hidden_layers}"
            )
        elif model.sharing == "none" and core % recursions:
            yield f"recursions={recursions}: must divide the {core} layers between prelude and coda with sharing=none"
    for layer in model.routed_layers or ():
        last = model.num_hidden_layers
        if layer < 1 or (last is not None and layer > last):
            yield f"routed_layers={model.routed_layers}: layers are counted from 1{f' to {last}' if last else ''}"
            break
    if sorted(set(model.routed_layers or ())) != (model.routed_layers or []):
        yield f"routed_layers={model.routed_layers}: must be ascending"
    if model.routed_layers == []:
        yield "routed_layers=[]: must have at least one layer"
    elif parts == 0:
        yield f"num_hidden_layers={model.num_hidden_layers}: no layer has a router; set routed_layers or recursions"
    if model.capacities is not None:
        if any(not 0 < capacity <= 1 for capacity in model.capacities) or not model.capacities:
            yield f"capacities={model.capacities}: must be numbers above 0 and at most 1"
        elif parts is not None and len(model.capacities) not in (1, parts):
            yield f"capacities={model.capacities}: must be 1 number or {parts}"
        elif recursions is not None and sorted(model.capacities, reverse=True) != model.capacities:
            yield f"capacities={model.capacities}: must not grow from recursion to recursion"
    if router == "token" and recursions is None:
        yield "router=token: needs recursions"
    if router == "threshold" and recursions is not None:
        yield f"recursions={recursions}: must be null with router=threshold, which routes single layers"
    if router == "threshold" and model.keys_and_values != "all":
        yield f"keys_and_values={model.keys_and_values}: must be all with router=threshold"
    if model.adapter_size is not None and router != "threshold":
        yield f"adapter_size={model.adapter_size}: read only with router=threshold"
    if model.keys_and_values == "first" and (recursions is None or model.sharing == "none"):
        yield "keys_and_values=first: needs recursions with shared weights"
    if model.causal_choice == "predictor" and router != "expert":
        yield f"causal_choice=predictor: read only with router=expert, not {router}"
    if model.trains == "routers" and router == "random":
        yield "trains=routers: router=random has no routers"


def list_routed_layers(model: Any) -> list[int] | None:
    """Return the numbers of single layers with a router, from 1, or None if the number of layers is not known.

    By default it is every second layer, and with router=threshold every layer but the first.
    """
    if model.routed_layers is not None:
        return list(model.routed_layers)
    if model.num_hidden_layers is None:
        return None
    return [*range(2, model.num_hidden_layers + 1, 1 if model.router == "threshold" else 2)]


def check_routed(config: ExperimentConfig) -> Iterator[str]:
    """Check that sizes are set or come from a pretrained network, and that settings fit together."""
    model = config.model
    assert isinstance(model, RoutedSettings)
    if config.mode is not Mode.train:
        return
    yield from check_network(config)
    if model.pretrained is None and model.trains is RoutedPart.routers:
        yield "model.trains=routers: needs model.pretrained"
    yield from (f"model.{mistake}" for mistake in (*check_routing(model), *_list_unread(model)))


def _list_unread(model: RoutedSettings) -> Iterator[str]:
    """Yield an error for each setting that the router does not read."""
    if model.measure_leak and model.router is not RouterKind.expert:
        yield "measure_leak=true: read only with router=expert"
    if model.balance is not DepthBalance.loss and model.router is not RouterKind.token:
        yield f"balance={model.balance}: read only with router=token"
    if model.bias_step != RoutedSettings.bias_step and model.balance is not DepthBalance.bias:
        yield f"bias_step={model.bias_step:g}: read only with balance=bias"
    if model.capacities is not None and model.router is RouterKind.token:
        yield f"capacities={model.capacities}: not read with router=token, which balances all depths"
