"""The harness' own wrapper of models, which additionally measures depth, compute and seconds of its requests.

Importing this module imports lm_eval, of the extra `companions`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from lm_eval.models.huggingface import HFLM
from torch import Tensor

from adadepth.contrib.harness.compute import DepthMeter
from adadepth.errors import DataError


class MeasuredLM(HFLM):
    """Language model as the harness evaluates it, whose forward passes a `DepthMeter` measures.

    Scores are those of `HFLM`: the class changes neither the requests nor their batches.

    Attributes:
        meter: Depth and compute so far.
        seconds: Time that the requests took.
        requests: Number of requests with a continuation.
        cut: Number of them whose text was longer than a window, so that its first tokens were not read.

    Args:
        meter: Meter of the model.
        tokenizer: Tokenizer of the model, as transformers loads it.
        options: Further arguments of `HFLM`, such as `batch_size` and `max_length`.
    """

    def __init__(self, meter: DepthMeter, tokenizer: Any, **options: Any) -> None:
        super().__init__(pretrained=meter.model, tokenizer=tokenizer, backend="causal", **options)
        self.meter, self.seconds = meter, 0.0
        self.requests = self.cut = 0
        self._lengths: list[int] = []
        self._scored: list[slice] = []
        self._rows = 0
        for name in ("loglikelihood", "loglikelihood_rolling", "generate_until"):
            setattr(self, name, self._measure_requests(getattr(self, name)))

    def _measure_requests(self, answer: Callable[..., Any]) -> Callable[[Any], Any]:
        """Return a method of `HFLM` that answers requests, with depth and time measured and without progress bar."""

        def answer_measured(requests: Any) -> Any:
            start = time.perf_counter()
            with self.meter.listening():
                answers = answer(requests, disable_tqdm=True)
            self.seconds += time.perf_counter() - start
            return answers

        return answer_measured

    def _loglikelihood_tokens(self, requests: Any, disable_tqdm: bool = False, **options: Any) -> Any:
        """Return the log-likelihood of token sequences, each a triple (texts, context, continuation).

        Raises:
            DataError: If a continuation is longer than the maximum length.
        """
        longest = max((len(text) for _, _, text in requests), default=0)
        if longest > self.max_length:
            raise DataError(f"dataset.max_length={self.max_length}: a scored text has {longest} tokens")
        self.requests += len(requests)
        self.cut += sum(len(context) + len(text) > self.max_length + 1 for _, context, text in requests)
        return super()._loglikelihood_tokens(requests, disable_tqdm=True, **options)

    def _model_call(self, inps: Tensor, **options: Any) -> Any:
        self._rows, self._lengths, self._scored = len(inps), [], []
        return super()._model_call(inps, **options)

    def _select_cont_toks(self, logits: Tensor, contlen: int | None = None, inplen: int | None = None) -> Tensor:
        """Return the scored logits of a row, and add the batch to the meter after its last row."""
        assert contlen is not None
        assert inplen is not None
        self._lengths.append(inplen)
        self._scored.append(slice(inplen - contlen, inplen))
        if len(self._lengths) == self._rows:
            self.meter.add_scored_texts(self._lengths, self._scored)
        return super()._select_cont_toks(logits, contlen=contlen, inplen=inplen)

    def _model_generate(self, context: Tensor, max_length: int, stop: list[str], **options: Any) -> Any:
        """Continue texts, and add every forward pass to the meter; a text counts until its last token."""
        continued = super()._model_generate(context, max_length, stop, **options)
        counts = _count_new_tokens(continued[:, context.shape[1] :], self.tokenizer.pad_token_id)
        self.meter.add_generated_texts(counts)
        return continued


def _count_new_tokens(tokens: Tensor, padding: int | None) -> Sequence[int]:
    """Return the number of generated tokens of each row of (B, T), without the padding after them; at least 1."""
    numbers = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
    counts: list[int] = ((tokens != padding) * numbers).amax(dim=1).clamp(min=1).tolist()
    return counts
