"""Training step of ACT-ALBERT at full depth against transformers' ALBERT: same depth, width, batch, prediction head.

    python benchmarks/training_step.py [--depth 6] [--hidden 768] [--batch 8] [--length 128] [--repeats 15]

Both models score the vocabulary at the masked positions only, with the same head; ALBERT's own would score all of them
and lose. A strongly negative halting bias keeps every token running to the cap, which is ACT-ALBERT's worst case.
Steps are interleaved and the medians compared, because machines drift.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import AlbertConfig, AlbertModel

from adadepth import AlbertActConfig, AlbertActForPreTraining
from adadepth.families.shared.albert.heads import MaskedWordsHead, SentenceOrderHead


class AlbertWithSparseHead(nn.Module):
    """transformers' ALBERT under the prediction heads of ACT-ALBERT, fed at the masked positions."""

    def __init__(self, config: AlbertActConfig, depth: int) -> None:
        super().__init__()
        names = "vocab_size embedding_size hidden_size num_attention_heads intermediate_size max_position_embeddings"
        sizes = {name: getattr(config, name) for name in names.split()}
        self.albert = AlbertModel._from_config(AlbertConfig(**sizes, num_hidden_layers=depth))
        self.predictions = MaskedWordsHead(config)
        self.predictions.decoder.weight = self.albert.embeddings.word_embeddings.weight
        self.sop_classifier = SentenceOrderHead(config)

    def forward(self, labels: Tensor, sentence_order_label: Tensor, **inputs: Tensor) -> Tensor:
        """The pretraining loss."""
        outputs = self.albert(**inputs)
        chosen = labels >= 0
        logits = self.predictions(outputs.last_hidden_state[chosen])
        return nn.functional.cross_entropy(logits.float(), labels[chosen]) + nn.functional.cross_entropy(
            self.sop_classifier(outputs.pooler_output).float(), sentence_order_label
        )


def make_batch(config: AlbertActConfig, batch: int, length: int, device: torch.device) -> dict[str, Tensor]:
    """Random ids of full length with 15 % of the positions to predict."""
    ids = torch.randint(5, config.vocab_size, (batch, length), device=device)
    chosen = torch.rand(ids.shape, device=device) < 0.15
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "labels": torch.where(chosen, ids, -100),
        "sentence_order_label": torch.randint(0, 2, (batch,), device=device),
    }


def make_step(model: nn.Module, batch: dict[str, Tensor], precision: torch.dtype) -> Callable[[], float]:
    """A function that trains for one step and returns its seconds."""
    device = batch["input_ids"].device
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def step() -> float:
        _wait(device)
        start = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=precision, enabled=precision != torch.float32):
            outputs = model(**batch)
        (outputs if isinstance(outputs, Tensor) else outputs.loss).backward()
        optimizer.step()
        _wait(device)
        return time.perf_counter() - start

    return step


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    """Print both medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("depth", 6), ("hidden", 768), ("batch", 8), ("length", 128), ("repeats", 15)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    precision = torch.bfloat16 if device.type == "cuda" else torch.float32
    torch.manual_seed(0)
    config = AlbertActConfig(
        hidden_size=options.hidden,
        intermediate_size=4 * options.hidden,
        num_attention_heads=options.hidden // 64,
        num_hidden_layers=options.depth,
        max_position_embeddings=max(512, options.length),
        halt_bias_init=-30.0,
        act_penalty=1e-3,
    )
    ours = AlbertActForPreTraining._from_config(config).to(device).train()
    theirs = AlbertWithSparseHead(config, options.depth).to(device).train()
    batch = make_batch(config, options.batch, options.length, device)
    assert ours(**batch).trace.updates.eq(options.depth).all(), "the comparison must be at full depth"

    steps = {"ACT-ALBERT": make_step(ours, batch, precision), "ALBERT": make_step(theirs, batch, precision)}
    for step in steps.values():
        step(), step()
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(options.repeats):
        for name, step in steps.items():
            seconds[name].append(step())

    place = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(
        f"training step: {place}, {str(precision).removeprefix('torch.')}, depth {options.depth}, "
        f"width {options.hidden}, batch {options.batch} x {options.length}, {options.repeats} interleaved steps"
    )
    for name, values in seconds.items():
        print(f"  {name:<12} median {1e3 * statistics.median(values):8.1f} ms  min {1e3 * min(values):8.1f} ms")
    pairs = [a / b for a, b in zip(*seconds.values(), strict=True)]
    ratio = statistics.median(seconds["ACT-ALBERT"]) / statistics.median(seconds["ALBERT"])
    print(f"  ratio of medians {ratio:.3f}, median of paired ratios {statistics.median(pairs):.3f} (target <= 0.85)")


if __name__ == "__main__":
    main()
