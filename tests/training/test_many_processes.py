"""Whole trainings of every family by several processes, replicated or sharded, against one process on the same batches.

docs/scaling.md has the table whose cells these are.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load_file

from adadepth.runs.checkpoints import MANIFEST, find_checkpoint_error
from tests.training.support import mark_interrupted
from tests.training.whole_runs import launch, try_to_launch

BATCH = 4  # examples of a step, however many processes share them
COMMON = (
    "debug=default", "trainer.disable_tqdm=true", "trainer.logging_steps=1", "trainer.max_steps=4",
    "trainer.eval_strategy=no", "trainer.eval_on_start=false", "trainer.load_best_model_at_end=false",
    "trainer.save_strategy=steps", "trainer.save_steps=2", "trainer.save_total_limit=null",
)  # fmt: skip
DRAWN = (
    "model.train_loops=drawn", "model.backprop_loops=2", "model.objective=last", "model.core=1",
    "model.injection=linear",
)  # fmt: skip
NO_DROPOUT = ("model.hidden_dropout_prob=0", "model.classifier_dropout_prob=0")
FAMILIES = {
    "act": ("act_tiny", "dataset.max_documents=12"),
    "act, LAMB": ("act_tiny", "dataset.max_documents=12", "trainer.optimizer=lamb"),
    "act, Muon": (  # with small steps, because Muon rounds its updates to bfloat16
        "act_tiny", "dataset.max_documents=12", "trainer.optimizer=muon", "trainer.muon_learning_rate=1e-4",
    ),
    "act, a budget": (
        "act_tiny", "dataset.max_documents=12", "model.act_penalty=0", "budget.target=2", "budget.grow=0.5",
        "budget.hold=0", "budget.ramp=0",
    ),
    "act, a fixed depth": (
        "act_tiny", "dataset.max_documents=12", "model.act_penalty=0", "model.fixed_depth=2", "budget=none",
    ),
    "ponder": ("ponder_tiny", "dataset.max_evaluation_examples=6", "predictions=true"),
    "ponder, recurrent": ("ponder_parity",),
    "several exits": ("ponder_tiny", "model=pabee_mini", *NO_DROPOUT),
    "adalayers": ("adalayers_tiny", "model.attention_dropout_prob=0", "dataset.max_evaluation_examples=6"),
    "trm": ("trm_tiny", "dataset.train_examples=64", "dataset.max_evaluation_examples=16", "trainer.ema_decay=0.5",
            "model.exploration=0.5"),
    "par, a network": (
        "par_network", "model.architecture=sf-s", "dataset.evaluation_length=null", "model.hidden_dropout_prob=0",
    ),
    "par, a search": (
        "par_tiny", "search.baselines=[alternating]", "search.method=joint", "model.hidden_dropout_prob=0",
    ),
    "looped": ("loop_tiny",),
    "looped, drawn": ("loop_tiny", *DRAWN),
    "early exit": (
        "exit_tiny", "model.num_hidden_layers=3", "model.exit_layers=null", "model.exit_heads=own",
        "model.exit_curriculum=rotational", "model.rotation=2",
    ),
    "routed": ("mor_tiny",),
    "routed, a bias": ("mor_tiny", "model.router=token", "model.balance=bias", "model.bias_step=0.1"),
    "looped, tags": ("act_hops", "model=looped_mini", "budget=none", *DRAWN),
}  # fmt: skip


class Kind(NamedTuple):
    """Number of processes, and whether they shard the parameters."""

    processes: int
    sharded: bool = False

    def __str__(self) -> str:
        return f"{'FSDP' if self.sharded else 'DDP'} {self.processes}" if self.processes > 1 else "1"


ONE = Kind(1)
KINDS = (Kind(2), Kind(4), Kind(2, sharded=True), Kind(4, sharded=True))
CHANGES = ((Kind(2), ONE), (ONE, Kind(2)), (Kind(2, sharded=True), ONE), (ONE, Kind(2, sharded=True)))


def list_cases(kinds):
    return [(family, kind) for family in FAMILIES for kind in kinds if not is_left_out(family, kind)]


def format_case(value):
    """Return the name of a case, such as "DDP 2 to 1"."""
    return " to ".join(map(str, value)) if isinstance(value, tuple) and not isinstance(value, Kind) else str(value)


def is_left_out(family, kind):
    """Return whether a family is not trained this way.

    A search is not sharded; a finished one, which a test would cut short, has no second step to go back to. Parameters
    that Muon trains are not sharded either.
    """
    if family == "act, Muon":
        return any(member.sharded for member in ((kind,) if isinstance(kind, Kind) else kind))
    return family == "par, a search" and (not isinstance(kind, Kind) or kind.sharded)


def train(family, kind, *overrides):
    """Train with some processes in a new folder, and return the folder of the run."""
    folder = mkdtemp(prefix="run-", dir=_make_folder())
    launch(["--config-name", *build_command(family, kind), f"output_dir={folder}", *overrides], kind.processes)
    (run,) = Path(folder).glob("*/*")
    return run


def build_command(family, kind):
    root, *overrides = FAMILIES[family]
    return [root, *COMMON, *overrides, *list_sharding_overrides(kind)]


def list_sharding_overrides(kind):
    rows = BATCH // kind.processes
    sizes = (f"trainer.per_device_{split}_batch_size={rows}" for split in ("train", "eval"))
    return (*sizes, f"trainer.fsdp={str(kind.sharded).lower()}")


@cache
def _make_folder() -> str:
    return mkdtemp(prefix="many-processes-")


@cache
def train_once(family, kind):
    """Return the run of a training that several tests read and none changes."""
    return train(family, kind)


def train_on_one(family):
    return train_once(family, ONE)


def copy_run(family, kind):
    """Return a copy of a run, which a test may change."""
    run = train_once(family, kind)
    return Path(shutil.copytree(run, Path(mkdtemp(prefix="copy-", dir=_make_folder()), run.parent.name, run.name)))


@pytest.fixture(scope="module", autouse=True)
def _remove_folder() -> Iterator[None]:
    yield
    shutil.rmtree(_make_folder(), ignore_errors=True)


def read_losses(run):
    """Return training losses and gradient norms by step, and the losses of the final evaluation."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    names = ("train/loss", "train/grad_norm")
    final = json.loads((run / "run.json").read_text(encoding="utf-8"))["final_metrics"]
    return {(line["step"], name): line[name] for line in lines for name in names if name in line} | {
        (None, name): value for name, value in final.items() if name.startswith("eval/") and name.endswith("loss")
    }


def read_predicted_ids(run):
    """Return the ids of the predicted examples, in order, by set."""
    files = (run / "predictions").glob("*.jsonl")
    return {file.name: [json.loads(line)["id"] for line in file.read_text().splitlines()] for file in files}


def assert_equal(run, expected):
    """Check that losses and final weights differ by rounding only: sums of float32 in another order."""
    actual, reference = read_losses(run), read_losses(expected)
    assert actual.keys() == reference.keys()
    assert len(reference) > 8
    for key, value in reference.items():
        assert actual[key] == pytest.approx(value, rel=1e-4, abs=1e-5), key
    weights, expected_weights = (load_file(folder / "model" / "model.safetensors") for folder in (run, expected))
    assert weights.keys() == expected_weights.keys()
    for name, weight in expected_weights.items():
        torch.testing.assert_close(
            weights[name], weight, rtol=1e-3, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
        )
    assert read_predicted_ids(run) == read_predicted_ids(expected)
    config, other = (json.loads((folder / "model" / "config.json").read_text()) for folder in (run, expected))
    assert config == other


@pytest.mark.slow
@pytest.mark.parametrize(("family", "kind"), list_cases(KINDS), ids=format_case)
def test_several_processes_train_as_one(family: str, kind: Kind) -> None:
    run = train_once(family, kind)
    assert_equal(run, train_on_one(family))
    assert (run / "checkpoints" / "checkpoint-4" / "shards").is_dir() == kind.sharded


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Kind(2), Kind(2, sharded=True)], ids=format_case)
def test_a_layer_skipped_by_a_whole_process_does_not_stop_training(kind: Kind) -> None:
    overrides = ("model.exit_heads=shared", "trainer.ddp_find_unused_parameters=false")
    run = train("early exit", kind, "model.layer_dropout=0.9", *overrides)
    assert json.loads((run / "run.json").read_text())["status"] == "finished"


@pytest.mark.slow
def test_the_files_of_every_process_are_in_the_manifest() -> None:
    checkpoint = copy_run("act", Kind(2)) / "checkpoints" / "checkpoint-4"
    listed = json.loads((checkpoint / MANIFEST).read_text())["files"]
    assert set(listed) == {path.name for path in checkpoint.iterdir()} - {MANIFEST}
    assert find_checkpoint_error(checkpoint) is None
    for name in ("rng_state_1.pth", "progress_1.json", "rng_state_0.pth", "progress_0.json"):
        path = checkpoint / name
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        assert find_checkpoint_error(checkpoint) == f"its {name} has changed since it was written"
        path.unlink()
        assert find_checkpoint_error(checkpoint) == f"its {name} is missing"
        path.write_bytes(whole)


def cut_to_second_step(run):
    """Return the run as it was after its second step."""
    shutil.rmtree(run / "checkpoints" / "checkpoint-4")
    return mark_interrupted(run)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "change"), list_cases(CHANGES), ids=format_case)
def test_a_checkpoint_resumes_with_another_number_of_processes(family: str, change: tuple[Kind, Kind]) -> None:
    before, after = change
    run = cut_to_second_step(copy_run(family, before))
    printed = launch(
        ["--config-name", FAMILIES[family][0], f"resume={run}", *list_sharding_overrides(after)], after.processes
    )
    assert "was written with world size" in printed
    assert_equal(run, train_on_one(family))


@pytest.mark.slow
def test_several_processes_compare_the_networks_of_one_process() -> None:
    run = mark_interrupted(copy_run("par, a search", ONE))
    compared = run / "architectures.json"
    before = json.loads(compared.read_text(encoding="utf-8"))
    compared.unlink()
    launch(["--config-name", "par_tiny", f"resume={run}", *list_sharding_overrides(Kind(2))], 2)
    after = json.loads(compared.read_text(encoding="utf-8"))
    assert [(row["name"], row["quality"]) for row in after["rows"]] == [
        (row["name"], row["quality"]) for row in before["rows"]
    ]


@pytest.mark.slow
def test_another_number_of_examples_per_step_is_refused() -> None:
    run = cut_to_second_step(copy_run("act", Kind(2)))
    status, printed = try_to_launch(["--config-name", "act_tiny", f"resume={run}"])
    assert status == 2
    assert (
        "2 processes had 4 examples per optimiser step, 1 process would have 2; trainer.per_device_train_batch_size=4 "
        "trainer.gradient_accumulation_steps=1 keeps the number"
    ) in printed


@pytest.mark.slow
def test_a_damaged_shard_is_named_and_skipped() -> None:
    run = copy_run("act", Kind(2, sharded=True))
    mark_interrupted(run)
    shard = next((run / "checkpoints" / "checkpoint-4" / "shards").glob("shard-00002-*"))
    damaged = bytearray(shard.read_bytes())
    damaged[-8] ^= 1
    shard.write_bytes(damaged)
    printed = launch(["--config-name", "act_tiny", f"resume={run}"], 2)
    assert f"its shards/{shard.name} has changed since it was written; resuming from checkpoint-2" in printed
    assert_equal(run, train_on_one("act"))
