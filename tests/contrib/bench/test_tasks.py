"""Shipped tasks of the bench: compared methods have the sizes that the task files state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from adadepth.config import ExperimentConfig
from adadepth.contrib.bench import runs
from adadepth.models.build import build_classifier, build_language_model
from adadepth.models.depth.engine import resolve_exit_rule
from tests.configs.support import configured
from tests.marks_support import keep_one_quick

TASKS = Path(runs.__file__).parent / "configs" / "bench" / "task"
COLOURS = {"id2label": {0: "red", 1: "blue"}, "label2id": {"red": 0, "blue": 1}}


def read_task(name: str) -> dict[str, Any]:
    task: dict[str, Any] = yaml.safe_load((TASKS / f"{name}.yaml").read_text(encoding="utf-8"))
    return task


def configure(task: str, method: str, *overrides: str) -> ExperimentConfig:
    """Build the configuration of a method. `overrides` replace settings that have several values."""
    only = read_task(task)
    only["ways"] = {method: only["ways"][method]}
    (run,) = runs.list_bench_runs({task: only}, [0], overrides, lambda training: [list(training)])
    return configured("depth_bench", *run.training)


def build_model(config: ExperimentConfig) -> Any:
    if config.task == "language_model":
        return build_language_model(config.model, 2048)
    return build_classifier(config.model, 40, COLOURS, "tagging")


def count_weights(model: Any) -> int:
    """Count the weights of all matrices but the table of words: those of layers, gates and heads."""
    table = model.get_input_embeddings().weight
    return sum(weight.numel() for weight in model.parameters() if weight.dim() == 2 and weight is not table)


@pytest.mark.parametrize(
    ("task", "method", "other", "setting"),
    keep_one_quick(
        3,
        [
            ("text_causal", "early_exit_2", "mean", []),
            ("hops_causal", "early_exit_4", "layers", ["model.core=4"]),
            ("text_causal", "early_exit", "layers", ["model.core=8"]),
        ],
    ),
)
def test_methods_compared_at_equal_parameters_have_equal_parameters(
    task: str, method: str, other: str, setting: list[str]
) -> None:
    first, second = (build_model(configure(task, *choice)) for choice in ((method,), (other, *setting)))
    assert count_weights(first) == count_weights(second)


@pytest.mark.slow
@pytest.mark.parametrize("task", keep_one_quick(2, ["hops_causal", "text_causal"]))
def test_early_exits_have_the_full_depth_and_the_compute_of_the_loops(task: str) -> None:
    exits, loops = (build_model(configure(task, method)) for method in ("early_exit", "mean"))
    assert exits.max_updates == loops.max_updates > 1
    head = int(loops.readout_work)
    assert exits.readout_work == head
    assert count_weights(exits) - head == loops.max_updates * (count_weights(loops) - head)


@pytest.mark.parametrize("task", keep_one_quick(2, ["hops_causal", "text_causal"]))
def test_early_exits_support_the_exit_rules_of_their_evaluation(task: str) -> None:
    methods = {name: ways for name, ways in read_task(task)["ways"].items() if name.startswith("early_exit")}
    assert methods
    for method, overrides in methods.items():
        (rules,) = (override.partition("=")[2] for override in overrides if override.startswith("exit_rules="))
        model = build_model(configure(task, method))
        for rule in rules.strip("[]").split(","):
            assert resolve_exit_rule(model, rule).label == rule
