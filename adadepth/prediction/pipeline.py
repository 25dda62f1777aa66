"""Batched prediction: texts in; what a model says about them, and the depth it gave them, out."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from adadepth.data.batches import longest_first, padded, sequence_columns
from adadepth.data.text.passages import EncodedText, Place, Text, TextParts, encode_texts, text_parts
from adadepth.errors import CheckpointError, ConfigError, DataError, refuse_panics
from adadepth.families.contract import Remembers
from adadepth.families.shared.albert.heads import PretrainingHeads
from adadepth.families.shared.losses import label_count, takes_one_class
from adadepth.halting.exit_rules import LOGITS, ExitRule, check_rule, parse_rule
from adadepth.halting.trace import DepthTrace, Work
from adadepth.measure.pictures import NO_SYMBOL
from adadepth.prediction.models import (
    cannot,
    end_tokens,
    is_drawn,
    layout_of,
    load_parts,
    refuse_other_tokenizer,
    refuse_tokenizer,
    what_is_predicted,
)
from adadepth.prediction.results import Prediction, Step, TokenPrediction
from adadepth.runs.data_identity import DataIdentity

logger = logging.getLogger(__name__)

_Answers = list[dict[int, dict[str, Any]]]  # of each text: position to fields of a `TokenPrediction`
_Predicted = tuple[list[Prediction], Work]
_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
_CANDIDATES = 5
_MOST_TOKENS, _MOST_BEAMS = 2**20, 1024  # that a text is continued by, and in how many ways at once


class _Batch(NamedTuple):
    """What the model said about a batch."""

    numbers: list[int]
    predictions: list[Prediction]
    work: Work


class Pipeline:
    """A model and its tokenizer; a call with texts makes batches of about equal length and predicts.

    It is no subclass of transformers' `Pipeline`: docs/decisions/0019 says why.

    Args:
        model: A classifier, regressor or tagger of texts, a masked or another language model, or a model of puzzles.
        tokenizer: Its own, a fast one.
        batch_size: Texts at a time; language models read one at a time.
        device: Where to compute; None: where the model is.
        exit_rule: For models that decide when an example exits: the rule, or its text; None: the model's own.
        max_length: Most tokens of a text, special ones included; longer ones are cut. None: as many as in training, or
            where the model does not say how many these were, as many as it reads.
        segment_length: Tokens that a model with memory reads at a time, as those of a segment in an evaluation. None:
            as many as it remembers, and of a model that remembers nothing the whole text.
        new_tokens: Of a language model: so many tokens continue each text, fewer where it ends, as its `generate`
            writes them with the generation configuration that it was saved with. None: no text is continued.
        generation: Further arguments of that `generate`, such as a streamer, or criteria to stop.
        allow_changed_data: Whether the tokenizer may be another than the one that the model was trained with.

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
        segment_length: int | None = None,
        new_tokens: int | None = None,
        generation: Mapping[str, Any] | None = None,
        allow_changed_data: bool = False,
    ) -> None:
        predicts = what_is_predicted(model)
        if predicts is None:
            raise ConfigError(f"model: {cannot(type(model).__name__)}")
        _check_count("batch_size", batch_size)
        self.model: Any = model if device is None else _moved(model, device)
        self.tokenizer = tokenizer
        self.predicts = predicts
        self.batch_size = 1 if predicts == "next" else batch_size  # these know no padding
        self.exit_rule = _checked_rule(exit_rule, model)
        refuse_tokenizer(tokenizer, model, predicts)
        known: Any = model
        known.take_padding(tokenizer.pad_token_id)
        trained = DataIdentity.from_config("model", str(model.name_or_path), model.config)
        if trained is not None and not allow_changed_data:
            refuse_other_tokenizer(tokenizer, trained)
        self.trained_length = None if trained is None else trained.sequence_length
        self.is_drawn = is_drawn(predicts, trained)
        self.layout = layout_of(model, tokenizer, predicts, max_length, trained)
        self.segment_length = _checked_segment_length(segment_length, model)
        self.new_tokens = _checked_new_tokens(new_tokens, model, predicts)
        self.generation = dict(generation or {})
        if new_tokens is not None:
            _check_beams(model, self.generation)

    @classmethod
    def from_pretrained(cls, path: Any, **options: Any) -> Pipeline:
        """Load model and tokenizer from a run's `model` folder, a hub id, `package:NAME/FOLDER` or `demo:NAME`.

        Args:
            path: Where they lie.
            **options: As for `Pipeline`.

        Raises:
            CheckpointError: If there is no model there that can predict, or no tokenizer; one line.
            ConfigError: See `Pipeline`.
        """
        return cls(*load_parts(path), **options)

    def __call__(self, texts: Text | Iterable[Text]) -> list[Prediction]:
        """Predict.

        Rules that draw an exit step draw alike in every call.

        Args:
            texts: One or more, each a text or a pair of them, for a tagger also a list of words. A puzzle is its cells,
                row by row, in one line or several. An empty text is read as one, as in training.

        Returns:
            A prediction for each text, in the order given.

        Raises:
            DataError: If there is no text, or one is no Unicode or something else; one line.
        """
        return self.priced(texts)[0]

    def examine(self, texts: Text | Iterable[Text]) -> tuple[list[Prediction], float]:
        """Predict, with what would have been said after every step.

        Args:
            texts: See `__call__`, as for the errors.

        Returns:
            The predictions, and the share of the work of full depth that their depths need.
        """
        predictions, needed, full = self.priced(texts, every_step=True)
        return predictions, needed / full

    @refuse_panics("tokenizer")
    def examine_example(
        self, example: Mapping[str, Any], batch: Mapping[str, Tensor], *, every_step: bool = True
    ) -> tuple[Prediction, float]:
        """Predict an example of labelled data, as `examine` predicts a text.

        Args:
            example: Has `input_ids`, (S,).
            batch: What the data's `collate` makes of that example alone.
            every_step: Whether to tell what would have been said after every step.

        Returns:
            The prediction, and the share of the work of full depth that its depths need.
        """
        text = EncodedText(dict(example), [None] * len(example["input_ids"]), is_cut=False)
        self.model.eval()
        (prediction,), work = self._read([text], batch, torch.Generator().manual_seed(0), every_step)
        return prediction, float(work.adaptive) / float(work.full)

    @refuse_panics("tokenizer")
    def answers_of_text(self, text: Text) -> dict[int, list[str]]:
        """The same as `answers_of_steps`, of a text."""
        (encoded,) = self._encode(text_parts([text], takes_words=self.predicts == "tags"))
        columns = sequence_columns(self.tokenizer.pad_token_id or 0)
        return self.answers_of_steps(padded([encoded.example], len(encoded), columns))

    @refuse_panics("tokenizer")
    @torch.inference_mode()
    def answers_of_steps(self, batch: Mapping[str, Tensor]) -> dict[int, list[str]]:
        """What every token of one example would have been answered after every step.

        A tagger and a language model are read as if no token halted; a masked language model at its masks, by its head
        on the state after every iteration, which a halted token keeps.

        Args:
            batch: Of one example, or text, as `examine_example` takes it.

        Returns:
            The names of the classes, or the words, by the token's position; empty where a model cannot tell.
        """
        inputs = self._inputs(batch)
        if isinstance(self.model, PretrainingHeads) and self.model.shows_states:
            masks = (inputs["input_ids"].flatten() == self.tokenizer.mask_token_id).nonzero().squeeze(1)
            states = self.model(**inputs, output_hidden_states=True).hidden_states[1:]
            steps = [self._likeliest(self.model.predictions(state.flatten(0, 1)[masks])) for state in states]
            return dict(zip(masks.tolist(), map(list, zip(*steps, strict=True)), strict=True))
        if LOGITS not in self.model.exit_signals or self.model.depth_unit != "token":
            return {}
        if self.predicts == "tags":
            outputs, names = self.model(**inputs, run_all_steps=True), self.model.config.id2label
            said = [[names[best] for best in steps] for steps in outputs.step_logits.argmax(dim=-1).tolist()]
            return dict(zip(outputs.unit_slots.tolist(), said, strict=True))
        if self.predicts == "next":
            outputs = self.model(self._behind_beginning(batch["input_ids"]).to(self.model.device), run_all_steps=True)
            places = range(batch["input_ids"].shape[1])
            return {place: self._likeliest(outputs.step_logits[0, place]) for place in places}
        return {}

    def _likeliest(self, logits: Tensor) -> list[str]:
        """The likeliest word of each row of logits (M, V); a model may have rows for more words than there are."""
        best = logits[:, : len(self.tokenizer)].argmax(dim=-1).tolist()
        return list(map(self._word, best))

    def _word(self, number: int) -> str:
        return str(self.tokenizer.decode([number])).strip()

    def _behind_beginning(self, ids: Tensor) -> Tensor:
        """What a language model reads (1, S + 1): behind what the texts in training began with."""
        return torch.nn.functional.pad(ids, (1, 0), value=self.tokenizer.eos_token_id)

    @refuse_panics("tokenizer")
    def priced(
        self, texts: Text | Iterable[Text], *, every_step: bool = False
    ) -> tuple[list[Prediction], float, float]:
        """Predict; also return the work that the depths need, and that of full depth, in multiply-accumulates.

        Args:
            texts: See `__call__`, as for the errors.
            every_step: Whether to tell what would have been said after every step.
        """
        parts = text_parts(texts, takes_words=self.predicts == "tags")
        batches = list(self._batches(parts, every_step=every_step))
        needed, full = (
            sum(float(work) for work in works)
            for works in zip(*((batch.work.adaptive, batch.work.full) for batch in batches), strict=True)
        )
        return _in_order(batches), needed, full

    def _batches(self, texts: list[TextParts], *, every_step: bool) -> Iterator[_Batch]:
        """Batches of texts of about equal length, the longest first."""
        encoded = self._encode(texts)
        order = longest_first(np.array([len(text) for text in encoded])).tolist()
        generator = torch.Generator().manual_seed(0)
        self.model.eval()
        for first in range(0, len(order), self.batch_size):
            numbers = order[first : first + self.batch_size]
            predicted, work = self._predict([encoded[number] for number in numbers], generator, every_step)
            yield _Batch(numbers, predicted, work)

    def _encode(self, texts: list[TextParts]) -> list[EncodedText]:
        """Tokenise; refuse texts that a model has nothing to read of, and warn of those that are cut."""
        if self.predicts == "cells":
            texts = [self._checked_puzzle(number, text) for number, text in enumerate(texts)]
        encoded = encode_texts(self.tokenizer, self.layout, texts)
        for number, text in enumerate(encoded):
            if not len(text) and self.predicts != "next":  # a tokenizer without special tokens
                raise DataError(f"texts[{number}]={' '.join(texts[number])!r}: holds no token")
        if count := sum(text.is_cut for text in encoded):
            length = self.layout.sequence_length
            if self.is_drawn:  # a part of a drawing is another drawing, and a maze is no row of tokens
                raise DataError(
                    f"texts: {count} of {len(encoded)} have more than the {length} tokens in a row that the model "
                    "reads; mode=serve asks it about whole examples"
                )
            logger.warning("%d of %d texts have more than %d tokens and were cut", count, len(encoded), length)
        self._warn_of_long_texts(encoded)
        return encoded

    def _warn_of_long_texts(self, encoded: Sequence[EncodedText]) -> None:
        """Say that a language model reads texts that are longer than those it was trained on."""
        length = self.trained_length
        if self.predicts != "next" or length is None or self.segment_length is not None:
            return
        if count := sum(len(text) > length for text in encoded):
            logger.warning("%d of %d texts have more than the %d tokens of training", count, len(encoded), length)

    def cells(self, text: str) -> str:
        """A puzzle in one line: spaces that are no symbols of the model only tell cells apart, as line ends do."""
        symbols = self._puzzle_symbols()
        return "".join(mark for mark in text if mark in symbols or not mark.isspace())

    def _puzzle_symbols(self) -> list[str]:
        return [name for name in self.tokenizer.get_vocab() if name not in self.tokenizer.all_special_tokens]

    def flaw_of_puzzle(self, text: str) -> str | None:
        """Why a text is no puzzle of the model; None: it is one."""
        cells, symbols, wanted = self.cells(text), self._puzzle_symbols(), self.model.config.cells
        if unknown := next((mark for mark in cells if mark not in symbols), None):
            known = "".join(sorted(symbols, key=self.tokenizer.convert_tokens_to_ids))
            return f"the model knows no {unknown!r} in a cell; allowed are {known!r}"
        return None if len(cells) == wanted else f"must be a puzzle of {wanted} cells, and has {len(cells)}"

    def _checked_puzzle(self, number: int, parts: TextParts) -> tuple[str]:
        """The cells of a text that is one puzzle."""
        text = "".join(parts)
        if (flaw := self.flaw_of_puzzle(text)) is not None:
            raise DataError(f"texts[{number}]={text!r:.60}: {flaw}")
        return (self.cells(text),)

    @torch.inference_mode()
    def _predict(self, texts: Sequence[EncodedText], generator: torch.Generator, every_step: bool) -> _Predicted:
        """Predict a batch, padded to its longest text."""
        columns = sequence_columns(self.tokenizer.pad_token_id or 0)  # a single text has no padding
        batch = padded([text.example for text in texts], max(map(len, texts)), columns)
        if self.predicts == "next":
            return self._predict_words(texts[0], batch["input_ids"], self._options(generator, every_step))
        return self._read(texts, batch, generator, every_step)

    def _inputs(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the model's forward names of a batch."""
        named = inspect.signature(self.model.forward).parameters
        return {name: batch[name].to(self.model.device) for name in _INPUTS if name in batch and name in named}

    @torch.inference_mode()
    def _read(
        self, texts: Sequence[EncodedText], batch: Mapping[str, Tensor], generator: torch.Generator, every_step: bool
    ) -> _Predicted:
        """What the model says of a batch that holds these texts."""
        outputs = self.model(**self._inputs(batch), **self._options(generator, every_step))
        trace: DepthTrace = outputs.trace
        tokens = self._tokens(texts, trace, self._token_answers(batch, outputs))
        about_texts = self._about_texts(outputs)
        predictions = [
            Prediction(depth, tokens=tokens[row], layers=_layers(trace), **about_texts[row])
            for row, depth in enumerate(_mean_updates(trace, [len(text) for text in texts]))
        ]
        return predictions, self.model.price(trace)

    def _predict_words(self, text: EncodedText, ids: Tensor, options: Mapping[str, Any]) -> _Predicted:
        """Predict every word of a text (1, S) and the next one, segment by segment as an evaluation does."""
        continuation = None
        if self.new_tokens is not None:
            text, continuation = self._continued(text, ids, options)
            ids = torch.tensor([text.example["input_ids"].tolist()])
        answers: dict[int, dict[str, Any]] = {}
        works: list[Work] = []
        inputs = self._behind_beginning(ids)  # the last input predicts what follows
        memory: dict[str, Any] = {}
        for segment in inputs.split(self.segment_length or inputs.shape[1], dim=1):
            outputs = self.model(input_ids=segment.to(self.model.device), **options, **memory)
            memory = {"memory": outputs.memory} if self.segment_length else {}
            works.append(self.model.price(outputs.trace))
            logits = outputs.logits[0].float().cpu()
            for of_word, word in zip(logits, ids[0, len(answers) : len(answers) + len(logits)].tolist(), strict=False):
                answers[len(answers)] = self._answer(of_word, word)
        trace, words = outputs.trace, self._words(logits[-1])
        label, score = next(iter(words.items()))
        (depth,), (tokens,) = _mean_updates(trace, [len(text)]), self._tokens([text], trace, [answers])
        about: dict[str, Any] = {"label": label, "score": score, "scores": words, "continuation": continuation}
        prediction = Prediction(depth, tokens=tokens, layers=_layers(trace), **about)
        return [prediction], Work(*(torch.stack(parts).sum() for parts in zip(*works, strict=True)))

    def _continued(self, text: EncodedText, ids: Tensor, options: Mapping[str, Any]) -> tuple[EncodedText, str]:
        """A text with the tokens that the model writes behind it, and their characters."""
        ends = end_tokens(self.model, self.tokenizer)
        inputs = self._behind_beginning(ids).to(self.model.device)
        longest, length = self.model.longest_sequence, inputs.shape[1]
        if longest is not None and self.new_tokens is not None and length + self.new_tokens > longest:
            room = f"a text of {length} tokens leaves {max(longest - length, 0)} of {longest} positions"
            raise ConfigError(f"new_tokens={self.new_tokens}: {room}")
        written = self.model.generate(
            inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=self.new_tokens, eos_token_id=ends,
            pad_token_id=ends[0], **options, **self.generation,
        )[0, inputs.shape[1] :].tolist()  # fmt: skip
        written = written[:-1] if written and written[-1] in ends else written
        known, places = ids[0].tolist(), list(text.places)
        before = start = str(self.tokenizer.decode(known))
        first = max((place.span[1] for place in places if place is not None), default=0)
        for count in range(1, len(written) + 1):
            whole = str(self.tokenizer.decode(known + written[:count]))
            # Of a character in several tokens the last one has it.
            is_part = whole.endswith("\N{REPLACEMENT CHARACTER}") and count < len(written)
            now = before if is_part else whole
            span = first + len(before) - len(start), first + len(now) - len(start)
            places.append(Place(max((place.part for place in text.places if place is not None), default=0), span))
            before = now
        return EncodedText({"input_ids": np.array(known + written)}, places, text.is_cut), before[len(start) :]

    def _options(self, generator: torch.Generator, every_step: bool) -> dict[str, Any]:
        """Further arguments of the model's forward pass."""
        model = self.model
        if not model.exit_signals or self.predicts == "masks":
            return {}
        # Where tokens halt, whoever exits at a step is a token: reading a text then is another way of computing.
        all_steps = {"run_all_steps": True} if every_step and self.model.depth_unit == "sequence" else {}
        return {"exit_rule": self.exit_rule, "generator": generator, **all_steps}

    # ---- about tokens

    def _tokens(
        self, texts: Sequence[EncodedText], trace: DepthTrace, answers: _Answers | None
    ) -> list[list[TokenPrediction] | None]:
        """Every token of every text; None where nothing is said of single tokens."""
        by_token = trace.unit == "token"
        if not by_token and answers is None:
            return [None] * len(texts)
        updates = trace.updates.cpu().double()
        found: list[list[TokenPrediction] | None] = []
        for row, text in enumerate(texts):
            of_text = updates[row, : len(text)] if by_token else updates[min(row, len(updates) - 1)].expand(len(text))
            pieces = self.tokenizer.convert_ids_to_tokens(text.example["input_ids"].tolist())
            steps = _halting_of_tokens(trace, row) if by_token else {}
            tokens = []
            for position, (piece, place, depth) in enumerate(zip(pieces, text.places, of_text.tolist(), strict=True)):
                part, span = place or (None, None)
                fields: dict[str, Any] = {"steps": steps.get(position)} | (
                    answers[row].get(position, {}) if answers else {}
                )
                tokens.append(TokenPrediction(piece, part, span, depth, **fields))
            found.append(tokens)
        return found

    def _token_answers(self, batch: Mapping[str, Tensor], outputs: Any) -> _Answers | None:
        """What is said about single tokens; None from a model that says nothing of them."""
        if self.predicts in ("classes", "cells"):
            return None
        ids = batch["input_ids"]
        answers: _Answers = [{} for _ in ids]
        chosen = batch["special_tokens_mask"] == 0 if self.predicts == "tags" else ids == self.tokenizer.mask_token_id
        logits = outputs.prediction_logits if self.predicts == "masks" else outputs.logits
        of_tokens = logits[:, : ids.shape[1]][chosen.to(logits.device)].float().cpu()
        for place, (row, position) in enumerate(chosen.nonzero().tolist()):
            answers[row][position] = self._answer(of_tokens[place])
        return answers

    def _answer(self, logits: Tensor, own: int | None = None) -> dict[str, Any]:
        """The fields of a `TokenPrediction` from the logits of one token, and, of a word, its own number."""
        _refuse_no_numbers(logits)
        if self.predicts == "tags":
            scores = softmax(logits.numpy())
            best = int(scores.argmax())
            return {"label": self.model.config.id2label[best], "score": float(scores[best])}
        words = self._words(logits)
        label, score = next(iter(words.items()))
        own_score = {} if own is None else {"own_score": float(logits.softmax(dim=-1)[own])}
        return {"label": label, "score": score, "candidates": words, **own_score}

    def _words(self, logits: Tensor) -> dict[str, float]:
        """The likeliest words by falling probability; a model may have rows for more words than there are."""
        scores, best = logits[: len(self.tokenizer)].softmax(dim=-1).topk(min(_CANDIDATES, len(self.tokenizer)))
        found: dict[str, float] = {}
        for word, score in zip(best.tolist(), scores.tolist(), strict=True):
            found.setdefault(self._word(word), score)
        return found

    # ---- about texts

    def _about_texts(self, outputs: Any) -> list[dict[str, Any]]:
        """The fields of a `Prediction` that are about the whole text, of each text."""
        if self.predicts == "cells":
            return [self._puzzle(outputs, row) for row in range(len(outputs.logits))]
        if self.predicts != "classes":
            return [{} for _ in outputs.trace.valid]
        steps = self._steps_of_texts(outputs)
        return [
            {**self._classes(row), "steps": steps[number]} for number, row in enumerate(outputs.logits.float().cpu())
        ]

    def _puzzle(self, outputs: Any, row: int) -> dict[str, Any]:
        """The answer to a puzzle, and the answers after every step where all were run."""
        right: list[Any] = [None] * self.model.max_updates
        if outputs.halting_logits is not None:
            right = outputs.halting_logits[row].sigmoid().tolist()
        steps = None
        if not outputs.step_logits.isnan().any():
            steps = list(map(Step, right, map(self._symbols, outputs.step_logits[row])))
        score = right[int(outputs.exit_steps[row]) - 1]
        return {"label": self._symbols(outputs.logits[row]), "score": score, "steps": steps}

    def _symbols(self, logits: Tensor) -> str:
        """The likeliest symbols of cells (L, V)."""
        found = self.tokenizer.convert_ids_to_tokens(logits.argmax(dim=-1).tolist())
        return "".join(NO_SYMBOL if symbol in self.tokenizer.all_special_tokens else symbol for symbol in found)

    def _classes(self, logits: Tensor) -> dict[str, Any]:
        """Classes, or a value, from logits (C,)."""
        _refuse_no_numbers(logits)
        config = self.model.config
        if label_count(config) == 1:
            return {"value": float(logits[0])}
        scores = (softmax if takes_one_class(config) else sigmoid)(logits.numpy())
        names, best = [config.id2label[number] for number in range(len(scores))], int(scores.argmax())
        return {
            "label": names[best],
            "score": float(scores[best]),
            "scores": dict(zip(names, scores.tolist(), strict=True)),
        }

    def _steps_of_texts(self, outputs: Any) -> list[list[Step] | None]:
        """What would have been said of every text after every step; None where not all steps were run."""
        logits = getattr(outputs, "step_logits", None)
        if logits is None or logits.isnan().any():
            return [None] * len(outputs.logits)
        halting = outputs.halting_logits
        return [self._steps(row, None if halting is None else halting[number]) for number, row in enumerate(logits)]

    def _steps(self, logits: Tensor, halting_logits: Tensor | None) -> list[Step]:
        """The steps of a unit from their logits (N, C) and (N,)."""
        said = [self._classes(step) for step in logits.float().cpu()]
        halting = [None] * len(said) if halting_logits is None else halting_logits.float().sigmoid().tolist()
        return [
            Step(probability, each.get("label"), each.get("score"), each.get("value"))
            for probability, each in zip(halting, said, strict=True)
        ]


def _moved(model: PreTrainedModel, device: torch.device | str) -> PreTrainedModel:
    """The model on a device, if there is such a one here."""
    try:
        return model.to(device)  # type: ignore[arg-type]
    except (RuntimeError, AssertionError, TypeError) as error:  # what torch raises of no such device, driver or name
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ConfigError(f"device={device}: {reason}") from error


def _refuse_no_numbers(logits: Tensor) -> None:
    """Refuse what a model says whose states have left every range, though its weights are numbers."""
    if logits.isnan().any() or logits.isposinf().any():
        raise CheckpointError("model: it predicts no numbers; its training may have diverged")


def softmax(logits: np.ndarray) -> np.ndarray:
    """Of the last axis, in the steps that transformers' pipelines take, whose results are then the same to the bit."""
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    share: np.ndarray = shifted / shifted.sum(axis=-1, keepdims=True)
    return share


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """The logistic function of logits, of any shape."""
    share: np.ndarray = 1.0 / (1.0 + np.exp(-logits))
    return share


def _in_order(batches: Iterable[_Batch]) -> list[Prediction]:
    found = {number: each for batch in batches for number, each in zip(batch.numbers, batch.predictions, strict=True)}
    return [found[number] for number in range(len(found))]


def _mean_updates(trace: DepthTrace, lengths: Sequence[int]) -> list[float]:
    """The depth of every text; an architecture has one for all."""
    updates = trace.updates.cpu().double()
    if trace.unit == "token":
        return [float(updates[row, :length].mean()) for row, length in enumerate(lengths)]
    return updates.expand(len(lengths)).tolist()


def _halting_of_tokens(trace: DepthTrace, row: int) -> dict[int, list[Step]]:
    """The halting probabilities of the iterations that each token of a row ran."""
    if trace.halting is None:
        return {}
    ran, probabilities = trace.iterations_run[row].tolist(), trace.halting.probabilities[row].float().tolist()
    return {
        position: [Step(probability) for probability, here in zip(of_token, steps, strict=False) if here]
        for position, (of_token, steps) in enumerate(zip(probabilities, ran, strict=True))
    }


def _layers(trace: DepthTrace) -> list[float] | None:
    return None if trace.layer_weights is None else trace.layer_weights.tolist()


def _check_count(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{name}={value!r}: must be a whole number of at least 1")


def _checked_segment_length(length: int | None, model: Any) -> int | None:
    """How many tokens are read at a time; None: all of them."""
    if length is not None:
        _check_count("segment_length", length)
        if not isinstance(model, Remembers):
            raise ConfigError(f"segment_length={length}: {type(model).__name__} remembers nothing between segments")
        return length
    return model.context(None, None, False).memory_length or None if isinstance(model, Remembers) else None


def _checked_new_tokens(count: int | None, model: Any, predicts: str) -> int | None:
    """How many tokens a language model writes behind a text."""
    if count is not None:
        _check_count("new_tokens", count)
        if predicts != "next" or not model.can_generate():
            raise ConfigError(f"new_tokens={count}: {type(model).__name__} writes no text")
        most = _MOST_TOKENS if model.longest_sequence is None else model.longest_sequence - 1
        if count > most:
            raise ConfigError(f"new_tokens={count}: must be at most {most}, the positions behind a token of text")
    return count


def _check_beams(model: Any, generation: Mapping[str, Any]) -> None:
    """Refuse numbers of beams and of texts that no memory holds, whoever gives them.

    Raises:
        ConfigError: Naming the key, which may be of the model's generation_config.json.
    """
    for name in ("num_beams", "num_return_sequences"):
        count = generation.get(name, getattr(getattr(model, "generation_config", None), name, None))
        if count is not None and not (isinstance(count, int) and 1 <= count <= _MOST_BEAMS):
            raise ConfigError(f"{name}={count!r}: must be from 1 to {_MOST_BEAMS}")


def _checked_rule(rule: str | ExitRule | None, model: Any) -> ExitRule | None:
    if rule is None:
        return None
    parsed = parse_rule(rule) if isinstance(rule, str) else rule
    config = model.config
    check_rule(
        parsed, model.exit_signals, label_count(config), model.max_updates, config.model_type,
        one_class=takes_one_class(config),
    )  # fmt: skip
    return parsed
