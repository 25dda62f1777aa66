"""PAR-XL: what searching costs, what a block costs, and where the searched network is faster.

    python benchmarks/par.py [--architecture sfff...] [--batch 2] [--repeats 9] [--fast] [--json FILE]

  steps     a training step of the supernet, with soft gates and with one sampled path an update (target: at most 0.6
            of the soft one's time), of a derived network, and of a plain Transformer-XL with as many attentions and
            feed-forwards as the supernet, at the original's size: T 32, M 16, batch 32, d 128. The gates are at their
            start, where a third of the sampled operations are identities. `share` is what the floating point operations
            of the soft step and of the plain one take at the throughput of products of the step's sizes, which is
            measured beside them, over what the step takes
  blocks    an attention and a feed-forward block in inference at (T 32, M 16), (192, 192) and (64, 640); the last two
            at d 512. The ratio is attention / feed-forward, beside that of their multiply-accumulates
  networks  inference with a full memory at (192, 192) and (64, 640): the searched network, which is the paper's unless
            `--architecture` is given, against as many alternating blocks, Transformer-XL's order (target at (64, 640),
            the paper's claim: at most 0.65 of the time). `blocks` is the stack alone, `whole` with the output layer
  softmax   forward and backward of 1,024 tokens: adaptive against full softmax (target: at most 0.2 of the time), and
            torch's own adaptive softmax
Words are drawn as often as 1 / rank. Calls are timed in turns and medians compared, because machines drift. Shapes with
d 512 have `--batch` rows, by default 32 on a GPU. A CPU's ratios say little about a GPU, where small blocks wait for
the host.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from adadepth.models.par_xl.adaptive_softmax import AdaptiveSoftmax
from adadepth.models.par_xl.configuration import (
    ParXLConfig,
    alternating,
    architecture_macs,
    paper_rule,
    parse_architecture,
)
from adadepth.models.par_xl.latency import derive, draw_ids, model_latencies, operation_latencies
from adadepth.models.par_xl.modeling import ParXLForCausalLM, ParXLSupernet
from adadepth.models.shared.layers import Product, sinusoidal_positions
from adadepth.runtime.hardware import describe_machine
from adadepth.runtime.timing import time_interleaved

SAMPLED_TARGET, NETWORK_TARGET, SOFTMAX_TARGET = 0.6, 0.65, 0.2
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PRECISION = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32
WARMUP = 2
PRODUCTS = 32  # timed at once: the first one after a step finds neither its operands in a cache nor its memory


@dataclass(frozen=True)
class Shape:
    """New tokens, memory and rows of a segment, with the widths of the network that reads it."""

    length: int
    memory: int
    batch: int
    hidden: int
    heads: int
    inner: int

    def __str__(self) -> str:
        return f"T={self.length}, M={self.memory}, batch={self.batch}, d={self.hidden}"

    def config(self, **fields: Any) -> ParXLConfig:
        """Return the configuration of a network of these widths with the original's vocabulary."""
        return ParXLConfig(
            vocab_size=12_000,
            cutoffs=[250, 2_500],
            hidden_size=self.hidden,
            num_attention_heads=self.heads,
            intermediate_size=self.inner,
            memory_length=self.memory,
            **fields,
        )


ORIGINAL = Shape(length=32, memory=16, batch=32, hidden=128, heads=4, inner=512)
TRAINING = Shape(length=192, memory=192, batch=32, hidden=512, heads=8, inner=2048)
EVALUATION = replace(TRAINING, length=64, memory=640)


@dataclass(frozen=True)
class Softmax:
    """Output layer: words, width and the cutoffs of the adaptive one."""

    vocab: int
    hidden: int
    cutoffs: tuple[int, ...]


SOFTMAXES = [Softmax(12_000, 128, (250, 2_500)), Softmax(33_000, 256, (2_000, 10_000))]


def make_ids(vocab: int, tokens: int) -> Tensor:
    """Draw words as frequent as in a text."""
    return draw_ids(vocab, tokens, torch.Generator().manual_seed(0)).to(DEVICE)


def make_step(model: nn.Module, ids: Tensor, memory: Tensor) -> Callable[[], None]:
    """Return a function that trains for one step on the same segment with a full memory."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    updates = count()

    def step() -> None:
        if isinstance(model, ParXLSupernet):
            model.set_step(next(updates), 1_000)
        optimizer.zero_grad()
        with torch.autocast(DEVICE.type, dtype=PRECISION, enabled=torch.float32 != PRECISION):
            loss = model(ids, memory=memory, targets=ids).loss
        loss.backward()
        optimizer.step()

    return step


class PlainLayer(nn.Module):
    """A layer of Transformer-XL (Dai et al. 2019) as textbooks have it: attention, then feed-forward, norms after."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, self.heads = shape.hidden, shape.heads
        self.query, self.position = nn.Linear(width, width, False), nn.Linear(width, width, False)
        self.key, self.value = nn.Linear(width, width, False), nn.Linear(width, width, False)
        self.output = nn.Linear(width, width, False)
        self.u, self.v = (nn.Parameter(torch.zeros(self.heads, 1, width // self.heads)) for _ in range(2))
        self.inner, self.outer = nn.Linear(width, shape.inner), nn.Linear(shape.inner, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.dropout = nn.Dropout(0.1)

    def split(self, state: Tensor) -> Tensor:
        """Split the heads: (..., T, d) to (..., h, T, d / h)."""
        return state.unflatten(-1, (self.heads, -1)).transpose(-2, -3)

    def forward(self, state: Tensor, memory: Tensor, codes: Tensor, mask: Tensor) -> Tensor:
        """Run on state (B, T, d), memory (B, M, d), codes of the distances L - 1 to 0, hidden positions (T, L)."""
        context = torch.cat([memory, state], dim=1)
        query, key, value = (
            self.split(self.query(state)),
            self.split(self.key(context)),
            self.split(self.value(context)),
        )
        content = (query + self.u) @ key.transpose(-1, -2)
        distance = (query + self.v) @ self.split(self.position(codes)).transpose(-1, -2)  # from L - 1 to 0
        padded = nn.functional.pad(distance, (1, 0))
        shifted = padded.view(*padded.shape[:2], padded.shape[3], -1)[:, :, 1:].reshape(distance.shape)
        scores = (content + shifted) / query.shape[-1] ** 0.5
        weights = scores.masked_fill(mask, -torch.inf).softmax(dim=-1)
        attended = self.output((weights @ value).transpose(1, 2).flatten(2))
        state = self.norms[0](state + self.dropout(attended))
        return self.norms[1](state + self.dropout(self.outer(self.inner(state).relu())))


class PlainTransformerXL(nn.Module):
    """Peer of a supernet of as many blocks: its operations one after the other, made of torch's own modules."""

    def __init__(self, shape: Shape, layers: int) -> None:
        super().__init__()
        config = shape.config()
        self.words = nn.Embedding(config.vocab_size, shape.hidden)
        self.layers = nn.ModuleList(PlainLayer(shape) for _ in range(layers))
        self.head = nn.AdaptiveLogSoftmaxWithLoss(shape.hidden, config.vocab_size, config.cutoffs)
        self.dropout = nn.Dropout(0.1)

    def forward(self, ids: Tensor, memory: Tensor, targets: Tensor) -> Any:
        """Compute the loss of the targets of ids, (B, T), with a memory, (layers, B, M, d)."""
        length, keys = ids.shape[1], ids.shape[1] + memory.shape[2]
        state = self.dropout(self.words(ids) * memory.shape[3] ** 0.5)
        codes = sinusoidal_positions(keys, state).flip(0)
        mask = torch.ones(length, keys, dtype=torch.bool, device=ids.device).triu(keys - length + 1)
        for layer, remembered in zip(self.layers, memory, strict=True):
            state = layer(state, remembered, codes, mask)
        return self.head(self.dropout(state).flatten(0, 1), targets.flatten())


def count_step_flops(shape: Shape, ids: Tensor, blocks: int) -> float:
    """Count forward and backward operations of a supernet and of its output layer, two a multiply-accumulate."""
    config = shape.config()
    macs = shape.batch * architecture_macs(config, "sf" * blocks, shape.length, shape.memory, shape.batch)
    first, *edges = [*config.cutoffs, config.vocab_size]
    macs += ids.numel() * shape.hidden * (first + len(config.cutoffs))
    for tail, (start, stop) in enumerate(pairwise([first, *edges]), start=1):
        width, rows = max(shape.hidden // config.proj_factor**tail, 1), ((ids >= start) & (ids < stop)).sum().item()
        macs += rows * width * (shape.hidden + stop - start)
    return 3 * 2 * macs


def make_products(shape: Shape) -> dict[str, Callable[[], None]]:
    """Return functions for `PRODUCTS` feed-forward output products, by torch and by the networks' linear maps."""
    states = torch.randn(shape.batch * shape.length, shape.inner, device=DEVICE)
    layer = Product(shape.inner, shape.hidden, bias=False).to(DEVICE)

    def repeated(product: Callable[[], Tensor]) -> None:
        for _ in range(PRODUCTS):
            product()

    return {
        "matmul": lambda: repeated(torch.no_grad()(lambda: states @ layer.weight.t())),
        "linear": lambda: repeated(lambda: layer(states)),
    }


def measure_steps(shape: Shape, repeats: int, blocks: int = 6) -> dict[str, Any]:
    """Time training steps of the supernet (soft and sampled gates), of a derived network and of the plain peer."""
    torch.manual_seed(0)
    supernets = {
        name: ParXLSupernet(shape.config(num_hidden_layers=blocks, gate_path=name)) for name in ("soft", "sampled")
    }
    architecture = paper_rule(blocks)
    models: dict[str, nn.Module] = {**supernets, "derived": derive(supernets["soft"], architecture)}
    ids = make_ids(12_000, shape.batch * shape.length).view(shape.batch, shape.length)
    steps = {}
    for name, model in models.items():
        attending = architecture.count("s") if name == "derived" else blocks
        memory = torch.randn(attending, shape.batch, shape.memory, shape.hidden, device=DEVICE)
        steps[name] = make_step(model.to(DEVICE).train(), ids, memory)
    memory = torch.randn(blocks, shape.batch, shape.memory, shape.hidden, device=DEVICE)
    steps["plain"] = make_step(PlainTransformerXL(shape, blocks).to(DEVICE), ids, memory)
    # More rounds than elsewhere: every update of the sampled mode has a path of its own.
    products = make_products(shape)
    seconds = time_interleaved({**steps, **products}, 3 * repeats, WARMUP, DEVICE)
    soft = seconds["soft"]["median"]
    ratios = {f"{name}_ratio": seconds[name]["median"] / soft for name in ("sampled", "derived")}
    product = (
        PRODUCTS * 2 * ids.numel() * shape.hidden * shape.inner / min(seconds[name]["median"] for name in products)
    )
    flops = count_step_flops(shape, ids, blocks)
    return {
        "shape": asdict(shape),
        "blocks": blocks,
        "architecture": architecture,
        **seconds,
        **ratios,
        "plain_ratio": soft / seconds["plain"]["median"],
        "flops": flops,
        "products_per_second": product,
        "soft_share": flops / product / soft,
        "plain_share": flops / product / seconds["plain"]["median"],
    }


def measure_blocks(shape: Shape, repeats: int) -> dict[str, Any]:
    """Time an attention block and a feed-forward block."""
    config, size = shape.config(), (shape.length, shape.memory, shape.batch)
    seconds = operation_latencies(config, *size, device=DEVICE, dtype=PRECISION, repeats=repeats)
    macs = {operation: architecture_macs(config, operation, *size) for operation in "sf"}
    return {
        "shape": asdict(shape),
        "attention_seconds": seconds["s"],
        "feed_forward_seconds": seconds["f"],
        "ratio": seconds["s"] / seconds["f"],
        "macs_ratio": macs["s"] / macs["f"],
    }


def measure_networks(shape: Shape, architecture: str, repeats: int) -> dict[str, Any]:
    """Time the searched network against as many blocks in Transformer-XL's order."""
    torch.manual_seed(0)
    architectures = {"searched": architecture, "alternating": alternating(len(architecture))}
    models = {
        name: ParXLForCausalLM(shape.config(architecture=text)).to(DEVICE, PRECISION)  # type: ignore[arg-type]
        for name, text in architectures.items()
    }
    size = (shape.length, shape.memory, shape.batch)
    seconds = model_latencies(models, *size, repeats=repeats)
    macs = {name: architecture_macs(shape.config(), text, *size) for name, text in architectures.items()}

    def ratio(key: str) -> float:
        return seconds["searched"][key] / seconds["alternating"][key]

    return {
        "shape": asdict(shape),
        "architectures": architectures,
        **seconds,
        "ratio": ratio("median"),
        "blocks_ratio": ratio("blocks_median"),
        "macs_ratio": macs["searched"] / macs["alternating"],
    }


def measure_softmax(size: Softmax, tokens: int, repeats: int) -> dict[str, Any]:
    """Time forward and backward passes of adaptive, full and torch's adaptive softmax on the same targets."""
    torch.manual_seed(0)
    states = torch.randn(tokens, size.hidden, device=DEVICE, requires_grad=True)
    targets = make_ids(size.vocab, tokens)
    adaptive = AdaptiveSoftmax(size.hidden, size.vocab, size.cutoffs).to(DEVICE)
    full = AdaptiveSoftmax(size.hidden, size.vocab).to(DEVICE)
    torch_s = nn.AdaptiveLogSoftmaxWithLoss(size.hidden, size.vocab, list(size.cutoffs)).to(DEVICE)

    def both_ways(loss: Callable[[], Tensor]) -> None:
        with torch.autocast(DEVICE.type, dtype=PRECISION, enabled=torch.float32 != PRECISION):
            value = loss()
        value.backward()

    calls = {
        "adaptive": lambda: both_ways(lambda: adaptive(states, targets).mean()),
        "full": lambda: both_ways(lambda: full(states, targets).mean()),
        "torch_adaptive": lambda: both_ways(lambda: torch_s(states, targets).loss),
    }
    seconds = time_interleaved(calls, repeats, WARMUP, DEVICE)
    return {
        **asdict(size),
        "tokens": tokens,
        **seconds,
        "ratio": seconds["adaptive"]["median"] / seconds["full"]["median"],
        "torch_ratio": seconds["adaptive"]["median"] / seconds["torch_adaptive"]["median"],
    }


def judge(ratio: float, target: float) -> str:
    """Format the ratio with its target and the verdict."""
    return f"{ratio:.3f} (target <= {target:g}: {'met' if ratio <= target else 'NOT met'})"


def print_steps(row: dict[str, Any]) -> None:
    """Print two lines of the table."""
    times = {name: f"{1e3 * row[name]['median']:.1f} ms" for name in ("soft", "sampled", "derived")}
    print(
        f"steps     {Shape(**row['shape'])}, {row['blocks']} blocks: soft {times['soft']}; sampled {times['sampled']}, "
        f"of soft {judge(row['sampled_ratio'], SAMPLED_TARGET)}; derived {row['architecture']} {times['derived']}, "
        f"of soft {row['derived_ratio']:.3f}",
        flush=True,
    )
    print(
        f"limit     {row['flops'] / 1e9:.2f} GFLOP at {row['products_per_second'] / 1e9:.0f} GFLOP/s, of the soft "
        f"step's time {row['soft_share']:.2f}; plain Transformer-XL {1e3 * row['plain']['median']:.1f} ms, "
        f"{row['plain_share']:.2f}; soft / plain {row['plain_ratio']:.3f}",
        flush=True,
    )


def print_blocks(row: dict[str, Any]) -> None:
    """Print one line of the table."""
    print(
        f"blocks    {Shape(**row['shape'])}: attention {1e3 * row['attention_seconds']:.2f} ms, feed-forward "
        f"{1e3 * row['feed_forward_seconds']:.2f} ms, ratio {row['ratio']:.2f}; of their MACs {row['macs_ratio']:.2f}",
        flush=True,
    )


def print_networks(row: dict[str, Any], target: float | None) -> None:
    """Print one line of the table; the target is for the stack of blocks."""
    searched, peer = row["searched"], row["alternating"]
    blocks_ratio = f"{row['blocks_ratio']:.3f}" if target is None else judge(row["blocks_ratio"], target)
    print(
        f"networks  {Shape(**row['shape'])}: blocks {1e3 * searched['blocks_median']:.1f} ms, alternating "
        f"{1e3 * peer['blocks_median']:.1f} ms, ratio {blocks_ratio}; whole {1e3 * searched['median']:.1f} ms, "
        f"alternating {1e3 * peer['median']:.1f} ms, ratio {row['ratio']:.3f}; of their MACs {row['macs_ratio']:.3f}",
        flush=True,
    )


def print_softmax(row: dict[str, Any]) -> None:
    """Print one line of the table."""
    times = {name: f"{1e3 * row[name]['median']:.1f} ms" for name in ("adaptive", "full", "torch_adaptive")}
    print(
        f"softmax   V={row['vocab']}, d={row['hidden']}: adaptive {times['adaptive']}, full {times['full']}, ratio "
        f"{judge(row['ratio'], SOFTMAX_TARGET)}; torch's adaptive {times['torch_adaptive']}, ratio "
        f"{row['torch_ratio']:.2f}",
        flush=True,
    )


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--architecture", default=paper_rule(32))
    parser.add_argument("--batch", type=int, default=32 if DEVICE.type == "cuda" else 2)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--fast", action="store_true", help="a smoke test: tiny networks, whose ratios say nothing")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    options.architecture = parse_architecture("--architecture", options.architecture)
    return options


def main() -> None:
    """Print the four parts, and write the JSON on request."""
    options = parse_options()
    training, evaluation = (replace(shape, batch=options.batch) for shape in (TRAINING, EVALUATION))
    shapes, repeats, tokens = [ORIGINAL, training, evaluation], options.repeats, 1_024
    if options.fast:
        shapes = [replace(shape, batch=2, hidden=16, heads=2, inner=32) for shape in shapes]
        repeats, tokens, options.architecture = 1, 32, paper_rule(4)
    device = describe_machine(DEVICE)
    setting = {
        "device": device,
        "precision": str(PRECISION).removeprefix("torch."),
        "architecture": options.architecture,
        "repeats": repeats,
        "warmup": WARMUP,
    }
    print("PAR-XL:", ", ".join(f"{name} {value}" for name, value in setting.items()), flush=True)

    print_steps(steps := measure_steps(shapes[0], repeats))
    blocks, networks, softmaxes = [], [], []
    for shape in shapes:
        blocks.append(measure_blocks(shape, repeats))
        print_blocks(blocks[-1])
    for shape, target in zip(shapes[1:], (None, NETWORK_TARGET), strict=True):
        networks.append(measure_networks(shape, options.architecture, repeats))
        print_networks(networks[-1], target)
    for size in SOFTMAXES:
        softmaxes.append(measure_softmax(size, tokens, repeats))
        print_softmax(softmaxes[-1])
    if options.json is not None:
        report = {"setting": setting, "steps": steps, "blocks": blocks, "networks": networks, "softmax": softmaxes}
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
