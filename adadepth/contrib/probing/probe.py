"""Mode `probe`: trains linear probes on the hidden states of a frozen model after each update."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from adadepth.config import ExperimentConfig
from adadepth.contrib.probing.hidden_states import READOUTS, EncodedSet, encode_set
from adadepth.contrib.probing.linear_probes import Labelled, Probe, accuracy, by_difficulty, fit_probe, gain, majority
from adadepth.contrib.probing.report import build_probe_table, flatten_accuracies, format_probes, write_probes
from adadepth.data import RunData, load_labelled_data
from adadepth.data.held_out import HELD_OUT
from adadepth.metrics.task_metrics import quality
from adadepth.models.build import load_encoder
from adadepth.report.table import to_records
from adadepth.runs.directory import run_directory
from adadepth.runtime.console import say
from adadepth.runtime.distributed import decide, run_main_process_first
from adadepth.tasks.checks import check_positions
from adadepth.tasks.identity import check_evaluated_data
from adadepth.tasks.model_fields import cls_options
from adadepth.tasks.session import Session
from adadepth.tasks.stored_models import (
    check_vocabulary,
    check_weights,
    choose_checkpoint_tokenizer,
    list_overridden_model_settings,
    resolve_model_path,
)
from adadepth.training.arguments import training_arguments

_HELD_OUT_SHARE = 0.1  # of the training examples, if a data set has a single evaluation split
_Site = tuple[int, int]  # indices of readout and state


def probe(config: ExperimentConfig) -> None:
    """Probe the hidden states of a checkpoint, and write results and report into a new run directory."""
    args = training_arguments(config)
    config = add_validation_set(config)
    path = resolve_model_path(config)
    model = load_encoder(path, config.model, list_overridden_model_settings())
    check_weights(model, path)
    tokenizer, options = choose_checkpoint_tokenizer(config, path), cls_options(config.model.name, model.config)
    data = run_main_process_first(args, lambda: load_labelled_data(config.dataset, tokenizer, config.seed, **options))
    check_vocabulary(config, model, data.tokenizer)
    data = check_evaluated_data(config, data, model)
    check_positions(config, model)
    directory = decide(args, lambda: run_directory(config))
    session = Session(config, args, data, model, data.evaluation, _refuse_evaluation)
    with session.open(directory):
        probes = describe_probes(data, _encode(data, session))
        accuracies = flatten_accuracies(probes)
        if session.trainer.is_world_process_zero():
            write_probes(directory, probes)
            say(format_probes(probes))
            tracker, step = session.tracking.tracker, session.trainer.state.global_step
            tracker.log(accuracies, step)
            for name, results in probes["sets"].items():
                tracker.table(f"probe/{name}", *to_records(build_probe_table(name, results)), step)
        session.run.update(final_metrics=accuracies, evaluated=path)


def add_validation_set(config: ExperimentConfig) -> ExperimentConfig:
    """Return the configuration with a tenth of the training examples held out if there is only one evaluation split."""
    dataset: Any = config.dataset
    if len(dataset.evaluation_splits) > 1:
        return config
    splits = [HELD_OUT, *dataset.evaluation_splits]
    return replace(config, dataset=replace(dataset, held_out=_HELD_OUT_SHARE, evaluation_splits=splits))


def _refuse_evaluation(name: str) -> NoReturn:
    raise AssertionError("an encoder has no task that could be evaluated")


def _encode(data: RunData, session: Session) -> dict[str, EncodedSet]:
    """Return the hidden states of every data set.

    The training set comes first, followed by the set that selects the regularisation strength.
    """
    trainer = session.trainer
    sets = {"train": data.train, **data.evaluation}
    return {
        name: encode_set(trainer.forward_passes, trainer.unwrapped_model, examples) for name, examples in sets.items()
    }


def describe_probes(data: RunData, encoded: dict[str, EncodedSet]) -> dict[str, Any]:
    """Fit linear probes, and return the content of probes.json."""
    (_, train), (validation_name, validation), *reported = encoded.items()

    def score(predicted: np.ndarray, classes: np.ndarray) -> float:
        return quality(data.metrics, predicted, classes)["score"]

    probes = {site: fit_probe(_select(train, site), _select(validation, site), score) for site in _list_sites(train)}
    updates = len(train.changed)
    return {
        "max_updates": updates,
        "classes": len(data.labels),
        "validation_set": validation_name,
        "examples": {"train": len(train.labels), "validation": len(validation.labels)},
        "unconverged": sum(not fit.converged for fit in probes.values()),
        "sets": {
            name: {
                "n": len(examples.labels),
                "majority": majority(train.labels.numpy(), examples.labels.numpy(), data.labels),
                "rows": _build_rows(data, probes, train, examples),
            }
            for name, examples in reported
        },
    }


def _list_sites(train: EncodedSet) -> list[_Site]:
    """Return every pair of hidden state and readout that is probed.

    The final state is excluded if it equals the state after the last update.
    """
    states = train.states.shape[1]
    is_last = bool((train.states[:, -1] == train.states[:, -2]).all())
    return [(readout, state) for readout in range(len(READOUTS)) for state in range(states - is_last)]


def _select(encoded: EncodedSet, site: _Site) -> Labelled:
    readout, state = site
    return Labelled(encoded.states[:, state, readout].numpy(), encoded.labels.numpy())


def _build_rows(
    data: RunData, probes: dict[_Site, Probe], train: EncodedSet, examples: EncodedSet
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    before: np.ndarray | None = None
    for site, fit in probes.items():
        (readout, state), (states, classes) = site, _select(examples, site)
        predicted = fit.model.predict(states)
        right = predicted == classes
        is_final, is_first = state > len(examples.changed), state == 0
        row: dict[str, Any] = {
            "readout": READOUTS[readout],
            "update": None if is_final else state,
            **accuracy(right),
            **({} if before is None or is_first else gain(before, right)),
            **({} if is_final or is_first else {"changed": float(examples.changed[state - 1, readout])}),
            "train": float(fit.model.score(*_select(train, site))),
            "validation": fit.validation,
            "strength": fit.strength,
            "converged": fit.converged,
            "metrics": quality(data.metrics, predicted, classes),
        }
        if examples.difficulty is not None:
            row["by_difficulty"] = by_difficulty(right, examples.difficulty.numpy())
        rows.append(row)
        before = right
    return rows
