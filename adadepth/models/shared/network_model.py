"""The base class of models around a network of transformers: the network, its layers, and its head.

Shape legend: B texts, T tokens, D width, k tokens that are read, C classes or pieces.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, cast

from torch import Tensor, nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING, PreTrainedModel

from adadepth.errors import ConfigError, DataError
from adadepth.models.contract import DepthModel
from adadepth.models.shared.encoders import check_words, longest_sequence
from adadepth.models.shared.layered_network import ExitableLayers, RunningTexts, split_model
from adadepth.models.shared.losses import count_head_classes


class NetworkModel(DepthModel, PreTrainedModel):
    """The base class of models around a network of transformers, which its configuration describes as `base_config`.

    Attributes:
        mapping: Mapping of transformers from a type of configuration to its model for the task.
        model: Network up to its last layer.
        head: Model of transformers for the task without the network; see `Parts`.
    """

    config: Any
    base_model_prefix = "model"
    main_input_name = "input_ids"
    accepts_loss_kwargs = False
    _supports_sdpa = True
    mapping: ClassVar[Any]
    model: Any
    head: Any

    def build_network(self) -> None:
        """Build the network and its head with new weights."""
        self.model, self.head, self._tied_weights_keys = split_model(self._build_stock())
        self.config.base_config = self.model.config  # that of the layers: `attn_implementation` then has one owner

    @property
    def trains_network(self) -> bool:
        """Whether network and head learn, and not only what the family adds to them."""
        return bool(self.config.trains == "all")

    def freeze_untrained(self) -> None:
        """Freeze the network and its head, unless they are trained."""
        if not self.trains_network:
            self.model.requires_grad_(False)
            self.head.requires_grad_(False)

    def train(self, mode: bool = True) -> Any:
        """Set the training mode; a frozen network has no dropout."""
        super().train(mode)
        if not self.trains_network:
            self.model.eval()
            self.head.eval()
        return self

    @classmethod
    def find_stock_class(cls, config: Any) -> Any:
        """Return the model of transformers for this task and a configuration.

        Raises:
            ConfigError: If transformers has none.
        """
        kind = type(config.base_config)
        stock_class = cls.mapping.get(kind, None)
        is_encoder_as_decoder = cls.mapping is MODEL_FOR_CAUSAL_LM_MAPPING and kind in MODEL_FOR_MASKED_LM_MAPPING
        if stock_class is None or is_encoder_as_decoder:
            raise ConfigError(f"base={config.base}: transformers has no such network for {cls.__name__}")
        return stock_class

    def _build_stock(self) -> Any:
        """Build the model of transformers, with random weights."""
        config, stock_class = self.config, self.find_stock_class(self.config)
        base: Any = config.base_config
        base.num_labels = count_head_classes(config)
        if config.tie_word_embeddings is not None:  # may have changed since the configuration was built
            base.tie_word_embeddings = config.tie_word_embeddings
        attention = config._attn_implementation
        if attention == "sdpa" and not stock_class._supports_sdpa:
            attention = "eager"
        return stock_class._from_config(config.base_config, attn_implementation=attention)

    def _init_weights(self, module: nn.Module) -> None:
        self.model._init_weights(module)

    def get_input_embeddings(self) -> Any:
        """Return the table of word embeddings."""
        return self.model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the word embeddings."""
        self.model.set_input_embeddings(value)

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> Any:
        """Resize the word embeddings and the head's predictions; the arguments are those of transformers."""
        embeddings: Any = super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        self.config.base_config.vocab_size = embeddings.num_embeddings
        return embeddings

    @property
    def layers(self) -> ExitableLayers:
        """The layers of the network."""
        return next(part for part in self.model.modules() if isinstance(part, ExitableLayers))

    @property
    def longest_sequence(self) -> int | None:
        """The most tokens of a text; None: any number."""
        positions = longest_sequence(self.model)
        return self.config.max_position_embeddings if positions is None else positions

    @property
    def vocabulary_size(self) -> int | None:
        """The number of pieces in the vocabulary."""
        return int(self.config.vocab_size)

    @property
    def is_causal(self) -> bool:
        """Whether tokens see only those before them."""
        return type(self.config.base_config) not in MODEL_FOR_MASKED_LM_MAPPING

    def take_padding(self, token: int | None) -> None:
        """Set the tokenizer's id of padding if the configuration has none."""
        if self.config.pad_token_id is None:
            self.config.pad_token_id = token

    def check_words(self, inputs: Mapping[str, Any]) -> Tensor:
        """Return the ids, (B, T), or embeddings, (B, T, D), of a call.

        Raises:
            DataError: If there is not exactly one of both.
            ValueError: If there are no tokens, or an id is not in the vocabulary.
        """
        ids, embedded = inputs.get("input_ids"), inputs.get("inputs_embeds")
        if (ids is None) == (embedded is None):
            raise DataError("input_ids, inputs_embeds: give exactly one of them")
        words: Any = ids if embedded is None else embedded
        check_words(words, self.get_input_embeddings())
        return cast(Tensor, words)

    def predict(self, head: Any, states: Tensor, **options: Any) -> Tensor:
        """Return the logits (k, C) of a head of transformers for normed states of tokens, (k, D)."""
        logits: Tensor = head(inputs_embeds=states.unsqueeze(0), **options).logits
        return logits.squeeze(0)

    def compute_pairs(self, running: RunningTexts) -> int:
        """Count the pairs of a query and a key in one layer of the running texts."""
        texts, width = running.states.shape[:2]
        new = width * (width + 1) // 2 if self.is_causal else width * width
        return texts * (width * running.memory_length + new)
