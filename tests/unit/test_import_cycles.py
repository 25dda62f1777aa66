"""Import cycles: no two modules of the package need each other, on import, for a type, or inside a function."""

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


def list_needed_modules(name: str, modules: Collection[str], kind: str) -> set[str]:
    """Return the modules that importing a name needs; for a module also its packages, which run first."""
    parts = name.split(".")
    names = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
    matches = [candidate for candidate in names if candidate in modules]
    return set(matches if kind == "run" else matches[:1])


def build_graph(imports: Imports, kinds: set[str]) -> Graph:
    """Return for every module the modules that it imports in one of the ways."""
    return {
        module: {
            target
            for name, kind in names
            if kind in kinds
            for target in list_needed_modules(name, imports, kind)
            if target != module and not module.startswith(f"{target}.")  # its own packages run before it anyway
        }
        for module, names in imports.items()
    }


def find_circles(edges: Graph) -> list[set[str]]:
    """Return the strongly connected components of more than one module."""
    reached = {module: find_reachable(edges, module) for module in edges}
    components = {frozenset(target for target in reached[module] if module in reached[target]) for module in edges}
    return sorted((set(component) for component in components if len(component) > 1), key=sorted)


def find_reachable(edges: Graph, start: str) -> set[str]:
    """Return the modules that edges lead to from a module, in any number of steps."""
    targets, waiting = set(), [start]
    while waiting:
        for target in edges[waiting.pop()] - targets:
            targets.add(target)
            waiting.append(target)
    return targets


def test_circles_are_found() -> None:
    """Use modules that need each other in pairs: a and b on import, c and d for a type, e and f in a function."""
    imports = read_imports({
        "adadepth": "", "adadepth.a": "from adadepth.b import x", "adadepth.b": "import adadepth.a",
        "adadepth.c": "from adadepth import d", "adadepth.d": "if TYPE_CHECKING:\n    from adadepth.c import X",
        "adadepth.e": "class E:\n    def f(self):\n        from adadepth import f",
        "adadepth.f": "from adadepth.e import E",
    })  # fmt: skip
    on_import, for_types, in_functions = ({f"adadepth.{name}" for name in pair} for pair in ("ab", "cd", "ef"))
    assert find_circles(build_graph(imports, {"run"})) == [on_import]
    assert find_circles(build_graph(imports, {"run", "typing"})) == [on_import, for_types]
    assert find_circles(build_graph(imports, {"run", "typing", "function"})) == [on_import, for_types, in_functions]


@pytest.mark.parametrize("kinds", [{"run"}, {"run", "typing"}, {"run", "typing", "function"}], ids=len)
def test_no_circle(kinds: set[str]) -> None:
    assert find_circles(build_graph({get_module_name(path): list_imports(path) for path in SOURCES}, kinds)) == []
