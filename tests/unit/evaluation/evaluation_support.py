"""Model and scorer with known figures, for tests of evaluations."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from transformers import PreTrainedConfig

from adadepth.evaluation.scorer import Scorer, Units
from adadepth.halting.trace import DepthTrace, Work
from adadepth.models.contract import DepthModel


class Fixed(DepthModel):
    """Model whose rows get as many updates as their `depth` says; its loss is their mean."""

    config, max_updates, longest_sequence, vocabulary_size = PreTrainedConfig(), 4, None, None
    depth_unit = None

    def __init__(self, unit="sequence"):
        self.depth_unit = unit

    def __call__(self, depth):
        valid = torch.ones_like(depth, dtype=torch.bool)
        trace = DepthTrace(unit=self.depth_unit, updates=depth.float(), valid=valid, max_updates=4)
        mean = depth.double().mean()
        return SimpleNamespace(loss=mean, loss_parts={"depth": mean}, trace=trace)

    def count_targets(self, batch):
        return {"depth": torch.tensor(len(batch["depth"]))}

    def price(self, trace):
        total = trace.updates.double().sum()
        return Work(total, total, total, 4.0 * trace.valid.double().sum())


class Even(Scorer):
    """Scorer that counts even depths and sorts by them."""

    classes = ("all", "even")

    def __init__(self):
        self.even = 0

    def record(self, batch, outputs):
        self.even += int((batch["depth"] % 2 == 0).sum())

    def quality(self):
        return {"even": float(self.even)}

    def units(self, batch, outputs):
        return Units({"all": outputs.trace.valid, "even": batch["depth"] % 2 == 0})
