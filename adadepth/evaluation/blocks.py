"""The scorer of a causal model that reads packed blocks: likelihood at the exits of tokens, and after every step.

Shape legend: B rows, T places, P predicted tokens, N steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from adadepth.data.streams.blocks import BlockData, TextBlocks
from adadepth.evaluation.language import likelihood
from adadepth.evaluation.scorer import EvaluationReport, Scorer, Units
from adadepth.families.contract import DepthModel
from adadepth.measure.sentences import SentenceSampler
from adadepth.system.processes import add_over_processes


class BlockScorer(Scorer):
    """Keeps sums of losses on the device, at exits and after every step, and a few blocks.

    Args:
        model: What is evaluated. With `exit_signals` all its steps run, and its output has `step_losses` (P, N).
        examples: The set, with the counts of its words and characters.
        data: With the tokenizer.
        device: Of the batches.
    """

    def __init__(self, model: DepthModel, examples: TextBlocks, data: BlockData, device: torch.device) -> None:
        self.words_of = data.tokenizer
        self._blocks, self._by_step = examples, bool(model.exit_signals)
        self._steps = model.max_updates
        self._sums = torch.zeros(2, dtype=torch.float64, device=device)  # losses at exits, tokens
        self._step_sums = torch.zeros(self._steps, dtype=torch.float64, device=device)
        self._exits = torch.zeros(self._steps, dtype=torch.int64, device=device)  # of predicted tokens
        self._sentences = SentenceSampler(decode=lambda number: str(data.tokenizer.convert_ids_to_tokens(number)))

    def options(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        """All steps are read, and their logits are not kept: losses are made of a part of them at a time."""
        return {"logits_to_keep": 1, **({"run_all_steps": True} if self._by_step else {})}

    def record(self, batch: Mapping[str, Tensor], outputs: Any) -> None:
        """Add a batch's losses."""
        losses = outputs.token_losses.double()
        self._sums += torch.stack([losses.sum(), losses.new_tensor(len(losses))])
        if self._by_step:
            self._step_sums += outputs.step_losses.double().sum(dim=0)
            exits = outputs.exit_steps[_predicting(batch)] - 1
            self._exits.scatter_add_(0, exits, torch.ones_like(exits))

    def merge(self) -> None:
        """Add the sums of all processes."""
        add_over_processes([self._sums, self._step_sums, self._exits])

    def metrics(self, losses: Mapping[str, float]) -> dict[str, float]:
        """Likelihood at the tokens' own exits, as `likelihood` tells it, and `lm_loss_step_n` after every step n.

        Parts of the loss beside the likelihood are no measure of a model and do not count. Of a part of the text, words
        and characters are taken to be as many a token as in all of it.
        """
        total, count = self._sums.tolist()
        share = count / self._blocks.tokens
        found = likelihood(total, count, share * self._blocks.words, share * self._blocks.characters)
        return found | {f"lm_loss_step_{step}": loss for step, loss in enumerate(self._losses_by_step(), start=1)}

    def _losses_by_step(self) -> list[float]:
        return (self._step_sums / self._sums[1]).tolist() if self._by_step else []

    def units(self, batch: Mapping[str, Tensor], outputs: Any) -> Units:
        """Tokens, with the loss of what each of them predicts."""
        return Units({"all": torch.ones_like(outputs.trace.valid)}, _placed(_predicting(batch), outputs.token_losses))

    def show(self, batch: Mapping[str, Tensor], outputs: Any, units: Units) -> None:
        """Blocks with the depth of every token, and the loss of the token that it predicts."""
        assert units.losses is not None
        following = torch.nn.functional.pad(batch["labels"][:, 1:], (0, 1), value=0).clamp(min=0)
        self._sentences.update({**batch, "labels": following}, outputs.trace, units.losses, following)

    def report(self, statistics: dict[str, Any]) -> EvaluationReport:
        """Depth of tokens, example blocks, and what every step is worth."""
        return EvaluationReport(statistics, self._sentences.sentences(), exits=self._exit_facts())

    def _exit_facts(self) -> dict[str, Any] | None:
        """In the form of `adadepth.measure.exit_steps.step_summary`, of predicted tokens."""
        if not self._by_step:
            return None
        total, count = self._sums.tolist()
        counts = self._exits.tolist()
        rows = [
            {"step": step, "n": exited, "share": exited / count, "loss": loss}
            for step, (exited, loss) in enumerate(zip(counts, self._losses_by_step(), strict=True), start=1)
        ]
        mean = sum(step * exited for step, exited in enumerate(counts, start=1)) / count
        squares = sum((step - mean) ** 2 * exited for step, exited in enumerate(counts, start=1))
        reached, median = 0, 0
        while 2 * reached < count:
            reached, median = reached + counts[median], median + 1
        spread = {"mean": mean, "std": math.sqrt(squares / max(count - 1, 1)), "median": median}
        return {
            "n": int(count),
            "max_steps": self._steps,
            "problem": "language_model",
            "exit": {**spread, "histogram": counts, "loss": total / count},
            "halting": {},
            "steps": rows,
            "classes": {},
            "calibration": {},
            "spearman": {},
            "missing": {"exit/quality": "a text has likelihood alone"},
        }


def _predicting(batch: Mapping[str, Tensor]) -> Tensor:
    """At which places something is predicted, boolean (B, T): where the next one has a label."""
    return torch.nn.functional.pad(batch["labels"][:, 1:] >= 0, (0, 1), value=False)


def _placed(where: Tensor, values: Tensor) -> Tensor:
    """P values at their places, float32 (B, T), NaN elsewhere."""
    found = torch.full(where.shape, math.nan, device=where.device)
    return found.masked_scatter(where, values.float())
