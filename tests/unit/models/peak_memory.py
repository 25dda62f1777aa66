"""Script that trains two updates of a model of a kind, and prints its least memory and its peak, in bytes."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import torch

from adadepth import (
    AlbertActConfig,
    AlbertActForPreTraining,
    ParXLConfig,
    ParXLForCausalLM,
    PlainAlbertForSequenceClassification,
)
from adadepth.models import memory_check

SHAPES = {
    "vocab_size": 4000, "hidden_size": 192, "intermediate_size": 768, "num_attention_heads": 4, "num_hidden_layers": 6,
}  # fmt: skip


def main(kind: str, rows: int, length: int, attention: str) -> None:
    torch.set_num_threads(1)
    ids = torch.randint(5, 4000, (rows, length))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    before = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    if kind == "par":
        config = ParXLConfig(**SHAPES | {"architecture": "sffsff"})
        model = ParXLForCausalLM._from_config(config, attn_implementation=attention)
        batch = {"input_ids": ids, "targets": ids}
    elif kind == "act":
        model = AlbertActForPreTraining._from_config(AlbertActConfig(**SHAPES), attn_implementation=attention)
        batch |= {"labels": ids, "sentence_order_label": ids[:, 0] % 2}
    else:
        config = PlainAlbertForSequenceClassification.config_class(**SHAPES)
        model = PlainAlbertForSequenceClassification._from_config(config, attn_implementation=attention)
        batch |= {"labels": ids[:, 0] % 2}
    optimizer = torch.optim.AdamW(model.train().parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    print(memory_check.compute_least_bytes(model, [length] * rows, width=4, processes=1, recomputed=False)[0], peak)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
