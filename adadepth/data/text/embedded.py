"""The corpus that needs no file and no network: the reference manual that ships with Python (``pydoc_data.topics``)."""

import re
from collections.abc import Iterator

_RULE = re.compile(r"^[*=\-~^\"#+| ]{3,}$")  # heading underlines and table borders
_ROW = re.compile(r"^\|(.*)\|$")  # of a table
_EMPHASIS = re.compile(r"(?<![\w*])\*{1,2}(?=\S)([^*\n]+?)(?<=\S)\*{1,2}(?![\w*])")
_VERBATIM = re.compile(r">>>|::=|^\s*\|", re.MULTILINE)  # sessions, grammar and tables keep their lines
_SHORTEST = 200  # characters; a topic with less text of its own says nothing


def _clean(paragraph: str) -> str:
    """Drop heading rules and emphasis marks, and undo the hard line breaks of prose."""
    lines = [" ".join(line.split()) for line in paragraph.splitlines() if not _RULE.match(line)]
    if _VERBATIM.search(paragraph):
        rows = (_ROW.sub(lambda row: " ".join(row[1].replace("|", " ").split()), line) for line in lines)
        return "\n".join(row for row in rows if row)
    return _EMPHASIS.sub(r"\1", " ".join(lines))


def embedded_documents() -> Iterator[str]:
    """Yield one document a topic, in an order that depends only on the texts.

    Long topics quote short ones whole (``specialnames`` contains ``customization``). Every paragraph stays in the
    shortest topic that has it, so that no text can be in the training and in the held-out documents.
    """
    from pydoc_data.topics import topics

    seen: set[str] = set()
    for name in sorted(topics, key=lambda name: (len(topics[name]), name)):
        cleaned = (_clean(paragraph) for paragraph in re.split(r"\n\s*\n", topics[name]))
        paragraphs = [text for text in cleaned if text and text not in seen]
        seen.update(paragraphs)
        document = "\n".join(paragraphs)
        if len(document) >= _SHORTEST:
            yield document
