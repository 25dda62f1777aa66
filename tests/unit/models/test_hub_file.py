"""The code file of a saved model: it names the required package, and contains and runs no model code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModelForSequenceClassification

from adadepth import Pipeline, PonderAlbertForSequenceClassification
from adadepth.errors import CheckpointError
from adadepth.models.registry import families
from tests.models_support import make_small_ponder
from tests.unit.data.tokenizers_support import tokenizer

ROOT = Path(__file__).resolve().parents[3]
LOAD = "from transformers import AutoModelForSequenceClassification as M; m = M.from_pretrained({place!r}{options})"
# Loading a model imports neither the command line, whose parser takes 0.1 s, nor further libraries.
NOT_FOR_A_MODEL = {"hydra", "omegaconf", "antlr4", "sklearn", "pandas", "peft", "pytorch_optimizer", "rich", "wandb",
                   "evaluate", "datasets", "typst", "seqeval"}  # fmt: skip
HIDE = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "adadepth":
            raise ModuleNotFoundError("No module named 'adadepth'")
sys.meta_path.insert(0, Hidden())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_small_ponder(exit_rule="quantile:0.5").save_pretrained(tmp_path / "model")
    tokenizer("bert").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def run_code(code: str, home: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"HF_HOME": str(home), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=home, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_without_the_package_the_error_names_it(folder: Path, tmp_path: Path) -> None:
    path = str(folder)
    code = f"{HIDE}\ntry:\n    {LOAD.format(place=path, options='')}\nexcept ValueError as error:\n    print(error)\n"
    process = run_code(code + LOAD.format(place=path, options=", trust_remote_code=True"), tmp_path)
    assert "trust_remote_code=True" in process.stdout
    message = "this model needs the package adadepth; install it from a clone or a wheel, then `import adadepth`"
    assert process.stderr.strip().splitlines()[-1] == f"ImportError: {message}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "imports",
    ["import adadepth, transformers", "import transformers.pipelines, adadepth"],
)
def test_importing_the_package_is_enough(imports: str, folder: Path, tmp_path: Path) -> None:
    code = f"""
import sys
{imports}
if {imports.startswith("import adadepth")}:
    assert not {{"torch", "transformers.models.auto"}} & set(sys.modules)
    adadepth.AlbertActConfig, adadepth.AlbertActModel
    assert not {NOT_FOR_A_MODEL} & set(sys.modules)
found = transformers.pipeline("text-classification", {str(folder)!r})
assert found("a cat")[0]["label"]
print(type(found.model).__module__, type(transformers.AutoConfig.for_model("albert_act")).__name__)
"""
    process = run_code(code, tmp_path)
    assert process.returncode == 0, process.stderr
    assert process.stdout.split()[-2:] == [PonderAlbertForSequenceClassification.__module__, "AlbertActConfig"]


@pytest.mark.slow
def test_trusted_code_imports_the_package_and_is_not_copied(folder: Path, tmp_path: Path) -> None:
    code = LOAD.format(place=str(folder), options=", trust_remote_code=True")
    process = run_code(f"{code}; print(type(m).__module__); m.save_pretrained({str(tmp_path / 'again')!r})", tmp_path)
    assert process.returncode == 0, process.stderr
    assert process.stdout.split() == [PonderAlbertForSequenceClassification.__module__]
    assert {path.name for path in (tmp_path / "again").iterdir()} == {
        "config.json", "model.safetensors", "modeling_adadepth.py",
    }  # fmt: skip


def test_loading_a_folder_asks_for_and_runs_no_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "modeling_adadepth.py").write_text("raise SystemExit('code of a folder has run')\n", encoding="utf-8")
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked whether to run code"))
    AutoModelForSequenceClassification.from_pretrained(folder)
    assert Pipeline.from_pretrained(folder)("a cat")[0].label is not None
    (folder / "config.json").write_text(
        json.dumps(json.loads((folder / "config.json").read_text()) | {"model_type": "of_nobody"}), encoding="utf-8"
    )
    with pytest.raises(CheckpointError, match="unknown model_type"):
        Pipeline.from_pretrained(folder)


@pytest.mark.parametrize(
    "name", [name for name, descriptor in families().items() if descriptor.config().__module__.startswith("adadepth")]
)
def test_the_auto_classes_of_every_family_exist(name: str, tmp_path: Path) -> None:
    import adadepth

    descriptor = families()[name]
    config_class = getattr(adadepth, descriptor.config().__name__)
    assert config_class is descriptor.config()
    config_class().save_pretrained(tmp_path)
    auto_map = json.loads((tmp_path / "config.json").read_text())["auto_map"]
    assert set(auto_map) == {"AutoConfig", *descriptor.auto_classes()}
    assert all(hasattr(adadepth, reference.removeprefix("modeling_adadepth.")) for reference in auto_map.values())
    assert type(AutoConfig.from_pretrained(tmp_path)) is config_class
