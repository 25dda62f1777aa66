"""A small recurrent PonderNet, and inputs that make it halt at different steps."""

from __future__ import annotations

import torch

from adadepth.models.ponder.configuration import PonderRnnConfig
from adadepth.models.ponder.rnn import PonderRnnForClassification

SMALL = {"input_size": 5, "hidden_size": 12, "num_steps": 6, "exit_rule": "quantile:0.5"}


def build_recurrent(**changes) -> PonderRnnForClassification:
    torch.manual_seed(0)
    model = PonderRnnForClassification(PonderRnnConfig(**(SMALL | changes)))
    with torch.no_grad():  # different depths for different examples
        model.halting.weight.mul_(8)
    return model.eval()


def draw_examples(rows=17) -> torch.Tensor:
    return torch.randn(rows, 5, generator=torch.Generator().manual_seed(1)) * 2
