"""A family in a package of its own, which adadepth does not know: everything that a run can be works with it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import AutoModelForPreTraining, AutoModelForTokenClassification

from adadepth.models import contract
from tests.marks_support import keep_one_quick
from tests.pages_support import check_costs
from tests.runs_support import execute_run, read_json, read_logged
from tests.toy_support import DATA, ROOT, SMALL, TOY, execute, install_toy_family

PAGE = Path(__file__).resolve().parents[2] / "docs" / "families.md"
PRICED = ("model.update_price=0.1", "model.router_bias_init=0")


@pytest.fixture(scope="module", autouse=True)
def _install_family(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with install_toy_family(tmp_path_factory.mktemp("site")):
        yield


def run_command(folder: Path, *arguments: str) -> Path:
    return execute_run(folder, *ROOT, *arguments)


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a router that charges for updates, with every step saved."""
    return run_command(tmp_path_factory.mktemp("trained"), *SMALL, *PRICED)


def test_the_family_is_trained_and_evaluated(trained_run: Path) -> None:
    record = read_json(trained_run / "run.json")
    metrics = record["final_metrics"]
    assert record["status"] == "finished"
    assert metrics["eval/loss"] == pytest.approx(metrics["eval/task_loss"] + metrics["eval/router_loss"])
    assert 0 <= metrics["eval/token_accuracy"] <= 1
    model = AutoModelForTokenClassification.from_pretrained(trained_run / "model")
    assert type(model).__module__ == "adadepth_router.modeling"
    assert isinstance(model, contract.DepthKnob)
    assert isinstance(model, contract.HoldsBudget)


@pytest.mark.slow
def test_the_family_is_pretrained(tmp_path: Path) -> None:
    overrides = (
        "budget=none", "dataset=python_docs", "model=router_mini", "model.max_position_embeddings=128",
        "model.update_price=0.1", "trainer.max_steps=3",
        "trainer.eval_steps=3", "trainer.save_steps=3", "trainer.per_device_train_batch_size=4",
        "trainer.gradient_accumulation_steps=1", "trainer.disable_tqdm=true", "dataset.max_evaluation_examples=8",
        f"output_dir={tmp_path}",
    )  # fmt: skip
    assert execute("--config-name", "act_tiny", "debug=default", *overrides) == 0
    (directory,) = (tmp_path / "act_tiny").iterdir()
    metrics = read_json(directory / "run.json")["final_metrics"]
    parts = ("mlm", "sop", "router")
    assert metrics["eval/loss"] == pytest.approx(sum(metrics[f"eval/{part}_loss"] for part in parts))
    model = AutoModelForPreTraining.from_pretrained(directory / "model")
    assert model.predictions.decoder.weight is model.albert.embeddings.word_embeddings.weight


def test_depths_are_reported_from_zero_on(trained_run: Path) -> None:
    halting = read_json(trained_run / "halting.json")
    everyone = halting["classes"]["all"]
    assert (halting["unit"], halting["max_depth"]) == ("token", 4)
    assert everyone["histogram"][0] > 0, "some token is never updated"
    assert sum(everyone["histogram"]) == everyone["n"] == 64 * 16
    check_costs(trained_run)
    page = (trained_run / "report.html").read_text(encoding="utf-8")
    share = everyone["histogram"][0] / everyone["n"]
    assert "Tokens left alone" in page
    assert f"{share:.1%} of all tokens were never updated" in page


def test_compute_is_measured(trained_run: Path) -> None:
    halting = read_json(trained_run / "halting.json")
    depth, cost = halting["classes"]["all"]["mean"], halting["cost"]
    update = 4 * 32**2 + 2 * 32 * 32 + 2 * 32 * 16
    around = 16 * 32 + 4 * 32 * (32 + 1)
    assert cost["adaptive_over_full"] == pytest.approx((depth * update + around) / (4 * update + around))


@pytest.mark.slow
def test_exits_are_studied(trained_run: Path, tmp_path: Path) -> None:
    rules = "exit_rules=[fixed:1,fixed:2,confidence:0.3,patience:1]"
    directory = run_command(tmp_path, *DATA, "mode=evaluate", f"checkpoint={trained_run}", rules)
    (study, _) = read_json(directory / "exit_rules.json")["sets"].values()
    rows = {row["rule"]: row for row in study["rows"]}
    assert rows["fixed:1"]["mean_updates"] < rows["fixed:2"]["mean_updates"] < 2, "gaps are no updates"
    for rule in ("fixed:1", "fixed:2", "fixed:4"):  # nobody sees a token that left early
        assert rows[rule]["online"]["mean_updates"] == pytest.approx(rows[rule]["mean_updates"])
        assert rows[rule]["online"]["quality"] == pytest.approx(rows[rule]["quality"])
    assert rows["fixed:1"]["macs"] < rows["fixed:2"]["macs"] < rows["fixed:4"]["macs"]
    assert rows["confidence:0.3"]["mean_updates"] < rows["fixed:4"]["mean_updates"]
    assert "executed" in (directory / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("target", [0.6, 2.5])
def test_a_budget_holds_the_depth(target: float, tmp_path: Path) -> None:
    steps = ("trainer.max_steps=200", "trainer.eval_steps=200", "trainer.save_steps=200", "trainer.logging_steps=50")
    overrides = ("budget=depth", f"budget.target={target}", "budget.gain=10", "budget.hold=0", "budget.ramp=0.2")
    directory = run_command(tmp_path, *SMALL, *steps, *overrides, "model.router_bias_init=0")
    assert read_logged(directory, "budget/measured")[-1] == pytest.approx(target, abs=0.3)
    warning = read_json(directory / "halting.json")["adaptation"].get("warning", "")
    assert "model.halt_bias_init" not in warning, "another family's advice"


@pytest.mark.slow
def test_a_trained_model_is_fitted_to_depths(trained_run: Path, tmp_path: Path) -> None:
    overrides = ("mode=evaluate", f"checkpoint={trained_run}", "budget.targets=[0.5,2]")
    budgets = read_json(run_command(tmp_path, *DATA, *overrides) / "budgets.json")
    assert budgets["knob"] == "threshold of the router"
    assert [row["target"] for row in budgets["rows"]] == [None, 0.5, 2]
    assert all(row["mean"] == pytest.approx(row["target"], rel=0.15) for row in budgets["rows"][1:])


@pytest.mark.parametrize(("arguments", "message"), keep_one_quick(3, [
    ((*ROOT, "model.update_prise=1"), "model.update_prise: unknown key (did you mean 'model.update_price'?)"),
    ((*ROOT, "model.update_prise="), "model.update_prise: unknown key (did you mean 'model.update_price'?)"),
    ((*ROOT, "-m", "model.update_prise=1,2"), "unknown key (did you mean 'model.update_price'?)"),
    ((*ROOT, "model.act_penalty=1"), "model.act_penalty: "),
    ((*ROOT, "model.threshold=1.5"), "model.threshold=1.5: "),
    ((*ROOT, "model=router_mimi"), "model=router_mimi: unknown option (did you mean 'router_mini'?)"),
    (("--config-name", "router_hobs"), "unknown configuration 'router_hobs' (did you mean 'router_hops'?)"),
    ((*ROOT, "dataset=cola", "dataset.sequence_length=24"), "model=router: task=finetune has no classifier"),
    ((*ROOT, "budget.target=9", "budget=depth"), "budget.target=9: must be from 0 to 8, in updates"),
]))  # fmt: skip
def test_a_mistake_is_a_one_line_error(
    arguments: tuple[str, ...], message: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert execute(*arguments, f"output_dir={tmp_path}") == 2
    printed = capfd.readouterr().err
    assert printed.startswith("error: ")
    assert printed.count("\n") == 1
    assert message in printed
    assert "prior" not in printed.partition("known in model: ")[2], "settings of other families"
    assert list(tmp_path.iterdir()) == []


def test_the_documentation_shows_the_files_of_the_family() -> None:
    """Check that every block of code below a heading that names a file stands in that file."""
    sections = re.split(r"^### (\S+)\n", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    texts = dict(zip(sections[::2], sections[1::2], strict=True))
    files = {str(path.relative_to(TOY)) for path in TOY.rglob("*") if path.suffix in (".py", ".toml", ".yaml")}
    assert files - texts.keys() == {"adadepth_router/__init__.py", "adadepth_router/configs/model/router_mini.yaml"}
    for name, text in texts.items():
        blocks = re.findall(r"```\w+\n(.*?)```", text, flags=re.DOTALL)
        assert blocks
        assert all(
            strip_indentation(block) in strip_indentation((TOY / name).read_text(encoding="utf-8")) for block in blocks
        ), name


def strip_indentation(code: str) -> str:
    """Return code without indentation and empty lines, which differ between a method and a function."""
    return "\n".join(line.strip() for line in code.splitlines() if line.strip())
