"""Batched prediction: texts in; what a model says about them, and the depth it gave them, out."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from adadepth.data.padding import padded, sequence_columns
from adadepth.data.pretraining.masking import IGNORE
from adadepth.data.sampler import longest_first
from adadepth.data.text.layout import Layout
from adadepth.data.text.passages import EncodedText, Text, encode_texts, text_parts
from adadepth.data.text.tokenizer import needed_tokens
from adadepth.errors import CheckpointError, ConfigError, DataError, nearest
from adadepth.families.build import read_config
from adadepth.families.registry import families, load
from adadepth.families.shared.losses import label_count
from adadepth.halting.exit_rules import ExitRule, check_rule, parse_rule
from adadepth.places import resolve_place

logger = logging.getLogger(__name__)

_Answers = list[dict[int, tuple[str, float]]]  # of each text: position to label and score

# Kinds of heads that say something of a text or of its tokens.
_PREDICTING = ("classification", "tagging", "pretraining")
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


@dataclass(frozen=True)
class TokenPrediction:
    """A token of a text.

    Attributes:
        piece: As the vocabulary has it.
        part: The text of a pair it is from, 0 or 1; None for a special token, as is `span`.
        span: Its first character in that text, and the one after its last.
        updates: Block applications it received.
        label: Its tag, or the word that fills its place where it is the mask; None where nothing is predicted.
        score: The probability of the label.
    """

    piece: str
    part: int | None
    span: tuple[int, int] | None
    updates: float
    label: str | None = None
    score: float | None = None


@dataclass(frozen=True)
class Prediction:
    """What a model says about a text or a pair of texts; None where it has nothing to say.

    Attributes:
        updates: Block applications the text received, where tokens halt their mean, special ones included.
        label: The likeliest class of the text.
        score: Its probability.
        scores: The probability of every class by name; of several labels that may all be right, each one's own.
        value: Of a regression.
        tokens: Every token of the sequence, where tokens halt or something is said of each.
    """

    updates: float
    label: str | None = None
    score: float | None = None
    scores: dict[str, float] | None = None
    value: float | None = None
    tokens: list[TokenPrediction] | None = None


@cache
def predicting_models() -> dict[str, type[PreTrainedModel]]:
    """Every class that can predict texts, by the name that a checkpoint gives it."""
    found: dict[str, type[PreTrainedModel]] = {}
    for each in (each for each in families().values() if not each.reads_vectors):
        places = [*(each.heads[kind] for kind in _PREDICTING if kind in each.heads)]
        places += [place for auto, place in each.auto.items() if auto == "AutoModelForMaskedLM"]
        found |= {model.__name__: model for model in map(load, places)}
        # A head that is one of transformers' own under another name reads its checkpoints.
        found |= {base.__name__: model for model in map(load, places) for base in model.__bases__ if _is_head(base)}
    return found


def _is_head(base: type) -> bool:
    """Whether a base is a model of transformers that predicts, and not one of its abstract classes."""
    return base.__module__.startswith("transformers.models.") and not base.__name__.endswith("PreTrainedModel")


def _fills_masks(model: Any) -> bool:
    heads = (each.heads["pretraining"] for each in families().values() if "pretraining" in each.heads)
    return isinstance(model, tuple(map(load, heads)))


def _first_tokens(model: Any) -> int:
    """How many [CLS] its texts begin with; 0 leaves them to the tokenizer."""
    known = families().get(model.config.model_type)
    place = None if known is None else known.first_tokens
    return 1 if place is None else load(place)(model.config)["cls_tokens"]


class Pipeline:
    """A model and its tokenizer; a call with texts makes batches of about equal length and predicts.

    Args:
        model: A classifier, regressor or tagger of texts, or a masked language model of this package.
        tokenizer: Its own, a fast one.
        batch_size: Texts at a time.
        device: Where to compute; None: where the model is.
        exit_rule: For models that decide when an example exits: the rule, or its text; None: the model's own.
        max_length: Most tokens of a text, special ones included; longer ones are cut. None: as many as the model reads.

    Raises:
        ConfigError: If the model, the tokenizer or a setting cannot be used; one line.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        *,
        batch_size: int = 32,
        device: torch.device | str | None = None,
        exit_rule: str | ExitRule | None = None,
        max_length: int | None = None,
    ) -> None:
        if not isinstance(model, tuple(predicting_models().values())):
            raise ConfigError(f"model: {_cannot(type(model).__name__)}")
        if batch_size < 1:
            raise ConfigError(f"batch_size={batch_size}: must be at least 1")
        self.model: Any = model if device is None else model.to(device)  # type: ignore[arg-type]
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self.exit_rule = _checked_rule(exit_rule, model)
        self.fills_masks = _fills_masks(model)
        cls_tokens = _first_tokens(model)
        _check_tokenizer(tokenizer, [*needed_tokens(cls_tokens), *(["mask_token"] if self.fills_masks else [])], model)
        self.layout = _layout(model, tokenizer, cls_tokens, max_length)

    @classmethod
    def from_pretrained(cls, path: Any, **options: Any) -> Pipeline:
        """Load model and tokenizer from a run's `model` folder, a hub id or `package:NAME/FOLDER`.

        Args:
            path: Where they lie.
            **options: As for `Pipeline`.

        Raises:
            CheckpointError: If there is no model there that can predict, or no tokenizer; one line.
            ConfigError: See `Pipeline`.
        """
        place = resolve_place("model", str(path))
        config = read_config("model", place)
        architecture = str(next(iter(config.architectures or [config.model_type])))
        if architecture not in predicting_models():
            raise CheckpointError(f"model={path}: {_cannot(architecture)}")
        try:
            model = predicting_models()[architecture].from_pretrained(place)
            tokenizer: Any = AutoTokenizer.from_pretrained(place)
        except OSError as error:
            raise CheckpointError(f"model={path}: {str(error).splitlines()[0]}") from error
        return cls(model, tokenizer, **options)

    def __call__(self, texts: Text | Iterable[Text]) -> list[Prediction]:
        """Predict.

        Rules that draw an exit step draw alike in every call.

        Args:
            texts: One or more, each a text or a pair of them.

        Returns:
            A prediction for each text, in the order given.

        Raises:
            DataError: If there is no text, or one is empty or something else; one line.
        """
        encoded = self._encode(text_parts(texts))
        order = longest_first(np.array([len(text) for text in encoded])).tolist()
        generator = torch.Generator().manual_seed(0)
        self.model.eval()
        found: dict[int, Prediction] = {}
        for first in range(0, len(order), self.batch_size):
            numbers = order[first : first + self.batch_size]
            predicted = self._predict([encoded[number] for number in numbers], generator)
            found.update(zip(numbers, predicted, strict=True))
        return [found[number] for number in range(len(encoded))]

    def _encode(self, texts: list[tuple[str, ...]]) -> list[EncodedText]:
        """Tokenise; refuse texts without a token, and warn of those that are cut."""
        encoded = encode_texts(self.tokenizer, self.layout, texts)
        for number, text in enumerate(encoded):
            if not any(text.places):
                raise DataError(f"texts[{number}]={' '.join(texts[number])!r}: holds no token")
        if count := sum(text.is_cut for text in encoded):
            length = self.layout.sequence_length
            logger.warning("%d of %d texts have more than %d tokens and were cut", count, len(encoded), length)
        return encoded

    @torch.inference_mode()
    def _predict(self, texts: Sequence[EncodedText], generator: torch.Generator) -> list[Prediction]:
        """Predict a batch, padded to its longest text."""
        columns = sequence_columns(self.tokenizer.pad_token_id)
        batch = padded([text.example for text in texts], max(map(len, texts)), columns)
        inputs = {name: batch[name].to(self.model.device) for name in _INPUTS}
        outputs = self.model(**inputs, **self._options(inputs, generator))
        logits = (outputs.prediction_logits if self.fills_masks else outputs.logits).float()
        answers = self._token_answers(logits, batch)
        about_texts = self._sequence_answers(logits) if answers is None else [{}] * len(texts)
        updates, by_token = outputs.trace.updates.cpu().double(), outputs.trace.unit == "token"
        found = []
        for row, text in enumerate(texts):
            depths = updates[row, : len(text)] if by_token else updates[row].expand(len(text))
            shows_tokens = by_token or answers is not None
            tokens = self._tokens(text, depths.tolist(), answers[row] if answers else {}) if shows_tokens else None
            found.append(Prediction(float(depths.mean()), tokens=tokens, **about_texts[row]))
        return found

    def _options(self, inputs: dict[str, Tensor], generator: torch.Generator) -> dict[str, Any]:
        """Further arguments of the model's forward pass."""
        if self.fills_masks:  # with labels, the vocabulary is scored at their places only
            ids = inputs["input_ids"]
            return {"labels": ids.masked_fill(ids != self.tokenizer.mask_token_id, IGNORE)}
        if hasattr(self.model, "exit_signals"):
            return {"exit_rule": self.exit_rule, "generator": generator}
        return {}

    def _token_answers(self, logits: Tensor, batch: Mapping[str, Tensor]) -> _Answers | None:
        """What is said about single tokens; None from a model that says nothing of them."""
        name: Callable[[int], str]
        if self.fills_masks:
            chosen = batch["input_ids"] == self.tokenizer.mask_token_id
            logits, name = logits[:, : len(self.tokenizer)], lambda word: str(self.tokenizer.decode([word])).strip()
        elif logits.dim() == 3:
            chosen = batch["special_tokens_mask"] == 0
            logits, name = logits[chosen.to(logits.device)], self.model.config.id2label.__getitem__
        else:
            return None
        scores, best = logits.softmax(dim=-1).max(dim=-1)
        answers: _Answers = [{} for _ in chosen]
        for (row, position), number, score in zip(
            chosen.nonzero().tolist(), best.tolist(), scores.tolist(), strict=True
        ):
            answers[row][position] = (name(number), score)
        return answers

    def _sequence_answers(self, logits: Tensor) -> list[dict[str, Any]]:
        """The fields of a `Prediction` that are about the whole text, of each text, from logits (B, C)."""
        config = self.model.config
        if label_count(config) == 1:
            return [{"value": value} for value in logits[:, 0].tolist()]
        exclusive = config.problem_type != "multi_label_classification"
        scores = logits.softmax(dim=-1) if exclusive else logits.sigmoid()
        names = [config.id2label[number] for number in range(logits.shape[1])]
        return [
            {"label": names[best], "score": row[best], "scores": dict(zip(names, row, strict=True))}
            for row, best in zip(scores.tolist(), scores.argmax(dim=-1).tolist(), strict=True)
        ]

    def _tokens(
        self, text: EncodedText, updates: Sequence[float], answers: dict[int, tuple[str, float]]
    ) -> list[TokenPrediction]:
        pieces = self.tokenizer.convert_ids_to_tokens(text.example["input_ids"].tolist())
        tokens = []
        for position, (piece, place, depth) in enumerate(zip(pieces, text.places, updates, strict=True)):
            part, span = place or (None, None)
            label, score = answers.get(position, (None, None))
            tokens.append(TokenPrediction(piece, part, span, depth, label, score))
        return tokens


def _cannot(architecture: str) -> str:
    """Why a model is refused."""
    known = predicting_models()
    return f"{architecture} cannot predict texts{nearest(architecture, known)}; those that can are {', '.join(known)}"


def _checked_rule(rule: str | ExitRule | None, model: Any) -> ExitRule | None:
    if rule is None:
        return None
    parsed = parse_rule(rule) if isinstance(rule, str) else rule
    config = model.config
    signals: frozenset[str] = getattr(model, "exit_signals", frozenset())
    check_rule(parsed, signals, label_count(config), getattr(config, "max_steps", 0), config.model_type)
    return parsed


def _check_tokenizer(tokenizer: Any, needed: Sequence[str], model: Any) -> None:
    """Refuse a tokenizer that cannot be the model's."""
    if not getattr(tokenizer, "is_fast", False):
        raise ConfigError("tokenizer: must be a fast one, which knows the characters of its tokens")
    if missing := [name for name in needed if getattr(tokenizer, name) is None]:
        raise ConfigError(f"tokenizer: the model needs {', '.join(missing)}, which this tokenizer lacks")
    pieces, known = len(tokenizer), model.get_input_embeddings().num_embeddings
    # Where a folder has no tokenizer, transformers makes one of special tokens alone.
    if not len(tokenizer.all_special_ids) < pieces <= known:
        raise ConfigError(f"tokenizer: it has {pieces} pieces, the model {known}; give the model's own")


def _layout(model: Any, tokenizer: Any, cls_tokens: int, max_length: int | None) -> Layout:
    """How the model was trained to read texts."""
    positions = getattr(model, "longest_sequence", getattr(model.config, "max_position_embeddings", None))
    longest = sys.maxsize if positions is None else positions
    length = longest if max_length is None else max_length
    layout = Layout.of(tokenizer, length, cls_tokens, getattr(model.config, "double_cls_pairs", "first"))
    shortest = layout.pair.size + 2  # a token of each text
    if not shortest <= length <= longest:
        raise ConfigError(f"max_length={max_length}: must be from {shortest} to {longest}")
    return layout
