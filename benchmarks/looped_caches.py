"""Time of `generate` under every cache policy of a looped model: `python benchmarks/looped_caches.py --help`."""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from adadepth import LoopedConfig, LoopedForCausalLM
from adadepth.models.looped.cache import bytes_per_token

POLICIES = ("all", "frozen", "last", "mean", "first", "ring:2")


def make_random_model(width: int, loops: int) -> LoopedForCausalLM:
    """Build a model with all weights random, so that tokens differ in their number of loops."""
    torch.manual_seed(3)
    config = LoopedConfig(
        vocab_size=512, hidden_size=width, num_attention_heads=4, intermediate_size=width * 11 // 4,
        prelude=1, core=2, coda=1, num_loops=loops, damping=0.5, pad_token_id=0,
    )  # fmt: skip
    model = LoopedForCausalLM(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            spread = 0.3 if weight.dim() == 1 else weight.shape[-1] ** -0.5
            weight.copy_(float("norm" in name) + torch.randn_like(weight) * spread)
    return model


def main() -> None:
    """Print a line for every batch and policy: loops of the prompt, bytes of a token, seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--loops", type=int, default=8)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--new", type=int, default=24)
    parser.add_argument("--rule", default="margin:0.002")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model, generator = make_random_model(options.hidden, options.loops), torch.Generator().manual_seed(0)
    for batch in options.batch:
        ids = torch.randint(1, 512, (batch, options.prompt), generator=generator)
        seconds: dict[str, list[float]] = {policy: [] for policy in POLICIES}
        for seed in range(options.rounds):
            for policy in POLICIES:
                torch.manual_seed(seed)
                start = time.perf_counter()
                model.generate(
                    ids, max_new_tokens=options.new, do_sample=True, exit_rule=options.rule, cache_policy=policy
                )
                seconds[policy].append(time.perf_counter() - start)
        for policy, taken in seconds.items():
            with torch.no_grad():
                prompt = model(ids, use_cache=True, cache_policy=policy, exit_rule=options.rule)
            print(
                f"batch {batch}, {policy}: {float(prompt.exit_steps.float().mean()):.2f} loops in the prompt, "
                f"{bytes_per_token(model.config, policy)} bytes a token, seconds median "
                f"{statistics.median(taken):.2f}, {min(taken):.2f} to {max(taken):.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
