"""Training objective of PonderNet, and PonderALBERT, which is trained with it.

    L = (1/B) sum_b sum_n p_bn loss(y_b, yhat_bn) + beta (1/B) sum_b KL_b

The objective is that of Banino et al. 2021 (arXiv 2107.05407), section 2.2. It averages the losses of the steps, not
their predictions. Shape legend: B batch, N steps, A sequences that still run, T tokens, H width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.utils.generic import can_return_tuple

from adadepth.errors import ConfigError, DataError
from adadepth.halting.distribution import (
    HaltingDistribution,
    continuation_losses,
    geometric_prior,
    halting_distribution,
    halting_kl,
    uniform_prior,
)
from adadepth.halting.exit_rules import ExitRule
from adadepth.halting.trace import DepthTrace, Work
from adadepth.halting.units import HaltingProjection
from adadepth.models.contract import HoldsBudget
from adadepth.models.depth.engine import ExitRuleKnob
from adadepth.models.depth.outputs import StepwiseOutput
from adadepth.models.ponder.configuration import PonderAlbertConfig
from adadepth.models.shared.albert.configuration import derive_config
from adadepth.models.shared.albert.pricing import price_sequences
from adadepth.models.shared.albert.stepper import (
    Reading,
    SteppedAlbert,
    SteppedAlbertModel,
    SteppedAlbertPreTrainedModel,
)
from adadepth.models.shared.losses import (
    LossTerm,
    class_losses,
    combine_terms,
    count_head_classes,
    count_sequences,
    expected_loss,
    step_losses,
)


def ponder_distributions(config: Any, halting_logits: Tensor) -> tuple[HaltingDistribution, HaltingDistribution]:
    """Return the posterior halting distribution p, (B, N), and the prior that regularises it, (N,).

    Args:
        config: Configuration with `prior`, `target_halt_probability` and `truncation`.
        halting_logits: Halting logits z_n, (B, N).
    """
    prior = build_prior(config, halting_logits.shape[-1], halting_logits.device)
    return halting_distribution(halting_logits, config.truncation), prior


def build_prior(config: Any, steps: int, device: torch.device) -> HaltingDistribution:
    """Return the prior over N steps that regularises the halting distribution, (N,).

    Args:
        config: Configuration with `prior`, `target_halt_probability` and `truncation`.
        steps: Number N of steps.
        device: Device of the distribution.
    """
    if config.prior == "uniform":
        return uniform_prior(steps, device)
    # Truncated like the posterior; but the prior's last step gets the mass that a posterior drops, as in PALBERT.
    truncation = "leftover" if config.truncation in ("none", "palbert") else config.truncation
    return geometric_prior(config.target_halt_probability, steps, truncation, device)


def ponder_terms(
    config: Any, losses: Tensor, counted: Tensor, posterior: HaltingDistribution, prior: HaltingDistribution
) -> dict[str, LossTerm]:
    """Return PonderNet's loss parts, summed over labelled sequences: expected task loss `task`, and divergence `kl`.

    Args:
        config: Configuration with `kl_penalty_factor` (beta), `kl_direction`, and optionally `ce_normalisation`; see
            `PonderAlbertConfig`.
        losses: Task loss after every step, (B, N).
        counted: Whether each sequence has a target, boolean, (B,).
        posterior: Halting distribution p, (B, N).
        prior: Prior distribution, (N,).
    """
    task = expected_loss(losses, posterior.pmf)
    if getattr(config, "ce_normalisation", "sum") == "mean_over_steps":
        task = task / losses.shape[-1]  # as the reference code of PonderALBERT, which makes beta count N times as much
    divergence = halting_kl(posterior, prior, config.kl_direction)
    count = counted.sum()
    return {
        "task": LossTerm((task * counted).sum(), count),
        "kl": LossTerm((divergence * counted).sum(), count, config.kl_penalty_factor),
    }


@dataclass(frozen=True)
class HaltingStage:
    """Loss of the second training stage, in which only the halting head is trained on a frozen model.

    See `adadepth.halting.distribution`.
    """

    slope: float
    threshold: float

    def terms(self, halting_logits: Tensor, losses: Tensor, counted: Tensor) -> dict[str, LossTerm]:
        """Return the loss part `halting` of the second training stage."""
        per_sequence = continuation_losses(halting_logits, losses, self.slope, self.threshold)
        return {"halting": LossTerm((per_sequence * counted).sum(), counted.sum())}


class PonderTraining(ExitRuleKnob, HoldsBudget, nn.Module):
    """Base class of models trained with PonderNet's objective: loss, depth, and a second stage for the halting head.

    Attributes:
        config: Configuration with the fields that `ponder_distributions` and `ponder_terms` read, and `exit_rule`.
        halting_stage: Second stage of training, or None in the first stage.
    """

    exit_signals = frozenset({"logits", "halting"})
    level_rule = "quantile"
    halting_stage: HaltingStage | None = None

    @property
    def halting_head(self) -> nn.Module:
        """Module that computes the halting logits and nothing else."""
        raise NotImplementedError

    def add_halting(
        self, output: StepwiseOutput, labels: Tensor | None, num_targets: Mapping[str, Tensor] | None
    ) -> None:
        """Add the halting distribution and, with labels, the loss to a model output.

        Args:
            output: Output of a forward pass that ran all steps.
            labels: Targets, or None; see `step_losses`.
            num_targets: Counts that normalise the loss parts, or None; see `combine_terms`.
        """
        assert output.step_logits is not None
        assert output.halting_logits is not None
        posterior, prior = ponder_distributions(self.config, output.halting_logits)
        output.posterior, output.prior = posterior, prior
        if labels is None:
            return
        losses, counted = step_losses(self.config, output.step_logits, labels)
        if self.halting_stage is None:
            terms = ponder_terms(self.config, losses, counted, posterior, prior)
        else:
            terms = self.halting_stage.terms(output.halting_logits, losses, counted)
        output.loss, output.loss_parts = combine_terms(terms, num_targets)

    def count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the number of labelled sequences in a batch, or the sum of their class weights."""
        names = ("task", "kl") if self.halting_stage is None else ("halting",)
        return dict.fromkeys(names, count_sequences(self.config, batch["labels"]))

    def prior_facts(self, outputs: StepwiseOutput) -> dict[str, Any]:
        """Return the prior over exit steps, (N,) on the CPU, its truncation, and the direction of the KL divergence.

        The result is empty unless all steps ran.
        """
        if outputs.posterior is None or outputs.prior is None:
            return {}
        return {
            "prior_pmf": outputs.prior.pmf.cpu(),
            "truncation": self.config.truncation,
            "kl_direction": self.config.kl_direction,
        }

    def count_units(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the number of sequences in a batch, over which the mean depth is taken."""
        return torch.full((), len(batch["labels"]), device=batch["labels"].device)

    @property
    def halting_bias(self) -> Tensor:
        """Bias of the last layer of the halting head, (1,)."""
        last = [module for module in self.modules() if isinstance(module, HaltingProjection)][-1]
        return last.bias

    def soft_depth(self, outputs: StepwiseOutput) -> LossTerm:
        """Return the expected number of steps, summed over sequences and differentiable."""
        assert outputs.posterior is not None
        steps = outputs.posterior.expected_steps()
        return LossTerm(steps.sum(), torch.full((), len(steps), device=steps.device))

    def train_halting_alone(self, slope: float, threshold: float) -> None:
        """Start the second training stage, in which only the halting head is trained, with its own loss.

        The stage lasts as long as this object. Neither the configuration nor the saved weights record it.
        """
        self.halting_stage = HaltingStage(slope, threshold)
        self.requires_grad_(False)
        self.halting_head.requires_grad_(True)
        self.train(self.training)

    def train(self, mode: bool = True) -> Self:
        """Set training or evaluation mode; in the second stage, frozen modules stay in evaluation mode.

        In the second stage, frozen modules stay in evaluation mode, without dropout.
        """
        super().train(mode)
        if self.halting_stage is not None:
            for child in self.children():
                child.train(mode and child is self.halting_head)
        return self


class PonderClassificationLoss:
    """PonderNet's loss as a separate function, for training loops that do not pass labels to the model.

    Args:
        kl_penalty_factor: Weight beta of the KL divergence.
        ce_normalisation: Normalisation of the cross-entropy; see `PonderAlbertConfig`.
        kl_direction: Direction of the KL divergence; see `PonderAlbertConfig`.
    """

    def __init__(
        self,
        kl_penalty_factor: float = 1e-2,
        ce_normalisation: str = "sum",
        kl_direction: str = "posterior_prior",
    ) -> None:
        self.kl_penalty_factor = kl_penalty_factor
        self.ce_normalisation = ce_normalisation
        self.kl_direction = kl_direction

    def __call__(self, prediction: StepwiseOutput, labels: Sequence[int] | Tensor) -> dict[str, Tensor]:
        """Compute the loss of a model output for labels.

        Args:
            prediction: Output of a forward pass that ran all steps.
            labels: Classes, (B,), as a list or a tensor. Negative classes are not targets.

        Returns:
            Weighted means over the examples of the losses `task` and `kl`, and their sum `total_loss`.

        Raises:
            ValueError: If the prediction has steps that did not run.
            DataError: If a label is not a class of the model.
        """
        if prediction.posterior is None or prediction.prior is None:
            raise ValueError("the loss needs every step; call the model in training mode or with run_all_steps=True")
        assert prediction.step_logits is not None
        targets = torch.as_tensor(labels, device=prediction.step_logits.device)
        losses, counted = class_losses(prediction.step_logits, targets)
        terms = ponder_terms(self, losses, counted, prediction.posterior, prediction.prior)
        total, parts = combine_terms(terms)
        return {"total_loss": total, **parts}


def _encode_texts(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str | tuple[str, str]], config: PonderAlbertConfig
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokenise texts or pairs of texts into ids, mask and segment ids, (B, T) each.

    With two [CLS] tokens, a pair is `[CLS] [CLS] a [SEP] b [SEP]`. With `double_cls_pairs=both`, another [CLS] precedes
    b, as in the reference code. If the model has too few positions, the longer text of a pair is truncated first.

    Raises:
        DataError: If there is no text, or an item is not a text.
    """
    rows = [_encode(tokenizer, row, config) for row in _read_text_rows(texts)]
    width = max(len(ids) for ids, _ in rows)
    pad = config.pad_token_id or 0
    ids = torch.tensor([row + [pad] * (width - len(row)) for row, _ in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row, _ in rows])
    segments = torch.tensor([row + [0] * (width - len(row)) for _, row in rows])
    return ids, mask, segments


def _read_text_rows(texts: Any) -> list[tuple[str, ...]]:
    """Return each text or pair of texts as a tuple of one or two strings.

    Args:
        texts: Sequence of texts or of pairs. As in the reference code, pairs may also be a tuple of two lists of equal
            length, all first texts and all second texts.

    Raises:
        DataError: If there is no text, or an item is not a text.
    """
    if isinstance(texts, str):
        raise DataError("texts: must be a list of texts, not one text")
    if isinstance(texts, tuple) and len(texts) == 2 and all(isinstance(column, list) for column in texts):
        if len(texts[0]) != len(texts[1]):
            raise DataError(f"texts: {len(texts[0])} first texts and {len(texts[1])} second texts; pairs need both")
        texts = list(zip(*texts, strict=True))
    rows = [(row,) if isinstance(row, str) else tuple(row) if isinstance(row, list | tuple) else () for row in texts]
    if not rows:
        raise DataError("texts: no texts to encode")
    for number, row in enumerate(rows, start=1):
        if len(row) not in (1, 2) or not all(isinstance(text, str) for text in row):
            raise DataError(f"texts: item {number} is neither a text nor a pair of texts")
    return rows


def _encode(
    tokenizer: PreTrainedTokenizerBase, texts: tuple[str, ...], config: PonderAlbertConfig
) -> tuple[list[int], list[int]]:
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    parts = [list(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]
    heads = [[cls] * config.cls_tokens]
    if len(parts) == 2:
        heads.append([cls] if config.cls_tokens == 2 and config.double_cls_pairs == "both" else [])
    room = config.max_position_embeddings - sum(map(len, heads)) - len(parts)
    lengths = [len(part) for part in parts]
    while sum(map(len, parts)) > room:
        # Of two that have become equally long, the one that was shorter loses the token, as in the tokenizers library.
        parts[max(range(len(parts)), key=lambda index: (len(parts[index]), -lengths[index]))].pop()
    ids: list[int] = []
    segments: list[int] = []
    for segment, (head, part) in enumerate(zip(heads, parts, strict=True)):
        piece = [*head, *part, sep]
        ids += piece
        segments += [segment] * len(piece)
    return ids, segments


_Text = str | tuple[str, str]


class PonderAlbertModel(SteppedAlbertModel):
    """PonderALBERT encoder without heads, which runs all steps."""

    config: PonderAlbertConfig
    config_class = PonderAlbertConfig

    def __init__(self, config: PonderAlbertConfig) -> None:
        super().__init__(config, add_pooling_layer=config.readout == "pooler")


class PonderAlbertForSequenceClassification(PonderTraining, SteppedAlbertPreTrainedModel):
    """PonderALBERT with a classifier or regressor and a halting head, which both predict at every step.

    Args:
        config: `PonderAlbertConfig`, or the configuration of another ALBERT, from which the sizes are taken.
        tokenizer: Tokenizer for calls with texts. If it is None, such calls load the tokenizer that is stored beside
            the weights.
        **overrides: Fields of the configuration to change.

    Raises:
        ConfigError: If an override is not a field, or has a value that is not allowed.
    """

    config: PonderAlbertConfig
    config_class = PonderAlbertConfig

    def __init__(
        self, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase | None = None, **overrides: Any
    ) -> None:
        derived = derive_config(PonderAlbertConfig, config, overrides)
        super().__init__(derived)
        self.albert = SteppedAlbert(derived, add_pooling_layer=derived.readout == "pooler")
        self.dropout = nn.Dropout(derived.classifier_dropout_prob)
        self.classifier = _build_classifier(derived)
        self.ponder = _build_halting_head(derived)
        self.tokenizer = tokenizer
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | Sequence[_Text] | None = None,
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
        """Run steps until every sequence has exited, and compute the loss if there are labels.

        Labels are classes or values, (B,); see `step_losses`. `num_targets` are the counts that normalise the loss
        parts; see `combine_terms`. `input_ids` may also be B texts or pairs of texts; see `_read_text_rows`.
        """
        if input_ids is not None and not isinstance(input_ids, Tensor):
            encoded = _encode_texts(self._get_tokenizer(), input_ids, self.config)
            input_ids, attention_mask, token_type_ids = (tensor.to(self.device) for tensor in encoded)
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        output, run_all = self.take_steps(inputs, labels, exit_rule, run_all_steps, generator, kwargs)
        if run_all:  # the halting distribution and the loss need every step
            self.add_halting(output, labels, num_targets)
        else:
            output.prior = build_prior(self.config, self.max_updates, output.exit_steps.device)
        return output

    def read(self, state: Tensor, memory: Tensor | None, step: int) -> Reading:
        """Compute the logits and halting logits from the hidden states of a step.

        `memory` contains the features of the previous step, (A, H). PALBERT's halting heads read their change.
        """
        if self.config.readout == "tokens":  # two [CLS]: one predicts, the other ponders
            predicting, pondering = state[:, 0], state[:, 1]
            features = self._prepare_halting_features(pondering, memory)
        else:
            pondering = self.albert.pooled(state)
            predicting = self.dropout(pondering)
            features = self.dropout(self._prepare_halting_features(pondering, memory))
        return Reading(self.classifier(predicting), self.ponder(features).squeeze(-1), pondering)

    def _prepare_halting_features(self, features: Tensor, previous: Tensor | None) -> Tensor:
        """Return the input of the halting head, (A, H) or (A, 2H)."""
        if self.config.halting_head in ("mlp", "linear"):
            return features
        if previous is None:
            previous = torch.zeros_like(features)
        if self.config.halting_head == "linear_diff":
            return features - previous
        return torch.cat([features, previous], dim=-1)

    def price(self, trace: DepthTrace) -> Work:
        """Return the MACs of a batch from its depth trace."""
        return price_sequences(self.config, trace, each_step=self.head_work)

    @property
    def head_work(self) -> float:
        """MACs of the heads for one sequence, the number of weights in their linear layers."""
        modules = [self.classifier, self.ponder, self.albert.pooler]
        linear = [m for module in modules if module is not None for m in module.modules() if isinstance(m, nn.Linear)]
        return float(sum(module.in_features * module.out_features for module in linear))

    @property
    def halting_head(self) -> nn.Module:
        """Module that computes the halting logits."""
        return self.ponder

    def _get_tokenizer(self) -> PreTrainedTokenizerBase:
        if self.tokenizer is None:
            if not self.config.name_or_path:
                raise ConfigError("a call with texts needs a tokenizer; pass one to the constructor of the model")
            self.tokenizer = AutoTokenizer.from_pretrained(self.config.name_or_path, trust_remote_code=False)
        return self.tokenizer


PonderAlbertClassifier = PonderAlbertForSequenceClassification


def _build_classifier(config: PonderAlbertConfig) -> nn.Module:
    hidden, classes = config.hidden_size, count_head_classes(config)
    if config.readout == "pooler":
        return nn.Linear(hidden, classes)
    return nn.Sequential(nn.Linear(hidden, config.head_size), nn.GELU(), nn.Linear(config.head_size, classes))


def _build_halting_head(config: PonderAlbertConfig) -> nn.Sequential:
    width = config.hidden_size * (2 if config.halting_head == "linear_cat" else 1)
    if config.halting_head == "mlp":
        last = HaltingProjection(config.head_size, config.halt_bias_init)
        return nn.Sequential(nn.Linear(width, config.head_size), nn.GELU(), last)
    blocks: list[nn.Module] = []
    if config.halting_head_layers > 1:  # PALBERT's k = 1 is the linear map alone
        for _ in range(config.halting_head_layers):
            blocks += [nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(*blocks, HaltingProjection(width, config.halt_bias_init))
