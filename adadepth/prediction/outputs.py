"""Predictions of texts, of their tokens, and of single steps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """One iteration of a text or token.

    Attributes:
        halting: Halting probability; None for models without a halting unit.
        label: Label predicted after this step; None where a value or nothing is predicted.
        score: Probability of the label; None for a puzzle, where `halting` is the estimate.
        value: Value predicted by a regression.
    """

    halting: float | None = None
    label: str | None = None
    score: float | None = None
    value: float | None = None


@dataclass(frozen=True)
class TokenPrediction:
    """A token of a text.

    Attributes:
        piece: Token as in the vocabulary.
        part: Index of the text in a pair, or of the word in a list of words; None for a special token, as is `span`.
        span: First character in that text or word, and the one after the last.
        updates: Number of block applications to the token.
        label: Tag, word for a mask, or the word that a language model expected; None where nothing is predicted.
        score: Probability of the label.
        candidates: Likeliest words with their probabilities, where words are predicted.
        own_score: Probability of the token itself, from a language model.
        steps: Iterations of the token, where the model reports their decisions.
    """

    piece: str
    part: int | None
    span: tuple[int, int] | None
    updates: float
    label: str | None = None
    score: float | None = None
    candidates: dict[str, float] | None = None
    own_score: float | None = None
    steps: list[Step] | None = None


@dataclass(frozen=True)
class Prediction:
    """Prediction for a text or a pair of texts; fields that the model does not predict are None.

    Attributes:
        updates: Number of block applications to the text; where tokens halt, the mean over all tokens.
        label: Likeliest class; from a language model the likeliest next token; for a puzzle its solution, a character a
            cell.
        score: Probability of the label; for a solution, the estimate of the model.
        scores: Probability of every class by name, independent for multi-label data; from a language model those of
            the likeliest tokens.
        value: Value predicted by a regression.
        tokens: Tokens of the sequence, where tokens halt or are predicted.
        steps: Predictions after every step, where the text halts as a whole and all steps were requested.
        layers: Weights of the states after 0, 1, ... blocks, where the model mixes them.
        continuation: Text by which a language model continued the input; `tokens` includes its tokens, and `label`
            follows them.
    """

    updates: float
    label: str | None = None
    score: float | None = None
    scores: dict[str, float] | None = None
    value: float | None = None
    tokens: list[TokenPrediction] | None = None
    steps: list[Step] | None = None
    layers: list[float] | None = None
    continuation: str | None = None

    def depths(self) -> list[float]:
        """Return the updates of the tokens, or else of the text."""
        return [token.updates for token in self.tokens] if self.tokens else [self.updates]
