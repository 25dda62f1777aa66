"""Prediction pipeline: classes, tags, words or puzzle solutions for batches of texts, with the depth spent on each."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from adadepth.config.answers import ANSWER_KINDS
from adadepth.data.batches import get_sequence_columns, order_longest_first, pad_columns
from adadepth.data.text.passages import EncodedText, Text, TextParts, TokenLocation, check_texts, encode_texts
from adadepth.errors import CheckpointError, ConfigError, DataError, refuse_panics
from adadepth.evaluation.exit_cost import reads_predictions, sum_prediction_macs
from adadepth.halting.exit_rules import LOGITS, ExitRule
from adadepth.halting.trace import DepthTrace
from adadepth.metrics.grid_examples import NO_SYMBOL
from adadepth.models.shared.albert.heads import PretrainingHeads
from adadepth.models.shared.losses import count_head_classes, takes_one_class
from adadepth.prediction.models import (
    build_layout,
    find_start_token,
    format_unsupported,
    get_prediction_type,
    has_generated_symbols,
    list_end_tokens,
    load_model_and_tokenizer,
    refuse_other_tokenizer,
    refuse_tokenizer,
)
from adadepth.prediction.options import (
    check_beams,
    check_count,
    move_to_device,
    read_exit_rule,
    resolve_new_tokens,
    resolve_segment_length,
)
from adadepth.prediction.outputs import Prediction, PredictionCompute, Step, TokenPrediction
from adadepth.runs.data_identity import DataIdentity
from adadepth.runtime.threads import fit_threads

logger = logging.getLogger(__name__)

_Answers = list[dict[int, dict[str, Any]]]  # one entry a text: position to fields of a `TokenPrediction`
_Predicted = tuple[list[Prediction], PredictionCompute]
_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
_CANDIDATES = 5


class Pipeline:
    """Prediction pipeline of a model and its tokenizer, which batches texts of similar length.

    It is not a subclass of transformers' `Pipeline`; docs/decisions/0019 gives the reasons.

    Args:
        model: Classifier, regressor or tagger of texts, masked or causal language model, puzzle model, or encoder whose
            tokens halt, such as `AlbertActModel`.
        tokenizer: Fast tokenizer of the model.
        batch_size: Number of texts in a batch. Language models read one text at a time.
        device: Device to compute on, or None for the device of the model.
        exit_rule: Exit rule or its text, for models that decide when an example exits. None selects the model's own
            rule.
        max_length: Maximum number of tokens of a text, special tokens included; longer texts are truncated. None
            selects the length from training or, if the model does not record it, the number of positions of the model.
        segment_length: Number of tokens that a model with memory between segments reads at a time, as in an evaluation.
            None selects the length of the memory, or the whole text for a model without memory.
        new_tokens: Maximum number of tokens that a language model generates after each text. They come from `generate`
            with the generation configuration of the model. None disables generation.
        generation: Additional arguments of `generate`, such as a streamer or stopping criteria.
        allow_changed_data: Whether to accept a tokenizer other than the one used in training.

    Raises:
        ConfigError: If the model, the tokenizer or a setting cannot be used. The message is one line.
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
        predicts = get_prediction_type(model)
        if predicts is None:
            raise ConfigError(f"model: {format_unsupported(type(model).__name__)}")
        check_count("batch_size", batch_size)
        self.model: Any = model if device is None else move_to_device(model, device)
        self.tokenizer = tokenizer
        self.predicts, self.answers = predicts, ANSWER_KINDS[predicts]
        self.batch_size = 1 if self.answers.continues_texts else batch_size
        self.exit_rule = read_exit_rule(exit_rule, model)
        refuse_tokenizer(tokenizer, model, self.answers)
        cast(Any, model).take_padding(tokenizer.pad_token_id)
        trained = DataIdentity.from_config("model", str(model.name_or_path), model.config)
        if trained is not None and not allow_changed_data:
            refuse_other_tokenizer(tokenizer, trained)
        self.trained_length = None if trained is None else trained.sequence_length
        self.has_generated_symbols = has_generated_symbols(self.answers, trained)
        self.layout = build_layout(model, tokenizer, self.answers, max_length, trained)
        self.segment_length = resolve_segment_length(segment_length, model)
        self.new_tokens = resolve_new_tokens(new_tokens, model, self.answers)
        self.generation = dict(generation or {})
        if new_tokens is not None:
            check_beams(model, self.generation)

    @classmethod
    def from_pretrained(cls, path: Any, **options: Any) -> Pipeline:
        """Load a pipeline from a run's `model` folder, a hub id, `package:NAME/FOLDER` or `demo:NAME`.

        Args:
            path: Folder, hub id, or name with one of the prefixes above.
            **options: Arguments of `Pipeline`.

        Raises:
            CheckpointError: If there is no model that predicts texts, or no tokenizer. The message is one line.
            ConfigError: As for `Pipeline`.
        """
        return cls(*load_model_and_tokenizer(path), **options)

    def __call__(self, texts: Text | Iterable[Text]) -> list[Prediction]:
        """Predict texts in batches, and return one prediction for each text.

        Exit rules that sample use the same random numbers in every call.

        Args:
            texts: One or more texts or pairs of texts. A tagger also accepts lists of words. A puzzle is given as its
                cells, row by row, in one line or several. An empty text counts as a text, as in training.

        Returns:
            One prediction for each text, in the order of `texts`.

        Raises:
            DataError: If there is no text, or if one is not Unicode text. The message is one line.
        """
        return self.priced(texts)[0]

    def examine(self, texts: Text | Iterable[Text]) -> tuple[list[Prediction], float]:
        """Predict texts, and also return the intermediate prediction after every step.

        Args:
            texts: Texts as in `__call__`, with the same errors.

        Returns:
            The predictions, and the compute of their depths as a share of full-depth compute.
        """
        predictions, compute = self.priced(texts, every_step=True)
        return predictions, compute.share

    @refuse_panics("tokenizer")
    def predict_example(
        self, example: Mapping[str, Any], batch: Mapping[str, Tensor], *, every_step: bool = True
    ) -> tuple[Prediction, PredictionCompute]:
        """Predict one example of a labelled data set, optionally with the prediction after every step.

        Args:
            example: Example with `input_ids`, (S,).
            batch: Collated batch that holds only that example.
            every_step: Whether to include the prediction after every step.

        Returns:
            The prediction and its compute.
        """
        text = EncodedText(dict(example), [None] * len(example["input_ids"]), is_cut=False)
        self.model.eval()
        (prediction,), compute = self._run_model([text], batch, torch.Generator().manual_seed(0), every_step)
        return prediction, compute

    @refuse_panics("tokenizer")
    def predict_text_steps(self, text: Text) -> dict[int, list[str]]:
        """Return, for each token of a text, the model's predictions after every step."""
        (encoded,) = self._encode(check_texts([text], takes_words=self.answers.tags_words))
        columns = get_sequence_columns(self.tokenizer.pad_token_id or 0)
        return self.predict_token_steps(pad_columns([encoded.example], len(encoded), columns))

    @refuse_panics("tokenizer")
    @torch.inference_mode()
    def predict_token_steps(self, batch: Mapping[str, Tensor]) -> dict[int, list[str]]:
        """Return, for each token of one example, the model's predictions after every step.

        Taggers and language models run without halting. A masked language model applies its head to the state of each
        mask after every iteration. A halted token keeps its state.

        Args:
            batch: Collated batch of one example.

        Returns:
            A mapping from token positions to the predicted classes or words after each step. The mapping is empty for
            models without predictions for single tokens.
        """
        inputs = self._select_inputs(batch)
        if isinstance(self.model, PretrainingHeads) and self.model.shows_states:
            masks = (inputs["input_ids"].flatten() == self.tokenizer.mask_token_id).nonzero().squeeze(1)
            states = self.model(**inputs, output_hidden_states=True).hidden_states[1:]
            steps = [self._decode_best(self.model.predictions(state.flatten(0, 1)[masks])) for state in states]
            return dict(zip(masks.tolist(), map(list, zip(*steps, strict=True)), strict=True))
        if LOGITS not in self.model.exit_signals or self.model.depth_unit != "token":
            return {}
        if self.answers.tags_words:
            outputs, names = self.model(**inputs, run_all_steps=True), self.model.config.id2label
            tags = [[names[best] for best in steps] for steps in outputs.step_logits.argmax(dim=-1).tolist()]
            return dict(zip(outputs.unit_slots.tolist(), tags, strict=True))
        if self.answers.continues_texts:
            outputs = self.model(self._prepend_start(batch["input_ids"]).to(self.model.device), run_all_steps=True)
            positions = range(batch["input_ids"].shape[1])
            return {position: self._decode_best(outputs.step_logits[0, position]) for position in positions}
        return {}

    def _decode_best(self, logits: Tensor) -> list[str]:
        """Return the likeliest word for each row of logits (M, V), ignoring padding columns beyond the vocabulary."""
        best = logits[:, : len(self.tokenizer)].argmax(dim=-1).tolist()
        return list(map(self._decode_word, best))

    def _decode_word(self, number: int) -> str:
        return str(self.tokenizer.decode([number])).strip()

    def _prepend_start(self, ids: Tensor) -> Tensor:
        """Prepend to token ids the start token used in training, (1, S) to (1, S + 1)."""
        return torch.nn.functional.pad(ids, (1, 0), value=find_start_token(self.model, self.tokenizer))

    @refuse_panics("tokenizer")
    def priced(
        self, texts: Text | Iterable[Text], *, every_step: bool = False
    ) -> tuple[list[Prediction], PredictionCompute]:
        """Predict texts, and also return the MACs at the predicted depths and at full depth.

        Args:
            texts: Texts as in `__call__`, with the same errors.
            every_step: Whether to include the prediction after every step.
        """
        encoded = self._encode(check_texts(texts, takes_words=self.answers.tags_words))
        order = order_longest_first(np.array([len(text) for text in encoded])).tolist()
        generator = torch.Generator().manual_seed(0)
        self.model.eval()
        predictions: dict[int, Prediction] = {}
        compute = PredictionCompute()
        for first in range(0, len(order), self.batch_size):
            numbers = order[first : first + self.batch_size]
            predicted, added = self._predict([encoded[number] for number in numbers], generator, every_step)
            predictions |= zip(numbers, predicted, strict=True)
            compute = compute.plus(added)
        return [predictions[number] for number in range(len(encoded))], compute

    def _encode(self, texts: list[TextParts]) -> list[EncodedText]:
        """Tokenise texts; raise an error for empty ones, and warn if texts are truncated."""
        if self.answers.solves_puzzles:
            texts = [self._parse_puzzle(number, text) for number, text in enumerate(texts)]
        encoded = encode_texts(self.tokenizer, self.layout, texts)
        for number, text in enumerate(encoded):
            if not len(text) and not self.answers.continues_texts:  # a tokenizer without special tokens
                raise DataError(f"texts[{number}]={' '.join(texts[number])!r}: contains no token")
        if count := sum(text.is_cut for text in encoded):
            length = self.layout.sequence_length
            if self.has_generated_symbols:  # a part of a drawing is another drawing, and a maze is no row of tokens
                raise DataError(
                    f"texts: {count} of {len(encoded)} have more than the {length} tokens that the model reads; "
                    "mode=serve accepts whole examples"
                )
            logger.warning("%d of %d texts have more than %d tokens and were truncated", count, len(encoded), length)
        self._warn_of_long_texts(encoded)
        return encoded

    def _warn_of_long_texts(self, encoded: Sequence[EncodedText]) -> None:
        """Log a warning if texts are longer than the sequences the language model was trained on."""
        length = self.trained_length
        if not self.answers.continues_texts or length is None or self.segment_length is not None:
            return
        if count := sum(len(text) > length for text in encoded):
            logger.warning("%d of %d texts have more than the %d tokens used in training", count, len(encoded), length)

    def cells(self, text: str) -> str:
        """Return a puzzle as one line, without line breaks and spaces unless they are symbols of the model."""
        symbols = self._list_puzzle_symbols()
        return "".join(mark for mark in text if mark in symbols or not mark.isspace())

    def _list_puzzle_symbols(self) -> list[str]:
        return [name for name in self.tokenizer.get_vocab() if name not in self.tokenizer.all_special_tokens]

    def find_puzzle_flaw(self, text: str) -> str | None:
        """Return why a text is not a valid puzzle for the model, or None if it is valid."""
        cells, symbols, cell_count = self.cells(text), self._list_puzzle_symbols(), self.model.config.cells
        if unknown := next((mark for mark in cells if mark not in symbols), None):
            allowed = "".join(sorted(symbols, key=self.tokenizer.convert_tokens_to_ids))
            return f"unknown symbol {unknown!r} in a cell; allowed are {allowed!r}"
        return None if len(cells) == cell_count else f"must be a puzzle of {cell_count} cells, but has {len(cells)}"

    def _parse_puzzle(self, number: int, parts: TextParts) -> tuple[str]:
        """Return the cells of a puzzle as one text; raise an error if the text is not a valid puzzle."""
        text = "".join(parts)
        if (flaw := self.find_puzzle_flaw(text)) is not None:
            raise DataError(f"texts[{number}]={text!r:.60}: {flaw}")
        return (self.cells(text),)

    @torch.inference_mode()
    def _predict(self, texts: Sequence[EncodedText], generator: torch.Generator, every_step: bool) -> _Predicted:
        """Predict one batch of texts, padded to the longest of them."""
        columns = get_sequence_columns(self.tokenizer.pad_token_id or 0)  # a single text has no padding
        batch = pad_columns([text.example for text in texts], max(map(len, texts)), columns)
        fit_threads(self.model, batch)
        if self.answers.continues_texts:
            return self._predict_words(texts[0], batch["input_ids"], self._build_options(generator, every_step))
        return self._run_model(texts, batch, generator, every_step)

    def _select_inputs(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the batch entries that the model's forward pass accepts, moved to its device."""
        arguments = inspect.signature(self.model.forward).parameters
        return {name: batch[name].to(self.model.device) for name in _INPUTS if name in batch and name in arguments}

    @torch.inference_mode()
    def _run_model(
        self, texts: Sequence[EncodedText], batch: Mapping[str, Tensor], generator: torch.Generator, every_step: bool
    ) -> _Predicted:
        """Run the model on a batch, and return the predictions for its texts and the MACs."""
        outputs = self.model(**self._select_inputs(batch), **self._build_options(generator, every_step))
        trace: DepthTrace = outputs.trace
        tokens = self._predict_tokens(texts, trace, self._answer_tokens(batch, outputs))
        text_fields = self._answer_texts(outputs)
        predictions = [
            Prediction(depth, tokens=tokens[row], layers=_list_layer_weights(trace), **text_fields[row])
            for row, depth in enumerate(_compute_mean_updates(trace, [len(text) for text in texts]))
        ]
        return predictions, self._price(trace)

    def _price(self, trace: DepthTrace) -> PredictionCompute:
        """Return the MACs of a batch, with those of its predictions at exits apart."""
        work = self.model.price(trace)
        if trace.unit not in ("token", "sequence"):
            return PredictionCompute(float(work.adaptive), float(work.full))
        predictions = float(sum_prediction_macs(self.model, trace)[0])
        rule = self.exit_rule or getattr(self.model.config, "exit_rule", None)
        often = float(trace.updates[trace.valid].double().mean()) if reads_predictions(rule) else 1.0
        return PredictionCompute(float(work.adaptive), float(work.full), often * predictions, predictions)

    def _predict_words(self, text: EncodedText, ids: Tensor, options: Mapping[str, Any]) -> _Predicted:
        """Predict every word of a text (1, S) and the next word with a language model, segment by segment."""
        continuation = None
        if self.new_tokens is not None:
            text, continuation = self._generate_continuation(text, ids, options)
            ids = torch.tensor([text.example["input_ids"].tolist()])
        answers: dict[int, dict[str, Any]] = {}
        compute = PredictionCompute()
        inputs = self._prepend_start(ids)  # the last input predicts what follows
        memory: dict[str, Any] = {}
        for segment in inputs.split(self.segment_length or inputs.shape[1], dim=1):
            outputs = self.model(input_ids=segment.to(self.model.device), **options, **memory)
            memory = {"memory": outputs.memory} if self.segment_length else {}
            compute = compute.plus(self._price(outputs.trace))
            logits = outputs.logits[0].float().cpu()
            for word_logits, word in zip(
                logits, ids[0, len(answers) : len(answers) + len(logits)].tolist(), strict=False
            ):
                answers[len(answers)] = self._answer_token(word_logits, word)
        trace, words = outputs.trace, self._rank_words(logits[-1])
        label, score = next(iter(words.items()))
        (depth,), (tokens,) = _compute_mean_updates(trace, [len(text)]), self._predict_tokens([text], trace, [answers])
        prediction = Prediction(
            depth, label, score, words, tokens=tokens, layers=_list_layer_weights(trace), continuation=continuation
        )
        return [prediction], compute

    def _generate_continuation(
        self, text: EncodedText, ids: Tensor, options: Mapping[str, Any]
    ) -> tuple[EncodedText, str]:
        """Generate a continuation of a text. Return the extended text, and the generated text alone."""
        ends = list_end_tokens(self.model, self.tokenizer)
        inputs = self._prepend_start(ids).to(self.model.device)
        longest, length = self.model.longest_sequence, inputs.shape[1]
        if longest is not None and self.new_tokens is not None and length + self.new_tokens > longest:
            room = f"a text of {length} tokens leaves {max(longest - length, 0)} of {longest} positions"
            raise ConfigError(f"new_tokens={self.new_tokens}: {room}")
        written = self.model.generate(
            inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=self.new_tokens, eos_token_id=ends,
            pad_token_id=ends[0], **options, **self.generation,
        )[0, inputs.shape[1] :].tolist()  # fmt: skip
        written = written[:-1] if written and written[-1] in ends else written
        prompt, spans = ids[0].tolist(), list(text.places)
        before = start = str(self.tokenizer.decode(prompt))
        first = max((location.span[1] for location in spans if location is not None), default=0)
        end = str(self.tokenizer.decode(prompt + written))
        for count in range(1, len(written) + 1):
            whole = str(self.tokenizer.decode(prompt + written[:count]))
            # A character in several tokens belongs to the last one. Bytes that never become one belong to their token.
            is_part = whole.endswith("\N{REPLACEMENT CHARACTER}") and not end.startswith(whole)
            now = before if is_part else whole
            span = first + len(before) - len(start), first + len(now) - len(start)
            spans.append(
                TokenLocation(max((location.part for location in text.places if location is not None), default=0), span)
            )
            before = now
        return EncodedText({"input_ids": np.array(prompt + written)}, spans, text.is_cut), before[len(start) :]

    def _build_options(self, generator: torch.Generator, every_step: bool) -> dict[str, Any]:
        """Return the model's keyword arguments for early exit, such as the exit rule."""
        model = self.model
        if not model.exit_signals or not self.answers.takes_exit_rules:
            return {}
        # Where tokens halt, running all steps is another computation, with other states of the halted tokens.
        all_steps = {"run_all_steps": True} if every_step and self.model.depth_unit == "sequence" else {}
        return {"exit_rule": self.exit_rule, "generator": generator, **all_steps}

    # ---- about tokens

    def _predict_tokens(
        self, texts: Sequence[EncodedText], trace: DepthTrace, answers: _Answers | None
    ) -> list[list[TokenPrediction] | None]:
        """Build the token predictions of every text in a batch, with the depth of each token.

        An entry is None if the model has neither depths nor predictions for single tokens.
        """
        by_token = trace.unit == "token"
        if not by_token and answers is None:
            return [None] * len(texts)
        updates = trace.updates.cpu().double()
        predictions: list[list[TokenPrediction] | None] = []
        for row, text in enumerate(texts):
            depths = updates[row, : len(text)] if by_token else updates[min(row, len(updates) - 1)].expand(len(text))
            pieces = self.tokenizer.convert_ids_to_tokens(text.example["input_ids"].tolist())
            steps = _collect_token_halting(trace, row) if by_token else {}
            tokens = []
            for position, (piece, location, depth) in enumerate(zip(pieces, text.places, depths.tolist(), strict=True)):
                part, span = location or (None, None)
                fields: dict[str, Any] = {"steps": steps.get(position)} | (
                    answers[row].get(position, {}) if answers else {}
                )
                tokens.append(TokenPrediction(piece, part, span, depth, **fields))
            predictions.append(tokens)
        return predictions

    def _answer_tokens(self, batch: Mapping[str, Tensor], outputs: Any) -> _Answers | None:
        """Return the predictions for single tokens by position, or None for models that have none."""
        if not (self.answers.tags_words or self.answers.fills_masks):
            return None
        ids = batch["input_ids"]
        answers: _Answers = [{} for _ in ids]
        if self.answers.fills_masks:
            mask, logits = ids == self.tokenizer.mask_token_id, outputs.prediction_logits
        else:
            mask, logits = batch["special_tokens_mask"] == 0, outputs.logits
        token_logits = logits[:, : ids.shape[1]][mask.to(logits.device)].float().cpu()
        for number, (row, position) in enumerate(mask.nonzero().tolist()):
            answers[row][position] = self._answer_token(token_logits[number])
        return answers

    def _answer_token(self, logits: Tensor, token: int | None = None) -> dict[str, Any]:
        """Return the label, score and candidates of one token as fields of a `TokenPrediction`, from its logits (V,).

        If `token` is given, the fields include the probability of this id.
        """
        _check_logits(logits)
        if self.answers.tags_words:
            scores = softmax(logits.numpy())
            best = int(scores.argmax())
            return {"label": self.model.config.id2label[best], "score": float(scores[best])}
        words = self._rank_words(logits)
        label, score = next(iter(words.items()))
        own_score = {} if token is None else {"own_score": float(logits.softmax(dim=-1)[token])}
        return {"label": label, "score": score, "candidates": words, **own_score}

    def _rank_words(self, logits: Tensor) -> dict[str, float]:
        """Return the likeliest words and their probabilities, in falling order, from logits (V,)."""
        scores, best = logits[: len(self.tokenizer)].softmax(dim=-1).topk(min(_CANDIDATES, len(self.tokenizer)))
        words: dict[str, float] = {}
        for word, score in zip(best.tolist(), scores.tolist(), strict=True):
            words.setdefault(self._decode_word(word), score)
        return words

    # ---- about texts

    def _answer_texts(self, outputs: Any) -> list[dict[str, Any]]:
        """Return, for every text of a batch, the `Prediction` fields of the whole text, such as label and score."""
        if self.answers.solves_puzzles:
            return [self._answer_puzzle(outputs, row) for row in range(len(outputs.logits))]
        if not self.answers.classifies_texts:
            return [{} for _ in outputs.trace.valid]
        steps = self._collect_steps(outputs)
        return [
            {**self._classify(row), "steps": steps[number]} for number, row in enumerate(outputs.logits.float().cpu())
        ]

    def _answer_puzzle(self, outputs: Any, row: int) -> dict[str, Any]:
        """Return the predicted solution of a puzzle and, if all steps ran, the solution after every step."""
        right: list[Any] = [None] * self.model.max_updates
        if outputs.halting_logits is not None:
            right = outputs.halting_logits[row].sigmoid().tolist()
        steps = None
        if not outputs.step_logits.isnan().any():
            steps = list(map(Step, right, map(self._decode_symbols, outputs.step_logits[row])))
        score = right[int(outputs.exit_steps[row]) - 1]
        return {"label": self._decode_symbols(outputs.logits[row]), "score": score, "steps": steps}

    def _decode_symbols(self, logits: Tensor) -> str:
        """Return the likeliest symbol of every puzzle cell as one text, from logits (L, V)."""
        symbols = self.tokenizer.convert_ids_to_tokens(logits.argmax(dim=-1).tolist())
        return "".join(NO_SYMBOL if symbol in self.tokenizer.all_special_tokens else symbol for symbol in symbols)

    def _classify(self, logits: Tensor) -> dict[str, Any]:
        """Return class probabilities, or the value of a regression, from the logits of a text (C,)."""
        _check_logits(logits)
        config = self.model.config
        if count_head_classes(config) == 1:
            return {"value": float(logits[0])}
        scores = (softmax if takes_one_class(config) else sigmoid)(logits.numpy())
        names, best = [config.id2label[number] for number in range(len(scores))], int(scores.argmax())
        return {
            "label": names[best],
            "score": float(scores[best]),
            "scores": dict(zip(names, scores.tolist(), strict=True)),
        }

    def _collect_steps(self, outputs: Any) -> list[list[Step] | None]:
        """Return the predictions of every text after each step, or None for a text if not all steps ran."""
        logits = getattr(outputs, "step_logits", None)
        if logits is None or logits.isnan().any():
            return [None] * len(outputs.logits)
        halting = outputs.halting_logits
        return [
            self._build_steps(row, None if halting is None else halting[number]) for number, row in enumerate(logits)
        ]

    def _build_steps(self, logits: Tensor, halting_logits: Tensor | None) -> list[Step]:
        """Build one `Step` result per iteration, from logits (N, C) and halting logits (N,)."""
        answers = [self._classify(step) for step in logits.float().cpu()]
        halting = [None] * len(answers) if halting_logits is None else halting_logits.float().sigmoid().tolist()
        return [
            Step(probability, answer.get("label"), answer.get("score"), answer.get("value"))
            for probability, answer in zip(halting, answers, strict=True)
        ]


def _check_logits(logits: Tensor) -> None:
    """Raise an error if logits contain NaN or positive infinity, a sign of diverged training.

    The weights of such a model may still be finite.
    """
    if logits.isnan().any() or logits.isposinf().any():
        raise CheckpointError("model: its logits are NaN or infinite; its training may have diverged")


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return the softmax over the last axis, bit-identical to that of transformers' own pipelines."""
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    share: np.ndarray = shifted / shifted.sum(axis=-1, keepdims=True)
    return share


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Return the logistic function of logits of any shape."""
    share: np.ndarray = 1.0 / (1.0 + np.exp(-logits))
    return share


def _compute_mean_updates(trace: DepthTrace, lengths: Sequence[int]) -> list[float]:
    """Return the number of updates of every text, averaged over its tokens if tokens halt separately.

    The only input of an empty text is the start token. If the unit of depth is a whole architecture, all texts have the
    same depth.
    """
    updates = trace.updates.cpu().double()
    if trace.unit == "token":
        return [float(updates[row, : max(length, 1)].mean()) for row, length in enumerate(lengths)]
    return updates.expand(len(lengths)).tolist()


def _collect_token_halting(trace: DepthTrace, row: int) -> dict[int, list[Step]]:
    """Return, by token position, the halting probability of each iteration that the token ran."""
    if trace.halting is None:
        return {}
    ran, probabilities = trace.iterations_run[row].tolist(), trace.halting.probabilities[row].float().tolist()
    return {
        position: [Step(probability) for probability, ran_step in zip(token, steps, strict=False) if ran_step]
        for position, (token, steps) in enumerate(zip(probabilities, ran, strict=True))
    }


def _list_layer_weights(trace: DepthTrace) -> list[float] | None:
    return None if trace.layer_weights is None else trace.layer_weights.tolist()
