"""Which models predict texts, what they need of a tokenizer, and how they read."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedModel

from adadepth.data.text.layout import Layout
from adadepth.data.text.tokenizer import needed_tokens
from adadepth.errors import CheckpointError, ConfigError, nearest
from adadepth.families.folder import loaded, read_config, told
from adadepth.families.loading import find_model_class
from adadepth.families.registry import Family, families, load
from adadepth.runs.data_identity import OVERRIDE, DataIdentity, digest_tokenizer
from adadepth.system.places import resolve_place

# What is predicted -> the heads of families that do, by kind of task, and what they register with transformers.
_HEADS = {
    "classes": ("classification",),
    "tags": ("tagging",),
    "masks": ("pretraining",),
    "next": ("language_model",),
    "cells": ("puzzle",),
}
_AUTO = {
    "classes": "AutoModelForSequenceClassification",
    "tags": "AutoModelForTokenClassification",
    "masks": "AutoModelForMaskedLM",
}
_WITHOUT_MARKS = {"next": ("eos_token",), "cells": ("pad_token",)}  # no [CLS], no [SEP]; what they need instead
_OF_ANY_TYPE = "transformers:PreTrainedConfig"


def what_is_predicted(model: object) -> str | None:
    """`classes`, `tags`, `masks`, `next` or, of puzzles, `cells`; None: nothing of texts."""
    for kind in _HEADS:
        if isinstance(model, tuple(_models(kind).values()) + tuple(_of_any_type(kind))):
            return kind
    return None


def load_parts(path: Any) -> tuple[Any, Any]:
    """Model and tokenizer of a folder, a hub id, `package:NAME/FOLDER` or `demo:NAME`.

    Raises:
        CheckpointError: If there is no whole model there that can predict, or no tokenizer; one line.
    """
    place = resolve_place("model", str(path))
    config = read_config("model", place)
    model = loaded("model", place, predicting_class("model", place, config), config)
    with told("model", place):
        return model, AutoTokenizer.from_pretrained(place, trust_remote_code=False)


def predicting_class(key: str, place: str, config: PreTrainedConfig) -> Any:
    """Return the class that predicts texts with the model of a folder or hub id.

    Args:
        key: The setting that names it, for the message.
        place: The folder or hub id.
        config: Its configuration.

    Raises:
        CheckpointError: If there is none.
    """
    architecture = str(next(iter(config.architectures or [config.model_type])))
    own = {name: head for kind in _HEADS for name, head in _models(kind).items()}
    # Some extend transformers' class of that name and read its checkpoints.
    extending = [head for head in own.values() if architecture in (base.__name__ for base in head.__mro__)]
    of_any_type = [head for kind in _HEADS for head in _of_any_type(kind) if architecture.endswith(_suffix(head))]
    is_foreign = config.model_type not in families()
    published = [head for head in own.values() if head is find_model_class(config)]
    candidates = [own.get(architecture), *published, *extending, *(of_any_type if is_foreign else [])]
    found = next(filter(None, candidates), None)
    if found is None:
        raise CheckpointError(f"{key}={place}: {cannot(architecture)}")
    return found


def cannot(architecture: str) -> str:
    """Why a model is refused."""
    own = sorted({name for kind in _HEADS for name in _models(kind)})
    further = [f"transformers' own ...{_suffix(head)}" for kind in _HEADS for head in _of_any_type(kind)]
    allowed = ", ".join([*own, *further])
    return f"{architecture} cannot predict texts{nearest(architecture, own)}; those that can are {allowed}"


def refuse_tokenizer(tokenizer: Any, model: Any, predicts: str) -> None:
    """Refuse a tokenizer that cannot be the model's.

    Raises:
        ConfigError: Naming what it lacks.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise ConfigError("tokenizer: must be a fast one, which knows the characters of its tokens")
    if missing := [name for name in _needed(model, predicts) if getattr(tokenizer, name) is None]:
        raise ConfigError(f"tokenizer: the model needs {', '.join(missing)}, which this tokenizer lacks")
    pieces, known = len(tokenizer), _vocabulary(model)
    # Where a folder has no tokenizer, transformers makes one of special tokens alone.
    if not len(tokenizer.all_special_ids) < pieces <= known:
        raise ConfigError(f"tokenizer: it has {pieces} pieces, the model {known}; give the model's own")


def refuse_other_tokenizer(tokenizer: Any, trained: DataIdentity) -> None:
    """Refuse a tokenizer that is not the one that a model was trained with.

    Raises:
        ConfigError: Its pieces, or how it cuts texts, are others.
    """
    if trained.tokenizer is not None and digest_tokenizer(tokenizer) != trained.tokenizer:
        raise ConfigError(f"tokenizer: is not the one that the model was trained with; if that is meant, {OVERRIDE}")


def _needed(model: Any, predicts: str) -> Sequence[str]:
    """The special tokens that texts have to have."""
    if predicts in _WITHOUT_MARKS:
        return _WITHOUT_MARKS[predicts]
    own = needed_tokens(first_tokens(model).get("cls_tokens", 1))
    return (*own, "mask_token") if predicts == "masks" else own


def _vocabulary(model: Any) -> int:
    """Words that a model knows; embeddings of several tables have no number of their own, and bases no setting."""
    own = getattr(model.config, "vocab_size", None)
    return int(model.get_input_embeddings().num_embeddings if own is None else own)


def layout_of(
    model: Any, tokenizer: Any, predicts: str, max_length: int | None, trained: DataIdentity | None = None
) -> Layout:
    """How the model was trained to read texts.

    Args:
        model: Any that predicts.
        tokenizer: Its own.
        predicts: See `what_is_predicted`.
        max_length: Most tokens of a text; None: as many as in training.
        trained: Data of the training. Their sequence length cuts all but texts that a language model continues; where
            it is not known, there are as many tokens as the model has positions for. Drawn tokens with tags, whose
            number the task fixes, have no special tokens around them. None: nothing is known.

    Raises:
        ConfigError: If it cannot read sequences of `max_length`.
    """
    longest = sys.maxsize if model.longest_sequence is None else model.longest_sequence
    trained_length = None if trained is None else trained.sequence_length
    usual = longest if trained_length is None or predicts == "next" else min(trained_length, longest)
    length = usual if max_length is None else max_length
    if predicts == "masks":
        layout = Layout.bert(tokenizer, length)
    elif predicts == "next":
        layout = Layout.plain(length)
    else:
        has_no_marks = is_drawn(predicts, trained) or predicts in _WITHOUT_MARKS
        first = {"cls_tokens": 0} if has_no_marks else first_tokens(model)
        layout = Layout.of(tokenizer, length, **first)
    shortest = layout.pair.size + 2  # a token of each text
    if not shortest <= length <= longest:
        raise ConfigError(f"max_length={max_length}: must be from {shortest} to {longest}")
    return layout


def is_drawn(predicts: str, trained: DataIdentity | None) -> bool:
    """Return whether a model tags drawn symbols, as many as the task says, without special tokens around them."""
    return predicts == "tags" and trained is not None and trained.sequence_length is None


def end_tokens(model: Any, tokenizer: Any) -> list[int]:
    """Return the ids that end what a language model writes, the tokenizer's end of text first.

    Beside that, a generation configuration may name others, such as the end of a turn. Of these only what the tokenizer
    never makes of text counts: other ids are left from a model with another vocabulary.
    """
    named = getattr(model.generation_config, "eos_token_id", None)
    others = named if isinstance(named, list) else [named]
    added = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    never_text = added | set(tokenizer.all_special_ids)
    return list(dict.fromkeys([tokenizer.eos_token_id, *(number for number in others if number in never_text)]))


def first_tokens(model: Any) -> dict[str, Any]:
    """How texts begin, as arguments of `Layout.of`; empty for one [CLS], also of families that nobody knows."""
    about = families().get(model.config.model_type) or next(filter(_is_of_any_type, families().values()), None)
    return {} if about is None or about.first_tokens is None else load(about.first_tokens)(model.config)


@cache
def _models(kind: str) -> dict[str, type[PreTrainedModel]]:
    """The classes of families that predict this, by name."""
    readers = [each for each in families().values() if not each.reads_vectors and not _is_of_any_type(each)]
    places = [each.heads[head] for each in readers for head in _HEADS[kind] if head in each.heads]
    places += [each.auto[_AUTO[kind]] for each in readers if _AUTO.get(kind) in each.auto]
    found = {place.rpartition(":")[2]: load(place) for place in places}
    return dict(sorted(found.items()))


@cache
def _of_any_type(kind: str) -> Sequence[type[PreTrainedModel]]:
    """Heads that read checkpoints of transformers, of whatever type."""
    able = [each for each in families().values() if _is_of_any_type(each)]
    return [load(each.heads[head]) for each in able for head in _HEADS[kind] if head in each.heads]


def _is_of_any_type(family: Family) -> bool:
    return family.config == _OF_ANY_TYPE


def _suffix(head: type) -> str:
    """`ForSequenceClassification` of any class that ends so."""
    return head.__name__[head.__name__.index("For") :]
