"""Unmodified transformers classifiers with the `DepthModel` interface.

A pretrained head is kept if its classes, matched by name, are those of the data. Otherwise the model gets a new head.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    AutoConfig,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple

from adadepth.config.class_names import are_numbered, match_classes
from adadepth.errors import CheckpointError, ConfigError, nearest
from adadepth.halting.trace import DepthTrace, Execution, Work
from adadepth.models.contract import DepthModel
from adadepth.models.depth.outputs import requested_states
from adadepth.models.folder import convert_loading_errors, is_weightless, load_with_weights, read_config
from adadepth.models.loading import describe_place, read_stored_config, refuse_mismatched, refuse_missing
from adadepth.models.shared.albert.block import select_inputs
from adadepth.models.shared.configuration import WithStockConfig
from adadepth.models.shared.encoders import (
    compute_block_macs,
    compute_entry_macs,
    longest_sequence,
    select_accepted_inputs,
    vocabulary_size,
)
from adadepth.models.shared.losses import (
    LossTerm,
    class_loss,
    combine_terms,
    count_sequences,
    sequence_loss,
    target_weights,
)
from adadepth.models.stock_classifier.settings import StockClassifierSettings
from adadepth.runtime.hub_access import resolve_path, silence_transformers

logger = logging.getLogger(__name__)


def get_head_classes(config: PreTrainedConfig) -> list[str]:
    """Return the class names of a classifier's head, in order."""
    names: Any = config.id2label
    return [names[number] for number in range(len(names))]


def match_class_order(of_head: Sequence[str], of_data: Sequence[str]) -> list[int] | None:
    """Return, for each class of the data, its index in the head, or None if the classes differ.

    Names are compared first with and then without case. A head without class names is assumed to have the order of the
    data.
    """
    matches = match_classes(of_data, of_head)
    if None not in matches and len(matches) == len(of_head):
        return cast(list[int], matches)
    return list(range(len(of_head))) if are_numbered(of_head) and len(of_head) == len(of_data) else None


def _reorder_classes(model: PreTrainedModel, names: Sequence[str]) -> None:
    """Reorder and rename the classes of the head's last layer to match the data.

    Raises:
        ConfigError: If the classes of the head are not those of the data.
    """
    classes = get_head_classes(model.config)
    order = match_class_order(classes, names)
    if order is None:
        raise ConfigError(f"its head has the classes {', '.join(classes)}; the data have {', '.join(names)}")
    if are_numbered(classes) and not are_numbered(names):
        logger.warning("%s: its classes have no names; assuming %s", model.name_or_path, ", ".join(names))
    last = _get_last_layer(model)
    for parameter in (last.weight, last.bias):
        if parameter is not None:
            parameter.data = parameter.data[order].contiguous()
    model.config.id2label = dict(enumerate(names))
    model.config.label2id = {name: number for number, name in enumerate(names)}


def _get_last_layer(model: PreTrainedModel) -> nn.Linear:
    """Return the linear layer that computes the class logits.

    In classifiers of transformers it is the last layer created.
    """
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not linear or linear[-1].out_features != model.config.num_labels:
        raise ConfigError(f"{type(model).__name__} does not end in a linear layer of its classes")
    return linear[-1]


@dataclass
class StockOutput(ModelOutput):
    """Output of a classifier: loss, logits, (B, C) or (B, T, C), and depth trace.

    States and attention weights are included if requested.
    """

    loss: Tensor | None = None
    loss_parts: dict[str, Tensor] | None = None
    logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    trace: DepthTrace | None = None


class StockClassifier(DepthModel, WithStockConfig):
    """Mixin that adds the `DepthModel` interface to a transformers classifier, whose N blocks all run.

    Attributes:
        own_classes: Mapping in transformers from the type of a configuration to its classifier class.
        from_type: Classifier class of transformers that is extended.
        reads_last_token: Whether that class finds the last token by an id other than `config.pad_token_id`.
    """

    # Its losses are normalised by `num_targets`, never by the trainer's count of items.
    accepts_loss_kwargs = False
    own_classes: ClassVar[Any]
    from_type: ClassVar[Any]
    reads_last_token: ClassVar[bool]

    @classmethod
    def select_class(cls, config: PreTrainedConfig) -> Any:
        """Return transformers' class for a configuration, extended by this mixin.

        Raises:
            CheckpointError: If transformers has no such class with a single stack of blocks.
            ConfigError: If the multiply-accumulates of the blocks are unknown.
        """
        path = config.name_or_path
        extended = cls.own_classes.get(type(config), None)
        if extended is None or not extended.__module__.startswith("transformers."):
            raise CheckpointError(f"{path}: transformers has no {cls.depth_unit} classifier of {config.model_type}")
        if config.is_encoder_decoder:
            raise CheckpointError(f"{path}: {extended.__name__} has an encoder and a decoder, which is not supported")
        compute_block_macs(config, torch.ones(1))  # raises before a training what its report would raise
        return _extend_class(cast(Any, cls), extended)  # a class, for mypy, is not Hashable

    @classmethod
    def has_head(cls, config: PreTrainedConfig) -> bool:
        """Return whether a checkpoint's configuration declares a task head of this kind."""
        kind = cls.__name__[cls.__name__.index("For") :]
        return any(name.endswith(kind) for name in config.architectures or ())

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: Any, *args: Any, config: PreTrainedConfig | None = None, **kwargs: Any
    ) -> Any:
        """Load a model with the checkpoint's head, in float32 unless `dtype` says otherwise.

        Args:
            pretrained_model_name_or_path: Folder or hub id.
            *args: As in transformers.
            config: Configuration that replaces that of the checkpoint.
            **kwargs: As in transformers.

        Raises:
            CheckpointError: If the checkpoint has no such head, or weights are missing.
        """
        path = pretrained_model_name_or_path
        if path is None:
            return super().from_pretrained(None, *args, config=config, **kwargs)
        if config is None:
            kind = read_stored_config(path, kwargs).get("model_type")
            if kind is not None and kind not in CONFIG_MAPPING:
                raise CheckpointError(
                    f"{describe_place(path)}: contains a model of type {kind}; {cls.__name__} reads the classifiers "
                    f"of transformers{nearest(kind, CONFIG_MAPPING)}"
                )
            config, kwargs = AutoConfig.from_pretrained(
                path, return_unused_kwargs=True, **{"trust_remote_code": False, **kwargs}
            )
        precision = {} if "torch_dtype" in kwargs else {"dtype": torch.float32}
        model_class = cls.select_class(config)
        if config.architectures and not cls.has_head(config):
            raise CheckpointError(
                f"{path}: contains a {config.architectures[0]}, not a {model_class.__name__}; "
                f"model.pretrained={path} trains one"
            )
        return super(StockClassifier, model_class).from_pretrained(
            path, *args, config=config, **{**precision, **kwargs}
        )

    @property
    def max_updates(self) -> int:
        """Number of blocks, which is the depth of every unit."""
        return int(self.config.num_hidden_layers)

    @property
    def one_depth(self) -> int:
        """Number of updates of every unit, which is the number of blocks."""
        return self.max_updates

    @property
    def longest_sequence(self) -> int | None:
        """Maximum sequence length in tokens, or None for relative positions."""
        return longest_sequence(self)

    @property
    def vocabulary_size(self) -> int | None:
        """Number of tokens in the embedding table, or None if there is none."""
        return vocabulary_size(self)

    def take_classes(self, names: Sequence[str]) -> None:
        """Reorder and rename the classes of the head to match the data.

        Raises:
            ConfigError: If the classes of the head are not those of the data.
        """
        try:
            _reorder_classes(self, names)
        except ConfigError as error:
            raise ConfigError(f"checkpoint={self.name_or_path}: {error}") from error

    def take_padding(self, token: int | None) -> None:
        """Set the padding token id, saved with the model, if the configuration has none."""
        if self.config.pad_token_id is None:
            self.config.pad_token_id = token

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        num_targets: Mapping[str, Tensor] | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **options: Any,
    ) -> StockOutput:
        """Compute the logits of token ids, (B, T), and the loss if there are labels.

        Labels are classes, (B,) or (B, T), negative without a target, or values.
        """
        words = select_inputs(input_ids, inputs_embeds, attention_mask, self.get_input_embeddings())
        mask = words.new_ones(words.shape[:2], dtype=torch.long) if attention_mask is None else attention_mask
        encoder: Any = self.base_model
        inputs = {
            "input_ids": self._set_padding_id(input_ids, mask),
            "attention_mask": mask,
            "token_type_ids": token_type_ids,
            "position_ids": position_ids,
            "inputs_embeds": inputs_embeds,
            **options,
        }
        requested = {f"output_{name}": choice for name, choice in requested_states(self.config, options).items()}
        outputs = super().forward(**{**select_accepted_inputs(encoder, inputs), **requested})
        result = StockOutput(
            logits=outputs.logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            trace=self._trace(mask),
        )
        if labels is not None:
            terms = {"task": self.task_loss(outputs.logits, labels)}
            result.loss, result.loss_parts = combine_terms(terms, num_targets)
        return result

    def _set_padding_id(self, input_ids: Tensor | None, mask: Tensor) -> Tensor | None:
        """Replace the token ids at padding positions by the padding id.

        Classes of transformers that read the last token of a text find it by this id.

        Raises:
            ConfigError: If the configuration has no padding id, and there may be padding.
        """
        if input_ids is None or not type(self).reads_last_token:
            return input_ids
        pad = self.config.get_text_config().pad_token_id
        if pad is not None:
            return input_ids.masked_fill(mask == 0, pad)
        if len(input_ids) > 1 or not bool(mask.all()):
            raise ConfigError(
                f"pad_token_id=None: {type(self).__name__} reads the last token of a text and cannot distinguish "
                "it from padding; set config.pad_token_id to that of the tokenizer"
            )
        return input_ids

    def task_loss(self, logits: Tensor, labels: Tensor) -> LossTerm:
        """Compute the loss of a batch from logits and labels."""
        raise NotImplementedError

    def _trace(self, mask: Tensor) -> DepthTrace:
        depth, real = self.max_updates, mask.ne(0)
        valid = real if self.depth_unit == "token" else torch.ones_like(real[:, 0])
        execution = Execution(depth, tokens=real.sum(dim=1), width=mask.shape[1])
        return DepthTrace(self.depth_unit, depth * valid.float(), valid, depth, execution=execution)

    def price(self, trace: DepthTrace) -> Work:
        """Return the MACs of a batch from its depth trace, without embedding lookups and norms.

        `compute_block_macs` gives those of a block. Those of the head are the number of weights of its linear layers.
        """
        ran = trace.executed
        assert ran.tokens is not None
        assert isinstance(ran.width, int)
        tokens = ran.tokens.double()
        needed = self._compute_macs(tokens).sum()
        executed = self._compute_macs(torch.full_like(tokens, ran.width)).sum()
        return Work(executed, executed, needed, needed)

    def _compute_macs(self, length: Tensor) -> Tensor:
        """Return the MACs of a sequence of the given length."""
        head = sum(layer.weight.numel() for layer in self._get_head_layers())
        blocks = self.max_updates * compute_block_macs(self.config, length)
        return length * (compute_entry_macs(self.config) + blocks) + head * (
            length if self.depth_unit == "token" else 1.0
        )

    def _get_head_layers(self) -> list[nn.Linear]:
        """Return the linear layers after the blocks, including the pooler."""
        pooler = getattr(self.base_model, "pooler", None)
        encoder = set(self.base_model.modules()) - set(() if pooler is None else pooler.modules())
        return [module for module in self.modules() if isinstance(module, nn.Linear) and module not in encoder]


class StockForSequenceClassification(StockClassifier):
    """Transformers classifier or regressor of sequences, as a baseline."""

    own_classes = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    depth_unit = "sequence"

    def task_loss(self, logits: Tensor, labels: Tensor) -> LossTerm:
        """Compute the loss of the sequences from logits and labels."""
        return sequence_loss(self.config, logits, labels)

    def count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the number of labelled sequences in a batch."""
        return {"task": count_sequences(self.config, batch["labels"])}


class StockForTokenClassification(StockClassifier):
    """Transformers classifier of tokens, as a baseline."""

    own_classes = MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING
    depth_unit = "token"

    def task_loss(self, logits: Tensor, labels: Tensor) -> LossTerm:
        """Compute the loss of the tokens from logits and labels."""
        return class_loss(self.config, logits, labels)

    def count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the number of labelled tokens in a batch, or the sum of their class weights."""
        return {"task": target_weights(self.config, batch["labels"]).sum()}


def _reads_last_token(model_class: Any) -> bool:
    """Return whether a transformers class predicts from the last token, found by comparing ids with `pad_token_id`."""
    return "pad_token_id" in inspect.getsource(model_class.forward)


@cache
def _extend_class(added: Any, extended: Any) -> Any:
    """Create a subclass of a transformers class under the same name, so that checkpoints record that name."""
    members = {
        "config_class": extended.config_class,
        "from_type": extended,
        "reads_last_token": _reads_last_token(extended),
        "__module__": extended.__module__,
    }
    return type(extended.__name__, (added, extended), members)


def build_on_pretrained(
    head: type[StockClassifier], settings: StockClassifierSettings, vocab_size: int | None, fields: Mapping[str, Any]
) -> StockClassifier:
    """Build the classifier from the pretrained model that the settings name.

    Args:
        head: Class of the model, for sequences or for tokens.
        settings: Group `model`.
        vocab_size: Size of the tokenizer, at most the size of the model's vocabulary.
        fields: Fields of the configuration that the data determine: `id2label` and `label2id`, or `num_labels`, and
            `problem_type`.

    Raises:
        ConfigError: If the tokenizer is larger than the model's vocabulary.
        CheckpointError: If there is no such model.
    """
    origin = resolve_path("model.pretrained", str(settings.pretrained))
    config = read_config("model.pretrained", origin)
    model_class = head.select_class(config)
    if vocab_size is not None and vocab_size > config.vocab_size:
        raise ConfigError(f"model.pretrained={origin}: it has {config.vocab_size} tokens, the tokenizer {vocab_size}")
    implementation = settings.attn_implementation
    attention = {} if implementation is None else {"attn_implementation": str(implementation)}
    if not head.has_head(config):
        return _build_new_head(model_class, origin, config, fields, attention)
    if not _has_same_classes(config, fields):
        logger.warning(
            "model.pretrained=%s: randomly initialised head, because the existing one predicts %s",
            origin,
            ", ".join(get_head_classes(config)),
        )
        return _build_new_head(model_class, origin, config, fields, attention)
    config.problem_type = fields["problem_type"]
    model: Any = load_with_weights("model.pretrained", origin, model_class, config, **attention)
    if "id2label" in fields:
        model.take_classes(list(fields["id2label"].values()))
    return model


def _has_same_classes(config: PreTrainedConfig, fields: Mapping[str, Any]) -> bool:
    """Return whether a head fits the data: the same classes, or one output for regression."""
    if "id2label" not in fields:
        return config.num_labels == fields["num_labels"]
    return match_class_order(get_head_classes(config), list(fields["id2label"].values())) is not None


def _build_new_head(
    model_class: type[StockClassifier],
    origin: str,
    config: PreTrainedConfig,
    fields: Mapping[str, Any],
    attention: Mapping[str, str],
) -> StockClassifier:
    """Load pretrained blocks and add a randomly initialised head, whatever head the checkpoint has."""
    config.update(dict(fields))
    with silence_transformers(), convert_loading_errors("model.pretrained", origin):  # heads are dropped on purpose
        model: StockClassifier = model_class._from_config(config, dtype=torch.float32, **attention)
        if is_weightless():
            return model
        pretrained, report = model_class.from_type.from_pretrained(
            origin, config=config, dtype=torch.float32, ignore_mismatched_sizes=True, output_loading_info=True
        )
    blocks = f"{model.base_model_prefix}."
    mismatched = [key for key in report["mismatched_keys"] if key[0].startswith(blocks)]
    refuse_mismatched(f"model.pretrained={origin}", {"mismatched_keys": mismatched})
    missing = (name for name in report["missing_keys"] if name.startswith(blocks) and ".pooler." not in name)
    refuse_missing(f"model.pretrained={origin}", missing)
    model.base_model.load_state_dict(pretrained.base_model.state_dict())
    return model
