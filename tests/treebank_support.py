"""A treebank of two sentences and ten words, small enough to check every figure by hand."""

from __future__ import annotations

from pathlib import Path

# A contraction with its parts, a word that is not written, comments, subtypes; no empty line at the end.
_ROWS = """\
# sent_id = 1
# text = Don't stop cats, please!
1-2 Don't _ _ _ _ _ _ _ _
1 Do do AUX _ _ 3 aux _ _
2 n't not PART _ _ 3 advmod:neg _ _
3 stop stop VERB _ _ 0 root _ _
4 cats cat NOUN _ _ 3 obj _ _
5 , , PUNCT _ _ 6 punct _ _
6 please please INTJ _ _ 3 discourse _ _
7 ! ! PUNCT _ _ 3 punct _ _

# sent_id = 2
1 Stop stop VERB _ _ 0 root _ _
2 it it PRON _ _ 1 obj _ _
2.1 that that PRON _ _ _ _ _ _
3 now now ADV _ _ 2 advmod _ _"""
TREEBANK = _ROWS.replace(" ", "\t").replace("#\tsent_id\t=\t", "# sent_id = ")
FORMS = ["Do", "n't", "stop", "cats", ",", "please", "!", "Stop", "it", "now"]
UPOS = ["AUX", "PART", "VERB", "NOUN", "PUNCT", "INTJ", "PUNCT", "VERB", "PRON", "ADV"]
DEPREL = ["aux", "advmod:neg", "root", "obj", "punct", "discourse", "punct", "root", "obj", "advmod"]
DEPTH = [1, 1, 0, 1, 2, 1, 1, 0, 1, 2]


def write_treebank(folder: Path, *names: str, text: str = TREEBANK) -> Path:
    """Write the same sentences under several names."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text(text, encoding="utf-8")
    return folder
