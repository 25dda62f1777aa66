"""No two modules of the package need each other: not on import, not for a type, and not inside a function."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
Graph = Mapping[str, set[str]]


def modules(root: Path) -> dict[str, Path]:
    """Every module of the package by its dotted name; a package is its `__init__`."""
    files = sorted((root / "adadepth").rglob("*.py"))
    return {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in files}


def imported(node: ast.AST, kind: str = "run") -> Iterator[tuple[str, str]]:
    """Names imported below a node, each with when: `run` with the module, for `typing`, or in a `function`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((alias.name, kind) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "the package imports by whole names"
            yield from ((f"{child.module}.{alias.name}", kind) for alias in child.names)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from imported(child, "function")
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from imported(child, "typing")
        else:
            yield from imported(child, kind)


@cache
def written(path: Path) -> list[tuple[str, str]]:
    """What a file imports, read once for all graphs."""
    return list(imported(ast.parse(path.read_text(encoding="utf-8"))))


def needed(name: str, known: Mapping[str, Path], kind: str) -> set[str]:
    """The modules that importing a name needs; with the module also the packages that it lies in, which run first."""
    parts = name.split(".")
    places = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
    found = [place for place in places if place in known]
    return set(found if kind == "run" else found[:1])


def graph(root: Path, kinds: set[str]) -> Graph:
    """Module -> the modules it imports in one of the ways."""
    known = modules(root)
    return {
        module: {
            target
            for name, kind in written(path)
            if kind in kinds
            for target in needed(name, known, kind)
            if target != module and not module.startswith(f"{target}.")  # its own packages run before it anyway
        }
        for module, path in known.items()
    }


def circles(edges: Graph) -> list[set[str]]:
    """The strongly connected components of more than one module: each reaches all others of its component."""
    reached = {module: reachable(edges, module) for module in edges}
    found = {frozenset(other for other in reached[module] if module in reached[other]) for module in edges}
    return sorted((set(component) for component in found if len(component) > 1), key=sorted)


def reachable(edges: Graph, start: str) -> set[str]:
    """Where the edges lead from a module, in any number of steps."""
    found, waiting = set(), [start]
    while waiting:
        for target in edges[waiting.pop()] - found:
            found.add(target)
            waiting.append(target)
    return found


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Modules that need each other in pairs: a and b on import, c and d for a type, e and f in a function."""
    sources = {
        "__init__": "", "a": "from adadepth.b import x", "b": "import adadepth.a",
        "c": "from adadepth import d", "d": "if TYPE_CHECKING:\n    from adadepth.c import X",
        "e": "class E:\n    def f(self):\n        from adadepth import f", "f": "from adadepth.e import E",
    }  # fmt: skip
    (tmp_path / "adadepth").mkdir()
    for name, source in sources.items():
        (tmp_path / "adadepth" / f"{name}.py").write_text(source)
    return tmp_path


def test_the_checker_sees_circles(package: Path) -> None:
    on_import, for_types, in_functions = ({f"adadepth.{name}" for name in pair} for pair in ("ab", "cd", "ef"))
    assert circles(graph(package, {"run"})) == [on_import]
    assert circles(graph(package, {"run", "typing"})) == [on_import, for_types]
    assert circles(graph(package, {"run", "typing", "function"})) == [on_import, for_types, in_functions]


@pytest.mark.parametrize("kinds", [{"run"}, {"run", "typing"}, {"run", "typing", "function"}], ids=len)
def test_no_circle(kinds: set[str]) -> None:
    assert circles(graph(ROOT, kinds)) == []
