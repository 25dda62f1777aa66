"""Private members of other libraries that the package uses: `private_members.toml` is the list of them.

Any release may change a private member without notice, so the list names a test for each that fails without it.
"""

from __future__ import annotations

import ast
import inspect
import pkgutil
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.sources_support import PLUGINS, ROOT, SOURCES, get_module_name, list_imports, list_nodes, parse_source

LIBRARIES = (
    "accelerate",
    "datasets",
    "hydra",
    "omegaconf",
    "peft",
    "pytorch_optimizer",
    "torch",
    "transformers",
    "wandb",
)
DOCUMENTED = {"_asdict", "_exit", "_fields", "_replace"}  # of named tuples and `os`


class Private(NamedTuple):
    """A private member, the files that use it, and a test that fails without it."""

    member: str
    files: list[str]
    test: str


MEMBERS = [
    Private(member, **entry)
    for member, entry in tomllib.loads((ROOT / "tests/unit/private_members.toml").read_text("utf-8")).items()
]


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


@cache
def list_members(kind: type) -> frozenset[str]:
    """Return the names of a class, and of what it declares or assigns on `self`, without its bases."""
    names = {*vars(kind), *inspect.get_annotations(kind)}
    file = getattr(sys.modules[kind.__module__], "__file__", None) or ""
    if file.endswith(".py"):
        for node in parse_source(Path(file)).body:
            if isinstance(node, ast.ClassDef) and node.name == kind.__name__:
                names |= {part.attr for part in ast.walk(node) if is_own_store(part)}
    return frozenset(names)


def is_own_store(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value)


def is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def is_super(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def list_inherited(kind: type) -> set[str]:
    """Return the private names that a class inherits from classes of other libraries."""
    bases = [base for base in kind.__mro__ if base.__module__.split(".")[0] in LIBRARIES]
    return {name for base in bases for name in list_members(base) if is_private(name)}


@cache
def find_class(path: Path, name: str) -> type | None:
    """Return a class of a file, or None if it cannot be imported, because an extra is not installed."""
    try:
        kind = getattr(import_module(get_module_name(path)), name, None)
    except ImportError:
        return None
    return kind if isinstance(kind, type) else None


@cache
def find_in_classes(path: Path) -> frozenset[str]:
    """Return the private names that the classes of a file use or override of their bases in other libraries."""
    names: set[str] = set()
    for node in parse_source(path).body:
        if not isinstance(node, ast.ClassDef):
            continue
        used = {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute) and refers_to_class(part.value)}
        used |= {name for part in node.body for name in list_defined(part)}
        used = {name for name in used if is_private(name)}
        if used and (kind := find_class(path, node.name)) is not None:
            names |= used & list_inherited(kind)
    return frozenset(names)


def refers_to_class(node: ast.AST) -> bool:
    return is_self(node) or is_super(node)


def list_defined(node: ast.AST) -> list[str]:
    """Return the names that a statement of a class defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


@cache
def list_project_names() -> frozenset[str]:
    """Return the private names that the package defines, but for members of its base classes in other libraries."""
    names: set[str] = set()
    for path in (*SOURCES, *PLUGINS):
        for node in list_nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.arg):
                names.add(node.arg)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif is_own_store(node):
                names.add(node.attr)
    return frozenset(names) - {name for path in (*SOURCES, *PLUGINS) for name in find_in_classes(path)}


@cache
def list_names_in_strings() -> frozenset[str]:
    """Return the private names of the classes in the list, which `getattr` may ask for."""
    owners = {get_owner(entry.member) for entry in MEMBERS}
    return frozenset(name for owner in owners if isinstance(owner, type) for name in list_inherited(owner))


def find_anywhere(nodes: Iterator[ast.AST], project_names: frozenset[str], in_strings: frozenset[str]) -> Iterator[str]:
    """Yield the private names that expressions use of other libraries: as attributes or in strings."""
    for node in nodes:
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in project_names | DOCUMENTED:
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in in_strings:
            yield node.value


def find_imported(imports: Iterator[tuple[str, str]]) -> Iterator[str]:
    """Yield the private parts of names that are imported from other libraries."""
    for name, _ in imports:
        parts = name.split(".")
        if parts[0] in LIBRARIES:
            yield from filter(is_private, parts)


def find_members() -> set[tuple[str, str]]:
    """Return the name of every private member that the package uses, each with every file."""
    paths, project_names = (*SOURCES, *PLUGINS), list_project_names()
    members = set()
    for path in paths:
        names = [
            *find_in_classes(path),
            *find_anywhere(iter(list_nodes(path)), project_names, list_names_in_strings()),
            *find_imported(iter(list_imports(path))),
        ]
        members |= {(name, path.relative_to(ROOT).as_posix()) for name in names}
    return members


def get_owner(member: str) -> Any:
    """Return the class or module of a member."""
    return pkgutil.resolve_name(member.rpartition(".")[0])


def get_leaf(member: str) -> str:
    return member.rpartition(".")[2]


def test_the_list_is_complete_and_every_entry_is_used() -> None:
    listed = {(get_leaf(entry.member), file) for entry in MEMBERS for file in entry.files}
    used = find_members()
    assert used - listed == set()
    assert listed - used == set()
    leaves = [get_leaf(entry.member) for entry in MEMBERS]
    assert len(leaves) == len(set(leaves))


@pytest.mark.parametrize("member", [entry.member for entry in MEMBERS])
def test_a_member_exists_where_the_list_says(member: str) -> None:
    kind, name = get_owner(member), get_leaf(member)
    if isinstance(kind, type):
        assert any(name in list_members(base) for base in kind.__mro__)
    else:
        assert hasattr(kind, name)


@pytest.mark.parametrize("test", sorted({entry.test for entry in MEMBERS}))
def test_the_test_that_guards_a_member_exists(test: str) -> None:
    file, _, name = test.partition("::")
    assert name in {node.name for node in parse_source(ROOT / file).body if isinstance(node, ast.FunctionDef)}


def test_the_use_of_a_private_member_is_found() -> None:
    source = "import torch\ntorch._foreach_norm\ngetattr(model, '_tied_weights_keys')\nself._ours\npoint._asdict()"
    nodes = ast.walk(ast.parse(source))
    assert {*find_anywhere(nodes, frozenset({"_ours"}), list_names_in_strings())} == {
        "_foreach_norm",
        "_tied_weights_keys",
    }
    imports = [("hydra._internal.utils.get_args_parser", "run"), ("adadepth._x.y", "run"), ("torch.nn", "run")]
    assert [*find_imported(iter(imports))] == ["_internal"]
