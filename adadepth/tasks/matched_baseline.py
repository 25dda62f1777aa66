"""Comparison of a trained model with its matched baseline of equal depth, to show whether adaptive depth helped.

If units (tokens or sequences) halt, the model is evaluated again without retraining. It is evaluated with its mean
depth for all units, and with its own depths randomly permuted among units. If the model has one distribution over
layers per task, it is compared with a network on a single layer. This network is trained on the cached states of the
run. `adadepth.tasks.rivals` trains fixed-depth networks of equal compute in separate runs.

A comparison without training takes at most a third of the time of the run. Training on an example takes about three
times as long as a forward pass. Half as many forward passes as trained sequences therefore take a sixth of the training
time, and less than a third with all statistics. The training of a baseline, on the same states and with as many steps,
stops if it takes longer than the run before it.
"""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Subset
from transformers import PrinterCallback, ProgressCallback

from adadepth.budget.fit import fit_level
from adadepth.config import BudgetConfig, ExperimentConfig
from adadepth.config.kinds import PREDICTED
from adadepth.data.labelled.splits import spread_rows
from adadepth.data.streams.blocks import CausalExamples
from adadepth.evaluation.evaluation import Evaluation
from adadepth.evaluation.predictions import make_exit_kwargs
from adadepth.evaluation.text_records import sample_masked_positions, sample_positions, text_records
from adadepth.halting.exit_rules import ExitRule, Fixed, apply_rule, parse_rule
from adadepth.metrics.exit_study import DRAWS
from adadepth.metrics.matched_baseline import (
    build_masses_for_depth,
    compare_recorded,
    describe_comparison,
    estimate_gains_of_groups,
    find_neighbouring_depths,
    permute_masses,
)
from adadepth.metrics.significance import GROUPS, choose_group
from adadepth.metrics.step_records import POSITIONS, StepRecords
from adadepth.models.contract import MixesLayers, ReplaysHalting
from adadepth.models.depth.engine import ExitRuleKnob
from adadepth.models.registry import family
from adadepth.report.quality_pairs import find_errors
from adadepth.report.run_files import MATCHED_BASELINE, write_json
from adadepth.runtime.console import say
from adadepth.runtime.distributed import wait_for_processes
from adadepth.tasks.exit_study import select_unit_metrics
from adadepth.tasks.session import Session
from adadepth.training.arguments import training_arguments
from adadepth.training.callbacks import (
    EpochCallback,
    StepCallback,
    StopCallback,
    build_early_stopping,
    rename_metrics,
)
from adadepth.training.trainer import DepthTrainer

_MOST_EXAMPLES = 512
_FEWEST_EXAMPLES = 8
_FOLDER = "matched_baseline"  # of the checkpoints while a baseline is trained

BuildSession = Callable[[ExperimentConfig, Any], Session]  # from a configuration and the arguments of its training


class BaselineUnavailable(Exception):
    """Reason why a run has no matched baseline."""


def compare_with_matched_baseline(
    session: Session, build_session: BuildSession | None = None, started: float = 0.0
) -> None:
    """Compare a trained model with its matched baseline, and write and print the comparison.

    Args:
        session: Session after training.
        build_session: Function that builds the session in which a baseline is trained.
        started: Start time of the run in seconds of the monotonic clock; used only if a baseline is trained.
    """
    if not session.config.matched_baseline:
        return
    model: Any = session.trainer.unwrapped_model
    begin = time.monotonic()
    try:
        comparison = _compare(session, model, build_session, started)
    except BaselineUnavailable as reason:
        comparison = {"left_out": str(reason)}
    if comparison is None or not session.trainer.is_world_process_zero():
        return
    comparison["seconds"] = time.monotonic() - begin
    write_json(session.run.directory / MATCHED_BASELINE, comparison)
    say(_format_comparison(comparison), wraps=True)


def _format_comparison(comparison: Mapping[str, Any]) -> str:
    """Format the comparison with the matched baseline as one line."""
    if "left_out" in comparison:
        return f"matched baseline: skipped, {comparison['left_out']}"
    parts = [
        f"one fixed depth, and shuffled depths ({counts['examples']:,} of {counts['of_examples']:,} sequences of "
        f"{name})"
        for name, counts in comparison.get("sets", {}).items()
    ]
    parts += [
        f"{network['about']}, trained for {network['steps']:,} steps" for network in comparison.get("networks", [])
    ]
    return f"matched baseline: {'; '.join(parts)}, {comparison['seconds']:.0f} s"


def _compare(session: Session, model: Any, build_session: BuildSession | None, started: float) -> dict[str, Any] | None:
    """Compare the model with its matched baseline; return None if depth is fixed or cannot be replayed."""
    if isinstance(model, MixesLayers):
        baseline = family(session.config.model.name).matched_baseline
        if baseline is None or build_session is None or not model.learns_distribution:
            return None
        return {"networks": [_train_baseline(session, *baseline, build_session, started)]}
    rule = getattr(model.config, "exit_rule", None)
    if model.one_depth is not None or (rule is not None and isinstance(parse_rule(rule), Fixed)):
        return None
    trainer = session.trainer
    name, dataset = next(iter(trainer.evaluation_sets.items()))
    if isinstance(model, ReplaysHalting):
        examples = _choose_examples(session, dataset, passes=3 + DRAWS)
        with _reduce_batch_size(trainer, len(examples)):
            compared = _replay_halting(trainer, model, name, examples)
    elif not model.exit_signals:
        return None
    elif session.data.problem == "language_model":
        examples = Subset(dataset, range(_count_examples(session, dataset, passes=1)))
        compared = _replay_exits(
            model, _record_text(trainer, model, dataset, len(examples)), "language_model", ["loss"]
        )
    else:
        examples = _choose_examples(session, dataset, passes=1)
        compared = _replay_labelled(trainer, model, examples)
    return {"sets": {name: {"examples": len(examples), "of_examples": len(dataset), **compared}}}


def _choose_examples(session: Session, dataset: Any, passes: int) -> Subset[Any]:
    """Return evenly spaced examples of a set, few enough for `passes` evaluation passes within the time limit."""
    return Subset(dataset, spread_rows(len(dataset), _count_examples(session, dataset, passes)).tolist())


def _count_examples(session: Session, dataset: Any, passes: int) -> int:
    """Return how many examples fit into `passes` evaluation passes within the time limit.

    Raises:
        BaselineUnavailable: If there are too few examples for a comparison.
    """
    args, steps = session.trainer.args, session.trainer.state.global_step
    trained = steps * args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    count = min(len(dataset), _MOST_EXAMPLES, trained // (2 * passes))
    if count < min(_FEWEST_EXAMPLES, len(dataset)):
        raise BaselineUnavailable(
            f"training was too short: it read {trained:,} sequences, and {passes} evaluation passes would take too long"
        )
    return count


# ---- models that predict after every step


def _replay_labelled(trainer: DepthTrainer, model: Any, examples: Any) -> dict[str, Any]:
    """Record predictions for labelled examples after every step, and compare exit steps on these records."""
    data = trainer.data
    if not PREDICTED[data.problem].studies_exits:
        raise BaselineUnavailable(
            f"predictions for data that {PREDICTED[data.problem].what} are not available after every step"
        )
    measured = select_unit_metrics(data)
    records = trainer.records(examples, run_all_steps=True)
    return _replay_exits(model, records, measured["problem"], measured["metrics"])


def _record_text(trainer: Any, model: Any, texts: Any, count: int) -> StepRecords:
    """Record the model's outputs after every step at random positions in the first examples of a text.

    In packed blocks, a position predicts the next token. Other examples have masked words, which predict themselves.
    """
    options = {**make_exit_kwargs(model), "run_all_steps": True, **trainer.model_inputs({"logits_to_keep": 1})}
    first: Any = Subset(texts, range(count))
    logits = model.max_updates * model.config.vocab_size
    if predicts_next := isinstance(texts, CausalExamples):
        positions = sample_positions(texts, logits)
        positions = positions[positions < count * POSITIONS]
    else:
        positions, _ = sample_masked_positions(first, logits)
    return text_records(trainer.forward_passes(first, lambda _: options), positions, predicts_next=predicts_next)


def _replay_exits(model: Any, records: StepRecords, problem: Any, metrics: Sequence[str]) -> dict[str, Any]:
    """Compare the model's recorded exits with one fixed depth for all examples, and with shuffled exits.

    A model without an exit rule uses the rule of its family, fitted to half of the depth.
    """
    exits, rule = records.exit_steps, None
    if getattr(model.config, "exit_rule", "") is None and isinstance(model, ExitRuleKnob):
        exits, rule = _exit_at_half(model, records)
    elif parse_rule(getattr(model.config, "exit_rule", "fixed:1")).mixes:
        raise BaselineUnavailable("the exit rule averages the predictions of all steps instead of choosing one")
    if exits is None or not records.ran_every_step or (records.ran is not None):
        raise BaselineUnavailable("the depth of the model does not follow from its exit steps")
    return {"rule": rule, **compare_recorded(records, exits, problem, metrics)}


def _exit_at_half(model: ExitRuleKnob, records: StepRecords) -> tuple[Tensor, str]:
    """Return the exit steps of the model's default exit rule at mean depth 1/2, and the rule's label.

    The threshold of the rule is fitted so that examples exit after half of the steps on average.
    """

    def build_rule(level: float) -> ExitRule:
        rule = parse_rule(model.level_rule).with_level(level)
        assert rule is not None, "it has a threshold"
        return rule

    exits: dict[float, Tensor] = {}

    def measure_level(level: float) -> float:
        signals = (records.step_logits, records.halting_logits, None, records.state_moves)
        exits[level] = apply_rule(build_rule(level), *signals)
        return float(exits[level].double().mean())

    fit = fit_level(measure_level, records.max_updates / 2)
    return exits[fit.level], build_rule(fit.level).label


# ---- models whose tokens halt by masses


@dataclasses.dataclass
class _EvaluationPass:
    """Result of one pass over the examples: metrics, and the tokens' halting distributions per batch, (B, T, N).

    Attributes:
        groups: Metrics of each of at most `GROUPS` groups of batches.
    """

    metrics: dict[str, float]
    groups: list[dict[str, float]]
    masses: list[Tensor]
    updates: list[Tensor]  # (B, T)
    valid: list[Tensor]  # (B, T)
    predictions: int


@contextmanager
def _reduce_batch_size(trainer: DepthTrainer, examples: int) -> Iterator[None]:
    """Use batches small enough for `GROUPS` groups of examples in the `with` block."""
    args, size = trainer.args, trainer.args.per_device_eval_batch_size
    args.per_device_eval_batch_size = max(1, min(size, examples // (GROUPS * args.world_size)))
    try:
        yield
    finally:
        args.per_device_eval_batch_size = size


def _replay_halting(trainer: DepthTrainer, model: Any, name: str, examples: Any) -> dict[str, Any]:
    """Compare the model's own halting with its mean depth for all tokens, and with shuffled depths."""
    adaptive = _run_pass(trainer, model, name, examples, None)
    tokens = torch.cat([masses[valid] for masses, valid in zip(adaptive.masses, adaptive.valid, strict=True)])
    depths = torch.cat([updates[valid] for updates, valid in zip(adaptive.updates, adaptive.valid, strict=True)])
    fixed: dict[int, _EvaluationPass] = {}
    mean = float(depths.double().mean())
    for depth in find_neighbouring_depths(mean):
        profile = build_masses_for_depth(tokens, depths, depth)
        same = [profile.expand(masses.shape) for masses in adaptive.masses]
        fixed[depth] = _run_pass(trainer, model, name, examples, same)
    generator, dealt = torch.Generator().manual_seed(0), []
    for _ in range(DRAWS):
        masses = _permute_masses(model, adaptive, generator)
        dealt.append(_run_pass(trainer, model, name, examples, masses))
    compared = describe_comparison(
        depths.cpu(),
        adaptive.predictions,
        adaptive.metrics,
        {depth: done.metrics for depth, done in fixed.items()},
        [done.metrics for done in dealt],
    )
    gains = estimate_gains_of_groups(
        mean, adaptive.groups, {depth: done.groups for depth, done in fixed.items()}, [done.groups for done in dealt]
    )
    return {"rule": None, "max_depth": model.max_updates, **compared, "gains": gains}


def _permute_masses(model: ReplaysHalting, adaptive: _EvaluationPass, generator: torch.Generator) -> list[Tensor]:
    """Shuffle halting distributions over tokens, or over sequences if whole sequences halt."""
    if not model.halts_by_sequence:
        return permute_masses(adaptive.masses, adaptive.valid, generator)
    rows = [masses.amax(dim=1, keepdim=True) for masses in adaptive.masses]
    dealt = permute_masses(rows, [valid.any(dim=1, keepdim=True) for valid in adaptive.valid], generator)
    return [new.expand(masses.shape) for new, masses in zip(dealt, adaptive.masses, strict=True)]


def _run_pass(
    trainer: DepthTrainer, model: ReplaysHalting, name: str, examples: Any, masses: Sequence[Tensor] | None
) -> _EvaluationPass:
    """Evaluate the examples, with halting distributions given per batch, (B, T, N), or decided by the model if None.

    The metrics of all examples and of each group need no statistics of depth.
    """

    def start_evaluation() -> Evaluation:
        scorer = trainer.start_evaluation(name).scorer
        return Evaluation(trainer.unwrapped_model, scorer, trainer.args.device, wants_statistics=False)

    evaluation = start_evaluation()
    following: Iterator[Tensor] = iter(masses or ())
    parts: list[Evaluation] = []
    done = _EvaluationPass({}, [], [], [], [], 0)

    def options(batch: Mapping[str, Any]) -> Mapping[str, Any]:
        model.replay_halting(next(following, None))
        return evaluation.options(batch)

    try:
        for number, (batch, outputs) in enumerate(trainer.forward_passes(examples, options)):
            evaluation.update(batch, outputs)
            if number < GROUPS:
                parts.append(start_evaluation())
            parts[choose_group(number)].update(batch, outputs)
            missing = model.max_updates - outputs.halting_probabilities.shape[-1]
            done.masses.append(torch.nn.functional.pad(outputs.halting_probabilities.float(), (0, missing)))
            done.updates.append(outputs.trace.updates)
            done.valid.append(outputs.trace.valid)
            done.predictions += _count_predictions(batch)
    finally:
        model.replay_halting(None)
    for part in (evaluation, *parts):
        part.merge()
    done.metrics, *done.groups = (part.metrics() for part in (evaluation, *parts))
    return done


def _count_predictions(batch: Mapping[str, Tensor]) -> int:
    """Count the labels of a batch; if labels are values or spans, count its rows."""
    labels = batch.get("labels")
    if labels is None or labels.is_floating_point():
        return len(next(iter(batch.values())))
    return int((labels >= 0).sum())


# ---- a network that is trained


def _train_baseline(
    session: Session, settings: Mapping[str, Any], description: str, build_session: BuildSession, started: float
) -> dict[str, Any]:
    """Train a baseline on cached hidden states, for at most the time that the run took.

    Raises:
        BaselineUnavailable: If this time is too short, or if no states are cached.
    """
    begin = time.monotonic()
    limit = begin - started
    if not session.config.features.cache:
        raise BaselineUnavailable(f"{description} would take as long as the run, because no states are cached")
    config = dataclasses.replace(
        session.config,
        model=dataclasses.replace(session.config.model, **settings),
        trainer=dataclasses.replace(session.config.trainer, eval_on_start=False),
        budget=BudgetConfig(),
        resume=None,
    )
    args = training_arguments(config)
    folder = Path(session.run.directory) / _FOLDER
    args.output_dir = str(folder)
    other = build_session(config, args).with_extensions()
    epochs, stop = EpochCallback(), StopCallback(max(limit - (time.monotonic() - begin), 0.0) / 60)
    callbacks = [epochs, stop, StepCallback(), *build_early_stopping(config.trainer)]
    sets, start = other.evaluation_sets, other.start_evaluation
    trainer = DepthTrainer(other.model, args, other.data, sets, start, config.trainer, callbacks, other.extensions)
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    epochs.trainer = trainer
    say(f"matched baseline: training {description}, in at most {limit:.0f} s")
    try:
        trainer.train()
        if stop.reason is not None:
            raise BaselineUnavailable(f"{description} takes longer than the run")
        metrics = rename_metrics(trainer.evaluate())
    finally:
        wait_for_processes(args)
        if trainer.is_world_process_zero():
            shutil.rmtree(folder, ignore_errors=True)
    evaluated = {name: value for name, value in metrics.items() if name.startswith("eval")}
    batches = trainer.get_eval_dataloader(next(iter(other.evaluation_sets.values())))
    predictions = sum(map(_count_predictions, batches))
    reports = list(trainer.last_reports.values())
    return {
        "about": description,
        "steps": trainer.state.global_step,
        "predictions": predictions,
        "metrics": evaluated,
        "errors": find_errors(reports[0].statistics, evaluated) if reports else {},
    }
