"""A stock classifier to train: with the head it has, where its classes are the data's, or else with a new one."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedConfig

from adadepth.errors import ConfigError
from adadepth.families.folder import loaded, read_config, refuse_mismatched, refuse_missing, told
from adadepth.families.stock_classifier.family import StockClassifierSettings
from adadepth.families.stock_classifier.modeling import StockClassifier, class_names, class_order
from adadepth.system.places import quiet, resolve_place

logger = logging.getLogger(__name__)


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
        logger.warning("model.pretrained=%s: a new head; its own is for %s", place, ", ".join(class_names(config)))
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
    return class_order(class_names(config), list(fields["id2label"].values())) is not None


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
        own, report = model_class.from_type.from_pretrained(
            place, config=config, dtype=torch.float32, ignore_mismatched_sizes=True, output_loading_info=True
        )
    blocks = f"{model.base_model_prefix}."
    in_blocks = [each for each in report["mismatched_keys"] if each[0].startswith(blocks)]
    refuse_mismatched("model.pretrained", place, {"mismatched_keys": in_blocks})
    kept = (name for name in report["missing_keys"] if name.startswith(blocks) and ".pooler." not in name)
    refuse_missing("model.pretrained", place, kept)
    model.base_model.load_state_dict(own.base_model.state_dict())
    return model
