"""Decoding of early-exit models: does the time follow the layers that tokens need?

    OMP_NUM_THREADS=1 python benchmarks/early_exit_decoding.py [--batch 1 16] [--layers 16] [--repeats 5]
    OMP_NUM_THREADS=1 python benchmarks/early_exit_decoding.py --speculation RUN [RUN ...]

The layers have the sizes of Llama-3.2-1B (2,048 wide, 32 heads, 8 of keys and values, 8,192 inner) and random weights.
Tokens are chosen greedily in float32, and a rule prescribes exits whatever the states are. Several methods continue the
same prompts in turns, and their medians are compared:
  stock      transformers' own model and cache
  full       the early-exit model at full depth
  POLICY     tokens exit as prescribed, with the cache policy `frozen` or `deferred`
`of what work allows` is (stock x executed work / full work) / POLICY: 1 if the time followed the work exactly.

With --speculation: trained models continue English texts. Drafts of each early exit are verified at full depth, in
turns with full depth alone.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from looped_decoding import Prescribed, time_methods
from torch import Tensor
from transformers import AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

import adadepth
from adadepth import EarlyExitConfig, EarlyExitForCausalLM
from adadepth.runtime.distributed import set_malloc_thresholds
from adadepth.runtime.hardware import describe_machine

LLAMA_1B: dict[str, Any] = {
    "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 8192,
    "vocab_size": 2048, "max_position_embeddings": 512,
}  # fmt: skip
POLICIES = ("frozen", "deferred")
MODULES = ("argparse", "json", "statistics", "textwrap", "random", "heapq", "difflib", "calendar", "bisect", "sched")


def make_models(layers: int) -> tuple[Any, Any]:
    """Return transformers' model and the early-exit model, with the same random weights."""
    torch.manual_seed(0)
    base = LlamaConfig(**LLAMA_1B, num_hidden_layers=layers, tie_word_embeddings=True)
    stock = LlamaForCausalLM(base).eval()
    model = EarlyExitForCausalLM(EarlyExitConfig(base_config=base.to_dict())).eval()
    shared = stock.model.state_dict()
    model.model.load_state_dict({name: value for name, value in shared.items() if name != "norm.weight"}, assign=True)
    model.tie_weights()
    return stock, model


class WorkCounter:
    """Counter of the multiply-accumulates of all calls of a model."""

    def __init__(self, model: EarlyExitForCausalLM) -> None:
        self.total = 0.0
        model.register_forward_hook(self._count)

    def _count(self, model: Any, _: Any, output: Any) -> None:
        predictions = output.logits.shape[0] * output.logits.shape[1]
        self.total += float(model.price(output.trace).executed) + predictions * model.readout_work


def measure_policies(model: Any, stock: Any, batch: int, new: int, repeats: int) -> Iterator[dict[str, Any]]:
    """Compare methods that continue texts, for several lists of exits."""
    prompts = torch.randint(LLAMA_1B["vocab_size"], (batch, 16))
    config = GenerationConfig(max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=0)
    call = {"attention_mask": torch.ones_like(prompts), "generation_config": config}
    layers = model.max_updates
    counter = WorkCounter(model)
    lists = {
        "a quarter": (layers // 4,),
        "a half": (layers // 2,),
        "mixed": (layers // 8, layers // 4, layers // 2, layers),
    }
    for name, exits in lists.items():
        rule = Prescribed(exits)
        work: dict[str, float] = {}

        def decode(way: str, work: dict[str, float] = work, **options: Any) -> None:
            counter.total = 0.0
            model.generate(prompts, **call, generator=torch.Generator().manual_seed(0), **options)
            work[way] = counter.total

        ways: dict[str, Callable[[], Any]] = {
            "stock": partial(stock.generate, prompts, **call),
            "full": partial(decode, "full", exit_rule=f"fixed:{layers}"),
            **{policy: partial(decode, policy, exit_rule=rule, cache_policy=policy) for policy in POLICIES},
        }
        time_methods(ways, 1)
        medians = {way: statistics.median(values) for way, values in time_methods(ways, repeats).items()}
        shares = {policy: work[policy] / work["full"] for policy in POLICIES}
        yield {
            "batch": batch, "exits": name,
            **{f"{way}_seconds": value for way, value in medians.items()},
            **{f"{policy}_share_of_work": share for policy, share in shares.items()},
            **{f"{way}_of_what_work_allows": medians["stock"] * shares[way] / medians[way] for way in POLICIES},
            **{f"{policy}_speed_up": medians["stock"] / medians[policy] for policy in POLICIES},
        }  # fmt: skip


def measure_speculation(folder: str, new: int, drafts: int, repeats: int) -> Iterator[dict[str, Any]]:
    """Compare drafts of each early exit of a trained model with full depth."""
    prompts = read_prompts(folder, 12)
    model = EarlyExitForCausalLM.from_pretrained(folder).eval()
    config = GenerationConfig(
        max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=0, return_dict_in_generate=True
    )
    for exit in range(1, model.max_updates):
        outputs: dict[str, list[Any]] = {}

        def decode(way: str, outputs: dict[str, list[Any]] = outputs, **options: Any) -> None:
            outputs[way] = [model.generate(prompt, generation_config=config, **options) for prompt in prompts]

        drafting = {
            "custom_generate": adadepth.self_speculation, "draft_rule": f"fixed:{exit}", "draft_tokens": drafts,
        }  # fmt: skip
        ways = {"full": partial(decode, "full"), "speculation": partial(decode, "speculation", **drafting)}
        medians = {way: statistics.median(values) for way, values in time_methods(ways, repeats).items()}
        same = [ours.sequences.equal(theirs.sequences) for ours, theirs in zip(*outputs.values(), strict=True)]
        drafted, accepted, passes = (
            sum(getattr(output, name) for output in outputs["speculation"])
            for name in ("drafted", "accepted", "core_passes")
        )
        whole = len(prompts) * (new - 1) * model.config.num_hidden_layers
        yield {
            "run": folder, "draft_layers": model.config.exits[exit - 1], "accepted": accepted / drafted,
            "same_texts": sum(same) / len(same), "passes_saved": whole / passes,
            "speed_up": medians["full"] / medians["speculation"],
        }  # fmt: skip


def read_prompts(folder: str, length: int) -> list[Tensor]:
    """Return the first tokens, (1, T), of the documentation of some modules, in the pieces of a run's tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = [" ".join((importlib.import_module(name).__doc__ or "").split())[:200] for name in MODULES]
    return [torch.tensor([tokenizer.encode(text, add_special_tokens=False)[:length]]) for text in texts]


def main() -> None:
    """Print the table, and write it as JSON on request."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--new", type=int, default=24, help="new tokens of a text")
    parser.add_argument("--speculation", nargs="+", default=[], metavar="RUN")
    parser.add_argument("--drafts", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    set_malloc_thresholds()  # as a run does
    print(f"{describe_machine(torch.device('cpu'))}, {options.repeats} repeats")
    rows: list[dict[str, Any]] = []

    def show(table: Iterator[dict[str, Any]]) -> None:
        for row in table:
            rows.append(row)
            values = (
                f"{key} {value:.3f}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()
            )
            print("  ".join(values), flush=True)

    with torch.inference_mode():
        for folder in options.speculation:
            show(measure_speculation(folder, options.new, options.drafts, options.repeats))
        if not options.speculation:
            stock, model = make_models(options.layers)
            for batch in options.batch:
                show(measure_policies(model, stock, batch, options.new, options.repeats))
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
