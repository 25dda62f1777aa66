"""What the ALBERTs that predict after every step have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.utils.generic import can_return_tuple

from adadepth.families.shared.albert.configuration import StepwiseAlbertShape
from adadepth.families.shared.albert.encoder import HaltingProjection, words_of
from adadepth.families.shared.albert.pretrained import FromAnyAlbert
from adadepth.families.shared.albert.pricing import price_sequences
from adadepth.families.shared.albert.stepping import AlbertStepper, Reading, SteppedAlbert
from adadepth.families.shared.stepwise import StepwiseOutput
from adadepth.families.shared.stepwise_model import StepwiseModel
from adadepth.halting.exit_rules import ExitRule
from adadepth.halting.trace import DepthTrace, Work


class StepwiseAlbert(FromAnyAlbert, StepwiseModel):
    """An encoder at `albert`, and heads that `read` every step; a family adds those, and what they cost."""

    config: StepwiseAlbertShape
    base_model_prefix = "albert"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    def __init__(self, config: StepwiseAlbertShape, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        self.albert = SteppedAlbert(config, add_pooling_layer)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, HaltingProjection):
            init.constant_(module.bias, self.config.halt_bias_init)

    @property
    def longest_sequence(self) -> int | None:
        """The most tokens it has positions for."""
        return self.config.max_position_embeddings

    def get_input_embeddings(self) -> nn.Embedding:
        """The word embeddings."""
        return self.albert.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replace the word embeddings."""
        self.albert.embeddings.word_embeddings = value

    def read(self, state: Tensor, memory: Tensor | None, step: int) -> Reading:
        """Apply the heads to the states after a step; see `adadepth.families.shared.albert.stepping.Reader`."""
        raise NotImplementedError

    @property
    def head_work(self) -> float:
        """Multiply-accumulates of `read` for one sequence."""
        raise NotImplementedError

    def price(self, trace: DepthTrace) -> Work:
        """Multiply-accumulates of one traced batch; see `price_sequences`."""
        return price_sequences(self.config, trace, each_step=self.head_work)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        num_targets: Mapping[str, Tensor] | None = None,
        exit_rule: str | ExitRule | None = None,
        run_all_steps: bool | None = None,
        generator: torch.Generator | None = None,
        **kwargs: Any,
    ) -> StepwiseOutput:
        """Step until every sequence has exited, and with labels compute the loss.

        Args:
            input_ids: Token ids (B, T); or give `inputs_embeds` (B, T, E).
            attention_mask: 1 at real tokens, 0 at padding, (B, T).
            token_type_ids: Segment of each token, (B, T).
            position_ids: (B, T) or (1, T).
            inputs_embeds: Word embeddings instead of ids.
            labels: This and the next four as in `StepwiseModel.run`.
            num_targets: See there.
            exit_rule: See there.
            run_all_steps: See there.
            generator: See there.
            **kwargs: `return_dict`, and the attention's own.
        """
        words = words_of(input_ids, inputs_embeds, attention_mask)
        embedded = self.albert.embeddings(words, token_type_ids, position_ids)
        rows, length = words.shape[:2]
        if attention_mask is None:
            tokens = torch.full((rows,), length, device=words.device)
        else:
            tokens = attention_mask.ne(0).sum(dim=1)
        return self.run(
            AlbertStepper(self.config, self.albert, self.read, embedded, attention_mask, kwargs),
            rows=rows,
            device=words.device,
            tokens=tokens,
            labels=labels,
            num_targets=num_targets,
            exit_rule=exit_rule,
            run_all_steps=run_all_steps,
            generator=generator,
        )
