"""pyproject.toml, poetry.lock and the files that repeat what they say."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from adadepth.config.export import export_formats
from adadepth.models.registry import families
from tests.scripts_support import load_script
from tests.sources_support import PLUGINS, ROOT, SOURCES, list_imports, list_installed_packages

PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCK: dict[str, Any] = tomllib.loads((ROOT / "poetry.lock").read_text(encoding="utf-8"))
LOCKED = {package["name"]: package["version"] for package in LOCK["package"]}
RUNTIME = [Requirement(text) for text in PYPROJECT["project"]["dependencies"]]
EXTRAS = [Requirement(text) for group in PYPROJECT["project"]["optional-dependencies"].values() for text in group]


@pytest.fixture
def lock_script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load_script(".ci/lock.py", monkeypatch)


def test_the_lock_is_in_sync(lock_script: ModuleType) -> None:
    assert lock_script.problems(PYPROJECT, LOCK) == []


def test_a_changed_requirement_puts_the_lock_out_of_sync(lock_script: ModuleType) -> None:
    project = {**PYPROJECT["project"], "dependencies": [*PYPROJECT["project"]["dependencies"], "tqdm"]}
    assert "make lock" in lock_script.problems({**PYPROJECT, "project": project}, LOCK)[0]


def test_a_changed_linter_setting_leaves_it_in_sync(lock_script: ModuleType) -> None:
    tools = {**PYPROJECT["tool"], "ruff": {}}
    assert lock_script.problems({**PYPROJECT, "tool": tools}, LOCK) == []


def test_two_versions_of_a_package_are_refused(lock_script: ModuleType) -> None:
    twice = {**LOCK, "package": [*LOCK["package"], {"name": "torch", "version": "2.12.0"}]}
    assert "torch" in lock_script.problems(PYPROJECT, twice)[0]


@pytest.mark.skipif(shutil.which("poetry") is None, reason="poetry is not installed")
def test_poetry_agrees() -> None:
    subprocess.run(["poetry", "check", "--lock"], cwd=ROOT, check=True, timeout=600)


def test_the_lock_pins_the_version_of_torch_of_the_measured_results() -> None:
    assert LOCKED["torch"] == "2.13.0"


def test_every_requirement_is_bounded_and_satisfied_by_the_lock() -> None:
    for requirement in RUNTIME + EXTRAS:
        assert requirement.specifier, requirement
        assert LOCKED[canonicalize_name(requirement.name)] in requirement.specifier, requirement


@pytest.mark.parametrize(
    ("name", "admitted", "refused"),
    [
        ("torch", ["2.11.0", "2.13.0+cpu", "2.15.0"], ["2.10.0", "2.16.0"]),
        ("transformers", ["5.23.0", "5.24.0"], ["4.57.0", "5.22.2", "6.0.0"]),
        ("hydra-core", ["1.3.6", "1.3.8"], ["1.3.2", "1.4.0"]),
        ("omegaconf", ["2.3.0", "2.3.1"], ["2.4.0"]),
    ],
)
def test_the_supported_ranges(name: str, admitted: list[str], refused: list[str]) -> None:
    (specifier,) = (requirement.specifier for requirement in RUNTIME if requirement.name == name)
    assert [version for version in admitted if version not in specifier] == []
    assert [version for version in refused if version in specifier] == []


def test_the_supported_pythons() -> None:
    pythons = SpecifierSet(PYPROJECT["project"]["requires-python"])
    versions = ["3.10.9", "3.11.0", "3.12.1", "3.13.0", "3.14.0"]
    assert [version for version in versions if version in pythons] == versions[1:4]


def test_the_old_optuna_launcher_is_not_a_dependency() -> None:
    # hydra-optuna-sweeper pins optuna 2.10.
    assert "hydra-optuna-sweeper" not in LOCKED


def test_one_version_everywhere() -> None:
    version = PYPROJECT["project"]["version"]
    tree = ast.parse((ROOT / "adadepth" / "__init__.py").read_text(encoding="utf-8"))
    stated = [ast.literal_eval(node.value) for node in tree.body if is_assignment(node, "__version__")]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert stated == [version]
    assert str(citation["version"]) == version
    assert LOCKED.get("adadepth") is None


def test_every_family_has_papers_to_cite() -> None:
    """Require citations of all families except plain networks of transformers, which are cited as its pages say."""
    references = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["references"]
    cited = {keyword for reference in references for keyword in reference["keywords"]}
    names = {name for name, family in families().items() if family.settings.__module__.startswith("adadepth.")}
    assert cited == names - {"stock_classifier"}


def is_assignment(node: ast.stmt, name: str) -> bool:
    return isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [name]


def test_no_page_tells_to_install_from_an_index() -> None:
    """Refuse install commands without a source: the package is on no index."""
    paths = [
        ROOT / "README.md",
        ROOT / "Makefile",
        *(ROOT / "docs").glob("*.*"),
        *(ROOT / "docs" / "tutorials").iterdir(),
    ]
    for folder in ("adadepth", "configs", "examples", "hydra_plugins"):
        paths += [path for path in (ROOT / folder).rglob("*.*") if path.suffix in (".py", ".yaml", ".md", ".j2")]
    promise = re.compile(r"pip install [^\n`#]*(?<![\w/])adadepth(?![\w\[*-])")
    wrong = [path.name for path in paths if promise.search(path.read_text(encoding="utf-8"))]
    assert wrong == []


def test_every_import_of_the_package_is_a_declared_requirement() -> None:
    """Refuse a library that only a dependency brings along: it may vanish with that dependency's next release."""
    declared = {canonicalize_name(requirement.name) for requirement in RUNTIME + EXTRAS}
    # `make install` leaves these out
    absent = {"mlflow": ["mlflow-skinny"], "llama_cpp": ["llama-cpp-python"]}
    providers = absent | list_installed_packages()
    undeclared = {}
    undeclarable = {"adadepth", "hydra_plugins", *sys.stdlib_module_names}
    for path in [*SOURCES, *PLUGINS]:
        for name in {name.split(".")[0] for name, _ in list_imports(path)} - undeclarable:
            if not {canonicalize_name(provider) for provider in providers.get(name, [name])} & declared:
                undeclared[name] = path.name
    assert undeclared == {}


def test_the_lock_names_no_source_but_the_default_index() -> None:
    assert [package["name"] for package in LOCK["package"] if "source" in package] == []
    files = [file for package in LOCK["package"] for file in package["files"]]
    assert [file for file in files if set(file) != {"file", "hash"}] == []


def list_project_files() -> list[Path]:
    """Return what git tracks or would track."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


def test_a_wheel_has_the_demos() -> None:
    """Check the wheel's files: Poetry takes what lies in a package and git does not ignore."""
    files = {path for path in (ROOT / "adadepth" / "demos").rglob("*") if path.is_file()}
    assert len([path for path in files if path.suffix == ".safetensors"]) == 4
    assert files <= set(list_project_files())
    assert {"include": "adadepth"} in PYPROJECT["tool"]["poetry"]["packages"]
    assert "exclude" not in PYPROJECT["tool"]["poetry"]


def test_a_wheel_has_the_scripts_that_an_export_copies() -> None:
    """Check that scripts that nothing imports are in the wheel."""
    scripts = {ROOT / "adadepth" / "tasks" / "handover_files" / name for name in ("check.py", "run_transformers.py")}
    assert scripts <= set(list_project_files())
    assert export_formats()["safetensors"].engine in scripts


def test_no_file_names_this_machine() -> None:
    folders = {str(ROOT), str(Path.home())} - {"/"}
    patterns = [rf"(?<![\w./-]){re.escape(folder)}(?![\w-])" for folder in folders]
    patterns += [r"(?<![\w.-])/(?:home|Users)/\w+", r"file:///", r"(?<![\d.])(?:10|192\.168)\.\d+\.\d+\.\d+(?![\d.])"]
    machine = re.compile("|".join(patterns))
    texts = [*map(re.escape, folders), "/home/", "/Users/", "file:///", r"10\.\d+\.\d", r"192\.168\."]
    starts = [re.compile(text) for text in texts]  # each starts with fixed characters, so that a search is fast
    matches = []
    for path in list_project_files():
        if path.suffix in {".png", ".safetensors", ".parquet", ".lock"} or path == Path(__file__).resolve():
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        if any(start.search(text) for start in starts):
            lines = enumerate(text.splitlines(), start=1)
            matches += [f"{path.relative_to(ROOT)}:{number}" for number, line in lines if machine.search(line)]
    assert matches == []


def test_type_checkers_may_read_the_package() -> None:
    assert (ROOT / "adadepth" / "py.typed").is_file()
