"""The early-exit model of masked words.

Shape legend: B texts, T tokens, D width, V pieces, P tokens with a label.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import MODEL_FOR_MASKED_LM_MAPPING
from transformers.utils.generic import can_return_tuple

from adadepth.halting.exit_rules import ExitRule
from adadepth.models.depth.outputs import Choice
from adadepth.models.early_exit.modeling import EarlyExitOutput
from adadepth.models.early_exit.word_model import WordModel
from adadepth.models.shared.encoders import find_real_tokens
from adadepth.models.shared.losses import combine_terms


class EarlyExitForMaskedLM(WordModel):
    """A model of masked words.

    A text leaves the batch once all its tokens have exited, masked or not.
    """

    mapping = MODEL_FOR_MASKED_LM_MAPPING
    task_part = "mlm"

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
        output_hidden_states: Choice | None = None,
        exit_rule: str | ExitRule | None = None,
        run_all_steps: bool | None = None,
        generator: torch.Generator | None = None,
    ) -> EarlyExitOutput:
        """Predict the words of all tokens; the arguments are those of `EarlyExitForCausalLM.forward`, and segments.

        Labels are the original ids of the tokens to predict, negative elsewhere, (B, T). With labels, logits exist for
        these tokens only, (P, V), and in training for none.
        """
        running = self.begin({
            "input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids,
            "position_ids": position_ids, "inputs_embeds": inputs_embeds,
        })  # fmt: skip
        real = find_real_tokens(attention_mask, running.states.shape[:2], running.states.device)
        run, output = self.run_words(
            running, self.resolve_rule(exit_rule), real, targets=labels, run_all_steps=run_all_steps,
            output_hidden_states=output_hidden_states, generator=generator,
        )  # fmt: skip
        if labels is not None:
            output.loss, output.loss_parts = combine_terms(self.compute_losses(run, labels, output), num_targets)
            if self.training:
                return output
        states, exits = run.select_states(), run.exit_steps.clamp(min=1)
        if labels is not None:
            states, exits = states[labels >= 0], exits[labels >= 0]
        output.logits = output.prediction_logits = self.read_exits(states, exits, run.fixed_exit)
        return output

    def count_labels(self, labels: Tensor) -> Tensor:
        """Count the tokens with a word to predict."""
        return (labels >= 0).sum()
