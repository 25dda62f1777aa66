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
from adadepth.data.text.layout import DoubleCls, Layout
from adadepth.data.text.passages import EncodedText, Text, encode_texts, text_parts
from adadepth.data.text.tokenizer import needed_tokens
from adadepth.errors import CheckpointError, ConfigError, DataError, nearest
from adadepth.families.build import read_config
from adadepth.families.contract import PredictsEveryStep
from adadepth.families.registry import families, load
from adadepth.families.shared.losses import label_count
from adadepth.halting.exit_rules import ExitRule, check_rule, parse_rule
from adadepth.places import resolve_place

logger = logging.getLogger(__name__)

_Answers = list[dict[int, tuple[str, float]]]  # of each text: position to label and score

# The models that predict texts: heads of families by kind of task, and what they register with transformers.
_HEADS = ("classification", "tagging", "pretraining")
_AUTO = tuple(
    f"AutoModelFor{kind}" for kind in ("SequenceClassification", "TokenClassification", "PreTraining", "MaskedLM")
)
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
        if not isinstance(model, tuple(_models().values())):
            raise ConfigError(f"model: {_cannot(type(model).__name__)}")
        if batch_size < 1:
            raise ConfigError(f"batch_size={batch_size}: must be at least 1")
        self.model: Any = model if device is None else model.to(device)  # type: ignore[arg-type]
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self.exit_rule = _checked_rule(exit_rule, model)
        fillers = tuple(each.head("pretraining") for each in families().values() if "pretraining" in each.heads)
        self.fills_masks = isinstance(model, fillers)
        first = _first_tokens(model.config)
        cls_tokens = first.get("cls_tokens", 1)
        _check_tokenizer(tokenizer, [*needed_tokens(cls_tokens), *(["mask_token"] if self.fills_masks else [])], model)
        self.layout = _layout(model, tokenizer, cls_tokens, first.get("double_cls_pairs", "first"), max_length)

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
        model_class = _model_class(architecture)
        if model_class is None:
            raise CheckpointError(f"model={path}: {_cannot(architecture)}")
        try:
            model = model_class.from_pretrained(place)
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
        if isinstance(self.model, PredictsEveryStep):
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


@cache
def _models() -> dict[str, type[PreTrainedModel]]:
    """The classes that predict texts, by name."""
    readers = [each for each in families().values() if not each.reads_vectors]
    places = [each.heads[kind] for each in readers for kind in _HEADS if kind in each.heads]
    places += [each.auto[name] for each in readers for name in _AUTO if name in each.auto]
    found = {place.rpartition(":")[2]: load(place) for place in places}
    return dict(sorted(found.items()))


def _first_tokens(config: Any) -> dict[str, Any]:
    """How texts begin, as arguments of `Layout`; empty for one [CLS], also of families that nobody knows."""
    about = families().get(config.model_type)
    return {} if about is None or about.first_tokens is None else load(about.first_tokens)(config)


def _model_class(architecture: str) -> type[PreTrainedModel] | None:
    """The class of that name, or else one that extends transformers' class of that name and reads its checkpoints."""
    models = _models()
    extending = (one for one in models.values() if architecture in (base.__name__ for base in one.__mro__))
    return models.get(architecture) or next(extending, None)


def _cannot(architecture: str) -> str:
    """Why a model is refused."""
    allowed = ", ".join(_models())
    return f"{architecture} cannot predict texts{nearest(architecture, _models())}; those that can are {allowed}"


def _checked_rule(rule: str | ExitRule | None, model: Any) -> ExitRule | None:
    if rule is None:
        return None
    parsed = parse_rule(rule) if isinstance(rule, str) else rule
    config = model.config
    signals = model.exit_signals if isinstance(model, PredictsEveryStep) else frozenset()
    check_rule(parsed, signals, label_count(config), model.max_updates, config.model_type)
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


def _layout(model: Any, tokenizer: Any, cls_tokens: int, pairs: DoubleCls, max_length: int | None) -> Layout:
    """How the model was trained to read texts."""
    longest = sys.maxsize if model.longest_sequence is None else model.longest_sequence
    length = longest if max_length is None else max_length
    layout = Layout.of(tokenizer, length, cls_tokens, pairs)
    shortest = layout.pair.size + 2  # a token of each text
    if not shortest <= length <= longest:
        raise ConfigError(f"max_length={max_length}: must be from {shortest} to {longest}")
    return layout
