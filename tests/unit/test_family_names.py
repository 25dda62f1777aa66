"""What is known of a family stands in its folder: no other module of the package names one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from adadepth.models.registry import Family, families
from tests.sources_support import PACKAGE, SOURCES, find_imports, list_imports, list_nodes, read_source

FOLDERS = sorted(path.parent.name for path in PACKAGE.glob("models/*/family.py"))


def names_of(family: Family) -> set[str]:
    """A family's name, its classes and what else it offers; `albert` alone is the name of an architecture."""
    classes = [importer() for importer in (family.config, *family.heads.values(), *family.auto.values())]
    own = {each.__name__ for each in classes if each.__module__.startswith("adadepth.")}
    return {family.name, family.settings.__name__, *family.public} | own


def names_by_folder() -> dict[str, set[str]]:
    """Of each folder the names of its families."""
    found: dict[str, set[str]] = {}
    for family in families().values():
        found.setdefault(family.settings.__module__.split(".")[-2], set()).update(names_of(family))
    return found


NAMES = names_by_folder()
ALL = set().union(*NAMES.values()) - {"albert"}


def owner(path: Path) -> str | None:
    """The folder of families in which a module lies."""
    return next((name for name in FOLDERS if PACKAGE / "models" / name in path.parents), None)


def named(nodes: Sequence[ast.AST]) -> set[str]:
    """Names of families in the code of a module: imports, identifiers and strings, but for docstrings and comments."""
    told = {id(statement.value) for node in nodes for statement in docstrings(node)}
    return {name for node in nodes if id(node) not in told for name in words(node)} & ALL


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
    ("from adadepth.models.par_xl.modeling import Context", {"par_xl"}),
    ("from adadepth.models import ParXLConfig", {"ParXLConfig"}),
    ("if config.model_type == 'adalayers': pass", {"adalayers"}),
    ("isinstance(model, AlbertActConfig)", {"AlbertActConfig"}),
    ("raise ValueError(f'{x}: for albert_act only')", {"albert_act"}),
    ("def f():\n    'What par_xl does.'", set()),
    ("x = 'adalayers_minilm'  # par_xl", set()),
])  # fmt: skip
def test_the_checker_sees_names(source: str, expected: set[str]) -> None:
    assert named(list(ast.walk(ast.parse(source)))) == expected


def folders_imported(imports: Iterable[tuple[str, str]]) -> set[str]:
    """Families from whose folders a module imports, wherever it does."""
    return {folder for folder in FOLDERS for name, _ in imports if f"{name}.".startswith(f"adadepth.models.{folder}.")}


def test_the_checker_sees_folders() -> None:
    source = "from adadepth.models.albert import x\ndef f():\n    import adadepth.models.par_xl.blocks"
    assert folders_imported(list(find_imports(ast.parse(source), ["adadepth"]))) == {"albert", "par_xl"}
    source = "from adadepth.models.shared.albert.block import x"
    assert folders_imported(list(find_imports(ast.parse(source), ["adadepth"]))) == set()


def test_no_module_outside_a_familys_folder_names_it() -> None:
    """A descriptor may name another family: the one whose weights its own can start from."""
    for path in SOURCES:
        if PACKAGE / "contrib" in path.parents:  # it is built on families, as other packages are
            continue
        own = owner(path)
        inside = [family for family in families().values() if family.settings.__module__.split(".")[-2] == own]
        starts_from = {other for family in inside for other in family.starts_from}
        allowed = NAMES.get(own or "", set()) | (starts_from if path.name == "family.py" else set())
        if any(name in read_source(path) for name in ALL - allowed):
            assert named(list_nodes(path)) <= allowed, path
        assert folders_imported(list_imports(path)) <= {own}, path
