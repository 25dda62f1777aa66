"""No two modules of the package need each other: not on import, not for a type, and not inside a function."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence

import pytest

from tests.sources_support import SOURCES, find_imports, get_module_name, list_imports

Imports = Mapping[str, Sequence[tuple[str, str]]]
Graph = Mapping[str, set[str]]


def read_imports(sources: Mapping[str, str]) -> Imports:
    """Return what modules import, each with when, of their sources by their names."""
    return {name: list(find_imports(ast.parse(source), ["adadepth"])) for name, source in sources.items()}


def needed(name: str, known: Collection[str], kind: str) -> set[str]:
    """The modules that importing a name needs; with the module also the packages that it lies in, which run first."""
    parts = name.split(".")
    places = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
    found = [place for place in places if place in known]
    return set(found if kind == "run" else found[:1])


def graph(imports: Imports, kinds: set[str]) -> Graph:
    """Module -> the modules it imports in one of the ways."""
    return {
        module: {
            target
            for name, kind in names
            if kind in kinds
            for target in needed(name, imports, kind)
            if target != module and not module.startswith(f"{target}.")  # its own packages run before it anyway
        }
        for module, names in imports.items()
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


def test_the_checker_sees_circles() -> None:
    """Modules need each other in pairs: a and b on import, c and d for a type, e and f in a function."""
    imports = read_imports({
        "adadepth": "", "adadepth.a": "from adadepth.b import x", "adadepth.b": "import adadepth.a",
        "adadepth.c": "from adadepth import d", "adadepth.d": "if TYPE_CHECKING:\n    from adadepth.c import X",
        "adadepth.e": "class E:\n    def f(self):\n        from adadepth import f",
        "adadepth.f": "from adadepth.e import E",
    })  # fmt: skip
    on_import, for_types, in_functions = ({f"adadepth.{name}" for name in pair} for pair in ("ab", "cd", "ef"))
    assert circles(graph(imports, {"run"})) == [on_import]
    assert circles(graph(imports, {"run", "typing"})) == [on_import, for_types]
    assert circles(graph(imports, {"run", "typing", "function"})) == [on_import, for_types, in_functions]


@pytest.mark.parametrize("kinds", [{"run"}, {"run", "typing"}, {"run", "typing", "function"}], ids=len)
def test_no_circle(kinds: set[str]) -> None:
    assert circles(graph({get_module_name(path): list_imports(path) for path in SOURCES}, kinds)) == []
