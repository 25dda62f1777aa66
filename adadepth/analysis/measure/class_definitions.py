"""What classes of units hold, in words, for tables; `token_classes` and `sequence_classes` say who is in them."""

from __future__ import annotations

# Name -> what is in it, in the order of tables.
CLASS_DEFINITIONS: dict[str, str] = {
    "all": "every token, padding excluded",
    "unmasked": "tokens fed as anything but [MASK]: special tokens and random words included",
    "plain": "tokens neither selected for prediction nor special",
    "mask": "tokens fed as [MASK]",
    "mask/mask": "selected for prediction, fed as [MASK]",
    "mask/random": "selected for prediction, fed as a random word",
    "mask/original": "selected for prediction, fed unchanged",
    "mask/random_reference": "selected for prediction, fed as [MASK] or a random word (the published row, a blend)",
    "cls": "[CLS]",
    "sep": "[SEP], both of a pair",
}

_DEFINITIONS = {
    "all": "every sequence",
    "correct": "predicted as labelled",
    "wrong": "predicted as anything else",
    "label": "of this class, by its label",
    "length": "real tokens, special ones included",
    "difficulty": "as the data set defines it",
    "unlabelled": "tokens that nothing is predicted of",
    "question": "tokens of the question",
    "context": "tokens of the text that comes with a question or before an ending",
    "answer": "context tokens of the labelled answer",
    "ending": "tokens of an ending",
    "right": "tokens of the right choice",
    "other": "tokens of another choice",
    "taken": "tokens of the choice that the model takes",
}


def definition(name: str) -> str:
    """What a class of sequences holds, in words; empty for a class that is none of these."""
    return _DEFINITIONS.get(name.partition(" ")[0].removesuffix(":"), "")
