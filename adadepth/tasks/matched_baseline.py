"""The matched baseline at the end of a training: what the depths of the trained model are worth.

A model whose units halt is read again, as it is: at one depth for all units, which is its mean, and with its own depths
dealt to the units at random. A model with one distribution for a whole task is compared with a network of one layer,
which is trained on the states that the run has kept. A network of one depth that is trained with as much work is a run
of its own, see `adadepth.tasks.rivals`.

All of it takes at most a third of the run's time. Training on an example takes about three times as long as a pass over
it, so that half as many passes as sequences that were trained on are a sixth of the training, and with all statistics
less than a third of it; a training of its own is stopped at its share.
"""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Subset
from transformers import PrinterCallback, ProgressCallback

from adadepth.budget.fit import fit_level
from adadepth.data import LabelledData
from adadepth.data.labelled.contract import spread_rows
from adadepth.data.streams.blocks import TextBlocks
from adadepth.evaluation.predictions import seeded_exits
from adadepth.evaluation.text_records import drawn_places, text_records
from adadepth.families.contract import DepthModel, MixesLayers, ReplaysHalting
from adadepth.families.registry import family
from adadepth.families.shared.steps import ExitRuleKnob
from adadepth.halting.exit_rules import ExitRule, Fixed, apply_rule, parse_rule
from adadepth.measure.exit_records import POSITIONS, StepRecords
from adadepth.measure.exit_study import DRAWS
from adadepth.measure.matched_baseline import (
    compare_recorded,
    deal_masses,
    describe_comparison,
    masses_of_depth,
    neighbouring_depths,
)
from adadepth.report.run_files import MATCHED_BASELINE, write_json
from adadepth.settings import BudgetConfig, ExperimentConfig
from adadepth.settings.kinds import PREDICTED
from adadepth.system.console import say
from adadepth.system.processes import wait_for_all
from adadepth.tasks.exit_study import scored_metrics
from adadepth.tasks.session import Session
from adadepth.training.arguments import training_arguments
from adadepth.training.callbacks import (
    EarlyStoppingCallback,
    EpochCallback,
    StepCallback,
    StopCallback,
    rename_metrics,
)
from adadepth.training.trainer import DepthTrainer

_MOST_EXAMPLES = 512
_FEWEST_EXAMPLES = 8
_FOLDER = "matched_baseline"  # of the checkpoints of a trained one, while it is trained

BuildSession = Callable[[ExperimentConfig, Any], Session]  # from a configuration and the arguments of its training


class LeftOut(Exception):
    """A matched baseline cannot be had in this run; the message says why."""


def compare_with_matched_baseline(
    session: Session, build_session: BuildSession | None = None, started: float = 0.0
) -> None:
    """Compare the trained model with its matched baseline, where it has one; write and print what was compared.

    Args:
        session: Of a training that has ended.
        build_session: Makes the model, data and evaluation sets of a baseline that is trained.
        started: When its run began, of the monotonic clock in seconds; read where a baseline is trained.
    """
    if not session.config.matched_baseline:
        return
    model: Any = session.trainer.unwrapped_model
    begun = time.monotonic()
    try:
        found = _compare(session, model, build_session, started)
    except LeftOut as reason:
        found = {"left_out": str(reason)}
    if found is None or not session.trainer.is_world_process_zero():
        return
    found["seconds"] = time.monotonic() - begun
    write_json(session.run.directory / MATCHED_BASELINE, found)
    say(_line(found))


def _line(found: Mapping[str, Any]) -> str:
    """What was compared, for the console."""
    if "left_out" in found:
        return f"matched baseline: left out, {found['left_out']}"
    parts = [
        f"the same network at one depth, and with its depths dealt at random ({one['examples']:,} of "
        f"{one['of_examples']:,} examples of {name})"
        for name, one in found.get("sets", {}).items()
    ]
    parts += [f"{network['about']}, trained for {network['steps']:,} updates" for network in found.get("networks", [])]
    return f"matched baseline: {'; '.join(parts)}, {found['seconds']:.0f} s"


def _compare(session: Session, model: Any, build_session: BuildSession | None, started: float) -> dict[str, Any] | None:
    """What the file holds; None for a model whose depth was set, or that has no depth to read it at."""
    if isinstance(model, MixesLayers):
        about = family(session.config.model.name).matched_baseline
        if about is None or build_session is None or not model.learns_distribution:
            return None
        return {"networks": [_train_network(session, *about, build_session, started)]}
    if model.one_depth is not None or _is_fixed(model):
        return None
    trainer = session.trainer
    name, dataset = next(iter(trainer.evaluation_sets.items()))
    if isinstance(model, ReplaysHalting):
        examples = _choose_examples(session, dataset, passes=3 + DRAWS)
        compared = _replay_halting(trainer, model, name, examples)
    elif not model.exit_signals:
        return None
    elif isinstance(dataset, TextBlocks):
        examples = Subset(dataset, range(_count_examples(session, dataset, passes=1)))
        compared = _replay_exits(
            model, _record_text(trainer, model, dataset, len(examples)), "language_model", ["loss"]
        )
    else:
        examples = _choose_examples(session, dataset, passes=1)
        compared = _replay_labelled(trainer, model, examples)
    return {"sets": {name: {"examples": len(examples), "of_examples": len(dataset), **compared}}}


def _is_fixed(model: DepthModel) -> bool:
    """Whether the configuration lets every unit exit at the same step."""
    rule = getattr(model.config, "exit_rule", None)
    return rule is not None and isinstance(parse_rule(rule), Fixed)


def _choose_examples(session: Session, dataset: Any, passes: int) -> Subset[Any]:
    """Evenly spread examples of a set, as many as may be read `passes` times."""
    return Subset(dataset, spread_rows(len(dataset), _count_examples(session, dataset, passes)).tolist())


def _count_examples(session: Session, dataset: Any, passes: int) -> int:
    """How many examples may be read `passes` times.

    Raises:
        LeftOut: If they are too few to say anything.
    """
    args, steps = session.trainer.args, session.trainer.state.global_step
    trained = steps * args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    count = min(len(dataset), _MOST_EXAMPLES, trained // (2 * passes))
    if count < min(_FEWEST_EXAMPLES, len(dataset)):
        raise LeftOut(f"training was too short for it: {trained:,} sequences, and it reads each example {passes} times")
    return count


# ---- models that predict after every step


def _replay_labelled(trainer: DepthTrainer, model: Any, examples: Any) -> dict[str, Any]:
    """Compare the exits of labelled examples, whose predictions of all steps are recorded once."""
    data: LabelledData = trainer.data  # type: ignore[assignment]
    if not PREDICTED[data.problem].studies_exits:
        raise LeftOut(f"what {PREDICTED[data.problem].what} cannot be read after every step")
    measured = scored_metrics(data)
    records = trainer.records(examples, run_all_steps=True)
    return _replay_exits(model, records, measured["problem"], measured["metrics"])


def _record_text(trainer: DepthTrainer, model: Any, blocks: TextBlocks, count: int) -> StepRecords:
    """Record drawn places of the first blocks of a text after every step."""
    options = {**seeded_exits(model), "run_all_steps": True, "logits_to_keep": 1}
    places = drawn_places(blocks, model.max_updates * model.config.vocab_size)
    places = places[places < count * POSITIONS]
    first = Subset(blocks, range(count))
    return text_records(trainer.forward_passes(first, lambda _: options), places)


def _replay_exits(model: Any, records: StepRecords, problem: Any, metrics: Sequence[str]) -> dict[str, Any]:
    """Compare recorded exits; a model without an exit rule is read by its family's, at half of its depth."""
    exits, rule = records.exit_steps, None
    if getattr(model.config, "exit_rule", "") is None and isinstance(model, ExitRuleKnob):
        exits, rule = _exit_at_half(model, records)
    elif parse_rule(getattr(model.config, "exit_rule", "fixed:1")).mixes:
        raise LeftOut("its predictions are mixtures of all steps")
    if exits is None or not records.ran_every_step or (records.ran is not None):
        raise LeftOut("its depth is not decided by exits")
    return {"rule": rule, **compare_recorded(records, exits, problem, metrics)}


def _exit_at_half(model: ExitRuleKnob, records: StepRecords) -> tuple[Tensor, str]:
    """Exits by the family's rule, whose threshold is fitted to half of the steps in the mean; and the rule's label."""

    def rule_at(level: float) -> ExitRule:
        rule = parse_rule(model.level_rule).at_level(level)
        assert rule is not None, "it has a threshold"
        return rule

    def exits_at(level: float) -> Tensor:
        said = (records.step_logits, records.halting_logits, None, records.state_moves)
        return apply_rule(rule_at(level), *said)

    fit = fit_level(lambda level: float(exits_at(level).double().mean()), records.max_updates / 2)
    return exits_at(fit.level), rule_at(fit.level).label


# ---- models whose tokens halt by masses


@dataclasses.dataclass
class _Pass:
    """One pass over the examples: its metrics, and by batch the masses by which tokens halted, (B, T, N)."""

    metrics: dict[str, float]
    masses: list[Tensor]
    updates: list[Tensor]  # (B, T)
    valid: list[Tensor]  # (B, T)
    predictions: int


def _replay_halting(trainer: DepthTrainer, model: Any, name: str, examples: Any) -> dict[str, Any]:
    """Compare the halting masses of the model with the mean ones at one depth, and with its own dealt at random."""
    own = _pass_over(trainer, model, name, examples, None)
    tokens = torch.cat([masses[valid] for masses, valid in zip(own.masses, own.valid, strict=True)])
    depths = torch.cat([updates[valid] for updates, valid in zip(own.updates, own.valid, strict=True)])
    fixed = {}
    for depth in neighbouring_depths(float(depths.double().mean())):
        profile = masses_of_depth(tokens, depths, depth)
        same = [profile.expand(masses.shape) for masses in own.masses]
        fixed[depth] = _pass_over(trainer, model, name, examples, same).metrics
    generator, dealt = torch.Generator().manual_seed(0), []
    for _ in range(DRAWS):
        masses = _deal(model, own, generator)
        dealt.append(_pass_over(trainer, model, name, examples, masses).metrics)
    compared = describe_comparison(depths.cpu(), own.predictions, own.metrics, fixed, dealt)
    return {"rule": None, "max_depth": model.max_updates, **compared}


def _deal(model: ReplaysHalting, own: _Pass, generator: torch.Generator) -> list[Tensor]:
    """The masses of the tokens dealt to each other, or where sequences halt those of the sequences."""
    if not model.halts_by_sequence:
        return deal_masses(own.masses, own.valid, generator)
    rows = [masses.amax(dim=1, keepdim=True) for masses in own.masses]
    dealt = deal_masses(rows, [valid.any(dim=1, keepdim=True) for valid in own.valid], generator)
    return [new.expand(masses.shape) for new, masses in zip(dealt, own.masses, strict=True)]


def _pass_over(
    trainer: DepthTrainer, model: ReplaysHalting, name: str, examples: Any, masses: Sequence[Tensor] | None
) -> _Pass:
    """Evaluate the examples, with given halting masses of every batch (B, T, N), or as the model halts."""
    evaluation = trainer.start_evaluation(name)
    following: Iterator[Tensor] = iter(masses or ())
    done = _Pass({}, [], [], [], 0)

    def options(batch: Mapping[str, Any]) -> Mapping[str, Any]:
        model.replay_halting(next(following, None))
        return evaluation.options(batch)

    try:
        for batch, outputs in trainer.forward_passes(examples, options):
            evaluation.update(batch, outputs)
            missing = model.max_updates - outputs.halting_probabilities.shape[-1]
            done.masses.append(torch.nn.functional.pad(outputs.halting_probabilities.float(), (0, missing)))
            done.updates.append(outputs.trace.updates)
            done.valid.append(outputs.trace.valid)
            done.predictions += _count_predictions(batch)
    finally:
        model.replay_halting(None)
    evaluation.merge()
    done.metrics = evaluation.metrics()
    return done


def _count_predictions(batch: Mapping[str, Tensor]) -> int:
    """Labels of a batch; its rows where labels are values or spans."""
    labels = batch.get("labels")
    if labels is None or labels.is_floating_point():
        return len(next(iter(batch.values())))
    return int((labels >= 0).sum())


# ---- a network that is trained


def _train_network(
    session: Session, settings: Mapping[str, Any], about: str, build_session: BuildSession, started: float
) -> dict[str, Any]:
    """Train the baseline on what the run has kept, within half of the time that the run has taken so far.

    Raises:
        LeftOut: If that is not enough, or nothing was kept.
    """
    begun = time.monotonic()
    limit = (begun - started) / 2
    if not session.config.features.cache:
        raise LeftOut(f"{about} would take as long as the run, which keeps no states")
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
    epochs, stop = EpochCallback(), StopCallback(max(limit - (time.monotonic() - begun), 0.0) / 60)
    callbacks = [epochs, stop, StepCallback()]
    if config.trainer.early_stopping_patience is not None:
        patience, threshold = config.trainer.early_stopping_patience, config.trainer.early_stopping_threshold
        callbacks.append(EarlyStoppingCallback(patience, threshold))
    sets, start = other.evaluation_sets, other.start_evaluation
    trainer = DepthTrainer(other.model, args, other.data, sets, start, config.trainer, callbacks, other.extensions)
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    epochs.trainer = trainer
    say(f"matched baseline: training {about}, in at most {limit:.0f} s")
    try:
        trainer.train()
        if stop.reason is not None:
            raise LeftOut(f"{about} takes more than a third of the run's time")
        metrics = rename_metrics(trainer.evaluate())
    finally:
        wait_for_all(args)
        if trainer.is_world_process_zero():
            shutil.rmtree(folder, ignore_errors=True)
    evaluated = {name: value for name, value in metrics.items() if name.startswith("eval")}
    batches = trainer.get_eval_dataloader(next(iter(other.evaluation_sets.values())))
    predictions = sum(map(_count_predictions, batches))
    return {"about": about, "steps": trainer.state.global_step, "predictions": predictions, "metrics": evaluated}
