"""The answer to one question about a run, with the sentences and figures it rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Answer = Literal["yes", "no", "partly", "against", "set", "unknown"]
# What the answers are called; `set` is the depth of a network that has nothing to decide, `against` one that varies and
# falls with difficulty.
ANSWERS: Mapping[Answer, str] = {
    "yes": "yes", "no": "no", "partly": "in part", "against": "yes, but against difficulty",
    "set": "set beforehand", "unknown": "not known",
}  # fmt: skip
QUESTIONS = {
    "target": "Was the depth that you set reached?", "adapts": "Does depth adapt?",
    "worth": "Is it worth it?", "cost": "What did it cost?",
}  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """An answer.

    Attributes:
        answer: In a word; a cost is no answer, and has none.
        sentences: In plain words, each with its figures; the first says the most.
        figures: The numbers of the sentences by name, for programs and comparisons.
    """

    answer: Answer | None
    sentences: Sequence[str]
    figures: Mapping[str, float] = field(default_factory=dict)


Verdict = Mapping[str, Finding]  # by the names of QUESTIONS


def as_json(verdict: Verdict) -> dict[str, Any]:
    """What run.json holds under `verdict`."""
    return {name: asdict(finding) for name, finding in verdict.items()}


def as_lines(verdict: Verdict) -> str:
    """A verdict for the console: a question and its answer a line, the sentences indented below."""
    lines = []
    for name, finding in verdict.items():
        lines.append(QUESTIONS[name] + ("" if finding.answer is None else f" {ANSWERS[finding.answer].capitalize()}."))
        lines += [f"  {sentence}" for sentence in finding.sentences]
    return "\n".join(lines)


def whole_percent(share: float) -> str:
    """A share for a sentence."""
    shown = 100 * share
    return f"{shown:.0f} %" if 1 <= shown <= 99 or share in (0, 1) else f"{shown:.1f} %"
