"""Looped language models: prelude, core applied N times, coda (Huginn, arXiv 2502.05171; Ouro, arXiv 2510.25741).

    e   = prelude(E[tokens])                              the input of every loop
    s_0 = e, zeros, or drawn
    z   = s, s + e, A [s, e] or e                         `injection`
    s_n = s_{n-1} + d (core(z) - s_{n-1})                 d is 1 unless `damping` says otherwise
    r_n = rms(coda(s_n)) of n = 1..N                      what heads read; `state_norm` puts a norm before the coda, too
    lambda_n = sigmoid(g rms(s_n) + b)                    the halting unit, where there is a `gate`; see `halting_unit`

With `state_norm=fed`, the next loop and the heads read the normed state. Without a coda, this state is normed only
once. With a low-level stack L of `low_layers` (HRM-Text, arXiv 2605.20613), the state has a second part l. A loop is

    l = rms(L(s + l)), `low_cycles` times; then core(s + l) in place of core(s)

where `injection` applies to every sum s + l. Heads read s only. Layers consist of attention with rotary positions and a
gated feed-forward layer, or are those of any decoder of transformers (`retrofit`). The unit of depth is a token, and
its updates are loops. Other tokens still attend to a token that has exited, so no exit rule changes a state. Loops end
when all tokens have exited.

Shape legend: B rows, T new tokens, M tokens in the cache, D width, S width of the state (D, or 2 D with a low-level
stack), h heads, V vocabulary size, N loops, P, C and Q layers of prelude, core and coda.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import MODEL_MAPPING, Cache, PreTrainedModel
from transformers import initialization as init
from transformers.masking_utils import create_masks_for_generate
from transformers.utils.generic import can_return_tuple

from adadepth.errors import ConfigError, DataError
from adadepth.halting.trace import DepthUnit
from adadepth.halting.units import HaltingProjection, build_halting_unit
from adadepth.models.contract import DepthModel
from adadepth.models.loading import take_config_fields
from adadepth.models.looped.cache import LoopedCache, make_cache
from adadepth.models.looped.configuration import LoopedConfig
from adadepth.models.looped.convert import (
    PUBLISHED_MODELS,
    read_published_weights,
    replace_stale_tokens,
)
from adadepth.models.looped.elastic import LoopConditioning, Modulation, compute_equal_steps
from adadepth.models.looped.layers import (
    LoopedLayer,
    build_decoder_parts,
    build_norm,
    rotation_tables,
)
from adadepth.models.looped.loop_adapters import LoopProduct, add_loop_products, draw_factors, repeat_changes
from adadepth.models.looped.loop_state import (
    Layers,
    Looping,
    begin_running,
    build_part,
    close,
    find_prefix_blocks,
    loop_running,
    read_running,
    set_running,
)
from adadepth.models.shared.causal import count_in_documents
from adadepth.models.shared.encoders import check_words
from adadepth.models.shared.generation import CacheOutput, accept_former_name
from adadepth.models.shared.layers import Product, init_halting_unit
from adadepth.models.shared.published_files import find_folder, load_stored_weights, read_generation_config


class LoopedPreTrainedModel(DepthModel, PreTrainedModel):
    """Base class of all looped models, with and without task heads."""

    config: LoopedConfig
    config_class = LoopedConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _no_split_modules = ["LoopedLayer"]
    _skip_keys_device_placement = ["cache", "past_key_values"]
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = _supports_attention_backend = True
    depth_unit: DepthUnit = "token"

    @classmethod
    def read_published(cls, path: Any, stored: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any] | None:
        """Load a published looped model from a folder or hub id, without running its code.

        A model with low-rank changes of its loops is read here too, if another number of loops is requested.
        """
        loops, is_published = _find_other_loops(stored, options), stored.get("model_type") in PUBLISHED_MODELS
        if path is None or not (is_published or loops):
            return None
        more, folder = dict(options), find_folder(path, options)
        config = more.pop("config", None) or cls.config_class.from_dict(dict(stored), name_or_path=str(folder))
        more = take_config_fields(config, more)
        weights = read_published_weights(folder, stored) if is_published else load_stored_weights(folder)
        weights = repeat_changes(weights, loops) if loops else weights
        if cls.can_generate() and more.get("generation_config") is None:
            more["generation_config"] = read_generation_config(
                path, options, partial(replace_stale_tokens, config=config)
            )
        return more | {"config": config, "state_dict": weights}

    def _sdpa_can_dispatch(self, is_init_check: bool = False) -> bool:
        """Return True, or raise an error if the layers of transformers need another attention, as those of Gemma 2."""
        base: Any = self.config.base_config
        decoder_class: Any = None if base is None else MODEL_MAPPING[type(base)]
        if decoder_class is not None and not decoder_class._supports_sdpa:
            raise ValueError(f"attn_implementation=sdpa: layers of {base.model_type} need eager or flex_attention")
        return super()._sdpa_can_dispatch(is_init_check)

    @property
    def max_updates(self) -> int:
        """Number of loops of a token, unless a forward pass requests another number."""
        return self.config.num_loops

    @property
    def longest_sequence(self) -> int | None:
        """Maximum number of tokens of a text."""
        return self.config.max_position_embeddings

    @property
    def vocabulary_size(self) -> int | None:
        """Number of tokens in the vocabulary."""
        return self.config.vocab_size

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> Any:
        """Resize the word embeddings and the head's predictions; the arguments are those of transformers."""
        embeddings: Any = super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        if self.config.base_config is not None:  # a loaded model takes the size from there
            self.config.base_config.vocab_size = embeddings.num_embeddings
        return embeddings

    def _set_gradient_checkpointing(self, *args: Any, **kwargs: Any) -> None:
        """Enable gradient checkpointing for whole parts (`Layers`), not for single layers of another decoder."""
        super()._set_gradient_checkpointing(*args, **kwargs)
        parts = [part for part in self.modules() if isinstance(part, Layers)]
        layers: list[Any] = [layer for part in parts for layer in part if hasattr(layer, "gradient_checkpointing")]
        for layer in layers:
            layer.gradient_checkpointing = False

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        scale: Any = getattr(module, "embed_scale", None)
        if isinstance(scale, Tensor):  # Gemma's embedding, whose scale is a buffer that is never saved
            init.constant_(scale, cast(Any, module).scalar_embed_scale)
        if isinstance(module, LoopProduct):
            draw_factors(module)
        if isinstance(module, LoopedModel) and module.config.low_layers:
            init.zeros_(module.low_start)
        init_halting_unit(module)
        is_scaled = self.config.initializer == "scaled" and not isinstance(module, HaltingProjection)
        if is_scaled and isinstance(module, nn.Linear | nn.Embedding):
            deviation = math.sqrt(2 / (5 * self.config.hidden_size))
            if getattr(module, "ends_branch", False):
                deviation /= math.sqrt(2 * self.config.num_hidden_layers)
            init.trunc_normal_(module.weight, std=deviation, a=-3 * deviation, b=3 * deviation)
        if isinstance(module, Modulation):
            init.zeros_(module.weight)
            init.zeros_(module.bias)


def _find_other_loops(stored: Mapping[str, Any], options: Mapping[str, Any]) -> int | None:
    """Return the number of loops that options of `from_pretrained` request of stored low-rank changes of fewer or more.

    Args:
        stored: Stored configuration.
        options: Arguments of `from_pretrained`.
    """
    config = options.get("config")
    loops = options.get("num_loops") if config is None else config.num_loops
    stored_loops = stored.get("num_loops", LoopedConfig.num_loops)
    return None if stored.get("loop_lora_rank") is None or loops == stored_loops else loops


@dataclass
class LoopedModelOutput(CacheOutput):
    """Output of the looped model without a task head.

    Attributes:
        last_hidden_state: Head input r_N after the last loop, (B, T, D).
        cache: Key-value cache, or None.
        hidden_states: States s_0 to s_N, (B, T, D) each, if requested.
    """

    last_hidden_state: Tensor | None = None
    cache: Cache | None = None
    hidden_states: tuple[Tensor, ...] | None = None


class LoopedModel(LoopedPreTrainedModel):
    """Looped model without a task head: embedding, prelude, core, coda, final norm, and optionally a halting unit."""

    low_start: Tensor

    def __init__(self, config: LoopedConfig) -> None:
        super().__init__(config)
        if config.base_config is None:
            layers: Iterable[nn.Module] = (LoopedLayer(config, number) for number in range(config.layers))
            self.embed_tokens, self.norm = nn.Embedding(config.vocab_size, config.hidden_size), build_norm(config)
        else:
            self.embed_tokens, layers, self.norm, self.rotary_emb = build_decoder_parts(config)
        all_layers = list(layers)
        first, last = config.prelude + config.low_layers, len(all_layers) - config.coda
        self.prelude = build_part(all_layers[: config.prelude])
        self.core, self.coda = Layers(all_layers[first:last]), build_part(all_layers[last:])
        if config.low_layers:
            self.low, self.low_norm = build_part(all_layers[config.prelude : first]), build_norm(config)
            self.register_buffer("low_start", torch.zeros(config.hidden_size))  # never trained, as in HRM-Text
        if config.loop_lora_rank is not None:
            self.core.loop_products = add_loop_products(self.core, config.num_loops, config.loop_lora_rank)
        if config.loop_conditioning == "time":
            self.conditioning = LoopConditioning(config.hidden_size, config.core)
        if config.injection == "linear":
            self.adapter = Product(2 * config.hidden_size, config.hidden_size, bias=False)
        if config.gate:
            self.gate = build_halting_unit(config.halting_unit, config.hidden_size, 0.0)
        for layer in all_layers if config.base_config is None else ():
            layer.self_attn.o_proj.ends_branch = layer.mlp.down_proj.ends_branch = True
            layer.mlp.up_proj.ends_branch = True  # as in Huginn's code
        self._drawn: Tensor | None = None
        self.post_init()

    @accept_former_name
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        num_loops: int | None = None,
        initial_state: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> LoopedModelOutput:
        """Run all loops. The arguments are those of `begin`."""
        run = self.begin(
            input_ids, attention_mask, position_ids, cache, inputs_embeds, use_cache, num_loops,
            initial_state, token_type_ids=token_type_ids,
        )  # fmt: skip
        states = [self.split_state(run.state)[0]]
        while run.done < run.loops:
            self.loop(run)
            states.append(self.split_state(run.state)[0])
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
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        num_loops: int | None = None,
        initial_state: Tensor | None = None,
        documents: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> Looping:
        """Embed the tokens, run the prelude, and return the state before the first loop.

        Args:
            input_ids: Token ids, (B, T).
            attention_mask: 1 at real tokens, including those in the cache, (B, M + T), or masks in the form that layers
                take.
            position_ids: Position of each token, (B, T) or (1, T). If it is None, positions are counted from the first
                real token and continue after the cache.
            cache: Cache of the keys and values of earlier tokens, with an entry for every layer that a token
                passes.
            inputs_embeds: Embeddings instead of `input_ids`, (B, T, D).
            use_cache: Whether to store keys and values. None means only if `cache` is given.
            num_loops: Number N of loops of this forward pass, or None for that of the configuration.
            initial_state: First state s_0, (B, T, D), or None for that which the setting `start` defines.
            documents: Number of the document of each token, (B, T), for rows of several documents. Padding counts as
                another document, and consecutive documents must have different numbers. A token attends only to its own
                document, in which positions are counted from 0. It cannot be used with a cache, and `attention_mask`
                then does not mask attention.
            token_type_ids: 1 at tokens that attend to each other in both directions, such as those of a prompt, and 0
                at all others, (B, T). None means causal attention. It is ignored if the cache has tokens, as in
                transformers. Only models with `prefix_lm` accept it.

        Raises:
            DataError: If not exactly one of ids and embeddings is given, if the initial state has another shape, or if
                documents are given with a cache, positions or token types.
            ConfigError: If `num_loops` is less than 1, or the model or its attention does not support token types.
        """
        self._check_inputs(input_ids, inputs_embeds)
        blocks = find_prefix_blocks(self.config, token_type_ids)
        loops = self.config.loops(num_loops)
        embedded = self.embed(input_ids, inputs_embeds)
        cache = self._select_cache(cache, use_cache, loops)
        if documents is not None:
            if cache is not None or position_ids is not None or blocks is not None:
                raise DataError("documents: cannot be combined with a cache, position_ids or token_type_ids")
            position_ids, attention_mask = count_in_documents(documents), None  # masks follow from positions of 0
        running = None
        if isinstance(cache, LoopedCache):
            attention = self.config._attn_implementation
            running = begin_running(cache, embedded.shape[:2], loops, attention_mask, attention)
        if position_ids is None:
            position_ids = _count_positions(embedded, attention_mask, 0 if cache is None else cache.get_seq_length())
        position_ids = position_ids.expand(embedded.shape[:2])
        masks: Any = attention_mask
        if not isinstance(attention_mask, dict):
            masked: Any = self.config if self.config.base_config is None else self.config.base_config
            prefix = None if cache is not None and cache.get_seq_length() else blocks
            masks = create_masks_for_generate(
                masked, embedded, attention_mask, cache, position_ids, block_sequence_ids=prefix
            )
        rotation = self.rotation(embedded, position_ids)
        run = Looping(embedded, embedded, None, position_ids, masks, rotation, cache, loops)
        if running is not None:
            set_running(run, running)
        run.kinds = self.config.base_config.layer_types if isinstance(masks, dict) else None
        run.embedded = self.prelude(run.embedded, None, run, 0, 0) if len(self.prelude) else run.embedded
        run.state = self.first_state(run, initial_state)
        if self.config.loop_conditioning == "time":
            run.conditioning = self.conditioning(compute_equal_steps(loops), run.state)
        return run

    def _check_inputs(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> None:
        """Check that either ids, (B, T), or embeddings, (B, T, D), are given, and that their shape is valid."""
        if (input_ids is None) == (inputs_embeds is None):
            raise DataError("input_ids, inputs_embeds: give exactly one of them")
        words, dimensions = (input_ids, 2) if inputs_embeds is None else (inputs_embeds, 3)
        assert words is not None
        if words.dim() != dimensions:
            raise DataError(f"input of shape {tuple(words.shape)}: must be (rows, tokens), with a width for embeddings")
        check_words(words, self.embed_tokens)

    def _select_cache(self, cache: Cache | None, use_cache: bool | None, loops: int) -> Cache | None:
        """Return the cache of a forward pass, created if none is given and `use_cache` is set."""
        if use_cache and cache is None:
            cache = make_cache(self.config, self.config.cache_policy, loops)
        if self.training and self.core.gradient_checkpointing:
            return None  # recomputed layers would write twice
        if isinstance(cache, LoopedCache) and self.training:
            raise ConfigError(f"cache_policy={cache.policy}: needs a model in evaluation mode; call eval()")
        return cache

    def embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None = None) -> Tensor:
        """Return the input of the first layer, (B, T, D), for token ids, (B, T), or given embeddings, (B, T, D)."""
        embedded: Tensor = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        factor = self.config.embedding_factor
        return embedded if factor == 1.0 else embedded * factor

    def rotation(self, embedded: Tensor, positions: Tensor) -> Any:
        """Return the cosines and sines of rotary position embeddings for the given positions, (B, T)."""
        if self.config.base_config is None:
            return rotation_tables(self.config, positions, embedded.dtype)
        return self.rotary_emb(embedded, positions)

    def loop(self, run: Looping) -> Tensor:
        """Run one more loop of the core, and return the new hidden state after the final norm, (B, T, D).

        In training, only the last `backprop_loops` loops of a row have gradients, and a row that has run its number of
        loops keeps its state. If the cache policy stops exited tokens, only the other tokens run the loop.
        """
        if run.running is not None:
            return loop_running(self, run)
        window = self.config.backprop_loops if self.training and torch.is_grad_enabled() else None
        if window is not None:
            counts = torch.full((1,), run.loops) if run.counts is None else run.counts
            if run.done < (run.loops if run.fewest is None else run.fewest) - window:
                with torch.no_grad():
                    return self.loop_once(run)
            begins = ((counts == run.done + window) & (counts > window)).view(-1, 1, 1).to(run.state.device)
            run.state = torch.where(begins, run.state.detach(), run.state)
            run.normed = None if run.normed is None else torch.where(begins, run.normed.detach(), run.normed)
        return self.loop_once(run)

    def loop_once(self, run: Looping) -> Tensor:
        """Run one more loop of the core for all tokens of a batch."""
        config = self.config
        previous = run.normed if config.queries == "previous" else None
        before, low = self.split_state(run.state)
        first, cached = config.prelude, config.prelude + run.done * config.layers_per_loop
        summed = before
        if low is not None:
            low = self._run_low_cycles(before, low, run, first, cached)
            summed, passed = before + low, config.low_layers * config.low_cycles
            first, cached = first + passed, cached + passed
        conditioning = None if run.conditioning is None else run.conditioning[run.done]
        updated = self.core(self.injected(summed, run.embedded), previous, run, first, cached, run.done, conditioning)
        damping = 1.0 / run.loops if config.damping is None else config.damping
        state = updated if damping == 1.0 else before + damping * (updated - before)
        normed: Tensor = self.norm(state)
        state = normed if config.state_norm == "fed" else state
        state = state if low is None else torch.cat([state, low], dim=-1)
        if run.counts is not None:
            goes_on = (run.done < run.counts).view(-1, 1, 1)
            state = torch.where(goes_on, state, run.state)
            normed = normed if run.normed is None else torch.where(goes_on, normed, run.normed)
        run.state, run.normed = state, normed
        run.done += 1
        return normed

    def _run_low_cycles(self, state: Tensor, low: Tensor, run: Looping, first: int, cached: int) -> Tensor:
        """Run the low-level stack in a loop, and return the low-level state, (B, T, D).

        In training, only the last cycles have gradients, as `low_backprop` says.

        Args:
            state: State s, (B, T, D).
            low: Low-level state before the loop, (B, T, D).
            run: State of the batch.
            first: Index of the first layer of the loop; see `Layers`.
            cached: Index of this layer in a cache of all loops.
        """
        cycles, width = self.config.low_cycles, self.config.low_layers
        trained = self.config.low_gradient_cycles(run.loops)[run.done] if self.training else cycles
        for cycle in range(cycles):
            with torch.set_grad_enabled(torch.is_grad_enabled() and cycle >= cycles - trained):
                summed = self.injected(state + low, run.embedded)
                low = self.low_norm(self.low(summed, None, run, first + cycle * width, cached + cycle * width))
        return low

    def split_state(self, state: Tensor) -> tuple[Tensor, Tensor | None]:
        """Split a state, (..., S), into the state that heads read and the low-level state, (..., D) each, or None."""
        if not self.config.low_layers:
            return state, None
        high, low = state.chunk(2, dim=-1)
        return high, low

    def loop_input(self, state: Tensor, embedded: Tensor) -> Tensor:
        """Return the input of every stack in a loop from a state, (..., S), and the embedded input, (..., D)."""
        high, low = self.split_state(state)
        return self.injected(high if low is None else high + low, embedded)

    def layers_of_loop(self) -> list[nn.Module]:
        """Return the layers that a token passes in a loop, in order, the low-level stack once per cycle."""
        low = [*self.low] * self.config.low_cycles if self.config.low_layers else []
        return [*low, *self.core]

    def read(self, run: Looping) -> Tensor:
        """Return the hidden states from which heads predict after n loops, r_n, (B, T, D), after running the coda."""
        return self.read_once(run) if run.running is None else read_running(self, run)

    def finish(self, run: Looping) -> None:
        """End the loops of a forward pass, and store its tokens in the cache."""
        if run.running is not None:
            close(self, run)

    def read_once(self, run: Looping) -> Tensor:
        """Return the hidden states from which heads predict, r_n, (B, T, D), for all tokens of a batch."""
        assert run.normed is not None, "no loop was run"
        if not self.coda:
            return run.normed
        config = self.config
        first, cached = (config.prelude + loops * config.layers_per_loop for loops in (1, run.loops))
        cached += (run.loops - run.done) * config.coda
        state = self.split_state(run.state)[0] if config.state_norm == "none" else run.normed
        read: Tensor = self.norm(self.coda(state, None, run, first, cached))
        return read

    def injected(self, state: Tensor, embedded: Tensor) -> Tensor:
        """Return the input of a loop, (B, T, D), which combines the state with the embedded input (input injection)."""
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
        """Return the hidden state before the first loop, (B, T, S): s_0, and the low-level state."""
        state = self._first_high_state(run, initial)
        if not self.config.low_layers:
            return state
        return torch.cat([state, self.low_start.to(state).expand_as(state)], dim=-1)

    def _first_high_state(self, run: Looping, initial: Tensor | None) -> Tensor:
        """Return the hidden state before the first loop, s_0, (B, T, D), without a low-level state."""
        if initial is not None:
            if initial.shape != run.embedded.shape:
                raise DataError(f"initial_state of shape {tuple(initial.shape)}: must be {tuple(run.embedded.shape)}")
            return initial.to(run.embedded)
        if self.config.start == "input":
            return run.embedded
        if self.config.start == "zeros":
            return torch.zeros_like(run.embedded)
        if self.training:
            return _draw_truncated_normal(torch.empty_like(run.embedded), self.config.start_std, None)
        return self._draw_states(run.positions).to(run.embedded)

    def _draw_states(self, positions: Tensor) -> Tensor:
        """Draw a random initial state for every position, (B, T, D), determined by `draw_seed` and the position.

        States are drawn on the CPU, a block of positions at a time, and stay on the device.
        """
        table = self._drawn
        first, last = 0 if table is None else len(table) // _BLOCK, int(positions.max()) // _BLOCK
        if table is None or table.device != positions.device or first <= last:
            blocks = [self._draw_block(number).to(positions.device) for number in range(first, last + 1)]
            earlier = [] if table is None else [table.to(positions.device)]
            self._drawn = table = torch.cat([*earlier, *blocks])
        return table[positions]

    def _draw_block(self, number: int) -> Tensor:
        """Draw the initial states of a block of positions by its number, (positions, D)."""
        generator = torch.Generator().manual_seed(self.config.draw_seed * 1_000_003 + number)
        states = torch.empty(_BLOCK, self.config.hidden_size)
        return _draw_truncated_normal(states, self.config.start_std, generator)


_BLOCK = 256  # positions that are drawn at once


def _draw_truncated_normal(empty: Tensor, deviation: float, generator: torch.Generator | None) -> Tensor:
    """Fill a tensor with normal random numbers of the given standard deviation, truncated at three deviations."""
    return nn.init.trunc_normal_(empty, std=deviation, a=-3 * deviation, b=3 * deviation, generator=generator)


def _count_positions(embedded: Tensor, mask: Any, before: int) -> Tensor:
    """Return the positions of the new tokens, (B, T) or (1, T), counted from the first non-padding token."""
    length = embedded.shape[1]
    if isinstance(mask, Tensor) and mask.dim() == 2:
        return (mask.long().cumsum(dim=-1) - 1).clamp(min=0)[:, -length:]
    return torch.arange(before, before + length, device=embedded.device).unsqueeze(0)
