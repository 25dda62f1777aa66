"""The API reference, a page for every package of adadepth made from its docstrings; and the decisions, in the menu."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "adadepth"


def on_config(config: Any, **_: Any) -> Any:
    """Put the reference and the decisions into the menu."""
    decisions = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("*.md"))
    project = next(entry["Project"] for entry in config.nav if "Project" in entry)
    project.append({"Decisions": [f"decisions/{name}" for name in decisions]})
    config.nav.append({"Reference": ["reference/index.md", *(_page(package) for package, _ in packages())]})
    return config


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add the pages of the reference."""
    rows = []
    for package, modules in packages():
        files.append(File.generated(config, _page(package), content=_reference(package, modules)))
        rows.append(f"| [`{package}`]({_page(package).removeprefix('reference/')}) | {_first_line(_file(package))} |")
    table = "\n".join(["| package | holds |", "|---|---|", *rows])
    files.append(File.generated(config, "reference/index.md", content=f"# Reference\n\n{table}\n"))
    return files


def packages() -> Iterator[tuple[str, list[str]]]:
    """Every package with its modules that say something in public, as dotted names."""
    for init in sorted(PACKAGE.rglob("__init__.py")):
        paths = sorted(path for path in init.parent.glob("*.py") if not path.stem.startswith("_"))
        if modules := [_dotted(path) for path in paths if _is_public(path)]:
            yield _dotted(init.parent), modules


def _is_public(path: Path) -> bool:
    """Whether a module defines a class or function for others."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    kinds = (ast.ClassDef, ast.FunctionDef)
    return any(isinstance(node, kinds) and not node.name.startswith("_") for node in body)


def _reference(package: str, modules: list[str]) -> str:
    parts = [f"# `{package}`", _first_line(_file(package))]
    for module in modules:
        parts += [f"## {module.rpartition('.')[2]}", f"::: {module}"]
    return "\n\n".join(parts) + "\n"


def _first_line(path: Path) -> str:
    """Return the first paragraph of a package's docstring."""
    doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return re.sub(r"\s+", " ", doc.partition("\n\n")[0])


def _page(package: str) -> str:
    return f"reference/{package.removeprefix('adadepth.')}.md"


def _file(package: str) -> Path:
    return ROOT / package.replace(".", "/") / "__init__.py"


def _dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)
