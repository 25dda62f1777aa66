"""Runner of the layers of a network of transformers, one at a time, for the rows and tokens that still run.

No network is rewritten. Its own forward pass embeds the tokens, makes masks and positions, and calls stand-ins for its
layers (`ExitableLayers`), which record what each layer gets beside its states. The layers then run one after the other
with these inputs: for the texts that are still there (`RunningTexts`), or for some tokens (`SubsetRunner`).

    h_0 = embed(tokens)
    h_l = layer_l(h_{l-1})            l = 1..L

Shape legend: B texts, A texts that still run, T tokens, M tokens in a cache, R rows with selected tokens and r columns
of the fullest of them, D width, L layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import local
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import Cache

from adadepth.models.depth.cache import record_keys_and_values
from adadepth.models.depth.subset import ATTENTION_MASK, RowSubset, TokenSubset
from adadepth.models.shared.encoders import select_accepted_inputs
from adadepth.models.shared.generation import CACHE_ARGUMENT
from adadepth.runtime.devices import fill_values, upload
from adadepth.runtime.distributed import is_distributed


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


class SubsetRunner:
    """Runner of layers for a subset of the tokens of a batch, or for all of them.

    Args:
        layers: Layers of the network.
        inputs: Inputs of every layer for all tokens.
        states: States of all tokens, (B, T, D).
        subset: Tokens, or None for all tokens.

    Attributes:
        states: Current states of the tokens, (R, r, D).
    """

    def __init__(
        self, layers: ExitableLayers, inputs: Sequence[LayerInputs], states: Tensor, subset: TokenSubset | None
    ) -> None:
        self._layers, self._inputs, self._subset = layers, inputs, subset
        self._batch = states.shape[0], states.shape[1]
        self.states = states if subset is None else subset.take(states)
        self._selected: dict[int, Any] = {}  # layers share most inputs

    def run(self, number: int, replaced: Mapping[str, Any]) -> None:
        """Run a layer, counted from 0. The inputs `replaced` are not those that its network passes."""
        arguments, options = self._select_inputs(number)
        self.states = run_layer(self._layers.get_layer(number), self.states, arguments, {**options, **replaced})

    def record(self, number: int, replaced: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Return the keys and values, (R, h, r, d) each, that a layer computes from the states."""
        arguments, options = self._select_inputs(number)
        layer = self._layers.get_layer(number)
        return record_keys_and_values(layer, self.states, *arguments, **{**options, **replaced})

    def put(self, states: Tensor) -> Tensor:
        """Return the states of all tokens, (B, T, D), with those of these tokens replaced."""
        return self.states if self._subset is None else self._subset.put(states, self.states)

    def select_mask(self, number: int, before: int) -> dict[str, Any]:
        """Return the attention mask of a layer for the tokens, as an input, given the number M of tokens in the cache.

        There is none for all tokens, whose mask is that of the network.
        """
        if self._subset is None:
            return {}
        mask = self._inputs[number].options[ATTENTION_MASK]
        return {ATTENTION_MASK: self._subset.select_mask(mask, before, self._batch[1], self._selected)}

    def _select_inputs(self, number: int) -> LayerInputs:
        """Return the inputs of a layer for the tokens, except for the attention mask."""
        inputs = self._inputs[number]
        if self._subset is None:
            return inputs
        options = self._subset.select_inputs(inputs.options, self._batch, self._selected)
        return LayerInputs(inputs.arguments, options)


def draw_skipped(probabilities: list[float], rows: int, device: torch.device) -> Tensor:
    """Draw whether each text skips each layer, boolean (B, L), by the probabilities of the layers."""
    return torch.rand(rows, len(probabilities), device=device) < fill_values(probabilities, device)


# ---- Multiply-accumulates

# Names of the linear layers that make queries, keys and values in decoders.
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "qkv_proj")


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
