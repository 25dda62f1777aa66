"""The tokenizer that is saved with a model: called with texts, it writes what the model was trained on."""

from __future__ import annotations

import copy

from tokenizers import Tokenizer, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from adadepth.data.text.layout import Layout, Template, own_template
from adadepth.data.text.tokenizer import is_byte_level

_TEXTS = ("$A", "$B")
_KEPT = ("padding_side", "truncation_side", "model_max_length", "split_special_tokens", "clean_up_tokenization_spaces")


def as_fed(
    tokenizer: PreTrainedTokenizerFast, layout: Layout, *, splits_words: bool = False
) -> PreTrainedTokenizerFast:
    """Return a tokenizer that lays out texts as the examples of a data set are; the same one where it does already.

    What is returned otherwise is of transformers' general class, which reads back every part of its file: classes for
    one kind of model put their own special tokens around texts, whatever the file says.

    Args:
        tokenizer: Any fast one.
        layout: Of the examples.
        splits_words: Whether examples are words that were encoded one by one, so that the first one of a text has the
            space before it, too, which a byte-level tokenizer counts as part of a word.
    """
    templates = layout.single, layout.pair
    lacks_space = splits_words and is_byte_level(tokenizer) and not _adds_space(tokenizer)
    if (own_template(tokenizer, 1), own_template(tokenizer, 2)) == templates and not lacks_space:
        return tokenizer
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_truncation()
    backend.no_padding()
    backend.post_processor = _processor(tokenizer, layout)
    if lacks_space:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    special = {name: getattr(tokenizer, name) for name in tokenizer.SPECIAL_TOKENS_ATTRIBUTES}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_input_names=list(tokenizer.model_input_names),
        **{name: getattr(tokenizer, name) for name in _KEPT if hasattr(tokenizer, name)},
        **{name: token for name, token in special.items() if token is not None},
    )


def for_model(tokenizer: PreTrainedTokenizerFast, longest: int | None, *, reads_types: bool) -> PreTrainedTokenizerFast:
    """Return a copy that also tells a model's segments where there are any, and cuts texts where the model ends.

    Args:
        tokenizer: From `as_fed`.
        longest: The most tokens the model has positions for; None: any number.
        reads_types: Whether the model reads segments, which tokenizers of many models leave out.
    """
    told = copy.deepcopy(tokenizer)
    has_types = any(kind for texts in (1, 2) for kind in _types(own_template(told, texts)))
    if reads_types and has_types and "token_type_ids" not in told.model_input_names:
        told.model_input_names = [*told.model_input_names, "token_type_ids"]
        told.init_kwargs["model_input_names"] = told.model_input_names
    if longest is not None:
        told.model_max_length = min(told.model_max_length, longest)
    return told


def _types(template: Template) -> list[int]:
    return [*template.types, *(kind for special in template.special for _, kind in special)]


def _adds_space(tokenizer: PreTrainedTokenizerFast) -> bool:
    (first, _), *_ = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("a")
    return str(first) != "a"


def _processor(tokenizer: PreTrainedTokenizerFast, layout: Layout) -> processors.PostProcessor:
    """The post-processor of a layout; that of a byte-level tokenizer leaves the space before a word out of its span."""
    texts = [_template(tokenizer, template) for template in (layout.single, layout.pair)]
    ids = {token for template in (layout.single, layout.pair) for special in template.special for token, _ in special}
    tokens = [(tokenizer.convert_ids_to_tokens(token), token) for token in sorted(ids)]
    written = processors.TemplateProcessing(single=texts[0], pair=texts[1], special_tokens=tokens)
    if not is_byte_level(tokenizer):
        return written
    return processors.Sequence([processors.ByteLevel(trim_offsets=True), written])


def _template(tokenizer: PreTrainedTokenizerFast, template: Template) -> list[str]:
    """A template as the tokenizers library writes it: `[CLS]:0`, `$A:0`, `[SEP]:0`."""
    special = [
        [f"{tokenizer.convert_ids_to_tokens(token)}:{kind}" for token, kind in around] for around in template.special
    ]
    texts = [f"{text}:{kind}" for text, kind in zip(_TEXTS, template.types, strict=False)]
    return [*special[0], *(item for text, around in zip(texts, special[1:], strict=True) for item in (text, *around))]
