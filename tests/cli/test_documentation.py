"""The documentation builds without a warning, and its notebooks run unchanged."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.configs.support import configured
from tests.marks_support import keep_one_quick

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
METHOD = "halting_unit"  # the tutorial of a method, which is no family
FAMILIES = [path for path in TUTORIALS if path.stem != METHOD]


def test_every_family_of_the_readme_has_a_tutorial():
    assert [path.stem for path in FAMILIES] == [
        "act_albert", "adalayers", "early_exit", "looped", "par_xl", "ponder_albert", "routing", "trm",
    ]  # fmt: skip


def test_every_page_is_in_the_menu_of_the_site():
    menu = set(re.findall(r"[\w/]+\.(?:md|ipynb)", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    assert {path.name for path in (ROOT / "docs").glob("*.md")} <= menu


@pytest.mark.parametrize("page", [path.stem for path in FAMILIES])
def test_page_and_tutorial_of_a_family_begin_with_its_reference(page):
    """Check that the page quotes lines of the file, and that the first code of the tutorial runs it."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    assert re.search(r"^## (.*)$", text, re.MULTILINE)[1] == "Reference"
    path, code = re.search(r"\[`reference\.py`\]\(\.\./(\S+)\).*?```python\n(.*?)```", text, re.DOTALL).groups()
    source = [line.strip() for line in (ROOT / path).read_text(encoding="utf-8").splitlines()]
    quoted = [[line.strip() for line in part.splitlines()] for part in code.split("\n\n\n")]
    for lines in quoted:
        assert any(source[start : start + len(lines)] == lines for start in range(len(source)))
    cells = json.loads((ROOT / "docs" / "tutorials" / f"{page}.ipynb").read_text(encoding="utf-8"))["cells"]
    first = next("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    module = path.removesuffix("/reference.py").replace("/", ".")
    assert f"from {module} import reference" in first
    assert "reference.forward(" in first


@pytest.mark.parametrize("tutorial", keep_one_quick(3, FAMILIES), ids=lambda path: path.stem)
def test_commands_of_a_tutorial_compose(tutorial):
    """Check the commands, so that a renamed key fails before the slow test runs it."""
    cells = json.loads(tutorial.read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    lines = re.findall(r"!adadepth --config-name ([^>|]*)[>|]", code)
    assert len(lines) >= (tutorial.stem != "par_xl") + 1
    for line in lines:
        root, *overrides = shlex.split(re.sub(r"\{\w+\}|latest", "somewhere", line.replace(" 2", " ")))
        configured(root, *overrides)


def test_the_tutorial_of_a_method_has_the_code_of_its_example():
    cells = json.loads((ROOT / "docs" / "tutorials" / f"{METHOD}.ipynb").read_text(encoding="utf-8"))["cells"]
    code = next("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    example = (ROOT / "examples" / "first_paper" / "accumulator.py").read_text(encoding="utf-8")
    assert code == f"%%writefile accumulator.py\n{example.rstrip()}"


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_tutorials_need_no_tool_that_only_linux_has(tutorial):
    cells = json.loads(tutorial.read_text(encoding="utf-8"))["cells"]
    commands = re.findall(r"^\s*[!%].*", "\n".join("".join(cell["source"]) for cell in cells), re.MULTILINE)
    tools = {tool for line in commands for tool in re.findall(r"(?:^\s*!|\| *)([\w/.-]+)", line)}
    assert tools <= {"adadepth", "python", "grep", "sed", "tail"}
    assert not [line for line in commands if re.search(r"sed -i|grep -\w*P", line)]


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_tutorials_have_clean_stored_outputs(tutorial):
    """Check the stored outputs that the site shows: no error, no path of somebody's machine and no progress bar."""
    nbformat = pytest.importorskip("nbformat")
    code = [cell for cell in nbformat.read(tutorial, as_version=4).cells if cell.cell_type == "code"]
    kinds = [output.output_type for cell in code for output in cell.outputs]
    printed = "".join(output.get("text", "") for cell in code for output in cell.outputs)
    assert "stream" in kinds
    assert "error" not in kinds
    assert not re.search(r"(^|\s)/\w+/|\d+it/s", printed)


@pytest.mark.tutorial
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_runs(tutorial, tmp_path, monkeypatch):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    # The command and the package of this environment, here and not elsewhere.
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(tutorial, as_version=4)
    nbclient.NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(tmp_path)}}).execute()


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for page in ("index.html", "reference/halting/index.html", "tutorials/par_xl/index.html", "log/index.html"):
        assert (tmp_path / "site" / page).stat().st_size > 10_000
