"""Trained matched baselines: every family has networks of fixed depth for every depth next to the compute of a run."""

from __future__ import annotations

import dataclasses
import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from adadepth import tasks
from adadepth.cli.validation import validate
from adadepth.errors import CheckpointError, ConfigError
from adadepth.models.folder import read_config
from adadepth.models.registry import families, family
from adadepth.report.run_files import read_run
from adadepth.tasks.rivals import build_rival_config, choose_next_depth
from adadepth.training.trainer import DepthTrainer
from tests.configs.support import configured
from tests.marks_support import mark_mostly_slow
from tests.training.support import read_log

SHORT = (
    "debug=default", "trainer.disable_tqdm=true", "trainer.max_steps=2", "trainer.logging_steps=1",
    "trainer.warmup_steps=0", "trainer.save_strategy=no", "trainer.load_best_model_at_end=false",
    "trainer.eval_strategy=no", "trainer.eval_on_start=false", "matched_baseline=false",
)  # fmt: skip


class Case(NamedTuple):
    """An adaptive run, and the network of fixed depth that belongs to it.

    Attributes:
        overrides: Root and overrides of the run.
        module: Name of a module class that every layer calls once.
        count_calls: Function that returns how often a network of the given depth calls it.
    """

    overrides: tuple[str, ...]
    module: str
    count_calls: Callable[[int], int]


CASES = {
    "albert_act": Case(("act_hops", "budget=none"), "GELUActivation", lambda depth: depth),
    "ponder_albert": Case(("ponder_tiny", "model.num_hidden_layers=4"), "GELUTanh", lambda depth: depth),
    "ponder_rnn": Case(("ponder_parity",), "Linear", lambda depth: 1 + 2 * depth),  # input; state, and one head a step
    "multi_exit_albert": Case(
        ("ponder_tiny", "model=pabee_mini", "model.num_hidden_layers=4"), "GELUTanh", lambda depth: depth
    ),
    "looped text": Case(
        ("loop_tiny", "model.num_loops=4", "model.gate=true", "model.exit_rule=quantile:0.5", "model.prelude=1",
         "model.coda=1", "model.core=2", "model.objective=mean"),
        "SiLUActivation", lambda depth: 2 + 2 * depth,
    ),
    "looped labels": Case(
        ("act_hops", "model=looped_mini", "budget=none", "model.exit_rule=margin:0.5", "model.num_loops=4",
         "model.core=2", "model.prelude=0", "model.coda=0"),
        "SiLUActivation", lambda depth: 2 * depth,
    ),
    "early_exit text": Case(
        ("exit_tiny", "model.num_hidden_layers=4", "model.exit_layers=null", "model.exit_rule=margin:0.5"),
        "SiLUActivation", lambda depth: depth,
    ),
    "early_exit labels": Case(
        ("exit_hops", "model.num_hidden_layers=6", "model.exit_layers=[2,4]", "model.exit_rule=margin:0.5"),
        "SiLUActivation", lambda depth: 2 * depth,
    ),
    "routed recursions": Case(("mor_tiny",), "SiLUActivation", lambda depth: 2 + 2 * depth),
    "routed layers": Case(("mor_tiny", "model=mod_mini"), "SiLUActivation", lambda depth: 4 + depth),
    "routed labels": Case(("mor_hops",), "SiLUActivation", lambda depth: 1 + depth),
    "adalayers": Case(("adalayers_tiny",), "GELUActivation", lambda depth: depth),
    "trm": Case(
        ("trm_tiny", "dataset.train_examples=64", "dataset.max_evaluation_examples=16"), "Block",
        lambda depth: 8 * depth,  # two cycles of a reasoning and an answer update, through two blocks
    ),
}  # fmt: skip


def run_case(case: Case, folder: Path, *overrides: str) -> None:
    root, *overrides_of_case = case.overrides
    tasks.run(configured(root, *SHORT, *overrides_of_case, f"output_dir={folder}", *overrides))


def set_share(directory: Path, share: float) -> tuple[int, float]:
    """Record a share of depth and compute for a run, and return the two."""
    halting: dict[str, Any] = json.loads((directory / "halting.json").read_text())
    most, full = halting["max_depth"], halting["cost"]["full_macs"]
    halting["classes"]["all"] |= {"mean": share * most, "std": 0.5}
    halting["cost"]["adaptive_macs"] = share * full
    (directory / "halting.json").write_text(json.dumps(halting))
    return most, full


def read_rows(directory: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((directory / "rivals.json").read_text())["rows"]
    return rows


def load_model(directory: Path) -> Any:
    config = read_config("checkpoint", str(directory / "model"))
    heads = families()[config.model_type].heads.values()
    (head,) = [model_class for importer in heads if (model_class := importer()).__name__ == config.architectures[0]]
    return head.from_pretrained(directory / "model").eval()


def count_calls(model: nn.Module, name: str) -> int:
    """Count the calls of modules of a class in one forward pass of one example."""
    calls = []
    for module in model.modules():
        if type(module).__name__ == name:
            module.register_forward_hook(lambda *_: calls.append(1))
    kind = model.config.model_type
    if kind == "ponder_rnn":
        inputs = torch.ones(1, model.config.input_size)
    else:
        inputs = torch.arange(1, 37 if kind == "trm" else 8).unsqueeze(0) % 5
    with torch.no_grad():
        model(inputs)
    return len(calls)


@pytest.mark.parametrize("name", mark_mostly_slow(CASES, lambda name: name in ("multi_exit_albert", "routed layers")))
def test_both_neighbours_of_the_compute_are_trained_at_their_depth(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    run_case(case, tmp_path)
    (directory,) = tmp_path.glob("*/*")
    most, full = set_share(directory, 0.7)
    run_case(case, tmp_path, f"rival_of={directory}")
    adaptive, *rivals = read_rows(directory)
    compute = {row["depth"]: row["adaptive_macs"] for row in rivals}
    low, *_, high = depths = sorted(compute)
    assert depths == [*range(low, high + 1)]
    assert compute[low] < adaptive["adaptive_macs"] < compute[high]
    # Compute is linear in depth, up to the network at full depth. Routers and mixed layers add less than 2 %.
    update = (compute[high] - compute[low]) / (high - low)
    assert compute[high] + (most - high) * update == pytest.approx(full, rel=0.02)
    for row in rivals:
        assert row["std"] == 0
        model = load_model(Path(row["run"]))
        assert row["parameters"] == sum(weight.numel() for weight in model.parameters())
        if name in ("looped text", "early_exit text"):  # keys and values of every layer that runs, two bytes a number
            keys = getattr(model.config, "num_key_value_heads", None) or model.config.num_attention_heads
            width = keys * model.config.hidden_size // model.config.num_attention_heads
            assert row["cache_bytes_per_token"] == 2 * 2 * width * case.count_calls(row["depth"])
        assert count_calls(model, case.module) == case.count_calls(row["depth"])
        assert row["seed"] == adaptive["seed"]
        assert row["n"] == adaptive["n"]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_network_of_fixed_depth_passes_all_checks(name: str, depth: int, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"seed": 5}))
    root, *overrides = CASES[name].overrides
    rival = build_rival_config(configured(root, *SHORT, *overrides), read_run(tmp_path), depth)
    validate(rival)
    assert (rival.seed, rival.budget.target) == (5, None)


def test_every_family_has_a_case() -> None:
    tried = {configured(*case.overrides).model.name for case in CASES.values()}
    assert tried == {name for name, spec in families().items() if callable(spec.fixed_depth)}


@pytest.mark.parametrize(("adaptive", "trained", "next_depth"), [
    (25.0, {2: 20.0}, 3),
    (25.0, {3: 30.0}, 2),
    (25.0, {2: 20.0, 3: 30.0}, None),
    (20.1, {2: 20.0}, None),  # equal up to 1 %
    (20.3, {2: 20.0}, 3),
    (45.0, {4: 40.0}, None),  # there is no greater depth
    (5.0, {1: 10.0}, None),
    (25.0, {2: None}, None),
])  # fmt: skip
def test_depths_are_trained_until_they_enclose_the_compute(
    adaptive: float, trained: dict[int, float | None], next_depth: int | None
) -> None:
    assert choose_next_depth(adaptive, trained, 1, 4) == next_depth


SEEDS = ("seeds=2", "seed=3")


def make_summary(case: Case, folder: Path) -> Path:
    """Train an adaptive run with two seeds, of 35 and 45 % of its compute, and return the summary."""
    run_case(case, folder, *SEEDS)
    (path,) = folder.glob("*/*/seeds.json")
    for share, part in zip((0.35, 0.45), json.loads(path.read_text())["runs"].values(), strict=True):
        set_share(path.parent / part, share)
    return path.parent


@pytest.mark.parametrize("name", mark_mostly_slow(["multi_exit_albert", "looped labels"], lambda name: "multi" in name))
def test_every_seed_of_a_summary_has_its_baselines(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    summary = make_summary(case, tmp_path)
    run_case(case, tmp_path, "rival_of=latest")
    rows = read_rows(summary)
    assert [(row["kind"], row["seed"]) for row in rows[:2]] == [("adaptive", 3), ("adaptive", 4)]
    assert [(row["depth"], row["seed"]) for row in rows[2:]] == [(1, 3), (1, 4), (2, 3), (2, 4)]
    for row in rows[2:]:
        record = json.loads(Path(row["run"], "run.json").read_text())
        assert (record["seed"], record["owner"]) == (row["seed"], row["group"])
    worth = json.loads((summary / "run.json").read_text())["verdict"]["worth"]
    first, second = worth["comparisons"]
    assert first["compute_ratio"] > 1 > second["compute_ratio"]
    assert first["remark"] == "n 2 seeds each"
    assert second["remark"] == "n 2 seeds each; not counted in the answer"
    assert "trained at fixed depth 1" in worth["sentences"][0]
    page = (summary / "report.html").read_text()
    assert "Matched baselines of fixed depth" in page
    assert "Verdict" in page


@pytest.mark.slow
def test_interrupted_baselines_end_as_uninterrupted_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    case, saves = CASES["multi_exit_albert"], ("trainer.save_strategy=steps", "trainer.save_steps=1")
    run_case(case, tmp_path / "adaptive", *saves)
    (directory,) = (tmp_path / "adaptive").glob("*/*")
    set_share(directory, 0.35)
    run_case(case, tmp_path / "whole", f"rival_of={directory}", *saves)
    whole = read_rows(directory)
    (directory / "rivals.json").unlink()

    def interrupt(trainer: DepthTrainer, *args: Any, **options: Any) -> Any:
        if (trainer.model.config.num_hidden_layers, trainer.state.global_step) == (2, 1):
            raise SystemExit(128 + signal.SIGTERM)
        return step(trainer, *args, **options)

    step = DepthTrainer.training_step
    monkeypatch.setattr(DepthTrainer, "training_step", interrupt)
    with pytest.raises(SystemExit):
        run_case(case, tmp_path / "cut", f"rival_of={directory}", *saves)
    monkeypatch.undo()
    assert not (directory / "rivals.json").exists()
    printed = capsys.readouterr().out
    (resume,) = set(re.findall(r" resume=(\S+)", printed))
    assert Path(resume).parent.parent == tmp_path / "cut"
    tasks.run(configured(case.overrides[0], f"resume={resume}"))
    resumed = read_rows(directory)
    assert len([*Path(resume).parent.glob("*/run.json")]) == 3, "a finished baseline is kept"
    for row, expected in zip(resumed, whole, strict=True):
        unmeasured = ("runtime", "per_second")
        for name, value in expected["metrics"].items():
            assert name.endswith(unmeasured) or row["metrics"][name] == value
        assert read_log(Path(row["run"])) == read_log(Path(expected["run"]))
    with pytest.raises(CheckpointError, match=r"its matched baselines are finished$"):
        configured(case.overrides[0], f"resume={resume}")


@pytest.mark.slow
def test_a_baseline_can_be_resumed_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the resume of a single baseline, as runs of versions that trained only one."""
    case, saves = CASES["multi_exit_albert"], ("trainer.save_strategy=steps", "trainer.save_steps=1")
    run_case(case, tmp_path, *saves)
    (directory,) = tmp_path.glob("*/*")
    set_share(directory, 0.26)

    def interrupt(trainer: DepthTrainer, *args: Any, **options: Any) -> Any:
        if trainer.state.global_step == 1:
            raise SystemExit(128 + signal.SIGTERM)
        return step(trainer, *args, **options)

    step = DepthTrainer.training_step
    monkeypatch.setattr(DepthTrainer, "training_step", interrupt)
    with pytest.raises(SystemExit):
        run_case(case, tmp_path, f"rival_of={directory}", *saves)
    monkeypatch.undo()
    (part,) = (path.parent for path in tmp_path.glob("*_rival/*/checkpoints"))
    tasks.run(configured(case.overrides[0], f"resume={part}"))
    _, row = read_rows(directory)
    assert (row["run"], row["max_depth"], row["mean"]) == (str(part), 1, 1.0)


# ---- refusals, in one line


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    run_case(CASES["multi_exit_albert"], folder)
    (directory,) = folder.glob("*/*")
    set_share(directory, 0.35)
    return directory


@pytest.mark.parametrize(("changes", "overrides", "message"), [
    ({}, ("model.num_hidden_layers=3",),
     r"model\.num_hidden_layers was 4 and now is 3; a compute-matched baseline must be trained like the run$"),
    ({}, ("model=ponder_albert_mini",), r"model\.name was multi_exit_albert and now is ponder_albert, .* the run$"),
    ({}, ("seeds=3",), r"seeds=3: rival_of=\S+ has 1; leave it out$"),
    ({"status": "interrupted"}, (), r"\S+ is not a finished run with measured compute$"),
])  # fmt: skip
def test_unsuitable_runs_are_one_line_errors(
    trained_run: Path, tmp_path: Path, changes: dict[str, Any], overrides: tuple[str, ...], message: str
) -> None:
    record = json.loads((trained_run / "run.json").read_text())
    (trained_run / "run.json").write_text(json.dumps(record | changes))
    try:
        with pytest.raises((CheckpointError, ConfigError), match=message) as error:
            run_case(CASES["multi_exit_albert"], tmp_path, f"rival_of={trained_run}", *overrides)
    finally:
        (trained_run / "run.json").write_text(json.dumps(record))
    assert len(str(error.value).splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_missing_run_is_named_with_the_nearest_one(trained_run: Path) -> None:
    typo, nearest = str(trained_run)[:-1], re.escape(str(trained_run))
    with pytest.raises(CheckpointError, match=rf"not a run directory .*did you mean '{nearest}'") as error:
        run_case(CASES["multi_exit_albert"], trained_run.parents[1], f"rival_of={typo}")
    assert len(str(error.value).splitlines()) == 1


def test_a_run_with_a_trained_halting_head_is_refused(trained_run: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "ponder_albert"}))
    settings = dataclasses.replace(configured("ponder_tiny").model, pretrained=str(tmp_path))
    fixed_depth = family("ponder_albert").fixed_depth
    assert callable(fixed_depth)
    with pytest.raises(ConfigError, match="its halting head is trained and would halt"):
        fixed_depth(settings, 2)


def test_a_run_without_an_exit_rule_has_no_baseline(tmp_path: Path) -> None:
    case = Case(("act_hops", "model=looped_mini", "budget=none"), "", lambda depth: depth)
    run_case(case, tmp_path)
    (directory,) = tmp_path.glob("*/*")
    with pytest.raises(CheckpointError, match=r"has no model\.exit_rule, so that every token has full depth"):
        run_case(case, tmp_path, f"rival_of={directory}")
