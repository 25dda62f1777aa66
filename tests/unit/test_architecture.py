"""Layers of the package that no type checker sees: which module imports which, and what an import costs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from adadepth.config.answers import ANSWER_KINDS
from adadepth.config.kinds import KINDS
from tests.marks_support import keep_one_quick
from tests.sources_support import (
    PACKAGE,
    PLUGINS,
    ROOT,
    SOURCES,
    find_imports,
    get_module_name,
    list_imports,
    list_installed_packages,
    list_nodes,
    parse_source,
    read_source,
)

# The rooms of the package from the ground up: a room imports from those before it only.
LAYERS = (
    "errors", "runtime", "config", "halting", "budget", "metrics", "report", "data", "models", "evaluation", "runs",
    "training", "prediction", "tasks", "cli", "run", "contrib",
)  # fmt: skip
FORBIDDEN = {layer: set(LAYERS[position + 1 :]) for position, layer in enumerate(LAYERS)}
FORBIDDEN["models"] |= {"data", "metrics", "report"}
FORBIDDEN["data"] |= {"metrics", "report"}
# The types of what plug-ins' descriptors import are those of higher rooms, so mypy alone imports them. No row may be
# added: what the core itself has of a kind, the higher room finds by the settings.
TYPED_BY_HIGHER_ROOMS = {
    "adadepth.config.kinds": {"data", "evaluation", "report", "training"},
    "adadepth.config.modes": {"report"},
    "adadepth.models.registry": {"report", "training"},
}

COSTLY = ("wandb", "evaluate", "datasets", "typst", "seqeval")


def get_part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def find_names(source: str, file: str = "x.py") -> list[tuple[str, str]]:
    """Return what the source of a file of the package imports, each with when."""
    return list(find_imports(ast.parse(source), ["adadepth", *Path(file).parts[:-1]]))


def find_crossings(path: Path, imports: Iterable[tuple[str, str]]) -> set[str]:
    """Return the forbidden parts that a module imports."""
    parts = {name.split(".")[1] for name, _ in imports if name.startswith("adadepth.")}
    allowed = {"metrics", "report"} if get_part(path) == "models" and path.name == "report.py" else set()
    return (parts & FORBIDDEN.get(get_part(path), set())) - allowed


@pytest.mark.parametrize(
    ("file", "source", "expected"),
    [
        ("halting/act.py", "from adadepth.models import x", {"models"}),
        ("halting/act.py", "from .trace import DepthTrace", set()),
        ("data/corpus.py", "from ..training import metrics", {"training"}),
        ("data/corpus.py", "def f():\n    import adadepth.models.shared.losses", {"models"}),
        ("report/pages.py", "from adadepth import models", {"models"}),
        ("training/trainer.py", "from adadepth.metrics.depth_statistics import HaltingStatistics", set()),
        ("models/albert/__init__.py", "from ...tasks.pretrain import run", {"tasks"}),
        ("models/albert/modeling.py", "from adadepth.report.run_files import RunFiles", {"report"}),
        ("models/albert/report.py", "from adadepth.report.run_files import RunFiles", set()),
        ("models/albert/report.py", "from adadepth.training import trainer", {"training"}),
    ],
)
def test_every_form_of_import_is_found(file: str, source: str, expected: set[str]) -> None:
    assert find_crossings(PACKAGE / file, find_names(source, file)) == expected


def test_imports_point_one_way() -> None:
    runs, typing = {}, {}
    for path in SOURCES:
        imports = list_imports(path)
        runs[get_module_name(path)] = find_crossings(path, [entry for entry in imports if entry[1] != "typing"])
        typing[get_module_name(path)] = find_crossings(path, [entry for entry in imports if entry[1] == "typing"])
    assert {name: parts for name, parts in runs.items() if parts} == {}
    assert {name: parts for name, parts in typing.items() if parts} == TYPED_BY_HIGHER_ROOMS


def find_code_strings(nodes: Iterable[ast.AST]) -> list[str]:
    """Return the strings of a module that name a function or class, as `package.module:name`."""
    strings = []
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            strings.append(node.value)
        elif isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.FormattedValue):
            end = node.values[-1]
            module = getattr(node.values[0].value, "id", "")
            strings += [f"adadepth{end.value}"] if module.startswith("_") and isinstance(end, ast.Constant) else []
    return [text for text in strings if re.fullmatch(r"(adadepth|transformers)(\.\w+)*:\w+", text)]


def test_no_string_names_code() -> None:
    """Allow names of code in strings only for entry points in `pyproject.toml`."""
    assert {path: names for path in SOURCES if (names := find_code_strings(list_nodes(path)))} == {}


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('x = "adadepth.tasks.report:rewrite"', 1),
        ('x = f"{_HERE}.kind:check"', 1),
        ('x = f"{__name__}:check"', 1),
        ('x = "adadepth.tasks.report: see there"', 0),
        ('x = f"{rule}:1"', 0),
    ],
)
def test_a_string_that_names_code_is_found(source: str, count: int) -> None:
    assert len(find_code_strings(ast.walk(ast.parse(source)))) == count


@pytest.mark.parametrize("library", COSTLY)
def test_costly_libraries_are_imported_in_one_place_and_when_needed(library: str) -> None:
    imports = [(path, when) for path in SOURCES for name, when in list_imports(path) if name.split(".")[0] == library]
    assert len({path for path, _ in imports}) <= 1
    assert [path for path, when in imports if when == "run"] == []


def test_only_the_demo_page_imports_its_server() -> None:
    page = "adadepth.contrib.serve.page"
    imports = [(get_module_name(path), *entry) for path in SOURCES for entry in list_imports(path)]
    assert {module for module, name, _ in imports if name.split(".")[0] == "gradio"} <= {page}
    assert not [module for module, name, when in imports if name == page and when == "run"]


def test_the_core_names_nothing_of_contrib() -> None:
    core = [path for path in SOURCES if get_part(path) != "contrib"]
    assert [get_module_name(path) for path in core if "adadepth.contrib" in read_source(path)] == []


def test_a_session_needs_few_modules() -> None:
    """Limit the modules that the module of a session names: at most 21, with that of its data."""
    path = PACKAGE / "tasks/session.py"
    modules = (node for node in list_nodes(path) if isinstance(node, ast.ImportFrom))
    assert len({node.module for node in modules if (node.module or "").startswith("adadepth.")}) <= 21


DATA_SETTINGS = {kind.settings.__name__ for kind in KINDS.values()} | {"TextConfig", "TableConfig", "GeneratedConfig"}


def find_kind_checks(nodes: Iterable[ast.AST]) -> list[str]:
    """Return the settings of data that a module asks `isinstance` for."""
    calls = (node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name))
    kinds = (call.args[-1] for call in calls if call.func.id in ("isinstance", "issubclass"))
    names = (node.id for kind in kinds for node in ast.walk(kind) if isinstance(node, ast.Name))
    return [name for name in names if name in DATA_SETTINGS]


def test_no_module_branches_on_the_kind_of_data() -> None:
    paths = [path for path in SOURCES if any(name in read_source(path) for name in DATA_SETTINGS)]
    assert {path: kinds for path in paths if (kinds := find_kind_checks(list_nodes(path)))} == {}


def test_a_branch_on_the_kind_of_data_is_found() -> None:
    question = ast.parse("isinstance(config.dataset, MazeConfig | HopsConfig)")
    assert find_kind_checks(ast.walk(question)) == ["MazeConfig", "HopsConfig"]


def find_answer_branches(nodes: Iterable[ast.AST]) -> list[str]:
    """Return what a module compares with the name of a kind of answers."""
    compared = [node for node in nodes if isinstance(node, ast.Compare) and "predicts" in ast.unparse(node.left)]
    return [ast.unparse(node.left) for node in compared if any(map(has_answer_name, node.comparators))]


def has_answer_name(node: ast.expr) -> bool:
    return any(isinstance(leaf, ast.Constant) and leaf.value in ANSWER_KINDS for leaf in ast.walk(node))


def test_no_module_branches_on_the_name_of_an_answer() -> None:
    paths = [path for path in SOURCES if "predicts" in read_source(path)]
    assert {path: names for path in paths if (names := find_answer_branches(list_nodes(path)))} == {}


def test_a_branch_on_the_name_of_an_answer_is_found() -> None:
    source = "if row['predicts'] == 'cells' or self.predicts in ('tags', 'next') or predicts is None: pass"
    assert find_answer_branches(ast.walk(ast.parse(source))) == ["row['predicts']", "self.predicts"]


def has_csv_writer(path: Path) -> bool:
    names = {node.attr for node in list_nodes(path) if isinstance(node, ast.Attribute)}
    imported = {name for name, _ in list_imports(path)}
    return bool("to_csv" in names or {"csv.writer", "csv.DictWriter"} & imported
                or ("csv" in imported and {"writer", "DictWriter"} & names))  # fmt: skip


def test_csv_is_written_by_one_module_that_escapes_formulas() -> None:
    of_csv = [path for path in [*SOURCES, *PLUGINS] if "csv" in read_source(path)]
    assert [get_module_name(path) for path in of_csv if has_csv_writer(path)] == ["adadepth.report.table"]


def test_an_import_is_listed_with_its_time() -> None:
    imports = find_names(
        "import a\nif TYPE_CHECKING:\n    import b\nelse:\n    import c\ndef f():\n    import d\nclass C:\n    import e"
    )
    assert imports == [("a", "run"), ("b", "typing"), ("c", "run"), ("d", "function"), ("e", "run")]


def test_no_child_shadows_another_package() -> None:
    # `python adadepth/run.py` puts adadepth/ first on sys.path: a child named like a library would replace it.
    children = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    children = {name for name in children if not name.startswith(("_", "."))}
    assert children
    assert not children & set(sys.stdlib_module_names)
    assert not children & set(list_installed_packages())


def list_undocumented(tree: ast.Module) -> list[str]:
    """Return the public top-level functions and classes without a docstring."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    public = [node for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")]
    return [node.name for node in public if not ast.get_docstring(node)]


def test_public_functions_and_classes_have_docstrings() -> None:
    missing = {get_module_name(path): list_undocumented(parse_source(path)) for path in SOURCES}
    assert {name: names for name, names in missing.items() if names} == {}


def list_loaded_packages(statement: str) -> set[str]:
    """Return the top-level packages that a fresh interpreter has loaded after a statement."""
    code = f"{statement}\nimport sys\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=600
    )
    return set(result.stdout.split())


@pytest.mark.parametrize(
    "statement",
    keep_one_quick(
        3,
        [
            "import adadepth",
            "import adadepth.config, adadepth.errors",
            "import adadepth.config.kinds, adadepth.halting.rules",
            "from adadepth.tasks import report",
        ],
    ),
    ids=["package", "config", "plugins", "mode=report"],
)
def test_importing_costs_no_heavy_library(statement: str) -> None:
    assert not list_loaded_packages(statement) & {"torch", "transformers", "accelerate", "sklearn", "scipy", *COSTLY}


# Names that are an interface by convention: a family, a task, generated data or a group of plugins has its own.
# For every other thing a better name is found, or it is imported, or it is private.
SHARED_NAMES = {
    "FAMILY", "GROUP", "LABELS", "SECTIONS", "SYMBOLS", "logger", "train", "evaluate",
    "check_budget", "check_settings", "read_config", "rename_weights",
}  # fmt: skip


def list_public_names(tree: ast.Module) -> set[str]:
    """Return the public names that a module defines at its top level, not those that it imports."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {
                node_in_target.id
                for target in targets
                for node_in_target in ast.walk(target)
                if isinstance(node_in_target, ast.Name)
            }
    return {name for name in names if not name.startswith("_")}


def test_public_names_are_those_defined_and_not_imported() -> None:
    tree = ast.parse("from a import b\nimport c\nd, (e, _f) = 1\ng: int = 2\ndef h():\n    i = 3\nclass J:\n    k = 4")
    assert list_public_names(tree) == {"d", "e", "g", "h", "J"}


def test_no_public_name_is_defined_in_two_modules() -> None:
    """Require unique public names, except in references, each of which has its whole model."""
    where: dict[str, list[str]] = {}
    for path in (path for path in SOURCES if get_part(path) != "contrib" and path.name != "reference.py"):
        for name in list_public_names(parse_source(path)):
            where.setdefault(name, []).append(get_module_name(path))
    twice = {name: modules for name, modules in where.items() if len(modules) > 1}
    assert {name: modules for name, modules in twice.items() if name not in SHARED_NAMES} == {}
    assert not SHARED_NAMES - set(twice), "no longer shared: take it off the list"


# Baselines: an ALBERT of fixed depth, PABEE on it, and classifiers of transformers.
WITHOUT_REFERENCE = {"albert", "multi_exit_albert", "stock_classifier"}
FAMILIES = {path.parent.name for path in PACKAGE.glob("models/*/family.py")} - WITHOUT_REFERENCE


def test_baselines_alone_have_no_reference() -> None:
    assert len(FAMILIES) == 8
    assert {path.parent.name for path in PACKAGE.rglob("reference.py")} == FAMILIES


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_reference_is_short_and_needs_torch_alone(family: str) -> None:
    """Check that a reference is one short file that runs without the framework (docs/decisions/0113)."""
    path = PACKAGE / "models" / family / "reference.py"
    assert len(read_source(path).splitlines()) <= 150
    assert {name.split(".")[0] for name, _ in list_imports(path)} <= {"torch", *sys.stdlib_module_names}
    forward = next(node for node in parse_source(path).body if getattr(node, "name", "") == "forward")
    assert isinstance(forward, ast.FunctionDef)
    assert forward.args.args[0].arg == "weights"
