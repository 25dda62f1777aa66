"""Cached source files for the tests that scan all of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "adadepth"
SOURCES = sorted(PACKAGE.rglob("*.py"))
PLUGINS = sorted((ROOT / "hydra_plugins").rglob("*.py"))


@cache
def read_source(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def parse_source(path: Path) -> ast.Module:
    """Return the tree of a file, which tests only look at."""
    return ast.parse(read_source(path))


@cache
def list_nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a file in the order of `ast.walk`."""
    return tuple(ast.walk(parse_source(path)))


def get_module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def list_imports(path: Path) -> tuple[tuple[str, str], ...]:
    """Return the absolute names that a file imports anywhere, each with when, as `find_imports` does."""
    parts = get_module_name(path).split(".")
    return tuple(find_imports(parse_source(path), parts if path.name == "__init__.py" else parts[:-1]))


def find_imports(node: ast.AST, package: list[str], when: str = "run") -> Iterator[tuple[str, str]]:
    """Yield the absolute names imported below a node: `run` with the module, for `typing`, or in a `function`.

    Args:
        node: Part of a module.
        package: Names of the packages that the module lies in, from the outermost to the innermost.
        when: `run`, `typing` or `function`, for the node itself.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((alias.name, when) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = package[: len(package) - child.level + 1] if child.level else []
            module = ".".join([*base, *([child.module] if child.module else [])])
            # `from adadepth import models` names a module only in its aliases.
            yield from ((f"{module}.{alias.name}", when) for alias in child.names)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from find_imports(child, package, "function")
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from find_imports(ast.Module(child.body, []), package, "typing")
            yield from find_imports(ast.Module(child.orelse, []), package, when)
        elif not isinstance(child, ast.expr):  # an expression imports nothing
            yield from find_imports(child, package, when)


@cache
def list_installed_packages() -> dict[str, list[str]]:
    """Return the names of the distributions that provide each top-level package."""
    return dict(packages_distributions())
