"""Execution of the parts of a routed model for the tokens that routers chose.

The chosen tokens of a batch are packed into a rectangle of R rows and r columns, and the layers of a part run for this
rectangle alone. A chosen token attends to those before it, of which `keys_and_values` says where they come from:

    selected  the tokens that the same part processed, of this call and of earlier ones
    all       every token; the keys and values of those that skip the part are computed from their states
    first     the tokens that the first part with the same weights processed, with the keys and values that they had
              there (MoR's recursive sharing)

Shape legend: B rows, T new tokens, M tokens of earlier calls, R rows with chosen tokens, r columns of the fullest of
them, K columns that they attend to, D width.
"""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor

from adadepth.errors import ConfigError
from adadepth.models.depth.cache import LayerView, record_keys_and_values
from adadepth.models.depth.runner import ExitableLayers, LayerInputs, RunningTexts, SubsetRunner, run_layer
from adadepth.models.depth.subset import ATTENTION_MASK, TokenSubset
from adadepth.models.routed.cache import RoutedCache
from adadepth.models.shared.generation import CACHE_ARGUMENT


class RoutedSpan(NamedTuple):
    """Consecutive layers of a routed model, which all tokens run, or those that a router chooses.

    Attributes:
        number: Number of the span, from 0.
        start: Number of its first layer among those that a token passes, from 0.
        modules: Number of the module with the weights of each layer.
        router: Number of its router, from 0; None: all tokens run the span.
        sources: Layer whose keys and values each layer reads; its own number, or that of an earlier layer with the same
            weights.
    """

    number: int
    start: int
    modules: tuple[int, ...]
    router: int | None
    sources: tuple[int, ...]

    @property
    def layers(self) -> range:
        """Numbers of its layers among those that a token passes."""
        return range(self.start, self.start + len(self.modules))


class SpanRunner:
    """Runner of the spans of a forward pass.

    Args:
        layers: Modules of the network.
        spans: All spans.
        running: Embedded tokens with the inputs of every module.
        real: Mask of the new tokens that are not padding, boolean (B, T).
        is_causal: Whether tokens see only those before them.
        cache: Cache; None: keys and values are not stored.
        keys_and_values: Tokens to attend to; see the module.

    Raises:
        ConfigError: If layers must store keys and values, but cannot, as those of ModernBERT.

    Attributes:
        spans: All spans.
        counts: Number of queries, keys and query-key pairs in a layer of every span that ran, in their order.
    """

    def __init__(
        self,
        layers: ExitableLayers,
        spans: list[RoutedSpan],
        running: RunningTexts,
        real: Tensor,
        *,
        is_causal: bool,
        cache: RoutedCache | None,
        keys_and_values: str,
    ) -> None:
        self._layers, self.spans, self._real, self._is_causal = layers, spans, real, is_causal
        self._inputs = [_name_inputs(layers.get_layer(number), inputs) for number, inputs in enumerate(running.inputs)]
        needs_cache = keys_and_values != "selected" and any(span.router is not None for span in spans)
        if cache is None and needs_cache:
            cache = RoutedCache(sum(len(span.modules) for span in spans), len(spans))
            cache.open(*real.shape)
        if cache is not None and not all(CACHE_ARGUMENT in inputs.options for inputs in self._inputs):
            raise ConfigError(f"keys_and_values={keys_and_values}: the layers of this base store no keys and values")
        self._cache, self._keys_and_values = cache, keys_and_values
        self._owners = {layer: span.number for span in spans for layer in span.layers}
        self._before = 0 if cache is None else cache.get_seq_length()
        self.counts: list[tuple[int, int, int]] = []

    def run_all(self, span: RoutedSpan, states: Tensor) -> Tensor:
        """Run a span for all tokens, and return their states, (B, T, D)."""
        rows, width = states.shape[:2]
        for layer, module, source in zip(span.layers, span.modules, span.sources, strict=True):
            options = dict(self._inputs[module].options)
            if CACHE_ARGUMENT in options:
                options[CACHE_ARGUMENT] = self._view_layer(layer, source, None)
            states = run_layer(self._layers.get_layer(module), states, (), options)
        pairs = width * (width + 1) // 2 if self._is_causal else width * width
        self.counts.append((rows * width, rows * width, rows * (pairs + width * self._before)))
        return states

    def run_chosen(self, span: RoutedSpan, states: Tensor, chosen: Tensor, counts: Tensor | None) -> Tensor:
        """Run a span for the chosen tokens, and return the states of all, (B, T, D).

        Args:
            span: Span.
            states: States of all tokens, (B, T, D).
            chosen: Mask of the chosen tokens, boolean (B, T).
            counts: Number of chosen tokens of each row on the host, int64 (B,); None: the host reads it.
        """
        if has_fixed_shapes(chosen):
            subset = TokenSubset.from_batch(chosen)
        else:
            counts = chosen.sum(dim=1).cpu() if counts is None else counts
            if self._cache is None and int(counts.min()) == chosen.shape[1]:
                return self.run_all(span, states)
            subset = TokenSubset.from_counts(chosen, counts)
        has_tokens = bool(subset.cell_count)
        if not has_tokens and (self._cache is None or self._keys_and_values != "all"):
            self.counts.append((0, 0, 0))
            return states
        span_columns = self._append_columns(span, subset)
        runner = SubsetRunner(self._layers, self._inputs, states, subset)
        masks: dict[tuple[int, int], Tensor | None] = {}
        width = span_columns.shape[1]
        for layer, module, source in zip(span.layers, span.modules, span.sources, strict=True):
            if self._cache is not None and self._keys_and_values == "all":
                states = runner.put(states)
                self._store_all(layer, module, states)
            if has_tokens:
                owner = self._owners[source]
                if (module, owner) not in masks:
                    columns = span_columns if owner == span.number else self._read_columns(owner, subset)
                    width = max(width, columns.shape[1])
                    masks[module, owner] = self._build_mask(module, subset, columns)
                view = self._view_layer(layer, source, subset)
                replaced = {ATTENTION_MASK: masks[module, owner], CACHE_ARGUMENT: view}
                accepted = self._inputs[module].options
                runner.run(module, {name: value for name, value in replaced.items() if name in accepted})
        self._count(subset, width)
        return runner.put(states)

    def _view_layer(self, layer: int, source: int, subset: TokenSubset | None) -> LayerView | None:
        """Return the cache of the next layer, which runs for a subset of the tokens or for all of them."""
        if self._cache is None:
            return None
        is_routed = self.spans[self._owners[layer]].router is not None
        is_stored = self._keys_and_values == "all" and is_routed
        target = self._cache.target
        target.picked, target.appends = subset, layer == source and not is_stored
        return LayerView(self._cache, source)

    def _store_all(self, layer: int, module: int, states: Tensor) -> None:
        """Store the keys and values that a layer computes from the states of all tokens, (B, T, D)."""
        assert self._cache is not None
        keys, values = record_keys_and_values(self._layers.get_layer(module), states, **self._inputs[module].options)
        self._cache.target.picked = None
        stored: Any = self._cache.layers[layer]
        stored.append(keys, values)

    def _append_columns(self, span: RoutedSpan, subset: TokenSubset) -> Tensor:
        """Return the token of every column that the chosen tokens attend to, int64 (R, K), -1 where there is none."""
        rows, width = self._real.shape
        if self._keys_and_values == "all":
            tokens = torch.arange(width, device=subset.rows.device).expand(rows, width)
            columns = torch.where(self._real, tokens + self._before, -1)
        else:
            columns = subset.rows.new_full((rows, subset.tokens.shape[1]), -1)
            columns[subset.rows] = torch.where(subset.real, subset.tokens + self._before, -1)
        if self._cache is None:
            return columns[subset.rows]
        return self._cache.append_columns(span.number, span.layers, columns)[subset.rows]

    def _read_columns(self, span: int, subset: TokenSubset) -> Tensor:
        """Return the token of every column of another span, int64 (R, K)."""
        assert self._cache is not None
        columns = self._cache.columns[span]
        assert columns is not None
        return columns[subset.rows]

    def _build_mask(self, module: int, subset: TokenSubset, columns: Tensor) -> Tensor | None:
        """Return the attention mask of the chosen tokens, (R, 1, r, K); None: the layer's own, causal or full.

        Places of the rectangle without a chosen token see everything, since attention to nothing is not a number.
        """
        mask = self._inputs[module].options.get(ATTENTION_MASK)
        is_packed = self._before == 0 and self._keys_and_values == "selected"
        if mask is None and is_packed and subset.is_full:
            return None
        seen = (columns >= 0)[:, None, None, :]
        if mask is None:
            if self._is_causal:
                seen = seen & (columns[:, None, None, :] <= (subset.tokens + self._before)[:, None, :, None])
            return seen | ~subset.real[:, None, :, None]
        rows = mask.expand(self._real.shape[0], *mask.shape[1:])[subset.rows]
        rows = rows.take_along_dim(subset.tokens[:, None, :, None], dim=2)
        rows = rows.take_along_dim(columns.clamp(min=0)[:, None, None, :], dim=3)
        if mask.dtype == torch.bool:
            return (rows & seen) | ~subset.real[:, None, :, None]
        lowest = torch.finfo(rows.dtype).min
        return rows.masked_fill(~seen, lowest).masked_fill(~subset.real[:, None, :, None], 0.0)

    def _count(self, subset: TokenSubset, columns: int) -> None:
        rows, width = subset.tokens.shape
        stored = rows * width  # and with `all`, queries, keys and values of every token once more
        if self._keys_and_values == "all":
            stored += self._real.numel()
        pairs = rows * width * columns
        if self._is_causal:
            pairs -= rows * width * (width - 1) // 2
        self.counts.append((rows * width, stored, pairs))


def has_fixed_shapes(chosen: Tensor) -> bool:
    """Return whether no shape may depend on the values of choices, as in a compiled graph and in an estimate."""
    return torch.compiler.is_compiling() or isinstance(chosen, FakeTensor)


def _name_inputs(layer: nn.Module, inputs: LayerInputs) -> LayerInputs:
    """Return the inputs of a layer beside its states, all of them by name."""
    names = list(inspect.signature(layer.forward).parameters)[1:] if inputs.arguments else []
    by_name = dict(zip(names, inputs.arguments, strict=False))
    return LayerInputs((), {**by_name, **inputs.options})
