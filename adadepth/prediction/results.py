"""What is said about a text and its tokens, and about the steps that led there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """One iteration of a text or token.

    Attributes:
        halting: Its halting probability; None where the model has no halting unit.
        label: What would have been predicted after it; None where nothing is, or a value is.
        score: The probability of that label; None of an answer to a puzzle, which `halting` tells.
        value: Of a regression.
    """

    halting: float | None = None
    label: str | None = None
    score: float | None = None
    value: float | None = None


@dataclass(frozen=True)
class TokenPrediction:
    """A token of a text.

    Attributes:
        piece: As the vocabulary has it.
        part: The text of a pair it is from, 0 or 1, or of a list of words the word's number; None for a special token,
            as is `span`.
        span: Its first character in that text or word, and the one after its last.
        updates: Block applications it received.
        label: Its tag, the word that fills its place where it is the mask, or the word that a language model expected
            there; None where nothing is predicted.
        score: The probability of the label.
        candidates: The likeliest words with their probabilities, where words are predicted.
        own_score: From a language model: the probability of the token itself.
        steps: Its iterations, where the model says what they decided.
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
    """What a model says about a text or a pair of texts; None where it has nothing to say.

    Attributes:
        updates: Block applications the text received, where tokens halt their mean, special ones included.
        label: The likeliest class of the text; from a language model the likeliest token to follow it; the answer to a
            puzzle, a character a cell.
        score: The probability of the label; of an answer, as the model estimates it.
        scores: The probability of every class by name; of several labels that may all be right, each one's own; from a
            language model those of the likeliest tokens.
        value: Of a regression.
        tokens: Every token of the sequence, where tokens halt or something is said of each.
        steps: What was predicted after every step, where the text halts as a whole and all steps were asked for.
        layers: The weights of the states after 0, 1, ... blocks, where the model mixes them.
        continuation: What a language model that was asked for new tokens has written behind the text; its tokens stand
            in `tokens`, too, and `label` is what would follow them.
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
        """The updates of its tokens, or of itself."""
        return [token.updates for token in self.tokens] if self.tokens else [self.updates]
