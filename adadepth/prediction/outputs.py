"""Results of prediction for texts, tokens and single steps, with the depth of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class PredictionCompute(NamedTuple):
    """Multiply-accumulates of predictions for texts, each as a float.

    Attributes:
        needed: Compute at the decided depths, without predictions.
        full: Compute at full depth, without predictions.
        readings: Compute of the predictions at exits, one after every update if the exit rule reads them.
        full_readings: Compute of one prediction of each unit.
    """

    needed: float = 0.0
    full: float = 0.0
    readings: float = 0.0
    full_readings: float = 0.0

    def plus(self, other: PredictionCompute) -> PredictionCompute:
        """Return the sum of the compute of two batches."""
        return PredictionCompute(*map(sum, zip(self, other, strict=True)))

    @property
    def share(self) -> float:
        """Compute at the decided depths as a share of full depth, without predictions."""
        return self.needed / self.full

    @property
    def share_with_predictions(self) -> float:
        """Compute at the decided depths as a share of full depth, with predictions at exits."""
        return (self.needed + self.readings) / (self.full + self.full_readings)


@dataclass(frozen=True)
class Step:
    """Prediction and halting probability of a text or token after one iteration.

    Attributes:
        halting: Halting probability, or None for models without a halting unit.
        label: Label predicted after this step, or None if the model predicts a value or nothing.
        score: Probability of the label, or None for a puzzle. For a puzzle, `halting` is the estimated probability of a
            right answer.
        value: Value predicted by a regression.
    """

    halting: float | None = None
    label: str | None = None
    score: float | None = None
    value: float | None = None


@dataclass(frozen=True)
class TokenPrediction:
    """Prediction for one token of a text, with the depth spent on it.

    Attributes:
        piece: Token as it is written in the vocabulary.
        part: Index of the token's text in a pair, or of its word in a list of words. None for a special token.
        span: Index of the token's first character in that text or word, and the index after its last character. None
            for a special token.
        updates: Number of block applications to the token.
        label: Predicted tag, predicted word at a mask, or word that a language model predicted at this position. None
            if nothing is predicted.
        score: Probability of the label.
        candidates: Likeliest words with their probabilities, if the model predicts words.
        own_score: Probability that a language model gave to the token itself.
        steps: Iterations of the token, if the model reports its halting decisions.
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
    """Prediction for one text or pair of texts. Fields that the model does not predict are None.

    Attributes:
        updates: Number of block applications to the text. If tokens halt separately, this is the mean over all tokens.
        label: Likeliest class. For a language model this is the likeliest next token, and for a puzzle the solution
            with one character per cell.
        score: Probability of the label. For a puzzle this is the model's estimate that the solution is right.
        scores: Probability of every class by name. The probabilities are independent for multi-label data. For a
            language model these are the probabilities of the likeliest next tokens.
        value: Value predicted by a regression.
        tokens: Tokens of the sequence, if tokens halt separately or have predictions.
        steps: Predictions after every step, if the text halts as a whole and all steps were requested.
        layers: Weights of the states after 0, 1, ... blocks, if the model mixes these states.
        continuation: Text that a language model generated after the input. Its tokens are included in `tokens`, and
            `label` is the token that follows it.
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
        """Return the number of updates of every token, or one number for the text if there are no tokens."""
        return [token.updates for token in self.tokens] if self.tokens else [self.updates]
