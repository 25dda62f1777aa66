"""Decoding of looped models: does the time follow the loops that tokens need?

    OMP_NUM_THREADS=1 python benchmarks/looped_decoding.py [--size hops ouro] [--places 1 16] [--repeats 5]
    OMP_NUM_THREADS=1 python benchmarks/looped_decoding.py --speculation [--size hops ouro] [--accepted 1 0.8 0.6]

Random weights, greedy tokens, float32, and exits that a rule prescribes, whatever the states are; one thread. Ways over
the same prompts, interleaved, medians compared:
  full      all tokens run N loops, in places (`decode_texts`, rule fixed:N)
  exits     tokens run as many loops as is prescribed, in places, policy `frozen`
  generate  all tokens run N loops, transformers' own loop, batches of as many rows as there are places
Executed work counts multiply-accumulates of what ran: loops and predictions, keys and values of frozen tokens, prompts.
`of what work allows` is (full x executed work / full work) / exits: 1 if time followed the work exactly; `of generate`
is the same with the time of `generate` in place of full.

With --speculation: self-speculation with 1 loop a draft against `generate`, one text, with drafts that are right by
construction and made wrong as often as asked. `passes` says what the core's passes alone would give.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from transformers import GenerationConfig

from adadepth import LoopedConfig, LoopedForCausalLM
from adadepth.contrib.decoding import speculative_decoding
from adadepth.contrib.decoding.continuous_batching import DecodingWork, decode_texts
from adadepth.contrib.decoding.speculative_decoding import self_speculation
from adadepth.halting.exit_rules import ExitRule, StepView
from adadepth.models.looped.task_model import compute_layer_macs
from adadepth.runtime.distributed import set_malloc_thresholds
from adadepth.runtime.hardware import describe_machine

TARGET = 0.85


@dataclass(frozen=True)
class Size:
    """Model with the texts that it continues: texts per slot, and the tokens of a prompt and of its continuation."""

    fields: dict[str, Any]
    exits: tuple[int, ...]
    texts: int
    prompt: int
    new: int


LAYER = {"norms": "branch", "state_norm": "fed"}
HOPS = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 256, "core": 1, "num_loops": 8, **LAYER}
OURO = {"hidden_size": 2048, "num_attention_heads": 16, "intermediate_size": 5632, "core": 1, "num_loops": 4, **LAYER}
SIZES = {
    "hops": Size({**HOPS, "vocab_size": 64}, (1, 1, 1, 2, 2, 2, 3, 4), 4, 8, 96),
    "ouro": Size({**OURO, "vocab_size": 512}, (1, 1, 2, 4), 12, 8, 24),
    "ouro-vocabulary": Size({**OURO, "vocab_size": 49152}, (1, 1, 2, 4), 3, 8, 24),
}


@dataclass(frozen=True)
class Prescribed(ExitRule):
    """Exit rule of prescribed loops, drawn evenly from a list by the text's own generator."""

    name = "prescribed"
    needs = frozenset()
    counts_steps = False  # its memory is the number of remaining loops
    exits: tuple[int, ...] = field(default=(1,))

    def start(self, rows: int, device: torch.device | str, generator: torch.Generator | None = None) -> Tensor:
        """Return the exits."""
        indices = torch.randint(len(self.exits), (rows, 1), generator=generator)
        return torch.tensor(self.exits, dtype=torch.float32)[indices]

    def decide(self, view: StepView, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Count the remaining loops down."""
        remaining = memory - 1
        return remaining[:, 0] <= 0, remaining


def make_model(size: Size) -> LoopedForCausalLM:
    """Build a model with random weights."""
    torch.manual_seed(0)
    return LoopedForCausalLM(LoopedConfig(**size.fields, initializer_range=0.05)).eval()


def compute_executed_macs(model: LoopedForCausalLM, size: Size, work: DecodingWork) -> float:
    """Compute the multiply-accumulates that ran."""
    config = model.config
    token, pair = compute_layer_macs(config)
    loop = config.core * (token + pair * (size.prompt + size.new / 2))
    prompt_loop = config.core * (token + pair * size.prompt / 2)
    frozen = config.core * 2 * config.hidden_size * config.key_value_heads * config.width_of_head
    head = config.hidden_size * config.vocab_size
    return work.loops * loop + work.prompt_loops * prompt_loop + work.frozen * frozen + work.heads * head


def generate_batches(model: LoopedForCausalLM, prompts: Tensor, batch_size: int, config: GenerationConfig) -> None:
    """Extend texts of one length by transformers' own loop."""
    for batch in prompts.split(batch_size):
        model.generate(batch, attention_mask=torch.ones_like(batch), generation_config=config)


def time_methods(ways: dict[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Time every method in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def measure(name: str, slots: int, repeats: int) -> dict[str, Any]:
    """Measure one row of the table."""
    size = SIZES[name]
    model = make_model(size)
    prompts = torch.randint(size.fields["vocab_size"], (size.texts * slots, size.prompt))
    config = GenerationConfig(max_new_tokens=size.new, do_sample=False, pad_token_id=0)
    work: dict[str, DecodingWork] = {}

    def decode_in_slots(way: str, rule: str | ExitRule) -> None:
        work[way] = decode_texts(model, list(prompts), config, places=slots, exit_rule=rule).work

    ways: dict[str, Callable[[], Any]] = {
        "full": lambda: decode_in_slots("full", f"fixed:{model.config.num_loops}"),
        "exits": lambda: decode_in_slots("exits", Prescribed(size.exits)),
        "generate": lambda: generate_batches(model, prompts, slots, config),
    }
    time_methods(ways, 1)
    seconds = time_methods(ways, repeats)
    medians = {way: statistics.median(values) for way, values in seconds.items()}
    share = compute_executed_macs(model, size, work["exits"]) / compute_executed_macs(model, size, work["full"])
    return {
        "size": name,
        "places": slots,
        "share_of_work": share,
        "mean_loops": work["exits"].loops / max(work["exits"].heads, 1),
        **{f"{way}_seconds": value for way, value in medians.items()},
        **{f"{way}_range": [min(values), max(values)] for way, values in seconds.items()},
        "of_what_work_allows": medians["full"] * share / medians["exits"],
        "best_of_what_work_allows": min(seconds["full"]) * share / min(seconds["exits"]),
        "of_generate": medians["generate"] * share / medians["exits"],
        "speed_up": medians["full"] / medians["exits"],
        "load": os.getloadavg()[0],
    }


# ---- Self-speculation


class SpoiledDrafter:
    """Drafter that chooses drafts as self-speculation does, and replaces some by another token."""

    def __init__(self, accepted: float) -> None:
        self._accepted, self._choose = accepted, speculative_decoding._AcceptedTokens.draft
        self._generator = torch.Generator().manual_seed(0)

    def __call__(self, committed: Any, logits: Tensor, before: Any) -> Any:
        """Draft the next token, correct with the requested probability."""
        draft = self._choose(committed, logits, before)
        if torch.rand((), generator=self._generator) >= self._accepted:
            draft.token = (draft.token + 1) % logits.shape[-1]
        return draft


def make_unchanging_model(size: Size) -> LoopedForCausalLM:
    """Build a model with loops that are computed but change nothing, so that every draft is correct."""
    model = make_model(size)
    with torch.no_grad():
        for layer in model.model.core:
            layer.attention_post_norm.weight.zero_()
            layer.mlp_post_norm.weight.zero_()
    return model


def measure_speculation(name: str, accepted: float, drafts: int, repeats: int) -> dict[str, Any]:
    """Measure one row of the table."""
    size = SIZES[name]
    model = make_unchanging_model(size)
    prompt = torch.randint(size.fields["vocab_size"], (1, size.prompt))
    config = GenerationConfig(
        max_new_tokens=2 * size.new, do_sample=False, pad_token_id=0, return_dict_in_generate=True
    )
    outputs: dict[str, Any] = {}

    def generate(way: str, **options: Any) -> None:
        mask = torch.ones_like(prompt)
        outputs[way] = model.generate(prompt, attention_mask=mask, generation_config=config, **options)

    ways: dict[str, Callable[[], Any]] = {
        "generate": lambda: generate("generate"),
        "speculation": lambda: generate("speculation", custom_generate=self_speculation, draft_tokens=drafts),
    }
    spoiled = SpoiledDrafter(accepted)
    with mock.patch.object(speculative_decoding._AcceptedTokens, "draft", lambda *arguments: spoiled(*arguments)):
        time_methods(ways, 1)
        seconds = time_methods(ways, repeats)
    assert outputs["generate"].sequences.equal(outputs["speculation"].sequences)
    medians = {way: statistics.median(values) for way, values in seconds.items()}
    output = outputs["speculation"]
    return {
        "size": name,
        "drafts": drafts,
        "accepted": output.accepted / output.drafted,
        **{f"{way}_seconds": value for way, value in medians.items()},
        "speed_up": medians["generate"] / medians["speculation"],
        "passes": (2 * size.new - 1) * model.config.num_loops / output.core_passes,
        "load": os.getloadavg()[0],
    }


def list_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield every row of the table."""
    if options.speculation:
        for name, accepted in itertools.product(options.size, options.accepted):
            yield measure_speculation(name, accepted, options.drafts, options.repeats)
        return
    for name, slots in itertools.product(options.size, options.places):
        yield measure(name, slots, options.repeats)


def main() -> None:
    """Print the table, and write the JSON on request."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", nargs="+", choices=SIZES, default=[*SIZES])
    parser.add_argument("--places", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--speculation", action="store_true")
    parser.add_argument("--accepted", type=float, nargs="+", default=[1.0, 0.8, 0.6])
    parser.add_argument("--drafts", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    set_malloc_thresholds()  # as a run does
    print(f"{describe_machine(torch.device('cpu'))}, {options.repeats} repeats")
    rows_of_table = []
    with torch.inference_mode():
        for row in list_rows(options):
            rows_of_table.append(row)
            print("  ".join(f"{key} {_format_value(value)}" for key, value in row.items()), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(rows_of_table, indent=2) + "\n")


def _format_value(value: Any) -> str:
    if isinstance(value, list):
        return "-".join(f"{number:.3g}" for number in value)
    return f"{value:.3f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
