"""Evaluation of causal language models on packed blocks: likelihood at the exit step and after every step.

Shape legend: B rows, T positions, P predicted tokens, N steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from adadepth.data.run_data import RunData
from adadepth.data.streams.blocks import CausalExamples
from adadepth.evaluation.exit_cost import measure_block_compute
from adadepth.evaluation.language_model import likelihood
from adadepth.evaluation.scorer import EvaluationReport, Scorer, Units
from adadepth.halting.distribution import halting_distribution
from adadepth.metrics.example_sentences import SentenceSampler
from adadepth.models.contract import DepthModel
from adadepth.models.registry import families
from adadepth.runtime.distributed import all_reduce_sum


class BlockScorer(Scorer):
    """Scorer that sums a language model's losses at the exit step and after every step.

    Args:
        model: Evaluated model. If it has `exit_signals`, all steps are run, and its output has `step_losses` (P, N).
        examples: Evaluated set, with the counts of its words and characters.
        data: Data with the tokenizer.
        device: Device of the batches.
    """

    def __init__(self, model: DepthModel, examples: CausalExamples, data: RunData, device: torch.device) -> None:
        assert data.tokenizer is not None, "there are tokens"
        self.word_tokenizer = tokenizer = data.tokenizer
        self._model, self._blocks, self._by_step = model, examples, bool(model.exit_signals)
        self._steps = model.max_updates
        model_family = families().get(model.config.model_type)
        self._is_frozen = model_family is not None and model_family.list_movable_metrics(model.config) is not None
        self._sums = torch.zeros(2, dtype=torch.float64, device=device)  # losses at exits, tokens
        self._step_sums = torch.zeros(self._steps, dtype=torch.float64, device=device)
        self._exits = torch.zeros(self._steps, dtype=torch.int64, device=device)  # predicted tokens by exit step
        self._width = 1  # tokens of a block
        self._truncation: str | None = None  # of the halting distributions, if the model has some
        # Sums of p_n and lambda_n, and of expected steps and entropies with their squares.
        self._halting = torch.zeros(2, self._steps, dtype=torch.float64, device=device)
        self._moments = torch.zeros(2, 2, dtype=torch.float64, device=device)
        self._sentences = SentenceSampler(decode=lambda number: str(tokenizer.convert_ids_to_tokens(number)))

    def options(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return arguments with which the forward pass runs all steps, and computes losses in chunks to save memory."""
        return {"logits_to_keep": 1, **({"run_all_steps": True} if self._by_step else {})}

    def record(self, batch: Mapping[str, Tensor], outputs: Any) -> None:
        """Add the losses of a batch."""
        losses = outputs.token_losses.double()
        self._sums += torch.stack([losses.sum(), losses.new_tensor(len(losses))])
        if self._by_step:
            self._step_sums += outputs.step_losses.double().sum(dim=0)
            self._width, predicting = batch["labels"].shape[1], _mask_predicting(batch)
            exits = outputs.exit_steps[predicting] - 1
            self._exits.scatter_add_(0, exits, torch.ones_like(exits))
            self._truncation = self._model.prior_facts(outputs).get("truncation")
            if self._truncation is not None:
                self._add_halting(outputs.halting_logits[predicting], self._truncation)

    def _add_halting(self, logits: Tensor, truncation: str) -> None:
        """Add the halting distributions of tokens, given their halting logits (P, N)."""
        distribution = halting_distribution(logits, truncation)
        self._halting += torch.stack([distribution.pmf.double().sum(dim=0), logits.double().sigmoid().sum(dim=0)])
        measures = torch.stack([distribution.expected_steps(), distribution.entropy()]).double()  # (2, P)
        self._moments += torch.stack([measures.sum(dim=1), measures.square().sum(dim=1)], dim=1)

    def merge(self) -> None:
        """Add the sums of losses and of halting distributions of all processes."""
        all_reduce_sum([self._sums, self._step_sums, self._exits, self._halting, self._moments])

    def metrics(self, losses: Mapping[str, float]) -> dict[str, float]:
        """Return likelihood metrics at the exit steps, and the loss `lm_loss_step_n` after every step n.

        Only the likelihood counts, not the other parts of the loss. If training cannot change the likelihood at the
        exit steps, `loss` is the loss of training, such as the weighted mean over early exits.

        If only a part of the text is evaluated, it is assumed to have as many words, characters and bytes per token as
        the whole text.
        """
        total, count = self._sums.tolist()
        share = count / self._blocks.tokens
        sizes = (self._blocks.words, self._blocks.characters, self._blocks.bytes)
        metrics = likelihood(total, count, *(share * size for size in sizes))
        if self._is_frozen:
            metrics["loss"] = sum(losses.values())
        return metrics | {f"lm_loss_step_{step}": loss for step, loss in enumerate(self._average_steps(), start=1)}

    def _average_steps(self) -> list[float]:
        return (self._step_sums / self._sums[1]).tolist() if self._by_step else []

    def units(self, batch: Mapping[str, Tensor], outputs: Any) -> Units:
        """Return attributes of tokens for depth statistics, with the loss of the prediction at each position."""
        predicting = _mask_predicting(batch)
        losses = torch.full(predicting.shape, math.nan, device=predicting.device)
        losses = losses.masked_scatter(predicting, outputs.token_losses.float())
        return Units({"all": torch.ones_like(outputs.trace.valid)}, losses)

    def add_examples(self, batch: Mapping[str, Tensor], outputs: Any, units: Units) -> None:
        """Add blocks of text as example sentences for the report, with depth and loss of every token."""
        assert units.losses is not None
        following = torch.nn.functional.pad(batch["labels"][:, 1:], (0, 1), value=0).clamp(min=0)
        self._sentences.update({**batch, "labels": following}, outputs.trace, units.losses, following)

    def report(self, statistics: dict[str, Any]) -> EvaluationReport:
        """Return the report: depth of tokens, example blocks, and loss and cost after every step."""
        return EvaluationReport(statistics, self._sentences.sentences(), exits=self._summarise_steps())

    def _summarise_steps(self) -> dict[str, Any] | None:
        """Return the statistics of every step over all predicted tokens; see `summarise_steps`."""
        if not self._by_step:
            return None
        total, count = self._sums.tolist()
        counts = self._exits.tolist()
        compute = measure_block_compute(self._model, self._width)
        columns = zip(counts, compute, self._average_steps(), strict=True)
        rows = [
            {"step": step, "n": exited, "share": exited / count, "compute": macs, "loss": loss}
            for step, (exited, macs, loss) in enumerate(columns, start=1)
        ]
        for name, sums in zip(("posterior", "halting_probability"), self._halting, strict=True):
            for row, value in zip(rows, (sums / count).tolist(), strict=True):
                row |= {} if self._truncation is None else {name: value}
        mean = sum(step * exited for step, exited in enumerate(counts, start=1)) / count
        squares = sum((step - mean) ** 2 * exited for step, exited in enumerate(counts, start=1))
        reached, median = 0, 0
        while 2 * reached < count:
            reached, median = reached + counts[median], median + 1
        spread = {"mean": mean, "std": math.sqrt(squares / max(count - 1, 1)), "median": median}
        return {
            "n": int(count),
            "unit": "token",
            "max_steps": self._steps,
            "problem": "language_model",
            "exit": {**spread, "histogram": counts, "loss": total / count},
            "halting": self._describe_halting(int(count)),
            "steps": rows,
            "classes": {},
            "calibration": {},
            "spearman": {},
            "missing": {"exit/quality": "a text has likelihood alone"},
        }

    def _describe_halting(self, count: int) -> dict[str, Any]:
        """Return expected steps and entropy of the halting distributions, with mean and standard deviation."""
        if self._truncation is None:
            return {}
        means, squares = (self._moments / count).unbind(dim=1)
        spreads = (squares - means.square()).clamp(min=0).sqrt()
        described = [
            {"n": count, "mean": float(mean), "std": float(std)} for mean, std in zip(means, spreads, strict=True)
        ]
        return {"truncation": self._truncation, **dict(zip(("expected_steps", "entropy"), described, strict=True))}


def _mask_predicting(batch: Mapping[str, Tensor]) -> Tensor:
    """Return the mask of positions that predict a next token, boolean (B, T).

    These are the positions just before a label.
    """
    return torch.nn.functional.pad(batch["labels"][:, 1:] >= 0, (0, 1), value=False)
