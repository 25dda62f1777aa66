"""`mode=evaluate dataset=harness`: scores as the harness alone computes them, and the depth they took."""

from __future__ import annotations

import csv
import json
import shutil
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from adadepth import tasks
from adadepth.contrib.harness.compute import cut_trace
from adadepth.contrib.harness.evaluate import silence_harness
from adadepth.contrib.harness.settings import HarnessConfig
from adadepth.errors import CheckpointError, ConfigError, DataError
from adadepth.evaluation.exit_cost import count_reading_macs
from adadepth.halting.exit_rules import parse_rule
from tests.configs.support import configured
from tests.plugins_support import install_package
from tests.unit.models.early_exit import early_exit_support
from tests.unit.models.looped import looped_support
from tests.unit.models.par_xl_support import build_network, build_supernet
from tests.unit.models.routed import routed_support

ROOT = Path(__file__).resolve().parents[3]
LENGTH, BATCH, LIMIT = 384, 3, 2
needs_harness = pytest.mark.skipif(find_spec("lm_eval") is None, reason="needs the extra companions")

CONTINUE = """
task: continue_line
custom_dataset: !function python_docs.endings
output_type: generate_until
test_split: test
doc_to_text: start
doc_to_target: "{{endings[label]}}"
generation_kwargs: {until: ["z"], max_gen_toks: 6}
metric_list: [{metric: exact_match}]
"""


@pytest.fixture(scope="module", autouse=True)
def _install_entry_points(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Install the entry points of pyproject.toml, which an editable installation has from the day it was made."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    folder = tmp_path_factory.mktemp("installed")
    with install_package(folder, project["name"], project["entry-points"], version=project["version"]):
        yield


@cache
def build_byte_tokenizer() -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = Tokenizer(models.BPE({piece: number for number, piece in enumerate([*alphabet, "<end>"])}, []))
    pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return PreTrainedTokenizerFast(tokenizer_object=pieces, eos_token="<end>", model_max_length=LENGTH)


BUILD: dict[str, Any] = {
    "loop_tiny": lambda: looped_support.build_looped(vocab_size=257, **looped_support.OURO),
    "exit_tiny": lambda: early_exit_support.build_early_exit(vocab_size=257, max_position_embeddings=LENGTH),
    "mor_tiny": lambda: routed_support.build_routed(
        vocab_size=257, max_position_embeddings=LENGTH, **routed_support.RECURSIONS
    ).float(),
    "par_network": lambda: build_network(vocab_size=257),
}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Save a language model of every family with its tokenizer, and return the folders."""
    folders = {name: tmp_path_factory.mktemp(name) for name in BUILD}
    for name, folder in folders.items():
        BUILD[name]().save_pretrained(folder)
        build_byte_tokenizer().save_pretrained(folder)
    return folders


@pytest.fixture(scope="module")
def task_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the tasks of the examples and one of generation."""
    folder = tmp_path_factory.mktemp("tasks")
    shutil.copytree(ROOT / "examples" / "lm_eval_tasks", folder, dirs_exist_ok=True)
    (folder / "continue_line.yaml").write_text(CONTINUE, encoding="utf-8")
    return folder


def evaluate(root: str, checkpoint: Path, task_folder: Path, out: Path, *overrides: str) -> Path:
    """Return the folder of an evaluation's run."""
    names = [word for word in overrides if word.startswith("dataset.tasks=")] or [
        "dataset.tasks=[python_docs,python_docs_endings]"
    ]
    tasks.run(
        configured(
            root, "mode=evaluate", f"checkpoint={checkpoint}", "dataset=harness", *names,
            f"dataset.include_path={task_folder}", "runtime.trust_remote_code=true",
            f"dataset.limit={LIMIT}", f"dataset.max_length={LENGTH}",
            f"trainer.per_device_eval_batch_size={BATCH}", "trainer.use_cpu=true", "trainer.disable_tqdm=true",
            f"output_dir={out}", *(word for word in overrides if word not in names),
        )
    )  # fmt: skip
    (directory,) = out.glob("*/*")
    return directory


def score_alone(checkpoint: Path, task_folder: Path, task: str, rule: str | None = None) -> dict[str, Any]:
    """Return the harness's results for a saved model without this package's evaluation."""
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    model: Any = AutoModelForCausalLM.from_pretrained(checkpoint)
    if rule is not None:
        model.config.exit_rule = rule
    lm = HFLM(model, tokenizer=AutoTokenizer.from_pretrained(checkpoint), max_length=LENGTH, batch_size=BATCH)
    manager = TaskManager(include_path=str(task_folder), include_defaults=False)
    with silence_harness():
        results: Any = simple_evaluate(lm, tasks=[task], limit=LIMIT, task_manager=manager, log_samples=False)
    assert "pretty_env_info" not in results, "pip was started"
    assert results["git_hash"] is None, "git was started"
    return results["results"][task]


def check_equal_scores(row: dict[str, Any], alone: dict[str, Any]) -> None:
    """Check that scores are equal to the last digit."""
    assert {f"{metric},none" for metric in row["scores"]} == {
        key for key in alone if "," in key and "_stderr" not in key
    }
    for metric, score in row["scores"].items():
        assert score["value"] == alone[f"{metric},none"], metric
        stderr = alone[f"{metric}_stderr,none"]
        assert score["stderr"] == (None if stderr == "N/A" else stderr), metric


@needs_harness
@pytest.mark.parametrize(
    ("root", "rule", "most"),
    [("loop_tiny", "margin:0.02", 4), pytest.param("exit_tiny", "margin:0.05", 4, marks=pytest.mark.slow)],
)
def test_scores_are_those_of_the_harness_alone(
    checkpoints: dict[str, Path], task_folder: Path, tmp_path: Path, root: str, rule: str, most: int
) -> None:
    checkpoint = checkpoints[root]
    directory = evaluate(root, checkpoint, task_folder, tmp_path, f"exit_rules=[fixed:1,{rule}]")
    rows = {(row["task"], row["rule"]): row for row in read_results(directory)["rows"]}
    assert {name for name, _ in rows} == {"python_docs", "python_docs_endings"}
    for task in ("python_docs", "python_docs_endings"):
        full, one, adaptive = (rows[task, name] for name in (f"fixed:{most}", "fixed:1", rule))
        check_equal_scores(full, score_alone(checkpoint, task_folder, task))
        check_equal_scores(adaptive, score_alone(checkpoint, task_folder, task, rule))
        assert (full["mean_updates"], full["compute"], one["mean_updates"]) == (most, 1.0, 1.0)
        assert 1.0 < adaptive["mean_updates"] < most
        assert one["compute"] < adaptive["compute"]
        assert full["tokens"] == one["tokens"] == adaptive["tokens"]
        assert full["n"] == LIMIT
    check_published(directory, len(rows))


def read_results(directory: Path) -> dict[str, Any]:
    results: dict[str, Any] = json.loads((directory / "harness.json").read_text(encoding="utf-8"))
    return results


def check_published(directory: Path, count: int) -> None:
    """Check that the table, the record and the report have the rows, and that the report can be written again."""
    table = list(csv.DictReader((directory / "harness.csv").read_text(encoding="utf-8").splitlines()))
    assert len(table) == count
    record = json.loads((directory / "run.json").read_text(encoding="utf-8"))
    for row in table:
        name = f"harness/{row['task']}/{row['rule']}"
        metric = "acc" if row["acc"] else "word_perplexity"
        assert record["final_metrics"][f"{name}/{metric}"] == float(row[metric])
        assert record["final_metrics"][f"{name}/mean_updates"] == float(row["mean_updates"])
    page = (directory / "report.html").read_text(encoding="utf-8")
    assert "Scores of lm-evaluation-harness" in page
    assert "no final metrics" not in page
    assert f"max_length {LENGTH}" in page
    assert (directory / "figures" / "harness.png").is_file()
    tasks.run(configured("loop_tiny", "mode=report", f"run={directory}"))


@needs_harness
@pytest.mark.parametrize("root", [pytest.param("mor_tiny", marks=pytest.mark.slow), "par_network"])
def test_models_without_exit_rules_have_one_row_per_task(
    checkpoints: dict[str, Path], task_folder: Path, tmp_path: Path, root: str
) -> None:
    checkpoint = checkpoints[root]
    results = read_results(evaluate(root, checkpoint, task_folder, tmp_path))
    assert [(row["task"], row["rule"]) for row in results["rows"]] == [
        ("python_docs", "as trained"), ("python_docs_endings", "as trained"),
    ]  # fmt: skip
    for row in results["rows"]:
        check_equal_scores(row, score_alone(checkpoint, task_folder, row["task"]))
        assert 0 < row["mean_updates"] < results["max_updates"]
        assert 0 < row["compute"] < 1


@needs_harness
@pytest.mark.parametrize("root", ["loop_tiny", pytest.param("exit_tiny", marks=pytest.mark.slow)])
def test_generated_tokens_are_measured(
    checkpoints: dict[str, Path], task_folder: Path, tmp_path: Path, root: str
) -> None:
    checkpoint = checkpoints[root]
    directory = evaluate(
        root, checkpoint, task_folder, tmp_path, "dataset.tasks=[continue_line]", "exit_rules=[fixed:1]"
    )
    full, one = read_results(directory)["rows"]
    check_equal_scores(full, score_alone(checkpoint, task_folder, "continue_line"))
    assert (full["mean_updates"], one["mean_updates"]) == (4.0, 1.0)
    assert 0 < one["tokens"] <= 6 * LIMIT
    assert full["compute"] == 1.0


def test_padding_has_no_compute() -> None:
    """Compare two texts together with the two alone: they have the same compute."""
    model = looped_support.build_looped(**looped_support.OURO)
    rule, lengths = parse_rule("margin:0.02"), [9, 4]
    together = model(looped_support.IDS[:2], exit_rule=rule)
    alone = [model(looped_support.IDS[row : row + 1, :length], exit_rule=rule) for row, length in enumerate(lengths)]
    trace = cut_trace(together.trace, lengths)
    work = model.price(trace)
    parts = [model.price(output.trace) for output in alone]
    assert float(work.adaptive) == pytest.approx(sum(float(part.adaptive) for part in parts))
    assert float(work.full) == pytest.approx(sum(float(part.full) for part in parts))
    tokens = torch.tensor([9] * 9 + [4] * 4)
    steps = together.exit_steps[trace.valid]
    once, always = (count_reading_macs(model, tokens, steps, reads) for reads in ((), ("logits",)))
    assert always == pytest.approx(once / len(tokens) * float(steps.sum()))


EVALUATED = ("mode=evaluate", "checkpoint=folder", "dataset=harness")
NAMED = (*EVALUATED, "dataset.tasks=[wikitext]")


@pytest.mark.parametrize(("root", "overrides", "expected"), [
    ("loop_tiny", [*EVALUATED],
     "dataset.tasks=[]: required by dataset=harness, e.g. 'dataset.tasks=[wikitext,arc_easy]'"),
    ("loop_tiny", [*EVALUATED, "dataset.tasks=[a,b,a]"], "dataset.tasks=['a', 'b', 'a']: a is named twice"),
    ("loop_tiny", [*NAMED, "dataset.include_path=nowhere"], "dataset.include_path=nowhere: no such folder"),
    (
        "loop_tiny",
        [*NAMED, "dataset.include_path=."],
        "dataset.include_path=.: the harness runs code of its tasks; to allow it, set runtime.trust_remote_code=true",
    ),
    ("loop_tiny", [*NAMED, "dataset.sequence_length=64"],
     "dataset.sequence_length=64: not used with dataset=harness; set dataset.max_length"),
    ("loop_tiny", [*NAMED, "budget.targets=[3]"], "budget.targets=[3.0]: not used with dataset=harness"),
    ("loop_tiny", ["dataset=harness", "dataset.tasks=[wikitext]"],
     "dataset=harness: read with mode=evaluate checkpoint=latest only"),
    ("act_tiny", [*NAMED],
     "dataset=harness: read by causal language models only, e.g. --config-name loop_tiny, not with task=pretrain"),
])  # fmt: skip
def test_a_wrong_setting_is_a_one_line_error(
    root: str, overrides: list[str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adadepth.contrib.harness.settings.find_spec", lambda name: name)
    with pytest.raises(ConfigError) as raised:
        configured(root, *overrides)
    assert str(raised.value) == expected


def test_a_missing_harness_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adadepth.contrib.harness.settings.find_spec", lambda name: None)
    with pytest.raises(ConfigError) as raised:
        configured("loop_tiny", *NAMED)
    assert str(raised.value) == (
        "dataset=harness: the package lm_eval is missing; install it with pip install 'adadepth[companions]'"
    )


@needs_harness
def test_a_misspelt_task_is_an_error_with_the_nearest_name(task_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lm_eval import tasks as harness_tasks

    from adadepth.contrib.harness.evaluate import load_tasks

    index = harness_tasks.TaskManager(include_path=str(task_folder), include_defaults=False)
    monkeypatch.setattr(harness_tasks, "TaskManager", lambda **options: index)  # the harness' own takes seconds
    with pytest.raises(ConfigError) as raised:
        load_tasks(HarnessConfig(tasks=["python_doc"], include_path=str(task_folder)))
    assert str(raised.value) == (
        f"dataset.tasks=python_doc: not a task of the harness or of dataset.include_path={task_folder} "
        "(did you mean 'python_docs'?)"
    )


@needs_harness
def test_unscorable_models_are_a_one_line_error(
    checkpoints: dict[str, Path], task_folder: Path, tmp_path: Path
) -> None:
    build_supernet(vocab_size=257).save_pretrained(tmp_path / "supernet")
    build_byte_tokenizer().save_pretrained(tmp_path / "supernet")
    with pytest.raises(CheckpointError, match="holds ParXLSupernet; dataset=harness needs a causal language model"):
        evaluate("par_network", tmp_path / "supernet", task_folder, tmp_path / "search", "model.architecture=null")
    with pytest.raises(ConfigError, match="has no exit rules"):
        evaluate("par_network", checkpoints["par_network"], task_folder, tmp_path / "par", "exit_rules=[fixed:1]")
    endings, broken = "dataset.tasks=[python_docs_endings]", "dataset.tasks=[broken]"
    with pytest.raises(DataError, match=r"dataset\.max_length=8: a scored text has \d+ tokens"):
        evaluate("loop_tiny", checkpoints["loop_tiny"], task_folder, tmp_path / "a", endings, "dataset.max_length=8")
    (task_folder / "broken.yaml").write_text("task: broken\ndataset_path: nowhere\noutput_type: loglikelihood\n")
    with pytest.raises(DataError, match=r"dataset\.tasks=broken: cannot be loaded \("):
        evaluate("loop_tiny", checkpoints["loop_tiny"], task_folder, tmp_path / "b", broken)


def test_the_keys_of_the_harness_are_frozen() -> None:
    """Compare the keys here: the list of the core's keys (tests/configs/public_keys.txt) has none of a removable
    folder.
    """
    keys = list(HarnessConfig.__annotations__)
    assert keys == ["name", "tasks", "include_path", "limit", "num_fewshot", "max_length"]
