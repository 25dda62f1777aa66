"""Continuous batching: text generation for many prompts at once, in which tokens exit after different numbers of loops.

This is an experiment, which shows how much time exits of single tokens save in a batch. It is no server:
docs/engines.md names engines that serve exported models.

The core has the same weights in every loop, so the tokens of a batch can be at different loops. A batch has *slots*.
Each slot has one text, and the newest token of each text has its own loop number. A pass runs the core once for all
slots. When the token of a text has exited, the next pass computes the next token of the text. When a text has ended,
its slot starts the next prompt. All slots are therefore busy until no prompts are left. The total time depends on the
sum of the loops of all tokens divided by the number of slots, not on the largest loop of every step (depth-wise
batching, Bae et al. 2024, arXiv 2410.20672, who simulated it).

The cache policy defines the keys and values of a token that exited at loop e, for later tokens:

    - `all`: The token has its own entries for every loop. All tokens run N loops, and an exit only decides which loop
      predicts the next token.
    - `frozen`: The token has its own entries for the loops n <= e. For the loops n > e, each core layer computes keys
      and values from the input that a loop with the state s_e would have. The token does not run these loops.

A coda runs after every loop, as in `LoopedForCausalLM`. If the rule is `fixed`, it runs only after the last loop. After
an exit, the cache entries of the coda are copied to later loops. The tokens of a text depend on that text alone.

Shape legend: A busy slots, T tokens of a prompt, M tokens of a pass, D width, V pieces, N loops.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from adadepth.contrib.decoding.drafters import refuse_options
from adadepth.contrib.decoding.slot_cache import SlotCache, SlotTokens, use_slot_attention
from adadepth.errors import ConfigError
from adadepth.halting.exit_decisions import decide_exits, start_memory
from adadepth.halting.exit_rules import HALTING_SIGNAL, LOGITS, STATES, ExitRule, Fixed, StepView, pad_memory
from adadepth.halting.units import run_unit
from adadepth.models.depth.cache import compute_keys_and_values
from adadepth.models.looped.heads import LoopedForCausalLM
from adadepth.models.looped.loop_state import Looping

_POLICIES = ("all", "frozen")


@dataclass
class DecodingWork:
    """Numbers of passes, loops and predictions that text generation needed.

    Attributes:
        passes: Number of passes of the core, each for all slots at once.
        loops: Number of loops, summed over all new tokens.
        heads: Number of predictions for new tokens.
        frozen: Number of exited tokens with computed keys and values for later loops.
        prompt_loops: Number of loops, summed over all tokens of the prompts.
    """

    passes: int = 0
    loops: int = 0
    heads: int = 0
    frozen: int = 0
    prompt_loops: int = 0


@dataclass
class DecodedTexts:
    """Result of `decode_texts`: the generated texts, the exit step of each token, and counts of computations.

    Attributes:
        tokens: New tokens of every text, int64 (n,) each. The last one is the end-of-text token if the text ended.
        exit_steps: Loop at which each new token exited, counted from 1, int64 (n,) each.
        work: Counts of the computations.
    """

    tokens: list[Tensor]
    exit_steps: list[Tensor]
    work: DecodingWork


@torch.no_grad()
def decode_texts(
    model: LoopedForCausalLM,
    prompts: Sequence[Sequence[int] | Tensor],
    generation_config: GenerationConfig | None = None,
    *,
    places: int = 8,
    exit_rule: str | ExitRule | None = None,
    num_loops: int | None = None,
    cache_policy: str = "frozen",
    seeds: Sequence[int] | None = None,
) -> DecodedTexts:
    """Generate continuations of many prompts with continuous batching; each token exits at its own loop.

    This is an experiment and no server; see the module docstring.

    Args:
        model: Looped language model in evaluation mode.
        prompts: Token ids of each text, without padding.
        generation_config: Settings as for `generate`: greedy decoding or sampling, logits processors, end tokens,
            max_new_tokens.
        places: Number of slots, which is the number of texts that are decoded at the same time.
        exit_rule: Rule that decides at which loop a token exits. None for the rule of the configuration, or the last
            loop without one.
        num_loops: Number of loops N, or None for that of the model.
        cache_policy: `all` or `frozen`; see the module docstring.
        seeds: Seed for the samples of each text, or None for 0, 1, 2...

    Raises:
        ConfigError: If the model or the generation configuration requires something that is not supported here.
    """
    generating: Any = model  # transformers types these methods for models of its own
    config, _ = generating._prepare_generation_config(generation_config)
    loops = model.config.loops(num_loops)
    rule = model.rule(exit_rule, loops, model.config.vocab_size)
    _check(model, config, rule, places, cache_policy, prompts, seeds)
    generating._prepare_special_tokens(config, device=model.device)
    lengths = {len(prompt) for prompt in prompts}
    configs = {length: _complete_lengths(generating, generation_config, config, length) for length in lengths}
    texts = [
        _Text([int(token) for token in prompt], torch.Generator().manual_seed(seed), configs[len(prompt)])
        for prompt, seed in zip(prompts, seeds or range(len(prompts)), strict=True)
    ]
    with use_slot_attention(model):
        slots = min(places, len(texts))
        batcher = _ContinuousBatcher(model, texts, _TokenSampler(model, config), rule, slots, loops, cache_policy)
        batcher.run()
    return DecodedTexts(
        [torch.tensor(text.ids[text.prompt_length :], dtype=torch.int64) for text in texts],
        [torch.tensor(text.exit_steps, dtype=torch.int64) for text in texts],
        batcher.work,
    )


_SERVED = "decode_texts"
_OUTPUTS = dict.fromkeys(("output_scores", "output_logits", "output_attentions", "output_hidden_states"), False)


def _check(
    model: LoopedForCausalLM,
    config: GenerationConfig,
    rule: ExitRule,
    places: int,
    policy: str,
    prompts: Sequence[Any],
    seeds: Sequence[int] | None,
) -> None:
    if policy not in _POLICIES:
        raise ConfigError(f"cache_policy={policy}: must be one of {', '.join(_POLICIES)}")
    if model.config.loop_lora_rank is not None:
        raise ConfigError(f"loop_lora_rank={model.config.loop_lora_rank}: tokens of one step may be in different loops")
    if places < 1:
        raise ConfigError(f"places={places}: the number of texts decoded at once must be at least 1")
    if seeds is not None and len(seeds) != len(prompts):
        raise ConfigError(f"seeds: got {len(seeds)} seeds for {len(prompts)} prompts")
    if not all(len(prompt) for prompt in prompts):
        raise ConfigError("prompts: every prompt must have at least one token")
    if rule.mixes:
        raise ConfigError(f"exit_rule={rule.label}: averages the predictions of all loops, so no token exits early")
    if HALTING_SIGNAL in rule.needs and (unit := model.config.halting_unit) != "linear":
        raise ConfigError(f"halting_unit={unit}: {_SERVED} supports only linear, as tokens are at different loops")
    if STATES in rule.needs:
        raise ConfigError(f"exit_rule={rule.label}: needs changes of the hidden state, which {_SERVED} does not store")
    if model.training:
        raise ConfigError(f"{_SERVED}: the model is in training mode; call model.eval()")
    if model.config.queries != "state":
        raise ConfigError(f"queries={model.config.queries}: {_SERVED} supports only models with queries=state")
    kind = getattr(getattr(model.model, "rotary_emb", None), "rope_type", "default")
    if kind in ("dynamic", "longrope"):
        raise ConfigError(f"rope_type={kind}: {_SERVED} needs positions that do not depend on the length of a text")
    refuse_options(config, _SERVED, {"num_return_sequences": 1, "stop_strings": None, "max_time": None, **_OUTPUTS})


def _complete_lengths(
    model: Any, given: GenerationConfig | None, config: GenerationConfig, prompt: int
) -> GenerationConfig:
    """Return a configuration with the lengths in tokens that `generate` gives it for a prompt of one length.

    Args:
        model: Language model.
        given: Configuration of the caller, or None.
        config: The same, completed with the defaults of the model and of transformers.
        prompt: Number of tokens of the prompt.
    """
    sources = [model.generation_config, *([] if given is None else [given])]
    is_default = [all(getattr(source, name) is None for source in sources) for name in ("max_length", "min_length")]
    completed: GenerationConfig = model._prepare_generated_length(
        copy.copy(config), *is_default, "input_ids", prompt, None
    )
    return completed


# ---- Texts and the choice of their tokens


@dataclass
class _Text:
    """Text being generated, with the progress of its newest tokens (initially, the prompt) through the loops.

    Attributes:
        ids: Token ids of the prompt and of the continuation.
        generator: Random generator for its samples.
        config: Settings as for `generate`, with the lengths for its prompt.
        processor: Processor of its logits, which may know the tokens of the prompt, or None before the first one.
        prompt_length: Number of tokens of the prompt.
        exit_steps: Loop at which each new token exited.
        slot: Number of its slot.
        running: Positions of the newest tokens that have not finished their loops.
        done: Number of loops that these tokens have run.
        undecided: Whether each of these tokens has not exited yet.
        exit_step: Loop at which the last token exited, or 0 if it has not exited.
        readout: Hidden state r (1, D) of the last token at its exit, or its logits (1, V) if the rule reads logits.
    """

    ids: list[int]
    generator: torch.Generator
    config: GenerationConfig
    processor: Any = None
    prompt_length: int = field(init=False)
    exit_steps: list[int] = field(default_factory=list)
    slot: int = -1
    running: list[int] = field(default_factory=list)
    done: int = 0
    undecided: list[bool] = field(default_factory=list)
    exit_step: int = 0
    readout: Tensor | None = None

    def __post_init__(self) -> None:
        self.prompt_length = len(self.ids)

    @property
    def max_length(self) -> int:
        """Maximum number of tokens, including the prompt."""
        return int(self.config.max_length)

    def start(self) -> None:
        """Reset the newest tokens of the text to the state before their first loop."""
        first = len(self.ids) - 1 if self.exit_steps else 0
        self.running, self.done, self.exit_step = list(range(first, len(self.ids))), 0, 0
        self.undecided = [True] * len(self.running)


_IGNORING_IDS = (TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper, MinPLogitsWarper)


class _TokenSampler:
    """Sampler of the next tokens from logits, according to a generation configuration."""

    def __init__(self, model: Any, config: GenerationConfig) -> None:
        self._model, self._config = model, config
        ends = config.eos_token_id
        self.ends = set(() if ends is None else [ends] if isinstance(ends, int) else ends)

    def sample(self, texts: Sequence[_Text], logits: Tensor) -> list[int]:
        """Choose the next token of every text from its logits, (A, V), greedily or by sampling."""
        scores = self._process(texts, logits.float())
        if not self._config.do_sample:
            likeliest: list[int] = scores.argmax(dim=-1).tolist()
            return likeliest
        cumulative = scores.softmax(dim=-1).cumsum(dim=-1)
        uniform = torch.cat([torch.rand(1, 1, generator=text.generator) for text in texts]).to(cumulative)
        # The first token whose sum is above the number: one of probability 0 never is.
        threshold = uniform * cumulative[:, -1:]
        sampled: list[int] = torch.searchsorted(cumulative, threshold, right=True).squeeze(1).tolist()
        return sampled

    def _process(self, texts: Sequence[_Text], logits: Tensor) -> Tensor:
        processors = [self._get_processor(text) for text in texts]
        if not any(processors):
            return logits
        if all(isinstance(step, _IGNORING_IDS) for step in processors[0]):
            ids = torch.zeros(len(texts), 1, dtype=torch.int64, device=logits.device)
            scores: Tensor = processors[0](ids, logits)
            return scores
        ids_of_texts = [torch.tensor([text.ids], device=logits.device) for text in texts]
        rows = zip(processors, ids_of_texts, logits.split(1), strict=True)
        return torch.cat([processor(ids, row) for processor, ids, row in rows])

    def _get_processor(self, text: _Text) -> Any:
        if text.processor is None:
            ids, device = torch.tensor([text.ids[: text.prompt_length]]), self._model.device
            text.processor = self._model._get_logits_processor(
                text.config, text.prompt_length, ids.to(device), device=device, model_kwargs={}
            )
        return text.processor


# ---- Passes


class _ContinuousBatcher:
    """Experimental scheduler of continuous batching: it generates many texts in a fixed number of batch rows (slots).

    The M tokens of a pass are a batch of M rows of one token each.
    """

    def __init__(
        self,
        model: LoopedForCausalLM,
        texts: Sequence[_Text],
        sampler: _TokenSampler,
        rule: ExitRule,
        slots: int,
        loops: int,
        policy: str,
    ) -> None:
        self.work = DecodingWork()
        self._model, self._inner, self._sampler, self._rule = model, model.model, sampler, rule
        self._waiting, self._free, self._loops = deque(texts), list(range(slots)), loops
        self._freezes = policy == "frozen"
        self._fixed = rule.k if isinstance(rule, Fixed) else None  # the one loop that is read
        self._reads_logits = LOGITS in rule.needs and self._fixed is None
        self._gate: Any = self._inner.gate if HALTING_SIGNAL in rule.needs else None
        capacity = max((text.max_length for text in texts), default=1)
        self._cache: Any = SlotCache(self._inner, slots, loops, capacity)
        positions = torch.arange(capacity).unsqueeze(0)
        self._rotation = self._inner.rotation(self._inner.embed_tokens.weight[:1, None], positions)
        self._busy: list[_Text] = []
        self._state = self._embedded = self._memory = torch.zeros(0)

    def run(self) -> None:
        """Generate the continuations of all prompts."""
        while self._waiting or self._busy:
            starting = []
            while self._free and self._waiting:
                text = self._waiting.popleft()
                if len(text.ids) < text.max_length:
                    text.slot = self._free.pop()
                    starting.append(text)
            if starting:
                self._update_batch(list(range(len(self._state))), self._busy, starting)
            if self._busy:
                self._run_pass()

    def _update_batch(self, rows: list[int], staying: list[_Text], starting: Sequence[_Text]) -> None:
        """Remove finished tokens from the batch, and add the newest tokens of the given texts.

        `rows` are the batch rows of the texts that stay.
        """
        if len(rows) < len(self._state):
            index = torch.tensor(rows, dtype=torch.int64)
            self._state, self._embedded, self._memory = (
                values[index] if len(values) else values for values in (self._state, self._embedded, self._memory)
            )
        self._busy = staying + list(starting)
        if not starting:
            return
        run, memory = self._start(starting)
        columns = max(self._memory.shape[-1] if rows else 0, memory.shape[1])
        self._memory, memory = pad_memory(self._memory, columns) if rows else self._memory, pad_memory(memory, columns)
        # Where nothing is injected, the embeddings are not read again.
        added = (run.state, run.embedded if self._model.config.injection != "none" else self._embedded[:0], memory)
        self._state, self._embedded, self._memory = (
            torch.cat([old, new]) if rows and len(new) else new
            for old, new in zip((self._state, self._embedded, self._memory), added, strict=True)
        )

    def _start(self, texts: Sequence[_Text]) -> tuple[Looping, Tensor]:
        """Embed the newest tokens of texts, and return them with the initial memory of the exit rule."""
        for text in texts:
            text.start()
        ids = [[text.ids[position]] for text in texts for position in text.running]
        embedded = self._inner.embed(torch.tensor(ids))
        run = self._build_batch(embedded, embedded, texts)
        if len(self._inner.prelude):
            self._cache.set_groups([SlotTokens(text.slot, None, text.running) for text in texts])
            run.embedded = self._inner.prelude(embedded, None, run, 0, 0)
        run.state = self._inner.first_state(run)
        if self._fixed is not None:
            return run, torch.zeros(len(ids), 0)
        return run, torch.cat([start_memory(self._rule, len(t.running), embedded.device, t.generator) for t in texts])

    def _build_batch(self, embedded: Tensor, state: Tensor, texts: Sequence[_Text]) -> Looping:
        """Combine the running tokens of all texts into one batch, (M, 1, D)."""
        positions = torch.tensor([position for text in texts for position in text.running])
        rotation = tuple(table[0, positions].unsqueeze(1) for table in self._rotation)
        return Looping(embedded, state, None, positions.unsqueeze(1), None, rotation, self._cache, self._loops)

    # ---- A pass

    def _run_pass(self) -> None:
        """Run one more loop of all running tokens, and remove the tokens that exit."""
        texts = self._busy
        self._cache.set_groups([SlotTokens(text.slot, text.done, text.running) for text in texts])
        run = self._build_batch(self._embedded if len(self._embedded) else self._state, self._state, texts)
        normed = self._inner.loop(run)
        self._state = run.state
        self._count_pass(texts)
        for text in texts:
            text.done += 1
        read = self._read(run)
        exits, logits = self._decide_exits(texts, read, normed)
        self._remove_exited(texts, exits, run, read if logits is None else logits)

    def _count_pass(self, texts: Sequence[_Text]) -> None:
        self.work.passes += 1
        for text in texts:
            if text.exit_steps:
                self.work.loops += 1
            else:
                self.work.prompt_loops += len(text.running)

    def _read(self, run: Looping) -> Tensor:
        """Return the hidden states from which the language model head predicts, for all running tokens, (M, D).

        If the model has a coda, the rule is fixed and no token exits now, the coda is skipped and the state is
        returned.
        """
        if self._inner.coda and self._fixed is not None and all(text.done != self._fixed for text in self._busy):
            return run.state[:, 0]
        run.done = run.loops  # the coda's number in the cache; the cache knows which loop a token has run
        return self._inner.read(run)[:, 0]

    def _decide_exits(self, texts: Sequence[_Text], read: Tensor, normed: Tensor) -> tuple[list[bool], Tensor | None]:
        """Decide which running tokens exit now, (M,), and return their logits (M, V) if the exit rule reads logits."""
        steps = [text.done for text in texts for _ in text.running]
        if self._fixed is not None:
            return [step == self._fixed for step in steps], None
        logits = self._model.lm_head(read).float() if self._reads_logits else None
        halting = run_unit(self._gate, normed, (), min(steps))[0][:, 0] if self._gate is not None else None
        if logits is not None:
            self.work.heads += sum(len(text.running) for text in texts if text.exit_steps)
        distinct = sorted(set(steps)) if self._rule.counts_steps else [min(steps)]
        exits = [step == self._loops for step in steps]
        for step in distinct:
            decisions, memory = decide_exits(self._rule, StepView(step, self._loops, logits, halting), self._memory)
            if len(distinct) == 1:
                self._memory = memory
                rows = list(range(len(steps)))
            else:
                rows = [row for row, row_step in enumerate(steps) if row_step == step]
                self._memory = pad_memory(self._memory, memory.shape[1]).index_copy(0, torch.tensor(rows), memory[rows])
            decided = decisions.tolist()
            for row in rows:
                exits[row] = exits[row] or decided[row]
        return exits, logits

    def _remove_exited(self, texts: Sequence[_Text], exits: list[bool], run: Looping, readouts: Tensor) -> None:
        """Remove exited tokens from the batch. Their texts continue with the next token or free their slots."""
        row, rows, frozen_rows = 0, list[int](), list[int]()
        staying, finished, frozen = list[_Text](), list[_Text](), list[SlotTokens]()
        for text in texts:
            first, row = row, row + len(text.running)
            if text.undecided[-1] and exits[row - 1] and text.running[-1] == len(text.ids) - 1:
                text.exit_step, text.readout = text.done, readouts[row - 1 : row]
            ends = exits[first:row]
            if not self._freezes:
                text.undecided = [before and not now for before, now in zip(text.undecided, ends, strict=True)]
                ends = [text.done == self._loops] * len(ends)
            elif any(ends) and self._fixed is None and text.done < self._loops:
                positions = [at for at, end in zip(text.running, ends, strict=True) if end]
                frozen.append(SlotTokens(text.slot, text.done - 1, positions))
                frozen_rows += [number for number, end in enumerate(ends, first) if end]
            if all(ends):
                finished.append(text)
                continue
            if any(ends):
                text.running = [at for at, end in zip(text.running, ends, strict=True) if not end]
                text.undecided = [True] * len(text.running)
            rows += [number for number, end in enumerate(ends, first) if not end]
            staying.append(text)
        if frozen:
            self._write_frozen(run, frozen, frozen_rows)
        if finished or len(rows) < row:
            self._update_batch(rows, staying, self._append_tokens(finished))

    def _append_tokens(self, texts: list[_Text]) -> list[_Text]:
        """Sample and append the next token of each text, and return the texts that are not finished."""
        if not texts:
            return []
        readouts = torch.cat([text.readout for text in texts if text.readout is not None])
        logits = readouts if self._reads_logits else self._model.lm_head(readouts)
        if not self._reads_logits:
            self.work.heads += sum(bool(text.exit_steps) for text in texts)
        continuing = []
        for text, token in zip(texts, self._sampler.sample(texts, logits), strict=True):
            text.ids.append(token)
            text.exit_steps.append(text.exit_step)
            if token in self._sampler.ends or len(text.ids) == text.max_length:
                self._free.append(text.slot)
            else:
                continuing.append(text)
        return continuing

    def _write_frozen(self, run: Looping, groups: list[SlotTokens], rows: list[int]) -> None:
        """Fill the key-value cache for the loops that exited tokens skip.

        `rows` are the rows of these tokens in the batch.
        """
        index = torch.tensor(rows)
        rotation = tuple(table[index] for table in run.rotation)
        start = self._inner.loop_input(run.state[index], run.embedded[index])
        tokens, later = self._cache.find_later_rows(groups)
        first = self._model.config.prelude
        both = compute_keys_and_values(self._inner.layers_of_loop(), start, rotation, run.positions[index])
        for layer, (keys, values) in enumerate(both, start=first):
            self._cache.write(layer, later, *(new.reshape(len(rows), -1)[tokens] for new in (keys, values)))
        first += self._loops * self._model.config.layers_per_loop
        for layer in range(first, first + self._model.config.coda):
            self._cache.copy_to_later_loops(layer, groups)
        self.work.frozen += len(rows)
