"""Comparison of early-exit rules on a trained model: replayed, evaluated and timed, with a recommended rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from adadepth.data import RunData
from adadepth.data.batches import order_for_evaluation
from adadepth.data.streams.blocks import CausalExamples
from adadepth.errors import ConfigError
from adadepth.evaluation.exit_cost import ExitCost
from adadepth.evaluation.predictions import make_exit_kwargs
from adadepth.evaluation.text_records import sample_masked_positions, sample_positions, text_records
from adadepth.halting.exit_decisions import start_memory
from adadepth.halting.exit_rules import HALTING_SIGNAL, ExitRule, check_rule, parse_rule
from adadepth.metrics.exit_rule_fitting import fit_rules, try_fit
from adadepth.metrics.exit_rule_selection import advise, readings
from adadepth.metrics.exit_study import add_online, add_timings, list_standard_rules, online_figures, study
from adadepth.metrics.expected_exits import EXPECTED
from adadepth.metrics.halves import select_first_half
from adadepth.metrics.saved_compute import summarise_saved_compute
from adadepth.metrics.step_records import StepRecords, get_sequence_numbers
from adadepth.metrics.step_summary import summarise_steps
from adadepth.report.exits import format_exit_study, write_exit_study
from adadepth.report.run_files import EXIT_RULES, write_exits
from adadepth.runs.directory import MODEL
from adadepth.runtime.console import RESULT, progress, say
from adadepth.runtime.files import convert_full_disk_errors, describe_files
from adadepth.runtime.hardware import name_device
from adadepth.runtime.timing import time_rounds
from adadepth.tasks.session import Session

BATCHES = (1, 8, 32)
TEXT_BATCHES = (1, 8)
TIMED_EXAMPLES = 64  # the first ones of the evaluation set
TIMED_BLOCKS = 16  # blocks of a text
REPETITIONS = 6  # the range over six rounds is a 97 % interval of the median
MOST_TIMED = 12  # of more rules, only those on a Pareto front are timed
WARM_UP = 1
_TEXT_METRICS: Mapping[str, Any] = {"problem": "language_model", "metrics": ("loss",)}


def parse_exit_rules(texts: Sequence[str], model: Any, *, may_fit: bool = True) -> list[ExitRule]:
    """Parse the setting `exit_rules`. `all` means every exit rule that the model supports, with a few parameters each.

    If there are any, the model's own exit rule and its full depth join them. `oracle:expected` is no rule that can be
    run, and is left out.

    Args:
        texts: Setting `exit_rules`.
        model: Model that provides the signals of the rules.
        may_fit: Whether the caller fits rules with learned parameters. If not, `all` leaves out those without them.

    Raises:
        ConfigError: If a rule does not exist, is not supported by the model, or has a mistake in its fit.
    """
    settings: Any = model.config
    signals = model.exit_signals
    if texts and not signals:
        reason = f"{settings.model_type} predicts after its last step only and has no exit rules"
        raise ConfigError(f"exit_rules={list(texts)}: {model.exit_rule_problem or reason}")
    names: list[str] = []
    for text in texts:
        standard = list_standard_rules(signals, settings.num_labels, model.max_updates) if text == "all" else ()
        names += [name for name in standard if may_fit or not parse_rule(name).needs_fit]
        names += [] if text in ("all", EXPECTED) else [text]
    if not texts:
        return []
    own_rule = getattr(settings, "exit_rule", None)  # the one that the verdict is about
    full = f"fixed:{model.max_updates}"  # the reference of every comparison
    parsed = map(parse_rule, [*names, *filter(None, [own_rule]), full])
    rules = list({rule.label: rule for rule in parsed}.values())
    for rule in rules:
        check_rule(rule, signals, settings.num_labels, model.max_updates, settings.model_type, may_fit=may_fit)
        start_memory(rule, 2, "cpu", torch.Generator())  # its shape is checked before the evaluation, not after
        if rule.needs_fit:
            try_fit(rule, settings.num_labels, model.max_updates)
    return rules


def compare_exit_rules(rules: Sequence[ExitRule], data: RunData, session: Session) -> None:
    """Compare exit rules of a trained model on every evaluation set of labelled data.

    Write exit_rules.json and pareto.csv, and print tables and the recommended rule.

    If tokens halt, the evaluation before did not run all steps, so this function also writes exits.json. With
    `adopt_rule`, the model is saved with the rule that is recommended for the first set.
    """
    exits: dict[str, Any] = {}
    trainer = session.trainer
    studies = {}
    for name, dataset in data.evaluation.items():
        records = trainer.records(dataset, run_all_steps=True)
        studies[name], rules = _study_set(rules, data, dataset, records, session)
        report = trainer.last_reports.get(name)
        if report is not None and report.exits is None:
            # The gate of early exits judges each prediction by itself, and gives no distribution.
            truncation = "leftover" if HALTING_SIGNAL in trainer.unwrapped_model.exit_signals else None
            exits[name] = summarise_steps(
                records, labels=data.labels, truncation=truncation, **select_unit_metrics(data)
            )
    if exits and trainer.is_world_process_zero():
        write_exits(session.run.directory, exits, trainer.state.global_step)
    _report_studies(studies, rules, data.evaluation, session, TIMED_EXAMPLES, BATCHES)


def compare_on_text(rules: Sequence[ExitRule], session: Session, *, predicts_next: bool = True) -> None:
    """Compare exit rules on texts by their loss on a random sample of tokens; see `compare_exit_rules`.

    Without a key-value cache, the exit of a token does not change the states that other tokens attend to. A replay of
    recorded outputs is therefore exact.

    Args:
        rules: Exit rules that the model supports.
        session: Session with the evaluation sets.
        predicts_next: Whether every token predicts the next one; False: masked words are predicted.
    """
    studies = {}
    for name, texts in session.evaluation_sets.items():
        studies[name], rules = _study_text(rules, texts, session, predicts_next)
    _report_studies(studies, rules, session.evaluation_sets, session, TIMED_BLOCKS, TEXT_BATCHES)


def _report_studies(
    studies: Mapping[str, Mapping[str, Any]],
    rules: Sequence[ExitRule],
    datasets: Mapping[str, Any],
    session: Session,
    examples: int,
    sizes: Sequence[int],
) -> None:
    """Write the comparisons of exit rules, time the rules, and write and print the comparisons with times.

    With `adopt_rule`, save the model with the rule that is recommended for the first set.

    Args:
        studies: Comparison for each evaluated set. An interrupted timing leaves them in the files.
        rules: Compared rules.
        datasets: Evaluated sets.
        session: Session with the trained model.
        examples: Number of examples on which rules are timed.
        sizes: Batch sizes at which rules are timed.
    """
    trainer, is_timed = session.trainer, session.config.trainer.time_executions is not False
    is_main, directory = trainer.is_world_process_zero(), session.run.directory
    has_setting = hasattr(session.config.model, "exit_rule")
    studies = {name: {**result, "has_setting": has_setting} for name, result in studies.items()}
    if is_main:
        write_exit_study(directory, studies)
    if is_timed:
        if is_main:
            say(f"timing exit rules (trainer.time_executions=false leaves this out); {EXIT_RULES} has all else")
        studies = {
            name: _time_rules(rules, study, datasets[name], session, examples, sizes) for name, study in studies.items()
        }
    if is_main:
        if is_timed:
            write_exit_study(directory, studies)
        for name, result in studies.items():
            say(f"exit rules on {name}:\n{format_exit_study(result)}", RESULT, wraps=True)
        if not is_timed:
            say("trainer.time_executions=false: the exit rules were not timed")
    if session.config.adopt_rule:
        _adopt_rule(next(iter(studies.values()))["advice"], session)


def _time_rules(
    rules: Sequence[ExitRule],
    study: Mapping[str, Any],
    dataset: Any,
    session: Session,
    examples: int,
    sizes: Sequence[int],
) -> dict[str, Any]:
    """Return a comparison of exit rules with the measured times of the rules that are worth it."""
    trainer, conditions = session.trainer, _describe_conditions(session, min(len(dataset), examples))
    if trainer.unwrapped_model.refills:
        conditions["waiting"] = "waiting examples take the freed slots"
    timings = measure(trainer, dataset, choose_timed_rules(rules, study), examples, sizes)
    return add_timings(study, timings, conditions)


def _adopt_rule(advice: Mapping[str, Any], session: Session) -> None:
    """Save a copy of the model with the recommended exit rule as its default.

    The rest of the evaluation uses the exit rule with which the model was loaded.

    Raises:
        ConfigError: If no rule is recommended.
    """
    if not advice:
        raise ConfigError(
            "adopt_rule=true: no exit rule can be recommended, because a recommendation needs a score and enough "
            "examples for two halves"
        )
    trainer, folder = session.trainer, session.run.directory / MODEL
    settings = trainer.unwrapped_model.config
    loaded_rule = settings.exit_rule
    settings.exit_rule = advice["rule"]["rule"]
    try:
        with convert_full_disk_errors(folder):
            trainer.save_model(str(folder))
    finally:
        settings.exit_rule = loaded_rule
    if trainer.is_world_process_zero():
        session.run.update(saved={MODEL: describe_files(folder)})
        say(f"saved the model with the exit rule {advice['rule']['rule']} in {folder}", RESULT)


def select_unit_metrics(data: RunData) -> dict[str, Any]:
    """Return the problem type, and those metrics that can be computed per token or sequence.

    These are the metrics of the task, or accuracy for labelled tokens.
    """
    if data.problem == "tagging":
        return {"problem": "classification", "metrics": ("accuracy",)}
    return {"problem": data.problem, "metrics": data.metrics}


def _study_set(
    rules: Sequence[ExitRule], data: RunData, dataset: Any, records: StepRecords, session: Session
) -> tuple[dict[str, Any], list[ExitRule]]:
    """Compare exit rules on a labelled set, and return the comparison with the rules, fitted where they need it."""
    trainer = session.trainer
    model: Any = trainer.unwrapped_model
    by_token = data.problem == "tagging"
    cost, measured = ExitCost(model, by_token), select_unit_metrics(data)
    sequences = get_sequence_numbers(records.index) if by_token else records.index
    expected = EXPECTED in session.config.exit_rules
    result, rules, scored = _fit_and_study(rules, records, sequences, cost, measured, expected)
    result["has_budget_halves"] = _has_budget_halves(dataset, sequences)
    if by_token:  # halted tokens change the states of others, so a replay is not exact
        runs = _run_rules(rules, dataset, session)
        figures = {label: _build_online_figures(run, measured, scored) for label, run in runs.items()}
        result = add_online(result, figures)
    return result, rules


def _study_text(
    rules: Sequence[ExitRule], texts: Any, session: Session, predicts_next: bool
) -> tuple[dict[str, Any], list[ExitRule]]:
    """Compare exit rules, controls and oracles by their loss at random positions of a text.

    Return the comparison with the rules, fitted where they need it.
    """
    records, total = _record_text(texts, session, predicts_next)
    sequences, cost = get_sequence_numbers(records.index), ExitCost(session.trainer.unwrapped_model, by_token=True)
    expected = EXPECTED in session.config.exit_rules
    result, rules, _ = _fit_and_study(rules, records, sequences, cost, _TEXT_METRICS, expected)
    result["drawn_of"] = total
    result["has_budget_halves"] = len(records) == total and _has_budget_halves(texts, sequences)
    return result, rules


def _record_text(texts: Any, session: Session, predicts_next: bool) -> tuple[StepRecords, int]:
    """Record the predictions of a text after every step at random positions, and count all positions."""
    trainer: Any = session.trainer
    model: Any = trainer.unwrapped_model
    options = {**make_exit_kwargs(model), "run_all_steps": True, **trainer.model_inputs({"logits_to_keep": 1})}
    logits = model.max_updates * model.config.vocab_size
    positions, total = (
        (sample_positions(texts, logits), texts.tokens) if predicts_next else sample_masked_positions(texts, logits)
    )
    passes = trainer.forward_passes(texts, lambda _: options)
    return text_records(passes, positions, predicts_next=predicts_next), total


def study_fitted_rules(rules: Sequence[ExitRule], session: Session) -> dict[str, Any]:
    """Compare exit rules that are fitted to target depths with fixed and with shuffled exits, on the first set.

    Return the result of `study` on all recorded examples. Fits of depths read no labels.
    """
    trainer, data = session.trainer, session.data
    dataset = next(iter(trainer.evaluation_sets.values()))
    if is_text := data.problem == "language_model":
        records, _ = _record_text(dataset, session, isinstance(dataset, CausalExamples))
    else:
        records = trainer.records(dataset, run_all_steps=True)
    cost = ExitCost(trainer.unwrapped_model, by_token=is_text or data.problem == "tagging")
    return study(records, rules, macs=cost.macs, **(_TEXT_METRICS if is_text else select_unit_metrics(data)))


def _fit_and_study(
    rules: Sequence[ExitRule],
    records: StepRecords,
    sequences: Tensor,
    cost: ExitCost,
    measured: Mapping[str, Any],
    expected: bool,
) -> tuple[dict[str, Any], list[ExitRule], Tensor]:
    """Fit exit rules that need it, and compare all rules on the examples to which none was fitted.

    Return the comparison, with the recommended rule, the operating points of all rules, and the quality at given shares
    of saved compute; the fitted rules; and the mask of the compared examples, boolean (M,).
    """
    fitted, scored = fit_rules(rules, records, sequences, measured["problem"])
    compared = records if scored.all() else records.select(scored)
    result = study(compared, fitted, macs=cost.macs, expected=expected, **measured)
    if compared is not records:
        result["fitted_on"] = len(records) - len(compared)
    result["advice"] = advise(records, sequences, fitted, macs=cost.macs, **measured)
    result["readings"] = readings(records, sequences, fitted, macs=cost.macs, **measured)
    is_text = measured["problem"] == "language_model"
    result["saved_compute"] = summarise_saved_compute(result["readings"], is_text=is_text)
    return result, fitted, scored


def _has_budget_halves(dataset: Any, sequences: Tensor) -> bool:
    """Return whether the halves of the operating points are those on which budgets are fitted and scored.

    They are if every example of the data set is recorded, and no two examples have the same owner.
    """
    return not hasattr(dataset, "owners") and len(sequences.unique()) == len(dataset)


def _build_online_figures(run: StepRecords, measured: Mapping[str, Any], scored: Tensor) -> dict[str, Any]:
    """Return the results of an exit rule that decided while the model ran on labelled tokens, and those of its halves.

    The first of the `halves` selects thresholds, and the second scores them.

    Args:
        run: Records of all tokens.
        measured: Kind of prediction, and metrics.
        scored: Mask of the tokens to which no exit rule was fitted, boolean (M,).
    """
    is_first = torch.from_numpy(select_first_half(get_sequence_numbers(run.index).numpy()))
    parts = (run.select(rows) for rows in (is_first, ~is_first)) if is_first.any() else ()
    whole = online_figures(run.select(scored), **measured)
    return whole | {"halves": [online_figures(part, **measured) for part in parts]}


def _describe_conditions(session: Session, examples: int) -> dict[str, Any]:
    """Return the conditions under which the times of exit rules were measured."""
    return {
        "device": name_device(session.trainer.args.device),
        "torch": torch.__version__,
        "precision": session.run.record.get("precision"),
        "threads": torch.get_num_threads(),
        "examples": examples,
        "repetitions": REPETITIONS,
    }


def choose_timed_rules(rules: Sequence[ExitRule], study: Mapping[str, Any]) -> list[ExitRule]:
    """Return the rules whose time is measured: up to `MOST_TIMED` rules, and the recommended rule.

    Of more rules, these are full depth and the rules on the Pareto front of score against updates or compute.
    """
    full = f"fixed:{study['max_steps']}"
    best = {row["rule"] for row in study["rows"] if row["pareto"]} | {full}
    timed = [rule for rule in rules if len(rules) <= MOST_TIMED or rule.label in best]
    if study["advice"]:
        timed.append(parse_rule(study["advice"]["rule"]["rule"]))
    return list({rule.label: rule for rule in timed}.values())


def _run_rules(rules: Sequence[ExitRule], dataset: Any, session: Session) -> dict[str, StepRecords]:
    """Evaluate a data set with every exit rule, and return the recorded predictions by the name of the rule."""
    records = {}
    trainer = session.trainer
    with progress(f"running {len(rules)} exit rules", len(rules), shown=trainer.is_world_process_zero()) as advance:
        for rule in rules:
            records[rule.label] = trainer.records(dataset, exit_rule=rule)
            advance(1)
    return records


def measure(
    trainer: Any,
    dataset: Any,
    rules: Sequence[ExitRule],
    first: int,
    sizes: Sequence[int],
) -> dict[str, dict[int, list[float]]]:
    """Time exit rules: return the seconds per example in every round, by exit rule and batch size.

    The rules take turns in a round.

    The first `first` examples of the set are batched by length, as in an evaluation. A model with continuous batching
    gets all of them at once, with as many slots as a batch has rows.
    """
    examples = [dataset[int(index)] for index in order_for_evaluation(dataset) if index < first]
    refills = trainer.accelerator.unwrap_model(trainer.model).refills
    timings: dict[str, dict[int, list[float]]] = {rule.label: {} for rule in rules}
    batches = {size: _build_batches(trainer, examples, len(examples) if refills else size) for size in sizes}
    # The time of a call grows with its examples and its batches.
    work = {size: len(examples) + len(batches[size]) for size in sizes}
    total = sum(work.values()) * len(rules) * (WARM_UP + REPETITIONS)
    with progress(f"timing {len(rules)} exit rules", total, shown=trainer.is_world_process_zero()) as advance:
        for size in sizes:
            options = {"places": size} if refills else {}
            calls = {rule.label: partial(_run, trainer, batches[size], rule, options) for rule in rules}
            after = partial(advance, work[size])
            for label, rounds in time_rounds(calls, REPETITIONS, WARM_UP, trainer.args.device, after).items():
                timings[label][size] = [seconds / len(examples) for seconds in rounds]
    return timings


def _build_batches(trainer: Any, examples: Sequence[Any], batch_size: int) -> list[dict[str, Tensor]]:
    cut = [list(examples[start : start + batch_size]) for start in range(0, len(examples), batch_size)]
    batches = [trainer.model_inputs(trainer.prepare_batch(trainer.data_collator(part))) for part in cut]
    return [{name: value for name, value in batch.items() if name != "labels"} for batch in batches]


def _run(trainer: Any, batches: Sequence[dict[str, Tensor]], rule: ExitRule, options: Mapping[str, int]) -> None:
    model = trainer.accelerator.unwrap_model(trainer.model).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad(), trainer.autocast_smart_context_manager():
        for batch in batches:
            model(**batch, exit_rule=rule, generator=generator, **options)
