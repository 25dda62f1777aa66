"""Families that lack a member of the contract: a one-line error before any data are prepared."""

from __future__ import annotations

import ast
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.marks_support import keep_one_quick
from tests.toy_support import DATA, ROOT, SMALL, TOY, execute, install_toy_family

MODELING = Path("adadepth_router") / "modeling.py"
HEAD, BASE = "RouterForTokenClassification", "RouterPreTrainedModel"
OWN = f"error: model=router: {HEAD}: "
OUTPUT = f"error: model=router: the output of {HEAD}: "


@contextmanager
def install_modeling(folder: Path, source: str) -> Iterator[None]:
    """Install the toy family with another `modeling.py`."""
    victim = folder / "victim"
    shutil.copytree(TOY, victim, ignore=shutil.ignore_patterns("__pycache__"))
    (victim / MODELING).write_text(source, encoding="utf-8")
    (folder / "site").mkdir()
    _forget_modules()
    with install_toy_family(folder / "site", victim):
        yield
    _forget_modules()


def _forget_modules() -> None:
    """Forget the package's modules, so that they are imported again."""
    for name in [name for name in sys.modules if name.partition(".")[0] == MODELING.parent.name]:
        del sys.modules[name]


def remove_member(member: str) -> str:
    """Return the modeling of the toy family whose first head lacks a member."""
    tree = ast.parse((TOY / MODELING).read_text(encoding="utf-8"))
    heads = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name in (HEAD, BASE)]
    (owner,) = (head for head in heads if any(member in list_names(node) for node in head.body))
    owner.body = [node for node in owner.body if member not in list_names(node)]
    return ast.unparse(tree)


def list_names(node: ast.stmt) -> list[str]:
    """Return the names that a statement of a class defines."""
    if isinstance(node, ast.FunctionDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def run_and_read_error(folder: Path, source: str, patch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> str:
    """Return the one line that a run ends with before it prepares data."""

    def fail(*args: object, **options: object) -> None:
        raise AssertionError("data were prepared")

    patch.setattr("adadepth.tasks.finetune.load_labelled_data", fail)
    output = folder / "outputs"
    with install_modeling(folder, source):
        assert execute(*ROOT, *DATA, f"output_dir={output}") == 2
    line = capfd.readouterr().err
    assert line.count("\n") == 1
    assert not output.exists() or list(output.iterdir()) == []
    return line


@pytest.mark.slow
@pytest.mark.parametrize(("member", "words"), [
    ("depth_unit", "it must be one of token, sequence, task, architecture"),
    ("max_updates", "it must be a whole number of at least 1"),
    ("longest_sequence", "it must be a whole number of at least 1, or None"),
    ("vocabulary_size", "it must be a whole number of at least 1, or None"),
    ("count_targets", "it must be a method: Return the number of targets in a batch"),
    ("price", "it must be a method: Return the multiply-accumulates (MACs) of a batch"),
    ("forward", "it must be a method: from a batch to outputs"),
    ("count_units", "it must be a method: Return the number of units in a batch"),
    ("soft_depth", "it must be a method: Return a differentiable approximation of the depth"),
    ("set_depth_level", "it must be a method: Set the depth threshold to a level"),
    ("depth_knob", "it must be a string: Name of the parameter that adjusts the depth"),
])  # fmt: skip
def test_a_missing_member_is_named(
    member: str, words: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    line = run_and_read_error(tmp_path, remove_member(member), monkeypatch, capfd)
    assert line.startswith(f"{OWN}{member} is missing; {words}"), line


@pytest.mark.parametrize(("old", "new", "words"), keep_one_quick(10, [
    ('depth_unit = "token"', 'depth_unit = "word"', "depth_unit='word' must be one of token, sequence"),
    ('exit_signals = frozenset({"logits"})', 'exit_signals = "logits"', "exit_signals='logits' must be a frozenset"),
    ("    def price(self, trace: DepthTrace) -> Work:", "    price = 3.0\n    def cost(self, trace):",
     "price is not a method; it must be a method"),
    ("num_targets: Mapping[str, Tensor] | None = None,", "", "forward must accept num_targets"),
    ("        return self.config.num_hidden_layers", '        return "four"',
     "max_updates='four' must be a whole number of at least 1"),
    ("        return self.config.max_position_embeddings", "        return 0.5",
     "longest_sequence=0.5 must be a whole number of at least 1, or None"),
    ("        return self.config.vocab_size", "        return 0",
     "vocabulary_size=0 must be a whole number of at least 1, or None"),
    ("SteppedAlbert", "SteppedAlbertModel",
     "albert must be an encoder part, not the model SteppedAlbertModel, which initialises its weights before"),
    ("DepthKnob, HoldsBudget, PreTrainedModel", "PreTrainedModel", "must extend adadepth.models.contract.DepthModel"),
    ("DepthKnob, HoldsBudget, PreTrainedModel", "DepthKnob, PreTrainedModel",
     "error: model=router: its budget needs a model that extends adadepth.models.contract.HoldsBudget"),
]))  # fmt: skip
def test_a_wrong_member_is_named(
    old: str, new: str, words: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    source = (TOY / MODELING).read_text(encoding="utf-8")
    assert old in source
    line = run_and_read_error(tmp_path, source.replace(old, new), monkeypatch, capfd)
    assert line.startswith(words if words.startswith("error") else f"{OWN}{words}"), line


@pytest.mark.parametrize(("old", "new", "words"), keep_one_quick(4, [
    ("trace=stepper.trace(), ", "", f"{OUTPUT}trace must be a DepthTrace, not NoneType"),
    ("        return output\n", "        output.logits = None\n        return output\n",
     f"{OUTPUT}logits must be (B, T, C), not NoneType"),
    ("output.loss, output.loss_parts =", "output.loss, _ =", f"{OUTPUT}loss_parts must be a dictionary"),
    ('DepthTrace("token"', 'DepthTrace("sequence"', f"{OUTPUT}trace must have unit token, as declared by the model"),
]))  # fmt: skip
def test_faults_of_the_first_batch_are_named(
    old: str, new: str, words: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    source = (TOY / MODELING).read_text(encoding="utf-8")
    assert old in source
    with install_modeling(tmp_path, source.replace(old, new)):
        assert execute(*ROOT, *SMALL, f"output_dir={tmp_path / 'outputs'}", "trainer.eval_on_start=false") == 2
    errors = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error")]
    assert len(errors) == 1
    assert errors[0].startswith(words), errors
