"""Commands and code of the README and of the guide, run unchanged except for the debug width."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import TrainingArguments

from adadepth import tasks
from adadepth.run import main
from tests.configs.support import GLUE
from tests.marks_support import mark_mostly_slow
from tests.models_support import make_small_ponder
from tests.training.support import mark_interrupted
from tests.unit.data.tokenizers_support import tokenizer

ROOT = Path(__file__).resolve().parents[2]
PAGES = {page: (ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "docs/guide.md")}
HUB_DATA = "nyu-mll/glue"
NOT_HERE = ("past_present", "ud_english_ewt")  # data that a command names
# Configurations with data of the hub, and a name that their composition must have.
WIKITEXT = "Salesforce/wikitext"
BOOKS = "wikimedia/wikipedia"  # of the published pretraining
ELSEWHERE = {
    **dict.fromkeys(("par_wikitext2", "act_wikitext2", "loop_wikitext2"), WIKITEXT),
    "act_squad": "rajpurkar/squad",
}


def find_blocks(language: str, page: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGES[page], flags=re.DOTALL)


def list_commands(program: str, pages: Iterable[str] = PAGES) -> list[list[str]]:
    """Return the words of every command that starts with `program`, once, without comments and with lines joined."""
    code = [block.replace("\\\n", " ") for page in pages for block in find_blocks("bash", page)]
    lines = [line for block in code for line in block.splitlines()]
    split = dict.fromkeys(tuple(shlex.split(line, comments=True)) for line in lines)
    return [list(words) for words in split if " ".join(words).startswith(program)]


RUNS = [words[2:] for words in list_commands("python adadepth/run.py")]


def run_program(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["adadepth/run.py", *arguments])
    main()


@pytest.fixture(scope="module")
def run_root_once(tmp_path_factory):
    """Return a function that runs a root once, for the commands that continue the latest run."""

    @cache
    def run(root):
        folder = tmp_path_factory.mktemp(root)
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            run_program(patch, "--config-name", root, "debug=default")
        return folder

    return run


def test_the_readme_has_commands():
    assert len(RUNS) >= 30
    assert list_commands("torchrun")
    assert len(find_blocks("python", "docs/guide.md")) == 5
    assert set(find_blocks("python", "README.md")) < set(find_blocks("python", "docs/guide.md"))
    assert len(PAGES["README.md"].splitlines()) <= 150


IN_README = [words[2:] for words in list_commands("python adadepth/run.py", ["README.md"])]
LONGEST = (
    "par_tiny",
    "dataset.path=my_table/",
    "checkpoint=demo:hops",
    "budget.target=5",
    "seed=0,1",
    "exit_rules=[all]",
    "budget.targets=[3,4,5]",
    "logger=[wandb,tensorboard]",
    "estimate.share=0.3",
)


@pytest.mark.parametrize(
    "arguments",
    mark_mostly_slow(RUNS, lambda words: words in IN_README and words[-1] not in LONGEST),
    ids=map(" ".join, RUNS),
)
def test_a_command_of_the_readme_runs(arguments, tmp_path, monkeypatch, capsys, run_root_once):
    monkeypatch.chdir(tmp_path)
    if "--help" in arguments:
        with suppress(SystemExit):
            run_program(monkeypatch, *arguments)
        assert ("learning_rate" if "--config-name" in arguments else "albert_act_mini") in capsys.readouterr().out
        return
    hub_names = (name for name in NOT_HERE if name in " ".join(arguments))
    root = arguments[1] if "--config-name" in arguments else ""
    online = next(hub_names, ELSEWHERE.get(root, HUB_DATA))
    if "preset=paper" in arguments and "mode=estimate" not in arguments:
        online = BOOKS
    if online != HUB_DATA or set(root.split("_")[1:2]) & set(GLUE):
        run_program(monkeypatch, *arguments, "--cfg", "job")
        assert online in capsys.readouterr().out
        return
    if "-m" in arguments or any(argument.startswith("sweep=") for argument in arguments):
        jobs = []
        monkeypatch.setattr(tasks, "run", lambda config: jobs.append(config) or 1.0)
        run_program(monkeypatch, *arguments)
        assert len(jobs) >= 4
        return
    if "dataset=text" in arguments:
        (tmp_path / "my_corpus").mkdir()
        text = "\n\n".join(f"Document {n} has a sentence. It has another one, too." * 3 for n in range(60))
        (tmp_path / "my_corpus" / "a.txt").write_text(text, encoding="utf-8")
        arguments = [*arguments, "tokenizer.vocab_size=50"]
    if "dataset.include_path=examples/lm_eval_tasks" in arguments:
        (tmp_path / "examples").symlink_to(ROOT / "examples")
    if "dataset.path=my_table/" in arguments:
        (tmp_path / "my_table").mkdir()
        rows = "".join(f"sentence number {n} is fine,{n % 2}\n" for n in range(40))
        (tmp_path / "my_table" / "train.csv").write_text(f"text,label\n{rows}", encoding="utf-8")
    if compared := re.findall(r"runs=\[outputs/(\w+)\]", " ".join(arguments)):
        shutil.copytree(run_root_once(*compared), tmp_path, dirs_exist_ok=True)
    if any("latest" in argument for argument in arguments):
        shutil.copytree(run_root_once(arguments[1]), tmp_path, dirs_exist_ok=True)
    if "resume=latest" in arguments:
        mark_interrupted(next(tmp_path.glob("outputs/*/*")))
    if "export.format=gguf" in arguments:
        pytest.importorskip("gguf")
        run_program(monkeypatch, *arguments)
        assert {"model.gguf", "check.py", "check.json"} <= {path.name for path in Path("served").iterdir()}
        return
    if "mode=serve" in arguments:
        opened: list = []
        page = SimpleNamespace(open_page=lambda served, *address: opened.extend(served))
        monkeypatch.setattr("adadepth.contrib.serve.serve.find_spec", lambda name: True)
        monkeypatch.setitem(sys.modules, "adadepth.contrib.serve.page", page)
        run_program(monkeypatch, *arguments, "debug=default")
        assert [list(served.synthetic.sets) for served in opened] == [["inside", "beyond"]]
        return
    capsys.readouterr()
    run_program(monkeypatch, *arguments, "debug=default")
    if "mode=estimate" in arguments:
        assert "tokens per second" in capsys.readouterr().out
        assert not list(tmp_path.iterdir())
        return
    *_, line = re.findall(r"^(?:report|comparison): (.*)$", capsys.readouterr().out, flags=re.MULTILINE)
    assert Path(line).stat().st_size > 10_000
    figures = [path for form in ("png", "gif") for path in Path(line).parent.rglob(f"figures/**/*.{form}")]
    assert all(path.stat().st_size > 1000 for path in figures), figures


@pytest.mark.slow
def test_torchrun_writes_one_folder(tmp_path):
    """Check that two processes agree on the folder, and both end with status 0."""
    (words,) = list_commands("torchrun")
    words[words.index("8")] = "2"
    script = words.index("adadepth/run.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", *words[1:script]]
    arguments = [str(ROOT / words[script]), *words[script + 1 :], "debug=default", "trainer.precision=fp32"]
    arguments += ["dataset=python_docs", "tokenizer=trained"]  # in place of the hub's
    done = subprocess.run([*command, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    (report,) = tmp_path.glob("outputs/act_base/*/report.html")
    assert done.stdout.count(f"report: {report.relative_to(tmp_path)}") == 1


def test_python_blocks_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    first, callback, second, third, rule = find_blocks("python", "docs/guide.md")
    exec(rule, names)
    assert names["StickBreaking"]().mass(0.5, 0.5, step=2) == 0.25
    exec(first, names)
    assert names["outputs"].updates.shape == (2, 12)
    assert set(names["outputs"].loss_parts) == {"task", "ponder"}
    inputs = {"input_ids": torch.randint(5, 8000, (12,)), "labels": torch.tensor(1)}
    names |= {"train": [inputs], "dev": [inputs]}
    names["args"] = TrainingArguments(max_steps=1, report_to="none", save_strategy="no", use_cpu=True)
    exec(callback, names)
    assert names["trainer"].evaluate()["eval_halting/all/n"] == 12
    capsys.readouterr()
    exec(second, names)
    assert names["outputs"].logits.shape == (2, 2)
    assert names["outputs"].exit_steps.shape == (2,)
    for part in (make_small_ponder(), tokenizer("bert")):
        part.save_pretrained("outputs/ponder_tiny/RUN/model")
    exec(third, names)
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    commands_of_pages = "\n".join(block for page in PAGES for block in find_blocks("bash", page))
    for target in re.findall(r"^make (\w+)", commands_of_pages, flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


@pytest.mark.parametrize("page", PAGES)
def test_links_have_targets(page):
    for path in re.findall(r"\]\((?!http)([^)#]+)", PAGES[page]):
        assert ((ROOT / page).parent / path).exists(), path


@pytest.mark.slow
def test_two_precisions_run_in_one_process(tmp_path, monkeypatch):
    """Run a second job of another precision in the same process, each with its own folder and W&B run."""
    monkeypatch.chdir(tmp_path)
    arguments = ("--config-name", "act_tiny", "debug=default", "logger=wandb", "-m", "trainer.precision=bf16,fp32")
    run_program(monkeypatch, *arguments)
    assert len([*tmp_path.glob("outputs/act_tiny/*/run.json")]) == 2
    assert len([*tmp_path.glob("outputs/act_tiny/*/wandb/offline-run-*")]) == 2
