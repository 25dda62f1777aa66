"""The counter: a convolution over neighbours, which every token applies as often as it wants.

    h_0 = E[x] + P[position]
    g_n = sigmoid(w h_{n-1} + b),                 a_n = a_{n-1} 1[g_n > threshold],  a_0 = 1
    h_n = h_{n-1} + a_n tanh(LN(C [h_{n-1}^{t-1}, h_{n-1}^t, h_{n-1}^{t+1}]))

a_n passes its gradient on to the product of g_1..g_n, whose sum over n is the depth that a budget holds. Shape legend:
B rows, T tokens, H width, N updates, C tags.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.utils import ModelOutput

from adadepth.halting.trace import DepthTrace, Execution, Work
from adadepth.models.contract import DepthKnob, HoldsBudget
from adadepth.models.shared.configuration import FamilyConfig
from adadepth.models.shared.losses import LossTerm, class_loss, combine_terms
from adadepth_brackets.family import CounterSettings


@strict
class CounterConfig(FamilyConfig, settings=CounterSettings):
    """The shape of a counter, and when its tokens stop."""

    vocab_size: int = 2
    hidden_size: int = 64
    max_rounds: int = 8
    max_position_embeddings: int = 128
    going_on_bias: int | float = 2.0
    threshold: int | float = 0.5
    round_price: int | float = 0.0


@dataclass
class CounterOutput(ModelOutput):
    """See `adadepth.models.head_outputs`; `going_on` is a smooth a_n, (B, T, N)."""

    loss: Tensor | None = None
    loss_parts: dict[str, Tensor] | None = None
    logits: Tensor | None = None
    trace: DepthTrace | None = None
    going_on: Tensor | None = None


class GoingOn(nn.Linear):
    """w h + b; a class of its own so that initialisation can find it."""


class CounterForTokenClassification(DepthKnob, HoldsBudget, PreTrainedModel):
    """Tags tokens after their last update."""

    config: CounterConfig
    config_class = CounterConfig
    accepts_loss_kwargs = False  # its losses are normalised by `num_targets`
    depth_unit = "token"
    depth_knob = "threshold of going on"

    def __init__(self, config: CounterConfig) -> None:
        super().__init__(config)
        width = config.hidden_size
        self.words = nn.Embedding(config.vocab_size, width)
        self.positions = nn.Embedding(config.max_position_embeddings, width)
        self.neighbours = nn.Conv1d(width, width, kernel_size=3, padding=1)
        self.norm = nn.LayerNorm(width)
        self.going_on = GoingOn(width, 1)
        self.classifier = nn.Linear(width, config.num_labels)
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, GoingOn):
            init.constant_(module.bias, self.config.going_on_bias)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        num_targets: Mapping[str, Tensor] | None = None,
        **kwargs: Any,
    ) -> CounterOutput:
        """Tag tokens, and with labels (B, T), negative where there is none, compute the loss."""
        places = torch.arange(input_ids.shape[1], device=input_ids.device) if position_ids is None else position_ids
        valid = torch.ones_like(input_ids).bool() if attention_mask is None else attention_mask.bool()
        state, ran, smooth = self.words(input_ids) + self.positions(places), [valid], [valid.float()]
        for _ in range(self.max_updates):
            probability = self.going_on(state).squeeze(-1).sigmoid()
            ran.append(ran[-1] & (probability > self.config.threshold))
            smooth.append(smooth[-1] * probability)
            gate = ran[-1].float() + smooth[-1] - smooth[-1].detach()
            real = (state * valid.unsqueeze(-1)).transpose(1, 2)
            state = state + gate.unsqueeze(-1) * torch.tanh(self.norm(self.neighbours(real).transpose(1, 2)))
        updates = torch.stack(ran[1:], dim=-1).sum(dim=-1).float()
        trace = DepthTrace("token", updates, valid, self.max_updates, execution=Execution(self.max_updates))
        output = CounterOutput(logits=self.classifier(state), trace=trace, going_on=torch.stack(smooth[1:], dim=-1))
        if labels is not None:
            terms = {"task": class_loss(self.config, output.logits, labels)}
            if self.config.round_price:
                depth = self.soft_depth(output)
                terms["round"] = LossTerm(depth.total, depth.count, self.config.round_price)
            output.loss, output.loss_parts = combine_terms(terms, num_targets)
        return output

    def count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tokens with a label, and tokens that are updated."""
        return {"task": (batch["labels"] >= 0).sum(), "round": self.count_units(batch)}

    def count_units(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Real tokens."""
        return batch["attention_mask"].sum()

    def soft_depth(self, outputs: CounterOutput) -> LossTerm:
        """sum_n g_1..g_n of all real tokens."""
        valid = outputs.trace.valid
        return LossTerm((outputs.going_on.sum(dim=-1) * valid).sum(), valid.sum())

    def set_depth_level(self, level: float) -> None:
        """Let tokens go on that are surer than 1 - level."""
        self.config.threshold = 1.0 - level

    def price(self, trace: DepthTrace) -> Work:
        """Count MACs: an update of a token has 3 H^2 + H, and all updates of all positions are computed."""
        width = self.config.hidden_size
        update, real = 3 * width**2 + width, trace.valid.sum().double()
        read = real * width * self.config.num_labels
        executed = real.new_tensor(float(trace.valid.numel() * trace.executed.steps * update)) + read
        adaptive, full = (number * update + read for number in (trace.updates.double().sum(), real * trace.max_updates))
        return Work(executed, executed, adaptive, full)

    @property
    def max_updates(self) -> int:
        """N."""
        return self.config.max_rounds

    @property
    def longest_sequence(self) -> int:
        """As many as it has positions for."""
        return self.config.max_position_embeddings

    @property
    def vocabulary_size(self) -> int:
        """Pieces."""
        return self.config.vocab_size
