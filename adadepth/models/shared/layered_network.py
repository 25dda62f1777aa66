"""Networks of transformers whose layers run one at a time, so that texts can leave the batch after each.

No network is rewritten. Its own forward pass embeds the tokens, makes masks and positions, and calls stand-ins for its
layers (`ExitableLayers`), which record what each layer gets beside its states. The layers then run one after the other
with these inputs, for the texts that are still there (`RunningTexts`).

    h_0 = embed(tokens)
    h_l = layer_l(h_{l-1})            l = 1..L
    z_n = head_n(norm_n(h_l))         after every layer l with an exit, n = 1..N

Shape legend: B texts, A texts that still run, T tokens, D width, L layers, N exits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import local
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedConfig
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions

from adadepth.errors import ConfigError
from adadepth.models.depth.subset import RowSubset
from adadepth.models.shared.cache_argument import CACHE_ARGUMENT
from adadepth.models.shared.encoders import select_accepted_inputs
from adadepth.runtime.devices import fill_values, upload
from adadepth.runtime.distributed import is_distributed

# Names of the norm between the last layer and the heads.
_NORMS = ("norm", "final_norm", "final_layernorm", "final_layer_norm", "ln_f")


# Names of the linear layers that make queries, keys and values in decoders.
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "qkv_proj")


class LayerInputs(NamedTuple):
    """Arguments of a layer beside its states, as its network passes them."""

    arguments: tuple[Any, ...]
    options: dict[str, Any]


@dataclass
class RunningTexts:
    """Texts of a batch between two layers.

    Attributes:
        states: States h_l, (A, T, D).
        inputs: Inputs of every layer.
        done: Number l of layers that ran.
        cache: Keys and values of earlier tokens, if there are some; then no text may leave.
        skipped: Whether each text skips each layer, boolean, (A, L), by layer dropout; None: none does.
        memory_length: Number of tokens in the cache before these.
    """

    states: Tensor = field(init=False)
    inputs: list[LayerInputs] = field(default_factory=list)
    done: int = 0
    cache: Cache | None = None
    skipped: Tensor | None = None
    memory_length: int = 0

    def run_layers(self, layers: ExitableLayers, stop: int) -> None:
        """Run layers until `stop` of all layers ran."""
        while self.done < stop:
            layer, (arguments, options) = layers.get_layer(self.done), self.inputs[self.done]
            if self.skipped is None:
                self.states = run_layer(layer, self.states, arguments, options)
            else:
                self.skipped = self.skipped.cpu()  # the host reads the choices of all layers at once
                self._run_part(layer, (~self.skipped[:, self.done]).nonzero().squeeze(1))
            self.done += 1

    def _run_part(self, layer: nn.Module, rows: Tensor) -> None:
        """Run the next layer for the texts at some positions, int64, (A',), on the host.

        With several processes a layer also runs where all texts skip it, for one text whose states stay the same: the
        other processes wait for its gradients.
        """
        if not len(rows) and not is_distributed():
            return
        subset = RowSubset(upload(rows, self.states.device))
        run = subset if len(rows) else RowSubset(subset.rows.new_zeros(1))
        inputs = (self.states, *self.inputs[self.done])
        part = run.select_inputs(inputs, (len(self.states), self.states.shape[1]), {})
        self.states = subset.put(self.states, run_layer(layer, *part)[: len(rows)])

    def keep(self, rows: Tensor) -> None:
        """Drop all texts but these positions, int64, (A',)."""
        subset, selected = RowSubset(rows), dict[int, Any]()  # layers share most inputs
        batch = len(self.states), self.states.shape[1]
        self.inputs[self.done :] = [
            LayerInputs(*subset.select_inputs(tuple(inputs), batch, selected)) for inputs in self.inputs[self.done :]
        ]
        self.states = subset.take(self.states)


def run_layer(layer: nn.Module, states: Tensor, arguments: tuple[Any, ...], options: dict[str, Any]) -> Tensor:
    """Run a layer of transformers with the arguments that its network passes, and return the states."""
    output = layer(states, *arguments, **options)
    updated: Tensor = output[0] if isinstance(output, tuple) else output
    return updated


class _Recording(local):
    """The texts whose inputs this thread records; torch.compile cannot trace a `ContextVar`."""

    def __init__(self) -> None:
        self.running: RunningTexts | None = None


_recording = _Recording()


class ExitableLayers(nn.ModuleList):
    """The layers of a network; within `record`, the network gets stand-ins that run nothing.

    Args:
        layers: Modules with the weights. ALBERT has fewer of them than layers, and applies each several times in a row.
        depth: Number L of layers.
    """

    def __init__(self, layers: nn.ModuleList, depth: int) -> None:
        super().__init__(layers)
        self.depth = depth

    def get_layer(self, number: int) -> nn.Module:
        """Return the module that is layer `number` of L, counted from 0."""
        return super().__getitem__(number * len(self) // self.depth)

    def __iter__(self) -> Iterator[Any]:
        running, layers = _recording.running, super().__iter__()
        return layers if running is None else iter([_StandIn(layer, running) for layer in layers])

    def __getitem__(self, index: Any) -> Any:
        running = _recording.running
        if isinstance(index, slice):
            return self if running is not None or index == slice(None, len(self)) else nn.ModuleList([*self][index])
        layer = super().__getitem__(index)
        return layer if running is None else _StandIn(layer, running)

    @contextmanager
    def record(self) -> Iterator[RunningTexts]:
        """Record the inputs of all layers in a call of their network within the context."""
        running = RunningTexts()
        outer, _recording.running = _recording.running, running
        try:
            yield running
        finally:
            _recording.running = outer


class _StandIn:
    """A layer that records its inputs and returns its states; its attributes are those of the layer."""

    def __init__(self, layer: nn.Module, running: RunningTexts) -> None:
        self._layer, self._running = layer, running

    def __call__(self, states: Tensor, *arguments: Any, **options: Any) -> Tensor:
        self._running.states = states
        self._running.inputs.append(LayerInputs(arguments, options))
        return states

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)


class HeadInput(nn.Module):
    """Final norm and pooler of a network, which replace the network in its model of transformers with a head.

    Attributes:
        norm: Norm of the states before `forward`, which gets them normed; an identity if there is none.
        pooler: Function from normed states to the pooled first token; None: the head needs none.
    """

    def __init__(self, norm: nn.Module, pooler: nn.Module | None) -> None:
        super().__init__()
        self.norm, self.pooler = norm, pooler

    def get_input_embeddings(self) -> None:
        """Return None: the embeddings are in the network. transformers asks before it returns a head's matrix."""

    def forward(self, *arguments: Any, inputs_embeds: Tensor, **options: Any) -> Any:
        """Return normed states (A, T, D) as if they were the output of the network."""
        pooled = None if self.pooler is None else self.pooler(inputs_embeds)
        return BaseModelOutputWithPoolingAndCrossAttentions(last_hidden_state=inputs_embeds, pooler_output=pooled)


class FirstTokenPooler(nn.Module):
    """The pooler of ALBERT, which is a linear layer and an activation of the network: tanh(W h_1)."""

    def __init__(self, dense: nn.Linear, activation: nn.Module) -> None:
        super().__init__()
        self.dense, self.activation = dense, activation

    def forward(self, states: Tensor) -> Tensor:
        """Return the pooled first token, (A, D), of states (A, T, D)."""
        pooled: Tensor = self.activation(self.dense(states[:, 0]))
        return pooled


class Parts(NamedTuple):
    """A model of transformers in two parts.

    Attributes:
        base: Its network up to the last layer, with `ExitableLayers`.
        head: The model without the network, called with states as `inputs_embeds`; its network is a `HeadInput`.
        tied: Tied weights by name, as `_tied_weights_keys` of a model with the attributes `model` and `head`.
    """

    base: Any
    head: Any
    tied: dict[str, str]


def split_model(model: Any) -> Parts:
    """Split a model of transformers, which is changed, before what follows its last layer.

    Raises:
        ConfigError: If its network has no list of layers, a second stack of them, or experts.
    """
    base, prefix, config = model.base_model, model.base_model_prefix, model.config
    if base is model or config.is_encoder_decoder:
        raise ConfigError(f"base={config.model_type}: {type(model).__name__} is no network of one stack with a head")
    if hasattr(config, "output_router_logits"):  # which their head reads
        raise ConfigError(f"base={config.model_type}: mixtures of experts are not supported")
    name, stack, layers = _find_layers(base, config)
    setattr(stack, name, ExitableLayers(layers, config.num_hidden_layers))
    norm_name = next((name for name in _NORMS if isinstance(getattr(base, name, None), nn.Module)), None)
    norm = nn.Identity() if norm_name is None else getattr(base, norm_name)
    if norm_name is not None:
        setattr(base, norm_name, nn.Identity())
    pooler = getattr(base, "pooler", None)
    if pooler is not None:
        base.pooler = None
    if isinstance(pooler, nn.Linear):  # of ALBERT
        pooler = FirstTokenPooler(pooler, base.pooler_activation)
    setattr(model, prefix, HeadInput(norm, pooler))
    for plan in ("_tp_plan", "_ep_plan", "_pp_plan"):  # of parallel execution; the network has its own
        entries = (getattr(model, plan, None) or {}).items()
        setattr(model, plan, {name: value for name, value in entries if not name.startswith(f"{prefix}.")})
    tied = {f"head.{name}": _rename_source(source, prefix) for name, source in (model._tied_weights_keys or {}).items()}
    model._tied_weights_keys, model.all_tied_weights_keys = None, {}
    return Parts(base, model, tied)


def _rename_source(name: str, prefix: str) -> str:
    inner = name.removeprefix(f"{prefix}.")
    return f"head.{name}" if inner == name else f"model.{inner}"


def _find_layers(base: Any, config: PreTrainedConfig) -> tuple[str, Any, nn.ModuleList]:
    """Find the list of layers of a network: return the name of the attribute, the module that has it, and the list."""
    modules = getattr(config, "num_hidden_groups", config.num_hidden_layers)  # ALBERT applies each several times
    for stack in filter(None, (base, getattr(base, "encoder", None), getattr(base, "transformer", None))):
        for name, layers in stack.named_children():
            if isinstance(layers, nn.ModuleList) and len(layers) == modules:
                return name, stack, layers
    raise ConfigError(f"base={config.model_type}: its network has no list of {config.num_hidden_layers} layers")


def begin_texts(base: Any, layers: ExitableLayers, inputs: Mapping[str, Any], use_cache: bool) -> RunningTexts:
    """Embed texts, and return them before the first layer.

    Args:
        base: See `Parts`.
        layers: Its layers.
        inputs: Arguments of the network; those that it does not know are dropped.
        use_cache: Whether it makes a cache if the inputs have none.
    """
    cache = inputs.get(CACHE_ARGUMENT)
    with layers.record() as running:
        running.memory_length = 0 if cache is None else cache.get_seq_length()
        output = base(**select_accepted_inputs(base, {**inputs, "use_cache": use_cache}))
    running.cache = getattr(output, CACHE_ARGUMENT, None)
    return running


def count_layer_macs(layer: nn.Module) -> int:
    """Count the multiply-accumulates of a layer per token, those of attention's pairs excepted: its weights."""
    return sum(part.weight.numel() for part in layer.modules() if isinstance(part, nn.Linear))


def count_pair_macs(config: Any) -> float:
    """Count the multiply-accumulates of a pair of query and key in a layer: 2 D_q, for the width D_q of all queries.

    Args:
        config: Configuration of the network.
    """
    heads = config.num_attention_heads
    pair = 2.0 * heads * (getattr(config, "head_dim", None) or config.hidden_size // heads)
    return pair * getattr(config, "inner_group_num", 1)  # a layer of ALBERT may be several in a row


def count_projection_macs(layer: nn.Module) -> int:
    """Count the multiply-accumulates of the queries, keys and values that a layer of a decoder makes of a token."""
    return sum(
        part.weight.numel()
        for name, part in layer.named_modules()
        if isinstance(part, nn.Linear) and name.rpartition(".")[2] in _PROJECTIONS
    )


def draw_skipped(probabilities: list[float], rows: int, device: torch.device) -> Tensor:
    """Draw whether each text skips each layer, boolean (B, L), by the probabilities of the layers."""
    return torch.rand(rows, len(probabilities), device=device) < fill_values(probabilities, device)
