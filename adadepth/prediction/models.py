"""Loading of models that predict texts, with their tokenizers and input layout."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from adadepth.config.answers import ANSWER_KINDS, AnswerSpec
from adadepth.data.puzzles.dataset import build_puzzle_tokenizer
from adadepth.data.text.special_tokens import Layout
from adadepth.data.text.tokenizer import LENGTH_WARNING, list_needed_tokens
from adadepth.errors import CheckpointError, ConfigError, nearest
from adadepth.models.folder import convert_loading_errors, load_with_weights, read_config
from adadepth.models.loading import describe_place, find_model_class, read_published_folder
from adadepth.models.registry import Family, families
from adadepth.runs.data_identity import OVERRIDE, DataIdentity, digest_tokenizer
from adadepth.runtime.hub_access import resolve_path


def get_prediction_type(model: object) -> str | None:
    """Return what a model predicts for a text: `classes`, `tags`, `masks`, `next` (word), `cells` (of a puzzle).

    The result is `depths` for an encoder whose tokens halt without a head, and None for models that do not read texts.
    """
    for name, answers in ANSWER_KINDS.items():
        if isinstance(model, tuple(_load_heads(answers).values()) + tuple(_load_generic_heads(answers))):
            return name
    return None


def load_model_and_tokenizer(path: Any) -> tuple[Any, Any]:
    """Load a model and its tokenizer from a folder, a hub id, `package:NAME/FOLDER` or `demo:NAME`.

    Raises:
        CheckpointError: If there is no complete model that predicts texts, or no tokenizer. The message is one line.
    """
    folder = resolve_path("model", str(path))
    config = read_config("model", folder)
    model = load_with_weights("model", folder, resolve_model_class("model", folder, config), config)
    with convert_loading_errors("model", folder):
        published = build_published_tokenizer(folder, config)
        tokenizer: Any = published or AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    tokenizer.deprecation_warnings[LENGTH_WARNING] = True
    return model, tokenizer


def build_published_tokenizer(path: str, config: PreTrainedConfig) -> PreTrainedTokenizerFast | None:
    """Build the tokenizer of a model of published training code, which stores none, or return None for other models.

    Args:
        path: Folder or hub id of the model.
        config: Configuration of the model.

    Raises:
        CheckpointError: If the symbols of its puzzles are unknown.
    """
    spec = families().get(config.model_type)
    has_reader = spec is not None and spec.folders_from is not None
    published = read_published_folder(path, {}) if has_reader else None
    if published is None:
        return None
    if published.symbols is None:
        raise CheckpointError(
            f"{describe_place(path)}: the symbols of its puzzles are unknown; call the model with token ids"
        )
    return build_puzzle_tokenizer(published.symbols)


def resolve_model_class(key: str, path: str, config: PreTrainedConfig) -> Any:
    """Return the model class that loads a checkpoint for text prediction, from its configuration.

    Args:
        key: Setting that names the model, for the message.
        path: Folder or hub id.
        config: Configuration of the model.

    Raises:
        CheckpointError: If no class can predict texts with that model.
    """
    architecture = str(next(iter(config.architectures or [config.model_type])))
    heads = {name: head for answers in ANSWER_KINDS.values() for name, head in _load_heads(answers).items()}
    if architecture in heads:
        return heads[architecture]
    if (published := find_model_class(config)) in heads.values():
        return published
    # Some extend transformers' class of that name and read its checkpoints.
    extending = [head for head in heads.values() if architecture in (base.__name__ for base in head.__mro__)]
    of_any_type = [
        head
        for answers in ANSWER_KINDS.values()
        for head in _load_generic_heads(answers)
        if architecture.endswith(_get_head_suffix(head))
    ]
    is_foreign = config.model_type not in families()
    readers = [spec for spec in families().values() if config.model_type in spec.networks]
    wrapping = [spec.head("language_model") for spec in readers if architecture.endswith("ForCausalLM")]
    candidates = [*extending, *wrapping, *(of_any_type if is_foreign else [])]
    if not candidates:
        raise CheckpointError(f"{key}={path}: {format_unsupported(architecture)}")
    return candidates[0]


def format_unsupported(architecture: str) -> str:
    """Return the error message for an unsupported model architecture, with the nearest supported name."""
    names = sorted({name for answers in ANSWER_KINDS.values() for name in _load_heads(answers)})
    generic = [head for answers in ANSWER_KINDS.values() for head in _load_generic_heads(answers)]
    suffixes = [f"transformers' own ...{_get_head_suffix(head)}" for head in generic]
    allowed = ", ".join([*names, *suffixes])
    return f"{architecture} is not a supported text model{nearest(architecture, names)}; supported are {allowed}"


def refuse_tokenizer(tokenizer: Any, model: Any, answers: AnswerSpec) -> None:
    """Raise an error if a tokenizer does not fit the model, by its special tokens or vocabulary size.

    Raises:
        ConfigError: If the tokenizer lacks something that the model needs. The message names it.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise ConfigError("tokenizer: must be a fast tokenizer, which maps tokens to characters")
    if missing := [name for name in _list_needed_tokens(model, answers) if getattr(tokenizer, name) is None]:
        raise ConfigError(f"tokenizer: the model needs {', '.join(missing)}, which this tokenizer lacks")
    pieces, vocabulary = len(tokenizer), getattr(model.config, "vocab_size", None)
    if vocabulary is None:
        vocabulary = model.get_input_embeddings().num_embeddings
    # Where a folder has no tokenizer, transformers makes one of special tokens alone.
    if not len(tokenizer.all_special_ids) < pieces <= vocabulary:
        raise ConfigError(f"tokenizer: it has {pieces} tokens, the model {vocabulary}; use the tokenizer of the model")


def refuse_other_tokenizer(tokenizer: Any, trained: DataIdentity) -> None:
    """Raise an error if a tokenizer differs from the one used in training.

    Raises:
        ConfigError: If its vocabulary or its segmentation differs from that of training.
    """
    if trained.tokenizer is not None and digest_tokenizer(tokenizer) != trained.tokenizer:
        raise ConfigError(f"tokenizer: differs from the one used in training; to allow this, {OVERRIDE}")


def _list_needed_tokens(model: Any, answers: AnswerSpec) -> Sequence[str]:
    """Return the special tokens that a tokenizer must define, as attribute names such as `cls_token`."""
    if answers.special_tokens is not None:
        return answers.special_tokens
    return (*list_needed_tokens(get_first_tokens(model).get("cls_tokens", 1)), *answers.more_tokens)


def build_layout(
    model: Any, tokenizer: Any, answers: AnswerSpec, max_length: int | None, trained: DataIdentity | None = None
) -> Layout:
    """Return the input format used in training: special tokens around a text and maximum length.

    Args:
        model: Model that predicts texts.
        tokenizer: Tokenizer of the model.
        answers: Kind of prediction.
        max_length: Maximum number of tokens per text, or None to use the length from training.
        trained: Data used in training, or None if unknown. Its sequence length limits all texts except those of a
            language model. If no length is known, the number of positions of the model is the limit.

    Raises:
        ConfigError: If the model cannot read sequences of `max_length`.
    """
    longest = sys.maxsize if model.longest_sequence is None else model.longest_sequence
    trained_length = None if trained is None else trained.sequence_length
    usual = longest if trained_length is None or answers.continues_texts else min(trained_length, longest)
    length = usual if max_length is None else max_length
    if answers.fills_masks:
        layout = Layout.bert(tokenizer, length)
    elif answers.continues_texts:
        layout = Layout.plain(length)
    else:
        has_no_marks = has_generated_symbols(answers, trained) or answers.special_tokens is not None
        first = {"cls_tokens": 0} if has_no_marks else get_first_tokens(model)
        layout = Layout.from_tokenizer(tokenizer, length, **first)
    shortest = layout.pair.size + 2  # a token of each text
    if not shortest <= length <= longest:
        raise ConfigError(f"max_length={max_length}: must be from {shortest} to {longest}")
    return layout


def has_generated_symbols(answers: AnswerSpec, trained: DataIdentity | None) -> bool:
    """Return whether a model tags generated symbol sequences, which have a fixed length and no special tokens."""
    return answers.tags_words and trained is not None and trained.sequence_length is None


def list_end_tokens(model: Any, tokenizer: Any) -> list[int]:
    """Return the token ids at which text generation stops. The tokenizer's end-of-text token comes first.

    A generation configuration may name more ids, such as the end of a turn. Only ids of special tokens are used,
    because any other id comes from a model with another vocabulary.
    """
    configured = getattr(model.generation_config, "eos_token_id", None)
    candidates = configured if isinstance(configured, list) else [configured]
    added = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    never_text = added | set(tokenizer.all_special_ids)
    return list(dict.fromkeys([tokenizer.eos_token_id, *(number for number in candidates if number in never_text)]))


def find_start_token(model: Any, tokenizer: Any) -> int:
    """Return the token id before a text: the start of a text if model and tokenizer agree on it, or the end of a text.

    Models that adadepth trains read the end of the text before. Published models may have a start token of their own.
    """
    start, configured = tokenizer.bos_token_id, getattr(model.config, "bos_token_id", None)
    return int(tokenizer.eos_token_id if start is None or start != configured else start)


def get_first_tokens(model: Any) -> dict[str, Any]:
    """Return the arguments of `Layout.from_tokenizer` for the special tokens that begin a text, if not one [CLS].

    The result is empty for models with one [CLS] and for unknown families.
    """
    family = families().get(model.config.model_type) or next(filter(_is_generic, families().values()), None)
    return {} if family is None or family.first_tokens is None else family.first_tokens(model.config)


@cache
def _load_heads(answers: AnswerSpec) -> dict[str, type[PreTrainedModel]]:
    """Return the model classes of all families for one kind of prediction, by class name."""
    readers = [family for family in families().values() if not family.reads_vectors and not _is_generic(family)]
    importers = [family.heads[head] for family in readers for head in answers.heads if head in family.heads]
    if answers.only_depths:
        importers += [family.encoder for family in readers if family.encoder is not None and family.encoder_traces]
    if answers.auto is not None:
        importers += [family.auto[answers.auto] for family in readers if answers.auto in family.auto]
    classes = {head.__name__: head for head in (importer() for importer in importers)}
    return dict(sorted(classes.items()))


@cache
def _load_generic_heads(answers: AnswerSpec) -> Sequence[type[PreTrainedModel]]:
    """Return the model classes that can wrap checkpoints of any transformers model type."""
    generic = filter(_is_generic, families().values())
    return [family.heads[head]() for family in generic for head in answers.heads if head in family.heads]


def _is_generic(family: Family) -> bool:
    return family.config() is PreTrainedConfig


def _get_head_suffix(head: type) -> str:
    """Return the suffix of a model class name that begins with `For`, such as `ForSequenceClassification`."""
    return head.__name__[head.__name__.index("For") :]
