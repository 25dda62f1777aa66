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

from adadepth.errors import ConfigError
from adadepth.families.looped.compaction import keys_and_values
from adadepth.families.looped.heads import LoopedForCausalLM
from adadepth.families.looped.modeling import Looping
from adadepth.families.looped.placed_cache import PlacedCache, PlacedTokens, attention_by_place
from adadepth.halting.exit_rules import HALTING_SIGNAL, LOGITS, STATES, ExitRule, Fixed, StepView, widened

_POLICIES = ("all", "frozen")


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
    generating: Any = model  # transformers types these methods for models of its own
    config, _ = generating._prepare_generation_config(generation_config)
    loops = model.config.loops(num_loops)
    rule = model.rule(exit_rule, loops, model.config.vocab_size)
    _check(model, config, rule, places, cache_policy, prompts, seeds)
    texts = [
        _Text([int(token) for token in prompt], torch.Generator().manual_seed(seed), _longest(config, len(prompt)))
        for prompt, seed in zip(prompts, seeds or range(len(prompts)), strict=True)
    ]
    with attention_by_place(model):
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
    if policy not in _POLICIES:
        raise ConfigError(f"cache_policy={policy}: must be one of {', '.join(_POLICIES)}")
    if places < 1:
        raise ConfigError(f"places={places} must be at least 1")
    if seeds is not None and len(seeds) != len(prompts):
        raise ConfigError(f"seeds: {len(seeds)} of them for {len(prompts)} prompts")
    if not all(len(prompt) for prompt in prompts):
        raise ConfigError("prompts: every text begins with at least one token")
    if rule.mixes:
        raise ConfigError(f"exit_rule={rule.label}: mixes all loops, so that nobody exits")
    if STATES in rule.needs:
        raise ConfigError(f"exit_rule={rule.label}: reads how states move, which {_SERVED} does not keep")
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


def _longest(config: GenerationConfig, prompt: int) -> int:
    """How many tokens a text may have."""
    return int(config.max_length or 20) if config.max_new_tokens is None else prompt + int(config.max_new_tokens)


# ---- Texts and how their tokens are chosen


@dataclass
class _Text:
    """A text, and where its newest tokens are: those of the prompt at first, then one.

    Attributes:
        ids: The prompt and what follows.
        generator: Of its own draws.
        longest: How many tokens it may have.
        prompt: Tokens of the prompt.
        exits: After which loop each token behind the prompt was read.
        place: Where it is held.
        running: Positions of the newest tokens that still loop.
        done: How many loops these have had.
        undecided: Which of them have not exited.
        exited: After which loop the last token was read; 0: it is undecided.
        said: What was read of it then: r (1, D), or the prediction (1, V) where the rule has asked for it.
    """

    ids: list[int]
    generator: torch.Generator
    longest: int
    prompt: int = field(init=False)
    exits: list[int] = field(default_factory=list)
    place: int = -1
    running: list[int] = field(default_factory=list)
    done: int = 0
    undecided: list[bool] = field(default_factory=list)
    exited: int = 0
    said: Tensor | None = None

    def __post_init__(self) -> None:
        self.prompt = len(self.ids)

    def begin(self) -> None:
        """The newest tokens are before their first loop."""
        first = len(self.ids) - 1 if self.exits else 0
        self.running, self.done, self.exited = list(range(first, len(self.ids))), 0, 0
        self.undecided = [True] * len(self.running)


_READ_NO_IDS = (TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper, MinPLogitsWarper)


class _Choice:
    """Tokens from predictions, as a generation configuration says."""

    def __init__(self, model: Any, config: GenerationConfig) -> None:
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


# ---- Passes


class _Decoding:
    """Texts on their way through places. The M tokens of a pass are a batch of M rows of one token each."""

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
        self._waiting, self._free, self._loops = deque(texts), list(range(places)), loops
        self._freezes = policy == "frozen"
        self._only = rule.k if isinstance(rule, Fixed) else None  # the one loop that is read
        self._asks_logits = LOGITS in rule.needs and self._only is None
        self._asks_gate = HALTING_SIGNAL in rule.needs
        room = max((text.longest for text in texts), default=1)
        self._cache: Any = PlacedCache(self._inner, places, loops, room)
        positions = torch.arange(room).unsqueeze(0)
        self._rotation = self._inner.rotation(self._inner.embed_tokens.weight[:1, None], positions)
        self._busy: list[_Text] = []
        self._state = self._embedded = self._memory = torch.zeros(0)

    def run(self) -> None:
        """Decode all texts."""
        while self._waiting or self._busy:
            begun = []
            while self._free and self._waiting:
                text = self._waiting.popleft()
                if len(text.ids) < text.longest:
                    text.place = self._free.pop()
                    begun.append(text)
            if begun:
                self._go_on(list(range(len(self._state))), self._busy, begun)
            if self._busy:
                self._pass()

    def _go_on(self, rows: list[int], stay: list[_Text], begin: Sequence[_Text]) -> None:
        """These rows go on, those of texts that stay; behind them come the newest tokens of others."""
        if len(rows) < len(self._state):
            kept = torch.tensor(rows, dtype=torch.int64)
            self._state, self._embedded, self._memory = (
                each[kept] if len(each) else each for each in (self._state, self._embedded, self._memory)
            )
        self._busy = stay + list(begin)
        if not begin:
            return
        run, memory = self._begin(begin)
        columns = max(self._memory.shape[-1] if rows else 0, memory.shape[1])
        self._memory, memory = widened(self._memory, columns) if rows else self._memory, widened(memory, columns)
        # Where nothing is injected nobody asks what the tokens were.
        new = (run.state, run.embedded if self._model.config.injection != "none" else self._embedded[:0], memory)
        self._state, self._embedded, self._memory = (
            torch.cat([old, each]) if rows and len(each) else each
            for old, each in zip((self._state, self._embedded, self._memory), new, strict=True)
        )

    def _begin(self, texts: Sequence[_Text]) -> tuple[Looping, Tensor]:
        """The newest tokens of texts before their first loop, and what the rule knows of them."""
        for text in texts:
            text.begin()
        if len(self._inner.prelude):
            self._cache.aim([PlacedTokens(text.place, None, text.running) for text in texts])
        ids = [[text.ids[position]] for text in texts for position in text.running]
        embedded = self._inner.embed(torch.tensor(ids))
        run = self._rows(embedded, embedded, [position for text in texts for position in text.running])
        if len(self._inner.prelude):
            run.embedded = self._inner.prelude(embedded, None, run, 0, 0)
        run.state = self._inner.first_state(run)
        if self._only is not None:
            return run, torch.zeros(len(ids), 0)
        return run, torch.cat([self._rule.start(len(t.running), embedded.device, t.generator) for t in texts])

    def _rows(self, embedded: Tensor, state: Tensor, positions: list[int]) -> Looping:
        """M tokens, (M, 1, D), as a batch."""
        at = torch.tensor(positions)
        rotation = tuple(each[0, at].unsqueeze(1) for each in self._rotation)
        return Looping(embedded, state, None, at.unsqueeze(1), None, rotation, self._cache, self._loops)

    # ---- A pass

    def _pass(self) -> None:
        """One more loop of all tokens."""
        texts = self._busy
        self._cache.aim([PlacedTokens(text.place, text.done, text.running) for text in texts])
        embedded = self._embedded if len(self._embedded) else self._state
        run = self._rows(embedded, self._state, [position for text in texts for position in text.running])
        normed = self._inner.loop(run)
        self._state = run.state
        self._count(texts)
        for text in texts:
            text.done += 1
        read = self._read(run)
        exits, logits = self._exits(texts, read, normed)
        self._leave(texts, exits, run, read if logits is None else logits)

    def _count(self, texts: Sequence[_Text]) -> None:
        self.work.passes += 1
        for text in texts:
            if text.exits:
                self.work.loops += 1
            else:
                self.work.prompt_loops += len(text.running)

    def _read(self, run: Looping) -> Tensor:
        """R of all tokens, (M, D). With a coda and a fixed rule nobody reads the other loops."""
        if self._inner.coda and self._only is not None and all(text.done != self._only for text in self._busy):
            return run.state[:, 0]
        run.done = run.loops  # where the coda has its place; which loop a token has had the cache knows
        return self._inner.read(run)[:, 0]

    def _exits(self, texts: Sequence[_Text], read: Tensor, normed: Tensor) -> tuple[list[bool], Tensor | None]:
        """Which tokens exit now, (M,), and their predictions (M, V), where the rule has asked for them."""
        steps = [text.done for text in texts for _ in text.running]
        if self._only is not None:
            return [step == self._only for step in steps], None
        logits = self._model.lm_head(read).float() if self._asks_logits else None
        said = self._inner.gate(normed)[:, 0] if self._asks_gate else None
        if logits is not None:
            self.work.heads += sum(len(text.running) for text in texts if text.exits)
        alike = [min(steps)] if not self._rule.counts_steps else sorted(set(steps))
        found = [step == self._loops for step in steps]
        for step in alike:
            gone, memory = self._rule.decide(StepView(step, self._loops, logits, said), self._memory)
            if len(alike) == 1:
                self._memory = memory
                asked = list(range(len(steps)))
            else:
                asked = [row for row, each in enumerate(steps) if each == step]
                self._memory = widened(self._memory, memory.shape[1]).index_copy(0, torch.tensor(asked), memory[asked])
            answers = gone.tolist()
            for row in asked:
                found[row] = found[row] or answers[row]
        return found, logits

    def _leave(self, texts: Sequence[_Text], exits: list[bool], run: Looping, said: Tensor) -> None:
        """Take out what is done, and let its texts go on with their next tokens, and others with their first."""
        row, rows, exited = 0, list[int](), list[int]()
        stay, finished, frozen = list[_Text](), list[_Text](), list[PlacedTokens]()
        for text in texts:
            first, row = row, row + len(text.running)
            if text.undecided[-1] and exits[row - 1] and text.running[-1] == len(text.ids) - 1:
                text.exited, text.said = text.done, said[row - 1 : row]
            gone = exits[first:row]
            if not self._freezes:
                text.undecided = [before and not now for before, now in zip(text.undecided, gone, strict=True)]
                gone = [text.done == self._loops] * len(gone)
            if not any(gone):
                rows += range(first, row)
                stay.append(text)
                continue
            if self._freezes and self._only is None and text.done < self._loops:
                positions = [at for at, each in zip(text.running, gone, strict=True) if each]
                frozen.append(PlacedTokens(text.place, text.done - 1, positions))
                exited += [number for number, each in enumerate(gone, first) if each]
            if all(gone):
                finished.append(text)
                continue
            text.running = [at for at, each in zip(text.running, gone, strict=True) if not each]
            text.undecided = [True] * len(text.running)
            rows += [number for number, each in enumerate(gone, first) if not each]
            stay.append(text)
        if frozen:
            self._freeze(run, frozen, exited)
        if finished or len(rows) < row:
            self._go_on(rows, stay, self._continued(finished))

    def _continued(self, texts: list[_Text]) -> list[_Text]:
        """Choose the next tokens of texts; those that go on."""
        if not texts:
            return []
        said = torch.cat([text.said for text in texts if text.said is not None])
        logits = said if self._asks_logits else self._model.lm_head(said)
        if not self._asks_logits:
            self.work.heads += sum(bool(text.exits) for text in texts)
        going = []
        for text, token in zip(texts, self._choice.tokens(texts, logits), strict=True):
            text.ids.append(token)
            text.exits.append(text.exited)
            if token in self._choice.ends or len(text.ids) == text.longest:
                self._free.append(text.place)
            else:
                going.append(text)
        return going

    def _freeze(self, run: Looping, groups: list[PlacedTokens], rows: list[int]) -> None:
        """Entries of the loops that tokens will not run, which are rows of a batch."""
        if len(rows) == len(run.state):
            state, embedded, rotation, positions = run.state, run.embedded, run.rotation, run.positions
        else:
            at = torch.tensor(rows)
            state, embedded, positions = run.state[at], run.embedded[at], run.positions[at]
            rotation = tuple(each[at] for each in run.rotation)
        began = self._inner.injected(state, embedded)
        tokens, where = self._cache.later(groups)
        first = self._model.config.prelude
        for number, both in enumerate(keys_and_values(self._inner.core, began, rotation, positions), start=first):
            self._cache.write_later(number, where, *(each.reshape(len(rows), -1)[tokens] for each in both))
        first += self._loops * self._model.config.core
        for number in range(first, first + self._model.config.coda):
            self._cache.repeat_later(number, groups)
        self.work.frozen += len(rows)
