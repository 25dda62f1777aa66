"""The base class of models around a network of transformers, which is split into its layers and its head.

Shape legend: B texts, T tokens, D width, k tokens that are read, C classes or pieces.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions

from adadepth.errors import ConfigError, DataError
from adadepth.models.contract import DepthModel
from adadepth.models.depth.runner import ExitableLayers, RunningTexts
from adadepth.models.shared.encoders import check_words, longest_sequence
from adadepth.models.shared.layers import init_halting_unit
from adadepth.models.shared.losses import count_head_classes

# Names of the norm between the last layer and the heads.
_NORMS = ("norm", "final_norm", "final_layernorm", "final_layer_norm", "ln_f")


class HeadInput(nn.Module):
    """Final norm and pooler of a network, which replace the network in its model of transformers with a head.

    Attributes:
        norm: Norm of the states before `forward`, which gets them normed; an identity if there is none.
        pooler: Function from normed states to the pooled first token; None: the head needs none.
    """

    def __init__(self, norm: nn.Module, pooler: nn.Module | None) -> None:
        super().__init__()
        self.norm, self.pooler = norm, pooler

    def get_input_embeddings(self) -> None:
        """Return None: the embeddings are in the network. transformers asks before it returns a head's matrix."""

    def forward(self, *arguments: Any, inputs_embeds: Tensor, **options: Any) -> Any:
        """Return normed states (A, T, D) as if they were the output of the network."""
        pooled = None if self.pooler is None else self.pooler(inputs_embeds)
        return BaseModelOutputWithPoolingAndCrossAttentions(last_hidden_state=inputs_embeds, pooler_output=pooled)


class FirstTokenPooler(nn.Module):
    """The pooler of ALBERT, which is a linear layer and an activation of the network: tanh(W h_1)."""

    def __init__(self, dense: nn.Linear, activation: nn.Module) -> None:
        super().__init__()
        self.dense, self.activation = dense, activation

    def forward(self, states: Tensor) -> Tensor:
        """Return the pooled first token, (A, D), of states (A, T, D)."""
        pooled: Tensor = self.activation(self.dense(states[:, 0]))
        return pooled


class Parts(NamedTuple):
    """A model of transformers in two parts.

    Attributes:
        base: Its network up to the last layer, with `ExitableLayers`.
        head: The model without the network, called with states as `inputs_embeds`; its network is a `HeadInput`.
        tied: Tied weights by name, as `_tied_weights_keys` of a model with the attributes `model` and `head`.
    """

    base: Any
    head: Any
    tied: dict[str, str]


def split_model(model: Any) -> Parts:
    """Split a model of transformers, which is changed, before what follows its last layer.

    Raises:
        ConfigError: If its network has no list of layers, a second stack of them, or experts.
    """
    base, prefix, config = model.base_model, model.base_model_prefix, model.config
    if base is model or config.is_encoder_decoder:
        raise ConfigError(f"base={config.model_type}: {type(model).__name__} is no network of one stack with a head")
    if hasattr(config, "output_router_logits"):  # which their head reads
        raise ConfigError(f"base={config.model_type}: mixtures of experts are not supported")
    name, stack, layers = _find_layers(base, config)
    setattr(stack, name, ExitableLayers(layers, config.num_hidden_layers))
    norm_name = next((name for name in _NORMS if isinstance(getattr(base, name, None), nn.Module)), None)
    norm = nn.Identity() if norm_name is None else getattr(base, norm_name)
    if norm_name is not None:
        setattr(base, norm_name, nn.Identity())
    pooler = getattr(base, "pooler", None)
    if pooler is not None:
        base.pooler = None
    if isinstance(pooler, nn.Linear):  # of ALBERT
        pooler = FirstTokenPooler(pooler, base.pooler_activation)
    setattr(model, prefix, HeadInput(norm, pooler))
    for plan in ("_tp_plan", "_ep_plan", "_pp_plan"):  # of parallel execution; the network has its own
        entries = (getattr(model, plan, None) or {}).items()
        setattr(model, plan, {name: value for name, value in entries if not name.startswith(f"{prefix}.")})
    tied = {f"head.{name}": _rename_source(source, prefix) for name, source in (model._tied_weights_keys or {}).items()}
    model._tied_weights_keys, model.all_tied_weights_keys = None, {}
    return Parts(base, model, tied)


def _rename_source(name: str, prefix: str) -> str:
    inner = name.removeprefix(f"{prefix}.")
    return f"head.{name}" if inner == name else f"model.{inner}"


def _find_layers(base: Any, config: PreTrainedConfig) -> tuple[str, Any, nn.ModuleList]:
    """Find the list of layers of a network: return the name of the attribute, the module that has it, and the list."""
    modules = getattr(config, "num_hidden_groups", config.num_hidden_layers)  # ALBERT applies each several times
    for stack in filter(None, (base, getattr(base, "encoder", None), getattr(base, "transformer", None))):
        for name, layers in stack.named_children():
            if isinstance(layers, nn.ModuleList) and len(layers) == modules:
                return name, stack, layers
    raise ConfigError(f"base={config.model_type}: its network has no list of {config.num_hidden_layers} layers")


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
        init_halting_unit(module)

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


def map_network_names(model_class: Any, config: Any) -> dict[str, str]:
    """Return the name in a network of transformers of every weight of a model around it.

    Tied weights have names of their own.

    Args:
        model_class: Class of the model, a `NetworkModel`.
        config: Its configuration.
    """
    network = copy.deepcopy(config.base_config)
    network.tie_word_embeddings = False
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        stock = model_class.find_stock_class(config)._from_config(network)
    names = {id(weight): name for name, weight in stock.state_dict(keep_vars=True).items()}
    parts = split_model(stock)
    return {
        f"{part}.{name}": names[id(weight)]
        for part, module in (("model", parts.base), ("head", parts.head))
        for name, weight in module.state_dict(keep_vars=True).items()
    }
