"""A classifier of transformers: with its head, where its classes are the data's, matched by name, or with a new one."""

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

from adadepth.errors import CheckpointError, ConfigError, nearest
from adadepth.families.contract import DepthModel
from adadepth.families.folder import is_weightless, loaded, read_config, told
from adadepth.families.loading import describe_place, read_stored_config, refuse_mismatched, refuse_missing
from adadepth.families.shared.albert.block import words_of
from adadepth.families.shared.configuration import WithStockConfig
from adadepth.families.shared.encoders import accepted_inputs, block_work, entry_work, longest_sequence, vocabulary_size
from adadepth.families.shared.losses import (
    LossTerm,
    class_loss,
    combine_terms,
    count_sequences,
    sequence_loss,
    target_weights,
)
from adadepth.families.shared.steps import asked_to_show
from adadepth.families.stock_classifier.family import StockClassifierSettings
from adadepth.halting.trace import DepthTrace, Execution, Work
from adadepth.settings.class_names import are_numbered, match_classes
from adadepth.system.places import quiet, resolve_place

logger = logging.getLogger(__name__)


def head_classes(config: PreTrainedConfig) -> list[str]:
    """Names of the head's classes, in its order."""
    names: Any = config.id2label
    return [names[number] for number in range(len(names))]


def class_order(own: Sequence[str], wanted: Sequence[str]) -> list[int] | None:
    """Where the head has each of the wanted classes.

    Names are compared as they are, then whatever their case; classes without names are in the data's order.

    Args:
        own: The head's classes.
        wanted: The data's.

    Returns:
        A number of the head's for each wanted class; None where the two are not the same classes.
    """
    matches = match_classes(wanted, own)
    if None not in matches and len(matches) == len(own):
        return cast(list[int], matches)
    return list(range(len(own))) if are_numbered(own) and len(own) == len(wanted) else None


def take_classes(model: PreTrainedModel, wanted: Sequence[str]) -> None:
    """Put the rows of the head's last layer into the data's order, and give the classes the data's names.

    Raises:
        ConfigError: If the head has other classes.
    """
    own = head_classes(model.config)
    order = class_order(own, wanted)
    if order is None:
        raise ConfigError(f"its head has the classes {', '.join(own)}; the data have {', '.join(wanted)}")
    if are_numbered(own) and not are_numbered(wanted):
        logger.warning("%s: its classes have no names; taken to be %s", model.name_or_path, ", ".join(wanted))
    last = _last_layer(model)
    for parameter in (last.weight, last.bias):
        if parameter is not None:
            parameter.data = parameter.data[order].contiguous()
    model.config.id2label = dict(enumerate(wanted))
    model.config.label2id = {name: number for number, name in enumerate(wanted)}


def _last_layer(model: PreTrainedModel) -> nn.Linear:
    """The linear map to the classes, which the classifiers of transformers make last."""
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not linear or linear[-1].out_features != model.config.num_labels:
        raise ConfigError(f"{type(model).__name__} does not end in a linear layer of its classes")
    return linear[-1]


@dataclass
class StockOutput(ModelOutput):
    """The loss and its parts, logits (B, C) or (B, T, C), states and attentions on request, and the depth trace."""

    loss: Tensor | None = None
    loss_parts: dict[str, Tensor] | None = None
    logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    trace: DepthTrace | None = None


class StockClassifier(DepthModel, WithStockConfig):
    """What is added to a classifier of transformers; every unit gets all of its N blocks.

    Attributes:
        own_classes: Mapping of transformers from a type of configuration to its classifier.
        from_type: That classifier, to which this class adds.
    """

    # Its losses are normalised by `num_targets`, never by the trainer's count of items.
    accepts_loss_kwargs = False
    own_classes: ClassVar[Any]
    from_type: ClassVar[Any]

    @classmethod
    def for_type(cls, config: PreTrainedConfig) -> Any:
        """The class of transformers for this configuration, with the members of this one.

        Raises:
            CheckpointError: If transformers has none of one stack of blocks.
            ConfigError: If the work of its blocks is unknown.
        """
        place = config.name_or_path
        own = cls.own_classes.get(type(config), None)
        if own is None or not own.__module__.startswith("transformers."):
            raise CheckpointError(
                f"{place}: transformers has no classifier of {cls.depth_unit}s of {config.model_type}"
            )
        if config.is_encoder_decoder:
            raise CheckpointError(f"{place}: {own.__name__} has two stacks of blocks, a decoder's too")
        block_work(config, torch.ones(1))  # refuses now what could not be priced after a training
        return _with_members(cast(Any, cls), own)  # a class, for mypy, is not Hashable

    @classmethod
    def has_head(cls, config: PreTrainedConfig) -> bool:
        """Whether a checkpoint says that it holds a head of this kind."""
        kind = cls.__name__[cls.__name__.index("For") :]
        return any(name.endswith(kind) for name in config.architectures or ())

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: Any, *args: Any, config: PreTrainedConfig | None = None, **kwargs: Any
    ) -> Any:
        """A model with the head that it was trained with, in float32 unless another `dtype` is given.

        Args:
            pretrained_model_name_or_path: A folder or hub id.
            *args: As in transformers.
            config: Instead of the checkpoint's own.
            **kwargs: As in transformers.

        Raises:
            CheckpointError: If there is no such head, or weights are missing.
        """
        place = pretrained_model_name_or_path
        if place is None:
            return super().from_pretrained(None, *args, config=config, **kwargs)
        if config is None:
            kind = read_stored_config(place, kwargs).get("model_type")
            if kind is not None and kind not in CONFIG_MAPPING:
                raise CheckpointError(
                    f"{describe_place(place)}: holds a model of type {kind}; {cls.__name__} reads the classifiers that "
                    f"transformers has{nearest(kind, CONFIG_MAPPING)}"
                )
            config, kwargs = AutoConfig.from_pretrained(
                place, return_unused_kwargs=True, **{"trust_remote_code": False, **kwargs}
            )
        precision = {} if "torch_dtype" in kwargs else {"dtype": torch.float32}
        model_class = cls.for_type(config)
        if config.architectures and not cls.has_head(config):
            raise CheckpointError(
                f"{place}: holds a {config.architectures[0]} and no {model_class.__name__}; "
                f"model.pretrained={place} trains one"
            )
        return super(StockClassifier, model_class).from_pretrained(
            place, *args, config=config, **{**precision, **kwargs}
        )

    @property
    def max_updates(self) -> int:
        """The number of blocks, which is every unit's depth."""
        return int(self.config.num_hidden_layers)

    @property
    def one_depth(self) -> int:
        """The updates of every unit, which nothing decides."""
        return self.max_updates

    @property
    def longest_sequence(self) -> int | None:
        """The most tokens it has positions for; None where they are relative."""
        return longest_sequence(self)

    @property
    def vocabulary_size(self) -> int | None:
        """Pieces that it has embeddings for; None where it has no table of them."""
        return vocabulary_size(self)

    def take_classes(self, names: Sequence[str]) -> None:
        """Predict the data's classes in their order; see `adadepth.families.stock_classifier.modeling`.

        Raises:
            ConfigError: If the head has other classes.
        """
        try:
            take_classes(self, names)
        except ConfigError as error:
            raise ConfigError(f"checkpoint={self.name_or_path}: {error}") from error

    def take_padding(self, token: int | None) -> None:
        """Take the tokenizer's id of padding where the configuration has none; it is saved with the model."""
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
        """Classify: ids and mask (B, T); labels are classes (B,) or (B, T), negative without a target, or values."""
        words = words_of(input_ids, inputs_embeds, attention_mask, self.get_input_embeddings())
        mask = words.new_ones(words.shape[:2], dtype=torch.long) if attention_mask is None else attention_mask
        encoder: Any = self.base_model
        given = {
            "input_ids": self._pad_as_configured(input_ids, mask),
            "attention_mask": mask,
            "token_type_ids": token_type_ids,
            "position_ids": position_ids,
            "inputs_embeds": inputs_embeds,
            **options,
        }
        seen = {f"output_{name}": choice for name, choice in asked_to_show(self.config, options).items()}
        outputs = super().forward(**{**accepted_inputs(encoder, given), **seen})
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

    def _pad_as_configured(self, input_ids: Tensor | None, mask: Tensor) -> Tensor | None:
        """Give padding the id by which transformers finds the last token of a text, in classes that look for it.

        Raises:
            ConfigError: If they have none to look for, and there may be padding.
        """
        if input_ids is None or not reads_last_token(type(self).from_type):
            return input_ids
        pad = self.config.get_text_config().pad_token_id
        if pad is not None:
            return input_ids.masked_fill(mask == 0, pad)
        if len(input_ids) > 1 or not bool(mask.all()):
            raise ConfigError(
                f"pad_token_id=None: {type(self).__name__} reads the last token of a text and cannot tell it from "
                "padding; set config.pad_token_id to the tokenizer's"
            )
        return input_ids

    def task_loss(self, logits: Tensor, labels: Tensor) -> LossTerm:
        """The loss of a batch."""
        raise NotImplementedError

    def _trace(self, mask: Tensor) -> DepthTrace:
        depth, real = self.max_updates, mask.ne(0)
        valid = real if self.depth_unit == "token" else torch.ones_like(real[:, 0])
        execution = Execution(depth, tokens=real.sum(dim=1), width=mask.shape[1])
        return DepthTrace(self.depth_unit, depth * valid.float(), valid, depth, execution=execution)

    def price(self, trace: DepthTrace) -> Work:
        """Multiply-accumulates of a traced batch: matrices of blocks and head; look-ups, norms are not counted.

        A block costs what `block_work` says, the head the weights of its linear layers.
        """
        ran = trace.executed
        assert ran.tokens is not None
        assert isinstance(ran.width, int)
        tokens = ran.tokens.double()
        needed = self._work(tokens).sum()
        executed = self._work(torch.full_like(tokens, ran.width)).sum()
        return Work(executed, executed, needed, needed)

    def _work(self, length: Tensor) -> Tensor:
        """A sequence of this length."""
        head = sum(layer.weight.numel() for layer in self._head_layers())
        blocks = self.max_updates * block_work(self.config, length)
        return length * (entry_work(self.config) + blocks) + head * (length if self.depth_unit == "token" else 1.0)

    def _head_layers(self) -> list[nn.Linear]:
        """The linear layers behind the blocks, the base's pooler included."""
        pooler = getattr(self.base_model, "pooler", None)
        encoder = set(self.base_model.modules()) - set(() if pooler is None else pooler.modules())
        return [module for module in self.modules() if isinstance(module, nn.Linear) and module not in encoder]


class StockForSequenceClassification(StockClassifier):
    """Classes or values of sequences."""

    own_classes = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    depth_unit = "sequence"

    def task_loss(self, logits: Tensor, labels: Tensor) -> LossTerm:
        """Return the `sequence_loss` of the sequences."""
        return sequence_loss(self.config, logits, labels)

    def count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return how many sequences have a target."""
        return {"task": count_sequences(self.config, batch["labels"])}


class StockForTokenClassification(StockClassifier):
    """A class for every token."""

    own_classes = MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING
    depth_unit = "token"

    def task_loss(self, logits: Tensor, labels: Tensor) -> LossTerm:
        """Return the `class_loss` of the tokens."""
        return class_loss(self.config, logits, labels)

    def count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tokens with a target, or what their classes count."""
        return {"task": target_weights(self.config, batch["labels"]).sum()}


@cache
def reads_last_token(model_class: Any) -> bool:
    """Whether a class of transformers reads the last token that is not `config.pad_token_id`."""
    return "pad_token_id" in inspect.getsource(model_class.forward)


@cache
def _with_members(added: Any, own: Any) -> Any:
    """A class of transformers, by its own name, so that its checkpoints name that."""
    members = {"config_class": own.config_class, "from_type": own, "__module__": own.__module__}
    return type(own.__name__, (added, own), members)


def build_on_pretrained(
    head: type[StockClassifier], settings: StockClassifierSettings, vocab_size: int | None, fields: Mapping[str, Any]
) -> StockClassifier:
    """The model that `settings.pretrained` names.

    Args:
        head: For sequences or for tokens.
        settings: The `model` group.
        vocab_size: Size of the tokenizer, which the model must be able to read.
        fields: What the data decide: `id2label` and `label2id`, or `num_labels`, and `problem_type`.

    Raises:
        ConfigError: If the tokenizer is larger than the model's.
        CheckpointError: If there is no such model.
    """
    place = resolve_place("model.pretrained", str(settings.pretrained))
    config = read_config("model.pretrained", place)
    model_class = head.for_type(config)
    if vocab_size is not None and vocab_size > config.vocab_size:
        raise ConfigError(f"model.pretrained={place}: it has {config.vocab_size} pieces, the tokenizer {vocab_size}")
    wanted = settings.attn_implementation
    attention = {} if wanted is None else {"attn_implementation": str(wanted)}
    if not head.has_head(config):
        return _with_new_head(model_class, place, config, fields, attention)
    if not _fits(config, fields):
        logger.warning("model.pretrained=%s: a new head; its own is for %s", place, ", ".join(head_classes(config)))
        return _with_new_head(model_class, place, config, fields, attention)
    config.problem_type = fields["problem_type"]
    model: Any = loaded("model.pretrained", place, model_class, config, **attention)
    if "id2label" in fields:
        model.take_classes(list(fields["id2label"].values()))
    return model


def _fits(config: PreTrainedConfig, fields: Mapping[str, Any]) -> bool:
    """Whether a head has the data's classes, or one value."""
    if "id2label" not in fields:
        return config.num_labels == fields["num_labels"]
    return class_order(head_classes(config), list(fields["id2label"].values())) is not None


def _with_new_head(
    model_class: type[StockClassifier],
    place: str,
    config: PreTrainedConfig,
    fields: Mapping[str, Any],
    attention: Mapping[str, str],
) -> StockClassifier:
    """The pretrained blocks under a head with random weights, whatever head lies beside them."""
    config.update(dict(fields))
    with quiet(), told("model.pretrained", place):  # the heads are left behind on purpose
        model: StockClassifier = model_class._from_config(config, **attention)
        if is_weightless():
            return model
        own, report = model_class.from_type.from_pretrained(
            place, config=config, dtype=torch.float32, ignore_mismatched_sizes=True, output_loading_info=True
        )
    blocks = f"{model.base_model_prefix}."
    in_blocks = [each for each in report["mismatched_keys"] if each[0].startswith(blocks)]
    refuse_mismatched(f"model.pretrained={place}", {"mismatched_keys": in_blocks})
    kept = (name for name in report["missing_keys"] if name.startswith(blocks) and ".pooler." not in name)
    refuse_missing(f"model.pretrained={place}", kept)
    model.base_model.load_state_dict(own.base_model.state_dict())
    return model
