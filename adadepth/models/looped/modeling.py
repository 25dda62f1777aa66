"""Looped causal language models: prelude, core times N, coda (Huginn, arXiv 2502.05171; Ouro, arXiv 2510.25741).

    e   = prelude(E[tokens])                              the input of every loop
    s_0 = e, zeros, or drawn
    z   = s, s + e, A [s, e] or e                         `injection`
    s_n = s_{n-1} + d (core(z) - s_{n-1})                 d is 1 unless `damping` says otherwise
    r_n = rms(coda(s_n)) of n = 1..N                      what heads read; `state_norm` puts a norm before the coda, too
    lambda_n = sigmoid(g rms(s_n) + b)                    the halting unit, where there is a `gate`

With `state_norm=fed` it is the normed state that the next loop gets and the heads read, once normed where there is no
coda. Layers are attention and a gated feed-forward layer with rotary positions, or those of any decoder of transformers
(`retrofit`). The unit of depth is a token, its updates are loops. Other tokens go on reading a token that has exited,
so that no rule changes a state; loops end when all tokens have exited.

Shape legend: B rows, T new tokens, M tokens in the cache, D width, h heads, V pieces, N loops, P, C and Q layers of
prelude, core and coda.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel
from transformers import initialization as init
from transformers.masking_utils import create_masks_for_generate
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple

from adadepth.errors import ConfigError, DataError
from adadepth.halting.trace import DepthUnit
from adadepth.models.contract import DepthModel
from adadepth.models.looped.cache import LoopedCache, Selection, make_cache
from adadepth.models.looped.configuration import LoopedConfig
from adadepth.models.looped.convert import (
    PUBLISHED_MODELS,
    read_generation_config,
    read_published_weights,
)
from adadepth.models.looped.layers import (
    LoopedHaltingUnit,
    LoopedLayer,
    build_decoder_parts,
    build_norm,
    rotation_tables,
)
from adadepth.models.looped.token_compaction import begin_running, close, loop_running, read_running
from adadepth.models.shared.encoders import check_words
from adadepth.models.shared.layers import Product


class CacheLayerView:
    """A cache as one layer sees it: the layer's number in the cache replaces the number that the layer has."""

    def __init__(self, cache: Cache, number: int) -> None:
        self._cache, self._number = cache, number

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        """Add keys and values (B, h, T, d); returns all, (B, h, M + T, d)."""
        return self._cache.update(keys, values, self._number, *args, **kwargs)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return M."""
        return self._cache.get_seq_length(self._number)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)


@dataclass
class Looping:
    """A batch in the middle of its loops.

    Attributes:
        embedded: e, (B, T, D).
        state: s_n, (B, T, D).
        normed: The final norm of s_n, (B, T, D); None before the first loop.
        positions: Positions of the new tokens, int64, (B, T).
        masks: Attention masks by the kinds of the layers, or one for all.
        rotation: Cosines and sines of the positions.
        cache: Keys and values of earlier tokens; None: there are none, and none are stored.
        loops: N of this call.
        done: n.
        counts: Loops after which each row stops, int64 (B,), where rows train for different numbers; else None.
        kinds: Kind of every layer's mask, where they differ.
        running: Tokens that have not exited, boolean (B, T), where the cache's policy stops those that have; else None.
        picked: Tokens that ran the last loop; None: all.
        readings: Last reading of each token, (B, T, D), where there is `running`.
        computed: Numbers of queries, keys and pairs of both of every loop, where there is `running`.
    """

    embedded: Tensor
    state: Tensor
    normed: Tensor | None
    positions: Tensor
    masks: Any
    rotation: Any
    cache: Cache | None
    loops: int
    done: int = 0
    counts: Tensor | None = None
    kinds: list[str] | None = None
    running: Tensor | None = None
    picked: Selection | None = None
    readings: Tensor | None = None
    computed: list[tuple[int, int, int]] = field(default_factory=list)


class Layers(nn.ModuleList, GradientCheckpointingLayer):
    """A sequence of layers, whose activations are recomputed together: only the state before it is stored."""

    def forward(self, states: Tensor, queries: Tensor | None, run: Looping, first: int, cached: int) -> Tensor:
        """Map (B, T, D) to (B, T, D).

        Args:
            states: Input of the first layer.
            queries: Input of attention's queries; None: the states.
            run: The batch.
            first: Number of the first of these layers among all.
            cached: Number of the first of these layers in a cache of all loops.
        """
        more = {} if queries is None else {"queries": queries}
        for number, layer in enumerate(self):
            states = layer(
                states,
                attention_mask=run.masks[run.kinds[first + number]] if run.kinds else run.masks,
                position_embeddings=run.rotation,
                position_ids=run.positions,
                past_key_values=_view_layer(run.cache, cached + number, first + number),
                use_cache=run.cache is not None,
                **more,
            )
        return states


def _view_layer(cache: Cache | None, cached: int, layer: int) -> CacheLayerView | None:
    """Return a layer's view of a cache: one with a policy has a layer for all loops, others one for each loop."""
    if cache is None:
        return None
    return CacheLayerView(cache, layer if isinstance(cache, LoopedCache) else cached)


def _build_part(layers: Sequence[nn.Module]) -> nn.ModuleList:
    """Return the layers of a part; an empty one has no activations to recompute."""
    return Layers(layers) if layers else nn.ModuleList()


class LoopedPreTrainedModel(DepthModel, PreTrainedModel):
    """The base class of the model and its heads."""

    config: LoopedConfig
    config_class = LoopedConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _no_split_modules = ["LoopedLayer"]
    _skip_keys_device_placement = ["past_key_values"]
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = _supports_attention_backend = True
    depth_unit: DepthUnit = "token"

    @classmethod
    def read_published(cls, path: Any, stored: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any] | None:
        """Read a folder or hub id of Ouro or Huginn without running its code; see `StrictLoading`."""
        if path is None or stored.get("model_type") not in PUBLISHED_MODELS:
            return None
        more = dict(options)
        config = more.pop("config", None) or cls.config_class.from_dict(dict(stored))
        for name in [name for name in more if hasattr(config, name) and name not in ("dtype", "attn_implementation")]:
            setattr(config, name, more.pop(name))
        weights = read_published_weights(path, stored, options)
        if cls.can_generate() and more.get("generation_config") is None:
            more["generation_config"] = read_generation_config(path, options)
        return more | {"config": config, "state_dict": weights}

    @property
    def max_updates(self) -> int:
        """The most loops of a token, unless a call asks for others."""
        return self.config.num_loops

    @property
    def longest_sequence(self) -> int | None:
        """The most tokens of a text."""
        return self.config.max_position_embeddings

    @property
    def vocabulary_size(self) -> int | None:
        """The number of pieces in the vocabulary."""
        return self.config.vocab_size

    def _set_gradient_checkpointing(self, *args: Any, **kwargs: Any) -> None:
        """Let `Layers` alone recompute activations, and not the layers of another decoder, one by one."""
        super()._set_gradient_checkpointing(*args, **kwargs)
        parts = [part for part in self.modules() if isinstance(part, Layers)]
        layers: list[Any] = [layer for part in parts for layer in part if hasattr(layer, "gradient_checkpointing")]
        for layer in layers:
            layer.gradient_checkpointing = False

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, LoopedHaltingUnit):
            init.zeros_(module.bias)
        elif self.config.initializer == "scaled" and isinstance(module, nn.Linear | nn.Embedding):
            deviation = math.sqrt(2 / (5 * self.config.hidden_size))
            if getattr(module, "ends_branch", False):
                deviation /= math.sqrt(2 * self.config.num_hidden_layers)
            init.trunc_normal_(module.weight, std=deviation, a=-3 * deviation, b=3 * deviation)


@dataclass
class LoopedModelOutput(ModelOutput):
    """The output of the model without a head.

    Attributes:
        last_hidden_state: r_N, (B, T, D).
        past_key_values: The cache.
        hidden_states: s_0..s_N, (B, T, D) each, on request.
    """

    last_hidden_state: Tensor | None = None
    past_key_values: Cache | None = None
    hidden_states: tuple[Tensor, ...] | None = None


class LoopedModel(LoopedPreTrainedModel):
    """Embedding, prelude, core, coda, the final norm, and the halting unit if there is one."""

    def __init__(self, config: LoopedConfig) -> None:
        super().__init__(config)
        if config.base_config is None:
            layers: Iterable[nn.Module] = (LoopedLayer(config, number) for number in range(config.layers))
            self.embed_tokens, self.norm = nn.Embedding(config.vocab_size, config.hidden_size), build_norm(config)
        else:
            self.embed_tokens, layers, self.norm, self.rotary_emb = build_decoder_parts(config)
        all_layers = list(layers)
        self.prelude = _build_part(all_layers[: config.prelude])
        self.core = _build_part(all_layers[config.prelude : config.prelude + config.core])
        self.coda = _build_part(all_layers[config.prelude + config.core :])
        if config.injection == "linear":
            self.adapter = Product(2 * config.hidden_size, config.hidden_size, bias=False)
        if config.gate:
            self.gate = LoopedHaltingUnit(config.hidden_size, 1)
        for layer in all_layers if config.base_config is None else ():
            layer.self_attn.o_proj.ends_branch = layer.mlp.down_proj.ends_branch = True
            layer.mlp.up_proj.ends_branch = True  # as in Huginn's code
        self._drawn: dict[int, Tensor] = {}
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        num_loops: int | None = None,
        initial_state: Tensor | None = None,
    ) -> LoopedModelOutput:
        """Run all loops; see `begin` for the arguments."""
        run = self.begin(
            input_ids, attention_mask, position_ids, past_key_values, inputs_embeds, use_cache, num_loops, initial_state
        )
        states = [run.state]
        while run.done < run.loops:
            self.loop(run)
            states.append(run.state)
        last = self.read(run)
        self.finish(run)
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        return LoopedModelOutput(last, run.cache, tuple(states) if output_hidden_states else None)

    def begin(
        self,
        input_ids: Tensor | None,
        attention_mask: Any = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        num_loops: int | None = None,
        initial_state: Tensor | None = None,
        documents: Tensor | None = None,
    ) -> Looping:
        """Embed the tokens and run the prelude.

        Args:
            input_ids: (B, T).
            attention_mask: 1 at real tokens, those in the cache included, (B, M + T); or masks as layers take them.
            position_ids: (B, T) or (1, T); None: counted from the first real token, after the cache.
            past_key_values: Keys and values of earlier tokens, an entry for every layer that a token passes.
            inputs_embeds: (B, T, D) instead of `input_ids`.
            use_cache: Whether to store keys and values; None: only in a cache that the call passes.
            num_loops: N of this call; None: the configuration's.
            initial_state: s_0, (B, T, D); None: as the configuration's `start` says.
            documents: Number of each token's document, (B, T), for rows of several documents, padding as one more.
                A token sees its own document alone, in which positions count from 0. There must be no cache;
                `attention_mask` is then no mask of attention, and neighbours have different numbers.

        Raises:
            DataError: If there is not exactly one of ids and embeddings, or the initial state has another shape; or
                there are documents with a cache or positions.
            ConfigError: If `num_loops` is less than 1.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise DataError("input_ids, inputs_embeds: give exactly one of them")
        words = input_ids if inputs_embeds is None else inputs_embeds
        assert words is not None
        if words.dim() != (2 if inputs_embeds is None else 3):
            raise DataError(f"input of shape {tuple(words.shape)}: must be (rows, tokens), with a width for embeddings")
        check_words(words, self.embed_tokens)
        loops = self.config.loops(num_loops)
        embedded = self.embed(input_ids, inputs_embeds)
        cache = past_key_values
        if use_cache and cache is None:
            cache = make_cache(self.config, self.config.cache_policy, loops)
        if self.training and self.core.gradient_checkpointing:
            cache = None  # recomputed layers would write twice
        if documents is not None:
            if cache is not None or position_ids is not None:
                raise DataError("documents: not with a cache or position_ids")
            position_ids, attention_mask = _count_in_documents(documents), None  # masks follow from positions of 0
        if isinstance(cache, LoopedCache) and self.training:
            raise ConfigError(f"cache_policy={cache.policy}: needs a model in evaluation mode; call eval()")
        running = None
        if isinstance(cache, LoopedCache):
            attention = self.config._attn_implementation
            running = begin_running(cache, embedded.shape[:2], loops, attention_mask, attention, embedded.device)
        if position_ids is None:
            position_ids = _count_positions(embedded, attention_mask, 0 if cache is None else cache.get_seq_length())
        position_ids = position_ids.expand(embedded.shape[:2])
        masks: Any = attention_mask
        if not isinstance(attention_mask, dict):
            masked: Any = self.config if self.config.base_config is None else self.config.base_config
            masks = create_masks_for_generate(masked, embedded, attention_mask, cache, position_ids)
        rotation = self.rotation(embedded, position_ids)
        run = Looping(embedded, embedded, None, position_ids, masks, rotation, cache, loops, running=running)
        run.kinds = self.config.base_config.layer_types if isinstance(masks, dict) else None
        run.embedded = self.prelude(run.embedded, None, run, 0, 0) if len(self.prelude) else run.embedded
        run.state = self.first_state(run, initial_state)
        return run

    def embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None = None) -> Tensor:
        """Return the input of the first layer, (B, T, D), from ids (B, T) or from embeddings (B, T, D)."""
        embedded: Tensor = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        return embedded * math.sqrt(self.config.hidden_size) if self.config.scale_embeddings else embedded

    def rotation(self, embedded: Tensor, positions: Tensor) -> Any:
        """Return what layers rotate queries and keys by, at positions (B, T)."""
        if self.config.base_config is None:
            return rotation_tables(self.config, positions, embedded.dtype)
        return self.rotary_emb(embedded, positions)

    def loop(self, run: Looping) -> Tensor:
        """Run one more loop; returns the final norm of the new state, (B, T, D), which the halting unit reads.

        In training the loops before a row's last `backprop_loops` have no gradients, and a row that has run its number
        of loops stays as it is. Where the cache's policy stops exited tokens, only the others loop.
        """
        if run.running is not None:
            return loop_running(self, run)
        window = self.config.backprop_loops if self.training and torch.is_grad_enabled() else None
        if window is not None:
            counts = torch.full((1,), run.loops) if run.counts is None else run.counts
            if run.done < int(counts.min()) - window:
                with torch.no_grad():
                    return self.loop_once(run)
            begins = ((counts == run.done + window) & (counts > window)).view(-1, 1, 1).to(run.state.device)
            run.state = torch.where(begins, run.state.detach(), run.state)
            run.normed = None if run.normed is None else torch.where(begins, run.normed.detach(), run.normed)
        return self.loop_once(run)

    def loop_once(self, run: Looping) -> Tensor:
        """Run one more loop of all tokens of a batch."""
        config = self.config
        previous = run.normed if config.queries == "previous" else None
        cached = config.prelude + run.done * config.core
        updated = self.core(self.injected(run.state, run.embedded), previous, run, config.prelude, cached)
        damping = 1.0 / run.loops if config.damping is None else config.damping
        state = updated if damping == 1.0 else run.state + damping * (updated - run.state)
        normed: Tensor = self.norm(state)
        state = normed if config.state_norm == "fed" else state
        if run.counts is not None:
            goes_on = (run.done < run.counts).view(-1, 1, 1)
            state = torch.where(goes_on, state, run.state)
            normed = normed if run.normed is None else torch.where(goes_on, normed, run.normed)
        run.state, run.normed = state, normed
        run.done += 1
        return normed

    def read(self, run: Looping) -> Tensor:
        """Return r_n, (B, T, D), which heads read after n loops; a coda runs for it."""
        return self.read_once(run) if run.running is None else read_running(self, run)

    def finish(self, run: Looping) -> None:
        """End the loops."""
        if run.running is not None:
            close(self, run)

    def read_once(self, run: Looping) -> Tensor:
        """Return r_n of all tokens of a batch, (B, T, D)."""
        assert run.normed is not None, "no loop was run"
        if not self.coda:
            return run.normed
        config = self.config
        cached = config.prelude + run.loops * config.core + (run.loops - run.done) * config.coda
        state = run.state if config.state_norm == "none" else run.normed
        read: Tensor = self.norm(self.coda(state, None, run, config.prelude + config.core, cached))
        return read

    def injected(self, state: Tensor, embedded: Tensor) -> Tensor:
        """Return z, the input of a loop, (B, T, D)."""
        match self.config.injection:
            case "add":
                return state + embedded
            case "linear":
                joined: Tensor = self.adapter(torch.cat([state, embedded], dim=-1))
                return joined
            case "restart":
                return embedded
        return state

    def first_state(self, run: Looping, initial: Tensor | None = None) -> Tensor:
        """Return s_0, (B, T, D)."""
        if initial is not None:
            if initial.shape != run.embedded.shape:
                raise DataError(f"initial_state of shape {tuple(initial.shape)}: must be {tuple(run.embedded.shape)}")
            return initial.to(run.embedded)
        if self.config.start == "input":
            return run.embedded
        if self.config.start == "zeros":
            return torch.zeros_like(run.embedded)
        if self.training:
            return _draw_truncated_normal(torch.empty_like(run.embedded), None)
        return self._draw_states(run.positions).to(run.embedded)

    def _draw_states(self, positions: Tensor) -> Tensor:
        """Draw a state for every position from `draw_seed`, (B, T, D), whatever its row, padding or cache."""
        last = int(positions.max()) // _BLOCK
        for block in range(len(self._drawn), last + 1):
            generator = torch.Generator().manual_seed(self.config.draw_seed * 1_000_003 + block)
            self._drawn[block] = _draw_truncated_normal(torch.empty(_BLOCK, self.config.hidden_size), generator)
        return torch.cat([self._drawn[block] for block in range(last + 1)])[positions.cpu()]


_BLOCK = 256  # positions that are drawn at once


def _draw_truncated_normal(empty: Tensor, generator: torch.Generator | None) -> Tensor:
    """Fill a tensor from a normal of deviation sqrt(2/5), cut at three: Huginn's embeddings times sqrt(D)."""
    deviation = math.sqrt(2 / 5)
    return nn.init.trunc_normal_(empty, std=deviation, a=-3 * deviation, b=3 * deviation, generator=generator)


def _count_in_documents(documents: Tensor) -> Tensor:
    """Return the position of every token in its document, int64 (B, T)."""
    columns = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    starts = nn.functional.pad(documents[:, 1:] != documents[:, :-1], (1, 0), value=True)
    return columns - torch.where(starts, columns, 0).cummax(dim=1).values


def _count_positions(embedded: Tensor, mask: Any, before: int) -> Tensor:
    """Return the positions of the new tokens, (B, T) or (1, T), counted from the first non-padding token."""
    length = embedded.shape[1]
    if isinstance(mask, Tensor) and mask.dim() == 2:
        return (mask.long().cumsum(dim=-1) - 1).clamp(min=0)[:, -length:]
    return torch.arange(before, before + length, device=embedded.device).unsqueeze(0)
