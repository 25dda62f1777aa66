"""A small model of every kind, and batches for its training step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import AlbertConfig, BertConfig

from adadepth import (
    AlbertActForMultipleChoice,
    AlbertActForPreTraining,
    AlbertActForQuestionAnswering,
    AlbertActForSequenceClassification,
    AlbertActForTokenClassification,
    EarlyExitForSequenceClassification,
    LoopedForSequenceClassification,
    PlainAlbertForSequenceClassification,
    PonderRnnConfig,
    PonderRnnForClassification,
    StockForSequenceClassification,
    StockForTokenClassification,
    TrmConfig,
    TrmForPuzzles,
)
from tests.models_support import SMALL, make_padded_batch, make_small_config, make_small_multi_exit, make_small_ponder
from tests.unit.models.adalayers_support import build_mixture
from tests.unit.models.early_exit.early_exit_support import build_early_exit
from tests.unit.models.looped.looped_support import build_looped
from tests.unit.models.par_xl_support import build_network, build_supernet, draw_words
from tests.unit.models.routed.routed_support import build_routed


def build_stock(head):
    """Build a BERT of transformers."""
    config = BertConfig(**{name: value for name, value in SMALL.items() if name != "embedding_size"})
    return head.select_class(config)(config)


def build_float32_routed(**fields: Any) -> Any:
    """Build a routed language model in float32."""
    return build_routed(**fields).float()


TINY_PUZZLES = {
    "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "cells": 9, "prefix_length": 1, "cycles": 1,
    "reasoning_updates": 1, "num_steps": 3,
}  # fmt: skip
BUILD: dict[str, Callable[[], Any]] = {
    "act pretraining": lambda: AlbertActForPreTraining(make_small_config()),
    "act classification": lambda: AlbertActForSequenceClassification(make_small_config()),
    "act tagging": lambda: AlbertActForTokenClassification(make_small_config()),
    "act spans": lambda: AlbertActForQuestionAnswering(make_small_config()),
    "act choices": lambda: AlbertActForMultipleChoice(make_small_config()),
    "albert": lambda: PlainAlbertForSequenceClassification(AlbertConfig(**SMALL)),
    "stock classification": lambda: build_stock(StockForSequenceClassification),
    "stock tagging": lambda: build_stock(StockForTokenClassification),
    "ponder": make_small_ponder,
    "exits": make_small_multi_exit,
    "mixture": build_mixture,
    "recurrent": lambda: PonderRnnForClassification(PonderRnnConfig(input_size=6, hidden_size=8, num_steps=4)),
    "puzzles": lambda: TrmForPuzzles(TrmConfig(**TINY_PUZZLES)),
    "looped": lambda: build_looped(LoopedForSequenceClassification, num_labels=2),
    "early exit": lambda: build_early_exit(EarlyExitForSequenceClassification, "bert", num_labels=2),
    "network": build_network,
    "supernet": build_supernet,
}


# Settings with a training step that differs.
FURTHER: dict[str, Callable[[], Any]] = {
    "looped text": build_looped,
    "looped gate": lambda: build_looped(gate=True, objective="gate"),
    "early exit text": lambda: build_early_exit(exit_heads="own", distillation=0.5),
    "looped drawn": lambda: build_looped(train_loops="drawn"),
    "sampled supernet": lambda: build_supernet(gate_path="sampled"),
    "clustered network": lambda: build_network(cutoffs=[10, 20]),
    "early exit dropout": lambda: build_early_exit(layer_dropout=0.5),
    "routed recursions": lambda: build_float32_routed(recursions=4, prelude=1, coda=1, num_hidden_layers=6),
    "routed layers": lambda: build_float32_routed(capacities=[0.4], gating="update", keys_and_values="all"),
    "routed depths": lambda: build_float32_routed(recursions=3, prelude=1, coda=1, router="token", balance="bias"),
    "routed threshold": lambda: build_float32_routed(router="threshold", capacities=[0.4], keys_and_values="all"),
}


# Host reads of a training step and their number, as docs/guide.md states them.
MASK = 1  # transformers checks whether a mask hides a token, or positions restart
TARGETS = 1  # positions that have one
READS = {
    "act pretraining": TARGETS,
    "albert": MASK,
    "stock classification": MASK,
    "stock tagging": MASK,
    "looped": MASK,
    "looped text": MASK + TARGETS,
    "looped gate": MASK + TARGETS,
    "early exit text": MASK + TARGETS,
    "looped drawn": MASK + TARGETS + 1,  # the largest number of loops of a text
    "early exit dropout": MASK + TARGETS + 1,  # the layers that each text skips
    "routed recursions": MASK + TARGETS,
    "routed layers": MASK + TARGETS,
    "routed depths": MASK + TARGETS + 1,  # the number of tokens of each row at each depth
    "routed threshold": MASK + TARGETS,
    "network": TARGETS,
    "clustered network": TARGETS + 2,  # the targets of each tail
    "supernet": TARGETS,
    "sampled supernet": TARGETS + 1,  # the sampled path
}

# Models without a graph: a base that is run as it stands is stopped by an exception in a hook, unless its states are
# kept, features.cache=true; clusters and language models make their losses in parts, whose number the data decide;
# drawn loops run as often as is drawn.
NO_GRAPH = {
    "mixture", "clustered network", "looped text", "looped gate", "looped drawn", "early exit text",
    "early exit dropout", "routed recursions", "routed layers", "routed depths", "routed threshold",
}  # fmt: skip


def build_inputs(name):
    """Build a batch without targets."""
    if name == "recurrent":
        return {"inputs": torch.randn(3, 6)}
    if name == "puzzles":
        return {"input_ids": torch.ones(2, 9, dtype=torch.long)}
    if name.endswith(("network", "supernet")):
        return {"input_ids": draw_words()}
    if name.startswith(("looped", "early exit", "routed")):
        return {"input_ids": make_padded_batch()["input_ids"] % 53}
    if name == "mixture":
        return {"input_ids": draw_words() % 20}
    batch = (
        make_padded_batch([10, 7, 2]) if name == "ponder" else make_padded_batch()
    )  # its second token gets several updates
    return {key: values.unsqueeze(1) for key, values in batch.items()} if name == "act choices" else batch


def build_training_batch(name: str) -> dict[str, Any]:
    """Build a batch with targets, as training passes it."""
    batch: dict[str, Any] = build_inputs(name)
    first: Tensor = next(iter(batch.values()))
    words = batch.get("input_ids", first)
    if name == "puzzles":
        return batch | {"labels": words, "draws": torch.rand(len(words), 2), "carry": {}}
    targets = {
        "act pretraining": {"labels": words, "sentence_order_label": words[:, 0] * 0},
        "act tagging": {"labels": words * 0},
        "stock tagging": {"labels": words * 0},
        "act spans": {"start_positions": words[:, 0] * 0, "end_positions": words[:, 0] * 0},
    }
    if name.endswith(("network", "supernet")):
        return batch | {"targets": words}
    if name.startswith(("looped ", "early exit ", "routed ")):  # language models
        return batch | {"labels": words, "documents": words * 0}
    return batch | targets.get(name, {"labels": torch.zeros(len(first), dtype=torch.long)})
