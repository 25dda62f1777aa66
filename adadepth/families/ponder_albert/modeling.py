"""PonderALBERT for sequence classification and regression.

    h_n       = block(h_{n-1})                          n = 1..N, one ALBERT block for all steps; h_0: the embeddings
    yhat_n    = classifier(h_n),  z_n = ponder(h_n)     two heads read every step; see `read`
    lambda_n  = sigmoid(z_n)                            stop now, given not stopped before?
    p_n       = lambda_n prod_{j<n} (1 - lambda_j)      the halting distribution: adadepth.halting.distribution
    L         = mean of sum_n p_n loss(yhat_n, y) + beta KL(p || prior):    adadepth.families.shared.ponder_objective

The loss weighs all steps by p. Without labels an exit rule lets each sequence out as soon as what was read allows, and
the prediction is that of its exit step. Banino et al. 2021 (arXiv 2107.05407) on ALBERT; with `readout=pooler` PALBERT
(Balagansky & Gavrilov 2022). Shape legend: B batch, A sequences that still run, T tokens, E embedding width, H width,
N steps, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.utils.generic import can_return_tuple

from adadepth.errors import ConfigError
from adadepth.families.ponder_albert.configuration import PonderAlbertConfig
from adadepth.families.ponder_albert.texts import encode_texts
from adadepth.families.shared.albert.block import HaltingProjection, words_of
from adadepth.families.shared.albert.configuration import derive_config
from adadepth.families.shared.albert.pretrained import SteppedAlbertPreTrainedModel
from adadepth.families.shared.albert.pricing import price_sequences
from adadepth.families.shared.albert.stepped import SteppedAlbert
from adadepth.families.shared.albert.stepper import AlbertStepper, Reading
from adadepth.families.shared.losses import label_count
from adadepth.families.shared.ponder_objective import PonderTraining
from adadepth.families.shared.shown import shown
from adadepth.families.shared.steps import StepwiseOutput, rule_of, run_steps, runs_all, stepwise_output
from adadepth.halting.exit_rules import ExitRule
from adadepth.halting.trace import DepthTrace, Work

Text = str | tuple[str, str]


class PonderAlbertModel(SteppedAlbert):
    """The encoder, without heads: all steps, and the pooled first token where heads read that."""

    config: PonderAlbertConfig
    config_class = PonderAlbertConfig

    @staticmethod
    def has_pooler(config: Any) -> bool:
        """Whether checkpoints of this configuration have a pooler."""
        return config.readout == "pooler"


class PonderAlbertForSequenceClassification(PonderTraining, SteppedAlbertPreTrainedModel):
    """A classifier (or, with one label, a regressor) and a halting head on every step of an ALBERT.

    Args:
        config: A PonderAlbertConfig, or the configuration of another ALBERT, whose shape it takes.
        tokenizer: For calls with texts; without it they fetch the one beside the weights.
        **overrides: Fields of the configuration to change.

    Raises:
        ConfigError: If an override is no field, or has a value that is not allowed.
    """

    config: PonderAlbertConfig
    config_class = PonderAlbertConfig

    def __init__(
        self, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase | None = None, **overrides: Any
    ) -> None:
        own = derive_config(PonderAlbertConfig, config, overrides)
        super().__init__(own)
        self.albert = PonderAlbertModel(own, alone=False)
        self.dropout = nn.Dropout(own.classifier_dropout_prob)
        self.classifier = _classifier(own)
        self.ponder = _halting_head(own)
        self.tokenizer = tokenizer
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | Sequence[Text] | None = None,
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
            input_ids: Token ids (B, T); or give `inputs_embeds` (B, T, E); or B texts, or pairs of texts.
            attention_mask: 1 at real tokens, 0 at padding, (B, T).
            token_type_ids: Segment of each token, (B, T).
            position_ids: (B, T) or (1, T).
            inputs_embeds: Word embeddings instead of ids.
            labels: Classes or values, (B,); see `step_losses`.
            num_targets: Counts that normalise the loss parts instead of this batch's own; see `combine_terms`.
            exit_rule: Lets sequences exit; None: the configuration's.
            run_all_steps: See `runs_all`.
            generator: For rules that draw.
            **kwargs: `output_hidden_states`, `output_attentions`, `return_dict`, and the attention's own.
        """
        if input_ids is not None and not isinstance(input_ids, Tensor):
            encoded = encode_texts(self._tokenizer(), input_ids, self.config)
            input_ids, attention_mask, token_type_ids = (tensor.to(self.device) for tensor in encoded)
        words = words_of(input_ids, inputs_embeds, attention_mask, self.get_input_embeddings())
        rule, shows = rule_of(self, exit_rule), bool(shown(self.config, kwargs))
        run_all = runs_all(run_all_steps, labels, training=self.training, shows=shows)

        embedded = self.albert.embeddings(words, token_type_ids, position_ids)
        stepper = AlbertStepper(self.albert.encoder, self.read, embedded, attention_mask, kwargs)
        steps = run_steps(stepper, rule, max_steps=self.max_updates, run_all=run_all, generator=generator)

        output = stepwise_output(steps, rule, stepper.tokens)
        output.hidden_states, output.attentions = stepper.hidden_states, stepper.attentions
        if run_all:  # the halting distribution and the loss need every step
            self.weigh(output, labels, num_targets)
        return output

    def read(self, state: Tensor, memory: Tensor | None, step: int) -> Reading:
        """Predict and ponder; see `adadepth.families.shared.albert.stepper.Read`.

        The memory is the previous step's features, (A, H): PALBERT's halting heads look at how they changed.
        """
        if self.config.readout == "tokens":  # two [CLS]: one predicts, the other ponders
            predicting, pondering = state[:, 0], state[:, 1]
            seen = self._halting_features(pondering, memory)
        else:
            pondering = self.albert.pooled(state)
            predicting = self.dropout(pondering)
            seen = self.dropout(self._halting_features(pondering, memory))
        return Reading(self.classifier(predicting), self.ponder(seen).squeeze(-1), pondering)

    def _halting_features(self, features: Tensor, previous: Tensor | None) -> Tensor:
        """What the halting head reads, (A, H) or (A, 2H)."""
        if self.config.halting_head in ("mlp", "linear"):
            return features
        if previous is None:
            previous = torch.zeros_like(features)
        if self.config.halting_head == "linear_diff":
            return features - previous
        return torch.cat([features, previous], dim=-1)

    def price(self, trace: DepthTrace) -> Work:
        """Multiply-accumulates of one traced batch; see `price_sequences`."""
        return price_sequences(self.config, trace, each_step=self.head_work)

    @property
    def head_work(self) -> float:
        """Multiply-accumulates of `read` for one sequence: every weight of its linear maps once."""
        modules = [self.classifier, self.ponder, self.albert.pooler]
        linear = [m for module in modules if module is not None for m in module.modules() if isinstance(m, nn.Linear)]
        return float(sum(module.in_features * module.out_features for module in linear))

    @property
    def halting_head(self) -> nn.Module:
        """What gives the halting logits."""
        return self.ponder

    def _tokenizer(self) -> PreTrainedTokenizerBase:
        if self.tokenizer is None:
            if not self.config.name_or_path:
                raise ConfigError("a call with texts needs a tokenizer: give one when the model is built")
            self.tokenizer = AutoTokenizer.from_pretrained(self.config.name_or_path, trust_remote_code=False)
        return self.tokenizer


PonderAlbertClassifier = PonderAlbertForSequenceClassification


def _classifier(config: PonderAlbertConfig) -> nn.Module:
    hidden, classes = config.hidden_size, label_count(config)
    if config.readout == "pooler":
        return nn.Linear(hidden, classes)
    return nn.Sequential(nn.Linear(hidden, config.head_size), nn.GELU(), nn.Linear(config.head_size, classes))


def _halting_head(config: PonderAlbertConfig) -> nn.Sequential:
    width = config.hidden_size * (2 if config.halting_head == "linear_cat" else 1)
    if config.halting_head == "mlp":
        return nn.Sequential(nn.Linear(width, config.head_size), nn.GELU(), HaltingProjection(config.head_size, 1))
    blocks: list[nn.Module] = []
    if config.halting_head_layers > 1:  # PALBERT's k = 1 is the linear map alone
        for _ in range(config.halting_head_layers):
            blocks += [nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(*blocks, HaltingProjection(width, 1))
