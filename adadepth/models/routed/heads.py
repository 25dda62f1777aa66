"""Heads of routed models: the next token of a text, and classes of tokens.

Shape legend: B rows, T tokens, M tokens in the cache, D width, V pieces, C classes, P tokens with a label.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import torch
from torch import Tensor
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    Cache,
    GenerationMixin,
)
from transformers.utils.generic import can_return_tuple

from adadepth.errors import ConfigError
from adadepth.models.depth.outputs import Choice
from adadepth.models.routed.cache import RoutedCache
from adadepth.models.routed.modeling import RoutedModel, RoutedOutput
from adadepth.models.shared.causal import causal_targets, cross_entropies, mask_by_documents, select_kept_columns
from adadepth.models.shared.generation import CACHE_ARGUMENT, CheckedGeneration, accept_former_name
from adadepth.models.shared.losses import (
    LossOptions,
    LossTerm,
    class_loss,
    combine_terms,
    refuse_unknown,
    target_weights,
)


class RoutedForCausalLM(CheckedGeneration, RoutedModel, GenerationMixin):
    """A language model."""

    mapping = MODEL_FOR_CAUSAL_LM_MAPPING
    accepts_loss_kwargs = True

    @accept_former_name
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: Choice | None = None,
        logits_to_keep: int | Tensor = 0,
        routing: str | None = None,
        generator: torch.Generator | None = None,
        num_targets: Mapping[str, Tensor] | None = None,
        documents: Tensor | None = None,
        **options: Unpack[LossOptions],
    ) -> RoutedOutput:
        """Predict the next token of every position.

        Args:
            input_ids: (B, T).
            attention_mask: 1 at real tokens, those in the cache included, (B, M + T).
            position_ids: (B, T) or (1, T); None: as the network counts them.
            cache: Cache of earlier tokens, a `RoutedCache`.
            inputs_embeds: (B, T, D) instead of `input_ids`.
            labels: The input ids themselves, negative where nothing is to be predicted, (B, T).
            use_cache: Whether to make a cache.
            output_hidden_states: Whether to return the states before the first span and after every span, or the
                numbers of those that are returned.
            logits_to_keep: Number of last positions whose predictions are returned, or their indices; 0: all.
            routing: `causal` or `topk`; see `RoutedModel.run`. Evaluation with `topk` shows what the choice among all
                tokens of a row, later ones included, would be worth.
            generator: Random generator of router=random.
            num_targets: Counts that normalise the loss parts instead of those of this batch; see `combine_terms`.
            documents: Number of each token's document, (B, T), for rows of several documents, padding as one more. A
                token sees its own document alone. Labels at the first token of a document must be negative.
            options: See `LossOptions`.

        Raises:
            DataError: If there are documents with a cache or positions.
            ConfigError: If the cache is another one, or `topk` is asked for with a cache.
        """
        refuse_unknown(options, type(self).__name__)
        targets = options.get("shift_labels")
        if targets is None and labels is not None:
            targets = causal_targets(labels)
        cache = self._resolve_cache(cache, use_cache)
        if cache is not None and routing == "topk":
            raise ConfigError("routing=topk: needs whole rows, and no cache")
        inputs: dict[str, Any] = {
            "input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids,
            CACHE_ARGUMENT: cache, "inputs_embeds": inputs_embeds,
        }  # fmt: skip
        if documents is not None:
            inputs |= mask_by_documents(documents, position_ids, cache is not None)
        states, choices, output = self.run(
            inputs, attention_mask, has_losses=targets is not None, routing=routing,
            output_hidden_states=output_hidden_states, generator=generator,
        )  # fmt: skip
        if targets is not None:
            task, losses = self.compute_task_loss(states, targets)
            output.token_losses = losses.detach()
            terms = self.build_terms(task, (targets >= 0).sum(dim=1), choices)
            output.loss, output.loss_parts = combine_terms(terms, num_targets, options.get("num_items_in_batch"))
            if not self.training:
                output.measures = self.measure(choices, inputs, targets)
        if targets is None or not self.training:
            output.logits = self.read(states[:, select_kept_columns(logits_to_keep)])
        return output

    def compute_task_loss(self, states: Tensor, targets: Tensor) -> tuple[LossTerm, Tensor]:
        """Return the loss of the next tokens, and the cross-entropy of each of them, (P,)."""
        counted = (targets >= 0).flatten().nonzero().squeeze(1)
        read, labels = states.flatten(0, 1)[counted], targets.flatten()[counted]
        losses = cross_entropies(read, labels, self.read, int(self.config.vocab_size))
        return LossTerm(losses.sum(), torch.full((), len(losses), device=losses.device)), losses

    def _resolve_cache(self, cache: Cache | None, use_cache: bool | None) -> RoutedCache | None:
        if cache is None:
            return self.make_cache() if use_cache and not self.training else None
        if not isinstance(cache, RoutedCache):
            raise ConfigError(f"cache: a routed model needs a RoutedCache, not a {type(cache).__name__}")
        return cache

    def make_cache(self) -> RoutedCache:
        """Return an empty cache."""
        return RoutedCache(len(self.config.layer_order), len(self.config.spans))

    def _prepare_cache_for_generation(self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any) -> None:
        """Create the cache for `generate`, unless a cache is passed."""
        kind = generation_config.cache_implementation
        if kind not in (None, "dynamic"):
            raise ConfigError(f"cache_implementation={kind}: routed models have a cache of their own")
        if model_kwargs.get(CACHE_ARGUMENT) is None and generation_config.use_cache is not False:
            model_kwargs[CACHE_ARGUMENT] = self.make_cache()

    def get_output_embeddings(self) -> Any:
        """Return the matrix of predictions."""
        return self.head.get_output_embeddings()

    def set_output_embeddings(self, value: torch.nn.Module) -> None:
        """Replace the matrix of predictions."""
        self.head.set_output_embeddings(value)

    def count_labels(self, labels: Tensor) -> Tensor:
        """Count the tokens with a token to predict."""
        return (causal_targets(labels) >= 0).sum()


class RoutedForTokenClassification(RoutedModel):
    """A classifier of tokens."""

    mapping = MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: Choice | None = None,
        routing: str | None = None,
        generator: torch.Generator | None = None,
        num_targets: Mapping[str, Tensor] | None = None,
        **options: Any,
    ) -> RoutedOutput:
        """Predict the class of every token; the arguments are those of `RoutedForCausalLM.forward`.

        Labels are classes (B, T), negative where there is none. In encoders a token sees later ones anyway; the choice
        `causal` then means that tokens do not compete.
        """
        refuse_unknown(options, type(self).__name__, allowed=())
        inputs = {
            "input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids,
            "position_ids": position_ids, "inputs_embeds": inputs_embeds,
        }  # fmt: skip
        states, choices, output = self.run(
            inputs, attention_mask, has_losses=labels is not None, routing=routing,
            output_hidden_states=output_hidden_states, generator=generator,
        )  # fmt: skip
        if labels is None:
            output.logits = self.read(states)
            return output
        task, output.logits = self.compute_task_loss(states, labels)
        weights = target_weights(self.config, labels).sum(dim=1)
        output.loss, output.loss_parts = combine_terms(self.build_terms(task, weights, choices), num_targets)
        if not self.training:
            output.measures = self.measure(choices, inputs, labels)
        return output

    def compute_task_loss(self, states: Tensor, targets: Tensor) -> tuple[LossTerm, Tensor]:
        """Return the loss of the classes, and the logits, (B, T, C)."""
        logits = self.read(states)
        return class_loss(self.config, logits, targets), logits

    def count_labels(self, labels: Tensor) -> Tensor:
        """Count the tokens with a label, each with the weight of its class."""
        return target_weights(self.config, labels).sum()
