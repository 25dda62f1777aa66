"""What is known of a family stands in its folder: no other module of the package names one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from adadepth.families.registry import families, load

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "adadepth"
OUTSIDE = sorted(path for path in PACKAGE.rglob("*.py") if PACKAGE / "families" not in path.parents)


def names_of_families() -> set[str]:
    """The names themselves, and those of their classes; `albert` alone is the name of an architecture."""
    classes = {
        load(place).__name__
        for family in families().values()
        for place in (family.config, *family.heads.values(), *family.auto.values())
        if place.startswith("adadepth.")
    }
    settings = {family.settings.__name__ for family in families().values()}
    return {*families(), *classes, *settings} - {"albert"}


NAMES = names_of_families()


def named(source: str) -> set[str]:
    """Names of families in the code of a module: imports, identifiers and strings, but for docstrings and comments."""
    tree = ast.parse(source)
    told = {id(statement.value) for node in ast.walk(tree) for statement in docstrings(node)}
    return {name for node in ast.walk(tree) if id(node) not in told for name in words(node)} & NAMES


def docstrings(node: ast.AST) -> Iterator[ast.Expr]:
    """The statements of a body that are nothing but text."""
    for statement in getattr(node, "body", []) if isinstance(getattr(node, "body", None), list) else []:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            yield statement


def words(node: ast.AST) -> set[str]:
    """Identifiers and words of one node."""
    if isinstance(node, ast.ImportFrom):
        text = f"{node.module or ''} {' '.join(alias.name for alias in node.names)}"
    elif isinstance(node, ast.Import):
        text = " ".join(alias.name for alias in node.names)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        text = node.value
    else:
        text = getattr(node, "id", None) or getattr(node, "attr", None) or ""
    return set(re.findall(r"\w+", text))


@pytest.mark.parametrize(("source", "expected"), [
    ("from adadepth.families.par_xl.modeling import Context", {"par_xl"}),
    ("from adadepth.families import ParXLConfig", {"ParXLConfig"}),
    ("if config.model_type == 'adalayers': pass", {"adalayers"}),
    ("isinstance(model, AlbertActConfig)", {"AlbertActConfig"}),
    ("raise ValueError(f'{x}: for albert_act only')", {"albert_act"}),
    ("def f():\n    'What par_xl does.'", set()),
    ("x = 'adalayers_minilm'  # par_xl", set()),
])  # fmt: skip
def test_the_checker_sees_names(source: str, expected: set[str]) -> None:
    assert named(source) == expected


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_module_outside_a_familys_folder_names_it(path: Path) -> None:
    assert named(path.read_text(encoding="utf-8")) == set()
