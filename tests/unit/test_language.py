"""Names, docstrings and pages in plain English: the number of breaches of each rule may only fall.

Words and ceilings are in language.toml. `python tests/unit/test_language.py` prints the counts of today and lowers the
ceilings to them; docs/decisions/0103 says why.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.sources_support import ROOT, SOURCES, list_nodes, read_source

TABLE = Path(__file__).with_name("language.toml")
CONTENT = tomllib.loads(TABLE.read_text(encoding="utf-8"))
CEILINGS: dict[str, float] = CONTENT["ceilings"]
TEST_CEILINGS: dict[str, float] = CONTENT["ceilings_of_tests"]  # of tests/ and benchmarks/ together
WORDS = {name: frozenset(text.split()) for name, text in CONTENT["words"].items()}
ALTERNATIVES = "|".join(CONTENT["words"]["phrases"].strip().splitlines()).replace(" ", r"\s+")
PHRASES = re.compile(rf"\b(?:{ALTERNATIVES})\b", re.IGNORECASE)
LONGEST_SENTENCE = 45  # words
# The end of a line of prose without a full stop, a blank line, and a small letter at the same indentation.
TORN = re.compile(r"(?<=[\w,/])\n[ \t]*\n[ \t]*(?=[a-z/]+(?:\s|$)(?! *=))")

PHRASE = "write the field's word instead; decision 0103 lists them"
SENTENCE = f"a sentence has at most {LONGEST_SENTENCE} words, better 25: make two of it"
ADVICE = {
    "names_without_verb_percent": "open the name with a verb (`build_table`) or is_, has_, from_, to_",
    "names_participle_first": "name what the function does (`load_states`), not what has been done",
    "names_preposition_last": "end the name with its object: `best_of` is `select_best`",
    "vague_variables": "name the variable for what it holds: `matches`, `path`, `scores`, `rows`",
    "docstrings_without_verb": "open with an imperative (`Return ...`); language.toml lists the verbs",
    "modules_without_docstring": "say in one sentence what all of the module is for",
    "modules_without_subject": "open the module's docstring with a noun: what all of it is",
    "docstrings_torn": "a blank line ends a sentence: join the two paragraphs",
    "entries_without_noun": "describe the argument or attribute by a noun with shape, dtype and unit",
    "phrases_in_code": PHRASE,
    "phrases_in_pages": PHRASE,
    "phrases_in_records": PHRASE,
    "long_sentences_in_pages": SENTENCE,
    "long_sentences_in_records": SENTENCE,
}


class Finding(NamedTuple):
    path: Path
    line: int
    text: str


def split_name(name: str) -> list[str]:
    return [part for part in name.lower().split("_") if part]


def find_first_word(text: str) -> str:
    match = re.match(r"\W*([A-Za-z]*)", text)
    return match[1].lower() if match else ""


def is_participle(word: str) -> bool:
    return word in WORDS["participles"] or (word.endswith(("ed", "ing")) and word not in WORDS["no_participles"])


def check_function_name(name: str) -> Iterator[str]:
    """Yield the keys of the rules that the name of a function breaks."""
    first, *rest = split_name(name) or [name]
    if first not in WORDS["verbs"] | WORDS["predicates"]:
        yield "names_without_verb_percent"
        if is_participle(first):
            yield "names_participle_first"
    if rest and rest[-1] in WORDS["prepositions"]:
        yield "names_preposition_last"


def check_docstring(node: ast.AST, text: str) -> Iterator[tuple[str, int, str]]:
    """Yield key, line within the docstring and text of what its opening and its entries break."""
    first = find_first_word(text)
    if isinstance(node, ast.Module):
        if first in WORDS["openings"]:
            yield "modules_without_subject", 0, text.splitlines()[0]
    elif not isinstance(node, ast.ClassDef) and first not in WORDS["verbs"]:
        yield "docstrings_without_verb", 0, f"{getattr(node, 'name', '')}: {text.splitlines()[0]}"
    for paragraph in TORN.finditer(text):
        yield "docstrings_torn", text.count("\n", 0, paragraph.end()), text[paragraph.end() :].split("\n")[0]
    in_entries = False
    for number, line in enumerate(text.splitlines()):
        if re.fullmatch(r"\s*(Args|Attributes):", line):
            in_entries = True
        elif re.fullmatch(r"\s*[A-Z]\w+:", line) or not line.strip():
            in_entries = False
        elif in_entries:
            entry = re.match(r"\s+\w+(?: \(.*?\))?: (.+)", line)
            if entry and find_first_word(entry[1]) in WORDS["openings"]:
                yield "entries_without_noun", number, line.strip()


def is_counted_function(node: ast.AST) -> bool:
    """Return whether the name and docstring of a function are counted: not of a property, which is a noun."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("__"):
        return False
    decorators = {ast.unparse(decorator).rsplit(".")[-1] for decorator in node.decorator_list}
    return not decorators & {"property", "cached_property", "setter"}


def check_source(nodes: Sequence[ast.AST]) -> Iterator[tuple[str, int, str]]:
    """Yield key, line and text of what a module breaks, and `functions` for every function that is counted."""
    module = nodes[0]
    assert isinstance(module, ast.Module)
    if module.body and ast.get_docstring(module) is None:
        yield "modules_without_docstring", 1, ""
    for node in nodes:
        counted = is_counted_function(node)
        if counted:
            yield "functions", node.lineno, node.name
            yield from ((key, node.lineno, node.name) for key in check_function_name(node.name))
        if counted or isinstance(node, ast.ClassDef | ast.Module):
            text = ast.get_docstring(node, clean=False) or ""
            offences = check_docstring(node, text) if text else ()
            yield from ((key, node.body[0].lineno + offset, what) for key, offset, what in offences)
        name = getattr(node, "arg" if isinstance(node, ast.arg) else "id", "")
        if name in WORDS["vague"] and isinstance(getattr(node, "ctx", ast.Store()), ast.Store):
            yield "vague_variables", node.lineno, name
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from (("phrases_in_code", node.lineno, match[0]) for match in PHRASES.finditer(node.value))


def check_page(text: str, corpus: str) -> Iterator[tuple[str, int, str]]:
    """Yield key, line and text of phrases and long sentences of Markdown, without its code and tables."""
    blocks: list[tuple[int, str]] = []
    is_open = in_code = False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        is_prose = not in_code and bool(line.strip()) and not line.startswith(("    ", "```", "#", "|", "!["))
        if not in_code:
            plain = re.sub(r"`[^`]*`", "code", re.sub(r"\]\([^)]*\)", "]", line))
            yield from ((f"phrases_in_{corpus}", number, match[0]) for match in PHRASES.finditer(plain))
            if is_prose and is_open and not re.match(r"\s*([-*+]|\d+\.)\s", line):
                blocks[-1] = (blocks[-1][0], f"{blocks[-1][1]} {plain}")
            elif is_prose:
                blocks.append((number, plain))
        is_open = is_prose
    for number, block in blocks:
        for sentence in re.split(r"(?<=[.!?])[*_)\"']*\s+(?=[\W_]*[A-Z`])", block):
            if len(sentence.split()) > LONGEST_SENTENCE:
                yield f"long_sentences_in_{corpus}", number, f"{sentence[:80]}... ({len(sentence.split())} words)"


Findings = dict[str, list[Finding]]


def sort_findings(files: Iterable[tuple[Path, str]]) -> Findings:
    """Return the findings of files by key, those in files that were changed last first.

    Args:
        files: Paths with `pages` or `records` for Markdown, or an empty text for Python.
    """
    findings: Findings = {key: [] for key in [*ADVICE, "functions"]}
    for path, corpus in sorted(files, key=lambda pair: -pair[0].stat().st_mtime):
        rows = check_page(read_source(path), corpus) if corpus else check_source(list_nodes(path))
        for key, line, what in rows:
            findings[key].append(Finding(path.relative_to(ROOT), line, what))
    return findings


@cache
def collect_findings() -> Findings:
    """Return the findings of the package and the pages."""
    pages = [(path, "pages") for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]]
    records = [(path, "records") for path in [ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*/*.md")]]
    return sort_findings([*pages, *records, *((path, "") for path in SOURCES)])


@cache
def collect_test_findings() -> Findings:
    """Return the findings of tests and benchmarks."""
    return sort_findings((path, "") for folder in ("tests", "benchmarks") for path in (ROOT / folder).rglob("*.py"))


def count_findings(findings: Findings, key: str) -> float:
    count, total = len(findings[key]), len(findings["functions"])
    return round(100 * count / total, 1) if key.endswith("_percent") else count


def check_ceiling(findings: Findings, key: str, ceiling: float) -> None:
    count = count_findings(findings, key)
    lines = [f"{key}: {count:g}, at most {ceiling:g} are allowed; {ADVICE[key]}. Changed last:"]
    lines += [f"  {path}:{line}: {text}" for path, line, text in findings[key][:20]]
    assert count <= ceiling, "\n".join(lines)


@pytest.mark.parametrize("key", ADVICE)
def test_no_count_exceeds_its_ceiling(key: str) -> None:
    check_ceiling(collect_findings(), key, CEILINGS[key])


@pytest.mark.parametrize("key", TEST_CEILINGS)
def test_no_count_of_tests_exceeds_its_ceiling(key: str) -> None:
    check_ceiling(collect_test_findings(), key, TEST_CEILINGS[key])


def test_each_rule_is_counted() -> None:
    doc = "What it is\n\n    of nobody.\n\n    Args:\n        found: Of nobody.\n    "
    source = f'"""{doc}"""\ndef told_within(found):\n    """{doc}"""\n@property\ndef depth(self): ...'
    page = f"{'Long ' * 45}sentence. One of which\nit says so.\n```\nnobody\n```\n"
    keys = [key for key, *_ in [*check_source(list(ast.walk(ast.parse(source)))), *check_page(page, "pages")]]
    unseen = {"modules_without_docstring", "phrases_in_records", "long_sentences_in_records"}
    assert {"functions", *ADVICE} - set(keys) == unseen
    assert (keys.count("functions"), keys.count("phrases_in_pages")) == (1, 2)
    assert list(CEILINGS) == list(ADVICE)


def main() -> None:
    """Print the counts and, with keys as arguments, their findings; lower the ceilings in language.toml."""
    heading, *tables = re.split(r"^(?=\[)", TABLE.read_text(encoding="utf-8"), flags=re.M)
    for findings, ceilings, name in (
        (collect_findings(), CEILINGS, "ceilings"),
        (collect_test_findings(), TEST_CEILINGS, "ceilings_of_tests"),
    ):
        for key in ceilings.keys() & set(sys.argv[1:]):
            print(*(f"{path}:{line}: {text}" for path, line, text in findings[key]), sep="\n")
        (index,) = (number for number, table in enumerate(tables) if table.startswith(f"[{name}]"))
        for key, ceiling in ceilings.items():
            count = count_findings(findings, key)
            print(f"{name:17} {key:27} {count:6g}, ceiling {ceiling:g}")
            tables[index] = re.sub(rf"^{key} = .*$", f"{key} = {min(count, ceiling):g}", tables[index], flags=re.M)
    TABLE.write_text(heading + "".join(tables), encoding="utf-8")


if __name__ == "__main__":
    main()
