"""One checkpoint under many exit rules: quality from one recorded evaluation, time from running each rule for real."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from adadepth.analysis.exits.contenders import standard_rules
from adadepth.analysis.exits.records import StepRecords
from adadepth.analysis.exits.steps import step_summary
from adadepth.analysis.exits.study import add_online, add_timings, online_figures, study
from adadepth.analysis.exits.tables import study_text
from adadepth.analysis.files import write_exit_study, write_exits
from adadepth.console import progress, say
from adadepth.data import LabelledData
from adadepth.data.sampler import evaluation_order
from adadepth.errors import ConfigError
from adadepth.families.contract import PredictsEveryStep, Refills
from adadepth.halting.exit_rules import ExitRule, check_rule, parse_rule
from adadepth.tasks.session import Session, device_name
from adadepth.tasks.unit_price import price_of
from adadepth.timing import time_interleaved

BATCHES = (1, 8, 32)
TIMED_EXAMPLES = 64  # the first of the evaluation set
REPETITIONS = 3
WARM_UP = 1


def parse(texts: Sequence[str], model: Any) -> list[ExitRule]:
    """The rules that `exit_rules` names; `all` stands for every rule the model supports, on a small grid.

    Raises:
        ConfigError: For a rule that does not exist or that the model cannot follow.
    """
    settings: Any = model.config
    signals = model.exit_signals if isinstance(model, PredictsEveryStep) else frozenset()
    if texts and not signals:
        raise ConfigError(
            f"exit_rules={list(texts)}: {settings.model_type} predicts after its last step only and has no exit rules"
        )
    named = [
        name
        for text in texts
        for name in (standard_rules(signals, settings.num_labels, model.max_updates) if text == "all" else [text])
    ]
    if not named:
        return []
    full = f"fixed:{model.max_updates}"  # what every other rule is compared with
    rules = [parse_rule(name) for name in dict.fromkeys([*named, full])]
    for rule in rules:
        check_rule(rule, signals, settings.num_labels, model.max_updates, settings.model_type)
    return rules


def compare(rules: Sequence[ExitRule], data: LabelledData, session: Session) -> None:
    """Study the rules on every evaluation set; write exit_rules.json and pareto.csv, and print the tables.

    Where the evaluation itself ran no unit through all steps, because tokens halt, exits.json too.
    """
    trainer = session.trainer
    studies, exits = {}, {}
    for name, dataset in data.evaluation.items():
        records = trainer.records(dataset, run_all_steps=True)
        studies[name] = _study(rules, data, dataset, records, session)
        report = trainer.last_reports.get(name)
        if report is not None and report.exits is None:
            exits[name] = step_summary(records, labels=data.labels, truncation="leftover", **_measured(data))
    if trainer.is_world_process_zero():
        write_exit_study(session.run.directory, studies)
        if exits:
            write_exits(session.run.directory, exits, trainer.state.global_step)
        for name, found in studies.items():
            say(f"exit rules on {name}:\n{study_text(found)}")


def _measured(data: LabelledData) -> dict[str, Any]:
    """What is measured of units: the task's metrics, or the accuracy of labelled tokens."""
    if data.problem == "tagging":
        return {"problem": "classification", "metrics": ("accuracy",)}
    return {"problem": data.problem, "metrics": data.metrics}


def _study(
    rules: Sequence[ExitRule], data: LabelledData, dataset: Any, records: StepRecords, session: Session
) -> dict[str, Any]:
    trainer = session.trainer
    model: Any = trainer.accelerator.unwrap_model(trainer.model)
    by_token = data.problem == "tagging"
    found = study(records, rules, price=price_of(model, records, by_token=by_token), **_measured(data))
    if by_token:  # what a token does changes what the others see, so that only running a rule tells
        really = _run_really(rules, dataset, session)
        found = add_online(found, {label: online_figures(run, **_measured(data)) for label, run in really.items()})
    conditions = {
        "device": device_name(trainer.args.device),
        "precision": session.run.record.get("precision"),
        "threads": torch.get_num_threads(),
        "examples": min(len(dataset), TIMED_EXAMPLES),
        "repetitions": REPETITIONS,
    }
    if isinstance(model, Refills):
        conditions["waiting"] = "examples take freed places"
    return add_timings(found, measure(trainer, dataset, rules), conditions)


def _run_really(rules: Sequence[ExitRule], dataset: Any, session: Session) -> dict[str, StepRecords]:
    """The records of a set under every rule."""
    found = {}
    trainer = session.trainer
    with progress(f"running {len(rules)} exit rules", len(rules), shown=trainer.is_world_process_zero()) as advance:
        for rule in rules:
            found[rule.label] = trainer.records(dataset, exit_rule=rule)
            advance(1)
    return found


def measure(trainer: Any, dataset: Any, rules: Sequence[ExitRule]) -> dict[str, dict[int, float]]:
    """Seconds an example by rule and batch size: medians over repetitions in which the rules take turns.

    The first examples of the set, in batches by length as in an evaluation; of a model that refills all of them at
    once, with as many places as the batch has rows.
    """
    examples = [dataset[int(index)] for index in evaluation_order(dataset) if index < TIMED_EXAMPLES]
    refills = isinstance(trainer.accelerator.unwrap_model(trainer.model), Refills)
    timings: dict[str, dict[int, float]] = {rule.label: {} for rule in rules}
    batches = {size: _batches(trainer, examples, len(examples) if refills else size) for size in BATCHES}
    # A call takes a time for every example, and one for every batch.
    work = {size: len(examples) + len(found) for size, found in batches.items()}
    total = sum(work.values()) * len(rules) * (WARM_UP + REPETITIONS)
    with progress(f"timing {len(rules)} exit rules", total, shown=trainer.is_world_process_zero()) as advance:
        for size, found in batches.items():
            options = {"places": size} if refills else {}
            calls = {rule.label: partial(_run, trainer, found, rule, options) for rule in rules}
            after = partial(advance, work[size])
            for label, seconds in time_interleaved(calls, REPETITIONS, WARM_UP, trainer.args.device, after).items():
                timings[label][size] = seconds["median"] / len(examples)
    return timings


def _batches(trainer: Any, examples: Sequence[Any], batch_size: int) -> list[dict[str, Tensor]]:
    cut = [list(examples[start : start + batch_size]) for start in range(0, len(examples), batch_size)]
    batches = [trainer.model_inputs(trainer._prepare_inputs(trainer.data_collator(part))) for part in cut]
    return [{name: value for name, value in batch.items() if name != "labels"} for batch in batches]


def _run(trainer: Any, batches: Sequence[dict[str, Tensor]], rule: ExitRule, options: Mapping[str, int]) -> None:
    model = trainer.accelerator.unwrap_model(trainer.model).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad(), trainer.autocast_smart_context_manager():
        for batch in batches:
            model(**batch, exit_rule=rule, generator=generator, **options)
