"""`mode=probe`: what is known of a sentence after each update of a frozen model, by linear probes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from adadepth.data import LabelledData, load_labelled_data
from adadepth.data.labelled.splits import HELD_OUT
from adadepth.evaluation.states import READOUTS, EncodedSet, encode_set
from adadepth.families.build import load_encoder
from adadepth.measure.probes import Labelled, Probe, accuracy, by_difficulty, fit_probe, gain, majority
from adadepth.measure.quality import quality
from adadepth.report.probes import flat_accuracies, probe_table, probes_text, write_probes
from adadepth.report.table import as_records
from adadepth.runs.directory import run_directory
from adadepth.settings import ExperimentConfig
from adadepth.system.console import say
from adadepth.system.processes import decide, main_first
from adadepth.tasks.checks import check_positions
from adadepth.tasks.identity import check_evaluated_data
from adadepth.tasks.model_fields import cls_options
from adadepth.tasks.session import Session
from adadepth.tasks.stored import (
    check_vocabulary,
    check_weights,
    checked_model_path,
    checkpoint_tokenizer,
    overridden_model_settings,
)
from adadepth.training.arguments import training_arguments

_ASIDE = 0.1  # of the training examples, where a data set has one evaluation split only
_Place = tuple[int, int]  # number of the readout, and of the state


def probe(config: ExperimentConfig) -> None:
    """Probe the states of a checkpoint in a new folder, and write a report."""
    args = training_arguments(config)
    config = with_validation_set(config)
    path = checked_model_path(config)
    model = load_encoder(path, config.model, overridden_model_settings())
    check_weights(model, path)
    tokenizer, options = checkpoint_tokenizer(config, path), cls_options(config.model.name, model.config)
    data = main_first(args, lambda: load_labelled_data(config.dataset, tokenizer, config.seed, **options))
    check_vocabulary(config, model, data.tokenizer)
    data = check_evaluated_data(config, data, model)
    check_positions(config, model)
    directory = decide(args, lambda: run_directory(config))
    session = Session(config, args, data, model, data.evaluation, _never)
    with session.open(directory):
        found = describe_probes(data, _encoded(data, session))
        accuracies = flat_accuracies(found)
        if session.trainer.is_world_process_zero():
            write_probes(directory, found)
            say(probes_text(found))
            tracker, step = session.tracking.tracker, session.trainer.state.global_step
            tracker.log(accuracies, step)
            for name, of_set in found["sets"].items():
                tracker.table(f"probe/{name}", *as_records(probe_table(name, of_set)), step)
        session.run.update(final_metrics=accuracies, evaluated=path)


def with_validation_set(config: ExperimentConfig) -> ExperimentConfig:
    """The same with a tenth of the training examples set aside where there is one evaluation split, which is told."""
    dataset: Any = config.dataset
    if len(dataset.evaluation_splits) > 1:
        return config
    splits = [HELD_OUT, *dataset.evaluation_splits]
    return replace(config, dataset=replace(dataset, held_out=_ASIDE, evaluation_splits=splits))


def _never(name: str) -> NoReturn:
    raise AssertionError("an encoder has no task to evaluate")


def _encoded(data: LabelledData, session: Session) -> dict[str, EncodedSet]:
    """Every set by name, the training examples first, then those that choose the penalty."""
    trainer = session.trainer
    sets = {"train": data.train, **data.evaluation}
    return {name: encode_set(trainer.forward_passes, trainer.unwrapped_model, each) for name, each in sets.items()}


def describe_probes(data: LabelledData, encoded: dict[str, EncodedSet]) -> dict[str, Any]:
    """What probes.json holds of all sets."""
    (_, train), (chooses, validation), *told = encoded.items()
    places = _places(train)

    def score(predicted: np.ndarray, classes: np.ndarray) -> float:
        return quality(data.metrics, predicted, classes)["score"]

    fitted = {place: fit_probe(_at(train, place), _at(validation, place), score) for place in places}
    updates = len(train.changed)
    return {
        "max_updates": updates,
        "classes": len(data.labels),
        "validation_set": chooses,
        "examples": {"train": len(train.labels), "validation": len(validation.labels)},
        "unconverged": sum(not each.converged for each in fitted.values()),
        "sets": {
            name: {
                "n": len(each.labels),
                "majority": majority(train.labels.numpy(), each.labels.numpy(), data.labels),
                "rows": _rows(data, fitted, train, each),
            }
            for name, each in told
        },
    }


def _places(train: EncodedSet) -> list[_Place]:
    """What is probed: every readout of every state; of the final one only where it is not that of the last update."""
    states = train.states.shape[1]
    is_last = bool((train.states[:, -1] == train.states[:, -2]).all())
    return [(readout, state) for readout in range(len(READOUTS)) for state in range(states - is_last)]


def _at(encoded: EncodedSet, place: _Place) -> Labelled:
    readout, state = place
    return Labelled(encoded.states[:, state, readout].numpy(), encoded.labels.numpy())


def _rows(data: LabelledData, fitted: dict[_Place, Probe], train: EncodedSet, told: EncodedSet) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    before: np.ndarray | None = None
    for place, each in fitted.items():
        (readout, state), (states, classes) = place, _at(told, place)
        predicted = each.model.predict(states)
        right = predicted == classes
        is_final, is_first = state > len(told.changed), state == 0
        row: dict[str, Any] = {
            "readout": READOUTS[readout],
            "update": None if is_final else state,
            **accuracy(right),
            **({} if before is None or is_first else gain(before, right)),
            **({} if is_final or is_first else {"changed": float(told.changed[state - 1, readout])}),
            "train": float(each.model.score(*_at(train, place))),
            "validation": each.validation,
            "strength": each.strength,
            "converged": each.converged,
            "metrics": quality(data.metrics, predicted, classes),
        }
        if told.difficulty is not None:
            row["by_difficulty"] = by_difficulty(right, told.difficulty.numpy())
        rows.append(row)
        before = right
    return rows
