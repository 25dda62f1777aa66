"""Decoding of many texts at once, in which nobody waits: neither for tokens that loop longer, nor for longer texts.

The core's weights are the same in every loop, so a batch need not be at the same loop. It has *places*; each holds a
text, whose newest token is at a loop of its own. A pass runs the core once for all places. Whoever's token has exited
goes on with its next token in the next pass, and a place whose text has ended takes the next prompt. So all places are
busy until the prompts are used up, and time follows the sum of all tokens' loops over the places, not the largest loop
of every step (depth-wise batching, Bae et al. 2024, arXiv 2410.20672; there it was simulated).

What later tokens read of a token that exited at loop e is the cache policy's:

    all      its own loop n at every loop n: all tokens run N loops, an exit decides only which one is read
    frozen   its own loop n <= e; beyond, the keys and values that each core layer makes of what a loop would begin with
             at the state s_e. The loops n > e of that token are not run

A coda runs after every loop, as in `LoopedForCausalLM` (after the last one only if the rule is `fixed`); after an exit
its entries are repeated in the places of later loops. What a text gets depends on the text alone.

Shape legend: A places that are busy, T tokens of a prompt, R of them that still loop, D width, V pieces, N loops, h
heads of keys and values, d their width.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import GenerationConfig
from transformers.generation import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.modeling_utils import AttentionInterface

from adadepth.errors import ConfigError
from adadepth.families.looped.heads import LoopedForCausalLM
from adadepth.families.looped.modeling import Layers, LoopedModel, Looping
from adadepth.halting.exit_rules import HALTING_SIGNAL, LOGITS, ExitRule, Fixed, StepView

POLICIES = ("all", "frozen")


@dataclass
class DecodingWork:
    """What decoding ran.

    Attributes:
        passes: Of the core, for all places at once.
        loops: Of all new tokens, one by one.
        heads: Predictions that were made for new tokens.
        frozen: Exited tokens whose keys and values of later loops were made.
        prompt_loops: Loops of all prompts' tokens.
    """

    passes: int = 0
    loops: int = 0
    heads: int = 0
    frozen: int = 0
    prompt_loops: int = 0


@dataclass
class DecodedTexts:
    """What `decode_texts` gives.

    Attributes:
        tokens: Of every text, those that follow its prompt, int64 (n,) each; the last is the text's end, if it has one.
        exit_steps: After which loop each of them was read, int64 (n,) each; first is 1.
        work: What it took.
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
    """Continue texts of different lengths, with P places in which each token leaves at its own loop.

    Args:
        model: A looped language model, not in training.
        prompts: Token ids of each text, without padding.
        generation_config: As of `generate`: greedy or drawn tokens, processors, ends, max_new_tokens.
        places: P, texts that are decoded at the same time.
        exit_rule: After which loop a token is read; None: as the model's configuration says, else after the last.
        num_loops: N; None: the model's.
        cache_policy: `all` or `frozen`, see the module.
        seeds: Of each text's own draws; None: 0, 1, 2...

    Raises:
        ConfigError: If the model or the generation configuration asks for what is not served here.
    """
    config, _ = model._prepare_generation_config(generation_config)
    loops = model.config.loops(num_loops)
    rule = model.rule(exit_rule, loops, model.config.vocab_size)
    _check(model, config, rule, places, cache_policy, prompts, seeds)
    texts = [
        _Text(number, [int(token) for token in prompt], torch.Generator().manual_seed(seed))
        for number, (prompt, seed) in enumerate(zip(prompts, seeds or range(len(prompts)), strict=True))
    ]
    for text in texts:
        text.room = _room(config, len(text.ids))
    with _attention_by_place(model):
        decoding = _Decoding(model, texts, _Choice(model, config), rule, min(places, len(texts)), loops, cache_policy)
        decoding.run()
    return DecodedTexts(
        [torch.tensor(text.ids[text.prompt :], dtype=torch.int64) for text in texts],
        [torch.tensor(text.exits, dtype=torch.int64) for text in texts],
        decoding.work,
    )


_SERVED = "decode_texts"


def _check(
    model: LoopedForCausalLM,
    config: GenerationConfig,
    rule: ExitRule,
    places: int,
    policy: str,
    prompts: Sequence[Any],
    seeds: Sequence[int] | None,
) -> None:
    if policy not in POLICIES:
        raise ConfigError(f"cache_policy={policy}: must be one of {', '.join(POLICIES)}")
    if places < 1:
        raise ConfigError(f"places={places} must be at least 1")
    if seeds is not None and len(seeds) != len(prompts):
        raise ConfigError(f"seeds: {len(seeds)} of them for {len(prompts)} prompts")
    if not all(len(prompt) for prompt in prompts):
        raise ConfigError("prompts: every text begins with at least one token")
    if rule.mixes:
        raise ConfigError(f"exit_rule={rule.label}: mixes all loops, so that nobody exits")
    if model.training:
        raise ConfigError(f"{_SERVED}: the model is in training; model.eval() ends that")
    if model.config.queries != "state":
        raise ConfigError(f"queries={model.config.queries}: {_SERVED} serves models with queries=state")
    kind = getattr(getattr(model.model, "rotary_emb", None), "rope_type", "default")
    if kind in ("dynamic", "longrope"):
        raise ConfigError(f"rope_type={kind}: {_SERVED} needs positions that do not depend on a text's length")
    for name, served in (("num_beams", 1), ("num_return_sequences", 1), ("stop_strings", None), ("max_time", None)):
        if getattr(config, name, served) not in (served, None):
            raise ConfigError(f"{name}={getattr(config, name)}: {_SERVED} serves {served} only")


def _room(config: GenerationConfig, length: int) -> int:
    """How many tokens may follow a prompt."""
    if config.max_new_tokens is not None:
        return int(config.max_new_tokens)
    return max(int(config.max_length or 20) - length, 0)


# ---- Texts and how their tokens are chosen


@dataclass
class _Text:
    """A text, and where its newest token is.

    Attributes:
        number: Among the prompts.
        ids: The prompt and what follows.
        generator: Of its own draws.
        room: How many tokens may follow.
        prompt: Tokens of the prompt.
        exits: After which loop each token behind the prompt was read.
        place: Where it is held.
        done: Loops of its newest token.
        exited: After which loop that one was read; 0: it is undecided.
    """

    number: int
    ids: list[int]
    generator: torch.Generator
    room: int = 0
    prompt: int = field(init=False)
    exits: list[int] = field(default_factory=list)
    place: int = -1
    done: int = 0
    exited: int = 0

    def __post_init__(self) -> None:
        self.prompt = len(self.ids)


_READ_NO_IDS = (TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper, MinPLogitsWarper)


class _Choice:
    """Tokens from predictions, as a generation configuration says."""

    def __init__(self, model: LoopedForCausalLM, config: GenerationConfig) -> None:
        self._model, self._config = model, config
        ends = config.eos_token_id
        self.ends = set(() if ends is None else [ends] if isinstance(ends, int) else ends)
        self._processors: dict[int, Any] = {}
        model._prepare_special_tokens(config, device=model.device)

    def tokens(self, texts: Sequence[_Text], logits: Tensor) -> list[int]:
        """One for every text, of logits (k, V)."""
        scores = self._processed(texts, logits.float())
        if not self._config.do_sample:
            found: list[int] = scores.argmax(dim=-1).tolist()
            return found
        below = scores.softmax(dim=-1).cumsum(dim=-1)
        drawn = torch.cat([torch.rand(1, 1, generator=text.generator) for text in texts]).to(below)
        # The first token whose sum is above the number: one of probability 0 never is.
        chosen: list[int] = torch.searchsorted(below, drawn * below[:, -1:], right=True).squeeze(1).tolist()
        return chosen

    def _processed(self, texts: Sequence[_Text], logits: Tensor) -> Tensor:
        lists = [self._processor(text) for text in texts]
        if not any(lists):
            return logits
        if all(isinstance(each, _READ_NO_IDS) for each in lists[0]):
            ids = torch.zeros(len(texts), 1, dtype=torch.int64, device=logits.device)
            together: Tensor = lists[0](ids, logits)
            return together
        ids_of = [torch.tensor([text.ids], device=logits.device) for text in texts]
        return torch.cat([each(ids, row) for each, ids, row in zip(lists, ids_of, logits.split(1), strict=True)])

    def _processor(self, text: _Text) -> Any:
        if text.prompt not in self._processors:
            ids = torch.tensor([text.ids[: text.prompt]])
            self._processors[text.prompt] = self._model._get_logits_processor(
                self._config, text.prompt, ids, device=self._model.device, model_kwargs={}
            )
        return self._processors[text.prompt]


# ---- Keys and values by place


class PlacedCache:
    """Keys and values of every place, loop and position, in one tensor a layer: the tokens of a loop lie together.

    Row ((place N + loop) room + position) of a layer's (rows, h d) is a token's; prelude layers have one loop. Tokens
    are written where `aim` or `aim_at_prompt` says, and attended to without copies, by views.
    """

    def __init__(self, model: LoopedModel, places: int, loops: int, room: int) -> None:
        config = model.config
        self._heads, self._width = config.key_value_heads, config.width_of_head
        self._loops, self._room = loops, room
        first = config.prelude + loops * config.core
        self._looped = [*range(config.prelude, config.prelude + config.core), *range(first, first + config.coda)]
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}
        like = model.embed_tokens.weight
        for number in (*range(config.prelude), *self._looped):
            rows = places * room * (loops if number in self._looped else 1)
            # Zeros, because attention of a masked entry multiplies it by 0.
            keys, values = (like.new_zeros(rows, self._heads * self._width) for _ in range(2))
            self._kept[number] = keys, values

    def aim(self, places: Sequence[int], loops: Sequence[int] | None, positions: Sequence[int]) -> None:
        """The next tokens are one of each place, at a loop from 0 (None: before all loops) and a position."""
        many = 1 if loops is None else self._loops
        at = loops if loops is not None else [0] * len(places)
        begins = [(place * many + loop) * self._room for place, loop in zip(places, at, strict=True)]
        self._views = [(begin, position + 1) for begin, position in zip(begins, positions, strict=True)]
        self._where = torch.tensor([begin + length - 1 for begin, length in self._views])
        self._mask: Tensor | None = None

    def aim_at_prompt(self, place: int, loop: int | None, positions: Tensor, length: int) -> None:
        """The next tokens are some of a prompt, at positions (R,) of so many."""
        begin = (place if loop is None else place * self._loops + loop) * self._room
        self._views, self._where = [(begin, length)], positions + begin
        self._mask = positions.unsqueeze(1) >= torch.arange(length, device=positions.device)

    def update(self, keys: Tensor, values: Tensor, number: int, *args: Any, **kwargs: Any) -> Any:
        """Write keys and values, (A, h, 1, d) or (1, h, R, d), of the layer with this place in a usual cache."""
        for kept, new in zip(self._kept[number], (keys, values), strict=True):
            kept.index_copy_(0, self._where, new.transpose(1, 2).reshape(-1, self._heads * self._width))
        return _Placed(self, number), None

    def repeat(self, place: int, positions: Tensor, loop: int, number: int) -> None:
        """Copy tokens' entries after one loop, from 0, to the places of all later loops."""
        begins = (place * self._loops + torch.arange(loop, self._loops)) * self._room
        source, *others = (begins.unsqueeze(1) + positions).unbind(0)
        for kept in self._kept[number]:
            rows = kept[source]
            for other in others:
                kept[other] = rows

    def write_later(self, number: int, where: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write rows (k, h d) of keys and values at the numbers (k,) that `later` gives."""
        for kept, new in zip(self._kept[number], (keys, values), strict=True):
            kept.index_copy_(0, where, new)

    def later(self, places: Sequence[int], loops: Sequence[int], positions: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Of tokens with so many loops: which of them (k,), and the rows (k,) of their later loops."""
        found = [
            (token, (place * self._loops + loop) * self._room + position)
            for token, (place, done, position) in enumerate(zip(places, loops, positions, strict=True))
            for loop in range(done, self._loops)
        ]
        tokens, rows = zip(*found, strict=True) if found else ((), ())
        return torch.tensor(tokens, dtype=torch.int64), torch.tensor(rows, dtype=torch.int64)

    def attend(self, number: int, query: Tensor, scaling: float | None, window: int | None) -> Tensor:
        """Attention of queries (A, H, 1, d) or (1, H, R, d) over what their places have; (A, 1, H, d), (1, R, H, d)."""
        keys, values = self._kept[number]
        heads, width = self._heads, self._width
        line, grouped = heads * width, query.shape[1] // heads
        mask = self._mask
        if mask is not None:
            if window is not None:
                length = mask.shape[1]
                mask = mask & (self._where.unsqueeze(1) - self._views[0][0] - torch.arange(length) < window)
        elif grouped > 1:  # the heads that share keys are like several tokens that see the same
            query = query.view(len(query), heads, grouped, width)
        attended = []
        for row, (begin, length) in zip(query.split(1), self._views, strict=True):
            skipped = 0 if window is None or mask is not None else max(length - window, 0)
            sizes, strides = (1, heads, length - skipped, width), (line, width, line, 1)
            key, value = (each.as_strided(sizes, strides, (begin + skipped) * line) for each in (keys, values))
            attended.append(
                scaled_dot_product_attention(
                    row, key, value, attn_mask=mask, scale=scaling, enable_gqa=mask is not None and grouped > 1
                )
            )
        joined = attended[0] if len(attended) == 1 else torch.cat(attended)
        if mask is not None:
            return joined.transpose(1, 2)
        return joined.reshape(len(joined), 1, heads * grouped, width)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Layers that ask are told nothing: positions and masks are given."""
        return 0


@dataclass
class _Placed:
    """Keys that stay where they are: what attention gets in place of a tensor."""

    cache: PlacedCache
    number: int


_ATTENTION = "adadepth_places"


def _attend(
    module: Any,
    query: Tensor,
    key: _Placed,
    value: None,
    attention_mask: None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention by place, as an attention function of transformers."""
    return key.cache.attend(key.number, query, scaling, sliding_window), None


AttentionInterface.register(_ATTENTION, _attend)


@contextmanager
def _attention_by_place(model: LoopedForCausalLM) -> Iterator[None]:
    """Let all layers attend by place."""
    of: list[Any] = [model.config, model.model.config]
    of += [] if model.config.base_config is None else [model.config.base_config]
    before = [config._attn_implementation for config in of]
    try:
        for config in of:
            config._attn_implementation = _ATTENTION
        yield
    finally:
        for config, implementation in zip(of, before, strict=True):
            config._attn_implementation = implementation


class _Enough(Exception):
    """A layer has said its keys and values."""


class _Listener:
    """A cache that takes a layer's keys and values and stops it there."""

    def update(self, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> Any:
        self.found = keys, values
        raise _Enough

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


def keys_and_values(layers: Layers, states: Tensor, run: Looping) -> list[tuple[Tensor, Tensor]]:
    """What every layer makes of the same states (B, T, D), without the layers before it: (B, T, h d) each."""
    said = []
    for layer in layers:
        listener = _Listener()
        try:
            layer(states, position_embeddings=run.rotation, position_ids=run.positions, past_key_values=listener)
        except _Enough:
            keys, values = (each.transpose(1, 2).flatten(2) for each in listener.found)
            said.append((keys, values))
    return said


# ---- Passes


class _Decoding:
    """Texts on their way through places."""

    def __init__(
        self,
        model: LoopedForCausalLM,
        texts: Sequence[_Text],
        choice: _Choice,
        rule: ExitRule,
        places: int,
        loops: int,
        policy: str,
    ) -> None:
        self.work = DecodingWork()
        self._model, self._inner, self._choice, self._rule = model, model.model, choice, rule
        self._waiting, self._places, self._loops = deque(texts), places, loops
        self._freezes = policy == "frozen"
        self._only = rule.k if isinstance(rule, Fixed) else None  # the one loop that is read
        self._asks_logits = LOGITS in rule.needs and self._only is None
        self._asks_gate = HALTING_SIGNAL in rule.needs
        longest = max((len(text.ids) + text.room for text in texts), default=1)
        self._cache: Any = PlacedCache(self._inner, places, loops, longest)
        self._rotation = self._rotations(longest)
        self._coda_first = model.config.prelude + loops * model.config.core
        self._busy: list[_Text] = []
        self._run: Looping | None = None
        self._memory = torch.zeros(0, 1)
        self._chosen: Tensor | None = None

    def run(self) -> None:
        """Decode all texts."""
        free = list(range(self._places))
        while self._waiting or self._busy:
            begun = []
            while free and self._waiting:
                text = self._waiting.popleft()
                text.place = free.pop()
                if self._read_prompt(text):
                    begun.append(text)
                else:
                    free.append(text.place)
            if begun:
                self._add(begun)
            if self._busy:
                free += self._pass()

    # ---- Rows of tokens

    def _rotations(self, longest: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines of all positions, (longest, d/2 or d) each."""
        positions = torch.arange(longest, device=self._model.device).unsqueeze(0)
        run = self._inner.rotation(self._inner.embed_tokens.weight[:1].unsqueeze(0), positions)
        return run[0][0], run[1][0]

    def _begin(self, ids: Tensor, positions: Tensor) -> Looping:
        """Embed tokens, (B, T); the cache is aimed where the prelude's entries go."""
        embedded: Tensor = self._inner.embed(ids)
        rotation = tuple(each[positions] for each in self._rotation)
        run = Looping(embedded, embedded, None, positions, None, rotation, self._cache, self._loops)
        if len(self._inner.prelude):
            run.embedded = self._inner.prelude(run.embedded, None, run, 0, 0)
        run.state = self._inner.first_state(run)
        return run

    def _next(self, texts: Sequence[_Text]) -> tuple[Looping, Tensor]:
        """The newest tokens of texts before their first loop, and what the rule knows of them."""
        positions = [len(text.ids) - 1 for text in texts]
        if len(self._inner.prelude):
            self._cache.aim([text.place for text in texts], None, positions)
        ids = torch.tensor([[text.ids[-1]] for text in texts], device=self._model.device)
        run = self._begin(ids, torch.tensor(positions, device=ids.device).unsqueeze(1))
        for text in texts:
            text.done = text.exited = 0
        if isinstance(self._rule, Fixed):
            return run, run.state.new_zeros(len(texts), 1)
        return run, torch.cat([self._rule.start(1, ids.device, text.generator) for text in texts])

    def _add(self, texts: Sequence[_Text]) -> None:
        """Texts take places."""
        run, memory = self._next(texts)
        self._busy += texts
        if self._run is None:
            self._run, self._memory = run, memory
            return
        self._memory = torch.cat([self._memory, memory])
        for name in ("embedded", "state", "positions"):
            setattr(self._run, name, torch.cat([getattr(self._run, name), getattr(run, name)]))
        self._run.rotation = tuple(map(torch.cat, zip(self._run.rotation, run.rotation, strict=True)))
        if self._chosen is not None:
            self._chosen = torch.cat([self._chosen, run.state])

    def _replace(self, rows: list[int], texts: Sequence[_Text]) -> None:
        """The rows of these texts go on with their next tokens."""
        run, memory = self._next(texts)
        assert self._run is not None
        if len(rows) == len(self._busy):
            self._run, self._memory = run, memory
            return
        where = torch.tensor(rows, device=memory.device)
        self._memory.index_copy_(0, where, memory)
        pairs = [(self._run.rotation[part], run.rotation[part]) for part in range(2)]
        pairs += [(getattr(self._run, name), getattr(run, name)) for name in ("embedded", "state", "positions")]
        for old, new in pairs:
            old.index_copy_(0, where, new)

    def _keep(self, rows: list[int]) -> None:
        """Only these rows go on."""
        self._busy = [self._busy[row] for row in rows]
        if not rows:
            self._run = None
            return
        assert self._run is not None
        where = torch.tensor(rows, device=self._memory.device)
        self._memory = self._memory[where]
        self._run.rotation = tuple(each[where] for each in self._run.rotation)
        for name in ("embedded", "state", "positions"):
            setattr(self._run, name, getattr(self._run, name)[where])
        self._chosen = None if self._chosen is None else self._chosen[where]

    def _pass(self) -> list[int]:
        """One more loop of every place's token; returns the places that became free."""
        run, texts = self._run, self._busy
        assert run is not None
        self._cache.aim([t.place for t in texts], [t.done for t in texts], [len(t.ids) - 1 for t in texts])
        run.done = 0  # the cache knows better: every row has its own
        normed = self._inner.loop(run)
        self.work.passes += 1
        self.work.loops += len(texts)
        for text in texts:
            text.done += 1
        read = self._read(run, self._only is None or any(t.done == self._only for t in texts))
        asked = [row for row, text in enumerate(texts) if not text.exited]
        exits, logits = self._exits(asked, texts, read, normed)
        for row in exits:
            texts[row].exited = texts[row].done
        if not self._freezes:
            self._keep_chosen(exits, read)
        leaving = exits if self._freezes else [row for row, text in enumerate(texts) if text.done == self._loops]
        if not leaving:
            return []
        return self._leave(leaving, read, logits if self._freezes else None)

    def _leave(self, rows: list[int], read: Tensor | None, logits: Tensor | None) -> list[int]:
        """These rows' tokens are done: predict behind them, and go on with what follows."""
        every = len(rows) == len(self._busy)
        source = read if self._chosen is None else self._chosen
        if logits is None:
            assert source is not None
            logits = self._model.lm_head(source if every else source[rows])[:, 0]
            self.work.heads += len(rows)
        elif not every:
            logits = logits[rows]
        if self._freezes and self._only is None:  # behind the one loop of all tokens nobody reads
            self._freeze(rows)
        leaving = [self._busy[row] for row in rows]
        going, ended, free = [], [], []
        for row, text, token in zip(rows, leaving, self._choice.tokens(leaving, logits), strict=True):
            (going if self._append(text, token, text.exited) else ended).append(row)
        if going:
            self._replace(going, [self._busy[row] for row in going])
        if ended:
            free = [self._busy[row].place for row in ended]
            gone = set(ended)
            self._keep([row for row in range(len(self._busy)) if row not in gone])
        return free

    def _append(self, text: _Text, token: int, exited: int) -> bool:
        """A text has one more token; whether it goes on."""
        text.ids.append(token)
        text.exits.append(exited)
        return token not in self._choice.ends and len(text.ids) < text.prompt + text.room

    # ---- Reading and exits

    def _read(self, run: Looping, wanted: bool) -> Tensor | None:
        """R of every row, (A, 1, D), where a coda has to run for it only if it is wanted."""
        if not wanted and self._inner.coda:
            return None
        run.done = run.loops
        return self._inner.read(run)

    def _exits(
        self, asked: list[int], texts: Sequence[_Text], read: Tensor | None, normed: Tensor
    ) -> tuple[list[int], Tensor | None]:
        """Which rows exit now, and the logits of all rows, if the rule has read them of all."""
        if self._only is not None:
            return [row for row in asked if texts[row].done >= min(self._only, self._loops)], None
        if not asked:
            return [], None
        logits, said = None, None
        everybody = len(asked) == len(texts)
        if self._asks_logits:
            assert read is not None
            logits = self._model.lm_head(read if everybody else read[asked])[:, 0].float()
            self.work.heads += len(asked)
        if self._asks_gate:
            said = self._inner.gate(normed if everybody else normed[asked])[:, 0]
        exits = self._decide([texts[row].done for row in asked], logits, said, asked)
        return [row for row, gone in zip(asked, exits, strict=True) if gone], logits if everybody else None

    def _decide(self, done: list[int], logits: Tensor | None, said: Tensor | None, rows: list[int]) -> list[bool]:
        """Ask the rule about rows with so many loops, those with as many at once."""
        found = [loop == self._loops for loop in done]
        for loop in sorted(set(done) - {self._loops}):
            group = [number for number, each in enumerate(done) if each == loop]
            alone = len(group) == len(self._memory)
            where = slice(None) if len(group) == len(done) else group
            memory = self._memory if alone else self._memory[[rows[number] for number in group]]
            view = StepView(
                loop, self._loops, None if logits is None else logits[where], None if said is None else said[where]
            )
            gone, memory = self._rule.decide(view, memory)
            if alone:
                self._memory = memory
            else:
                self._memory[[rows[number] for number in group]] = memory
            for number, each in zip(group, gone.tolist(), strict=True):
                found[number] = each
        return found

    def _keep_chosen(self, exits: list[int], read: Tensor | None) -> None:
        """Remember what exited rows read, while they go on."""
        if self._chosen is None or len(self._chosen) != len(self._busy):
            assert self._run is not None
            self._chosen = torch.zeros_like(self._run.state)
        if exits:
            assert read is not None
            self._chosen[exits] = read[exits]

    def _freeze(self, rows: list[int]) -> None:
        """Entries of the loops that these rows' tokens will not run."""
        rows = [row for row in rows if self._busy[row].done < self._loops]
        if not rows:
            return
        assert self._run is not None
        texts, run = [self._busy[row] for row in rows], self._run
        if len(rows) < len(self._busy):
            where = torch.tensor(rows)
            rotation = tuple(each[where] for each in run.rotation)
            run = Looping(
                run.embedded[where], run.state[where], None, run.positions[where], None, rotation, None, self._loops
            )
        places, done, positions = zip(*((t.place, t.done, len(t.ids) - 1) for t in texts), strict=True)
        self._write_frozen(run, *self._cache.later(places, done, positions))
        self.work.frozen += len(rows)
        for text in texts if self._inner.coda else ():
            position = torch.tensor([len(text.ids) - 1])
            for number in range(self._coda_first, self._coda_first + len(self._inner.coda)):
                self._cache.repeat(text.place, position, text.done - 1, number)

    def _write_frozen(self, run: Looping, tokens: Tensor, where: Tensor) -> None:
        began = self._inner.injected(run.state, run.embedded)
        said = keys_and_values(self._inner.core, began, run)
        for number, (keys, values) in enumerate(said, start=self._model.config.prelude):
            self._cache.write_later(number, where, *(each.flatten(0, 1)[tokens] for each in (keys, values)))

    # ---- Prompts

    def _read_prompt(self, text: _Text) -> bool:
        """Run a prompt by itself; whether its text goes on behind the first new token."""
        if not text.room:
            return False
        length = len(text.ids)
        ids, positions = torch.tensor([text.ids]), torch.arange(length)
        self._cache.aim_at_prompt(text.place, None, positions, length)
        run = self._begin(ids, positions.unsqueeze(0))
        memory = self._rule.start(length, ids.device, text.generator)
        exited = torch.zeros(length, dtype=torch.int64)
        chosen = torch.zeros_like(run.state[0])
        run.state = run.state.clone()  # it may be the input itself
        running = positions
        for done in range(self._loops):
            self._cache.aim_at_prompt(text.place, done, running, length)
            part = _rows_of(run, running)
            normed = self._inner.loop(part)
            run.state[:, running] = part.state
            self.work.prompt_loops += len(running)
            read = self._read(part, self._only is None or done + 1 == self._only)
            undecided = exited[running] == 0
            gone = undecided & self._prompt_exits(done + 1, running, undecided, read, normed, memory)
            if gone.any():
                assert read is not None
                leaving = running[gone]
                exited[leaving], chosen[leaving] = done + 1, read[0, gone]
                if self._freezes and self._only is None and done + 1 < self._loops:
                    self._freeze_prompt(text, run, leaving, done + 1, length)
                running = running[~gone] if self._freezes else running
            if not len(running):
                break
        logits = self._model.lm_head(chosen[-1:])
        return self._append(text, self._choice.tokens([text], logits)[0], int(exited[-1]))

    def _prompt_exits(
        self, step: int, running: Tensor, undecided: Tensor, read: Tensor | None, normed: Tensor, memory: Tensor
    ) -> Tensor:
        """Which of a prompt's running tokens, (R,), the rule lets out; its memory (T, k) is brought up to date."""
        if step == self._loops or self._only is not None:
            return torch.full_like(undecided, step == self._loops or step == self._only)
        logits = None
        if self._asks_logits:
            assert read is not None
            logits = self._model.lm_head(read[0]).float()
        said = self._inner.gate(normed)[0] if self._asks_gate else None
        gone, memory[running] = self._rule.decide(StepView(step, self._loops, logits, said), memory[running])
        return gone

    def _freeze_prompt(self, text: _Text, run: Looping, leaving: Tensor, done: int, length: int) -> None:
        part = _rows_of(run, leaving)
        places, loops = [text.place] * len(leaving), [done] * len(leaving)
        self._write_frozen(part, *self._cache.later(places, loops, leaving.tolist()))
        for number in range(self._coda_first, self._coda_first + len(self._inner.coda)):
            self._cache.repeat(text.place, leaving, done - 1, number)


def _rows_of(run: Looping, tokens: Tensor) -> Looping:
    """Some tokens of a prompt, (R,), as a batch of their own."""
    rotation = tuple(each[:, tokens] for each in run.rotation)
    return Looping(
        run.embedded[:, tokens],
        run.state[:, tokens],
        None,
        run.positions[:, tokens],
        None,
        rotation,
        run.cache,
        run.loops,
    )
