"""Sentences of a document, by a rule of thumb that needs no model and no download."""

import re

# An end mark, closing quotes or brackets, white space, and then what a sentence may start with.
_BOUNDARY = re.compile(r"[.!?][\"'”’)\]]*\s+(?=[\"'“‘(\[]*\s?[A-Z0-9])")
# What makes a full stop part of a word: a title, a common abbreviation, or a single capital (an initial, "U.S.").
_ABBREVIATION = re.compile(
    r"(?:\b(?:Mrs?|Ms|Dr|Prof|St|Gen|Col|Lt|Capt|Sgt|Rev|Jr|Sr|No|Fig|vs|cf|e\.g|i\.e)|\b[A-Z])$"
)


def split_sentences(document: str) -> list[str]:
    """Split a document at line ends, then at end marks followed by a capital, a digit or an opening quote.

    Full stops after titles, common abbreviations and initials do not end a sentence. Blank lines vanish; nothing else
    is removed except white space around a sentence.
    """
    sentences = []
    for line in document.splitlines():
        start = 0
        for boundary in _BOUNDARY.finditer(line):
            if line[boundary.start()] == "." and _ABBREVIATION.search(line, start, boundary.start()):
                continue
            sentences.append(line[start : boundary.end()].strip())
            start = boundary.end()
        sentences.append(line[start:].strip())
    return [sentence for sentence in sentences if sentence]
