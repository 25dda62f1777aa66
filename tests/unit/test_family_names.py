"""Names of families: only the folder of a family names it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from adadepth.models.registry import Family, families
from tests.sources_support import PACKAGE, SOURCES, find_imports, list_imports, list_nodes, read_source

FOLDERS = sorted(path.parent.name for path in PACKAGE.glob("models/*/family.py"))


def list_family_names(family: Family) -> set[str]:
    """Return a family's name, its classes and its other public names; `albert` alone is the name of an architecture."""
    classes = [importer() for importer in (family.config, *family.heads.values(), *family.auto.values())]
    own_names = {member.__name__ for member in classes if member.__module__.startswith("adadepth.")}
    return {family.name, family.settings.__name__, *family.public} | own_names


def group_names_by_folder() -> dict[str, set[str]]:
    """Return the names of the families of every folder."""
    names: dict[str, set[str]] = {}
    for family in families().values():
        names.setdefault(family.settings.__module__.split(".")[-2], set()).update(list_family_names(family))
    return names


NAMES = group_names_by_folder()
ALL = set().union(*NAMES.values()) - {"albert"}


def get_family_folder(path: Path) -> str | None:
    """Return the folder of families in which a module lies."""
    return next((name for name in FOLDERS if PACKAGE / "models" / name in path.parents), None)


def find_family_names(nodes: Sequence[ast.AST]) -> set[str]:
    """Return the names of families in the imports, identifiers and strings of a module."""
    ignored = {id(statement.value) for node in nodes for statement in list_docstrings(node)}
    return {name for node in nodes if id(node) not in ignored for name in list_words(node)} & ALL


def list_docstrings(node: ast.AST) -> Iterator[ast.Expr]:
    """Return the statements of a body that are docstrings."""
    for statement in getattr(node, "body", []) if isinstance(getattr(node, "body", None), list) else []:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            yield statement


def list_words(node: ast.AST) -> set[str]:
    """Return the identifiers and words of one node."""
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
def test_names_in_code_are_found(source: str, expected: set[str]) -> None:
    assert find_family_names(list(ast.walk(ast.parse(source)))) == expected


def list_imported_folders(imports: Iterable[tuple[str, str]]) -> set[str]:
    """Return the folders of families that a module imports from, at any place."""
    return {folder for folder in FOLDERS for name, _ in imports if f"{name}.".startswith(f"adadepth.models.{folder}.")}


def test_imported_folders_are_found() -> None:
    source = "from adadepth.models.albert import x\ndef f():\n    import adadepth.models.par_xl.blocks"
    assert list_imported_folders(list(find_imports(ast.parse(source), ["adadepth"]))) == {"albert", "par_xl"}
    source = "from adadepth.models.shared.albert.block import x"
    assert list_imported_folders(list(find_imports(ast.parse(source), ["adadepth"]))) == set()


def test_no_module_outside_a_familys_folder_names_it() -> None:
    """Allow a descriptor to name another family only if its own can start from the weights of that one."""
    for path in SOURCES:
        if PACKAGE / "contrib" in path.parents:  # it is built on families, as other packages are
            continue
        folder = get_family_folder(path)
        inside = [family for family in families().values() if family.settings.__module__.split(".")[-2] == folder]
        starts_from = {other for family in inside for other in family.starts_from}
        allowed = NAMES.get(folder or "", set()) | (starts_from if path.name == "family.py" else set())
        if any(name in read_source(path) for name in ALL - allowed):
            assert find_family_names(list_nodes(path)) <= allowed, path
        assert list_imported_folders(list_imports(path)) <= {folder}, path
