"""Training step of ACT-ALBERT at full depth against transformers' ALBERT: same depth, width, batch, prediction head.

    python benchmarks/training_step.py [--depth 6] [--hidden 768] [--batch 8] [--length 128] [--repeats 15]
        [--json FILE]

Both models score the vocabulary at the masked positions only, with the same head; ALBERT's own would score all of them
and lose. A strongly negative halting bias keeps every token running to the cap, which is ACT-ALBERT's worst case.
Steps are interleaved and the medians compared, because machines drift.
"""

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AlbertConfig, AlbertModel

from adadepth import AlbertActConfig, AlbertActForPreTraining
from adadepth.models.shared.albert.heads import MaskedWordsHead, SentenceOrderHead
from adadepth.runtime.hardware import describe_machine
from adadepth.runtime.timing import time_interleaved


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
        """Compute the pretraining loss."""
        outputs = self.albert(**inputs)
        is_masked = labels >= 0
        logits = self.predictions(outputs.last_hidden_state[is_masked])
        return nn.functional.cross_entropy(logits.float(), labels[is_masked]) + nn.functional.cross_entropy(
            self.sop_classifier(outputs.pooler_output).float(), sentence_order_label
        )


def make_batch(config: AlbertActConfig, batch: int, length: int, device: torch.device) -> dict[str, Tensor]:
    """Draw random ids of full length with 15 % of the positions to predict."""
    ids = torch.randint(5, config.vocab_size, (batch, length), device=device)
    is_masked = torch.rand(ids.shape, device=device) < 0.15
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "labels": torch.where(is_masked, ids, -100),
        "sentence_order_label": torch.randint(0, 2, (batch,), device=device),
    }


def make_step(model: nn.Module, batch: Mapping[str, Any], precision: torch.dtype) -> Callable[[], None]:
    """Return a function that trains for one step."""
    device = next(model.parameters()).device
    optimizer = torch.optim.AdamW(
        (parameter for parameter in model.parameters() if parameter.requires_grad), lr=1e-5, fused=True
    )

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=precision, enabled=precision != torch.float32):
            outputs = model(**batch)
        (outputs if isinstance(outputs, Tensor) else outputs.loss).backward()
        optimizer.step()

    return step


def main() -> None:
    """Print both medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("depth", 6), ("hidden", 768), ("batch", 8), ("length", 128), ("repeats", 15)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", type=Path, default=None)
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
    seconds = time_interleaved(steps, options.repeats, warmup=2, device=device)
    device_name = describe_machine(device)
    name_of_precision = str(precision).removeprefix("torch.")
    print(
        f"training step: {device_name}, {name_of_precision}, depth {options.depth}, "
        f"width {options.hidden}, batch {options.batch} x {options.length}, {options.repeats} interleaved steps"
    )
    for name, times in seconds.items():
        print(f"  {name:<12} median {1e3 * times['median']:8.1f} ms  10 % {1e3 * times['p10']:8.1f} ms")
    ratio = seconds["ACT-ALBERT"]["median"] / seconds["ALBERT"]["median"]
    print(f"  ratio of medians {ratio:.3f} (target <= 0.85)")
    if options.json is not None:
        setting = {
            "device": device_name,
            "precision": name_of_precision,
            "batch": options.batch,
            "length": options.length,
        }
        report = {"setting": setting, "seconds": seconds, "ratio": ratio}
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
