"""Mode `probe`: trains linear probes on the hidden states of a frozen model after each update.

Shape legend: B rows, T tokens, H width, n examples, N updates. There are S states: before the first update, after each
of the N updates, and the final state. R readouts turn each state into a vector: the first token, and the mean over
tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from adadepth.config import ExperimentConfig
from adadepth.contrib.probing.linear_probes import Labelled, Probe, accuracy, by_difficulty, fit_probe, gain, majority
from adadepth.contrib.probing.report import build_probe_table, flatten_accuracies, format_probes, write_probes
from adadepth.data import RunData, load_labelled_data
from adadepth.data.held_out import HELD_OUT
from adadepth.metrics.task_metrics import quality
from adadepth.models.build import load_encoder
from adadepth.models.contract import DepthModel
from adadepth.report.table import to_records
from adadepth.runs.directory import run_directory
from adadepth.runtime.console import RESULT, say
from adadepth.runtime.distributed import decide, gather_from_processes, run_main_process_first
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
            say(format_probes(probes), RESULT)
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


# ---- hidden states of sentences


READOUTS = ("first", "mean")  # the first token, and the mean of the real tokens
_COLUMNS = ("index", "labels", "difficulty")


# Function that runs a set through a model and yields batches with outputs. Its second argument returns the arguments of
# the forward pass of a batch beside its tensors; see `DepthTrainer.forward_passes`.
ForwardPasses = Callable[
    [Any, Callable[[Mapping[str, Any]], Mapping[str, Any]]], Iterable[tuple[dict[str, Tensor], Any]]
]


@dataclass(frozen=True)
class EncodedSet:
    """Hidden states of the examples of a data set, in the order of its rows, on the CPU.

    Attributes:
        states: Hidden states, float32, (n, S, R, H); the last of the S states is the final state.
        labels: Class numbers, int64, (n,).
        difficulty: Difficulty of each example, int64, (n,), or None if the data have none.
        changed: Share of a readout's tokens with a state that each update changed, float64, (N, R).
    """

    states: Tensor
    labels: Tensor
    difficulty: Tensor | None
    changed: Tensor


def encode_set(passes: ForwardPasses, model: DepthModel, dataset: Any) -> EncodedSet:
    """Run a frozen encoder on a data set, and return the hidden states after every update.

    If a batch stops early because all its tokens have halted, its last states are repeated for the remaining updates.
    """
    parts: list[dict[str, Tensor]] = []
    changed = torch.zeros(model.max_updates, len(READOUTS), dtype=torch.float64)
    read = torch.zeros(len(READOUTS), dtype=torch.float64)
    for batch, outputs in passes(dataset, lambda _: {"output_hidden_states": True}):
        mask = batch["attention_mask"].bool()
        steps = [state.float() for state in outputs.hidden_states]
        steps += [steps[-1]] * (model.max_updates + 1 - len(steps))
        changed += count_changed_tokens(steps, mask).cpu()
        read += torch.tensor([len(mask), int(mask.sum())])
        part = {"states": read_states([*steps, outputs.last_hidden_state.float()], mask)}
        part |= {name: batch[name] for name in _COLUMNS if name in batch}
        parts.append({name: values.cpu() for name, values in part.items()})
    parts = [part for process_parts in gather_from_processes(parts) for part in process_parts]
    columns = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    order = columns["index"].argsort()
    shares = torch.stack(gather_from_processes(changed)).sum(dim=0) / torch.stack(gather_from_processes(read)).sum(
        dim=0
    )
    difficulty = columns["difficulty"][order] if "difficulty" in columns else None
    return EncodedSet(columns["states"][order], columns["labels"][order], difficulty, shares)


def read_states(states: Sequence[Tensor], mask: Tensor) -> Tensor:
    """Return the state of the first token and the mean over real tokens, for S states (B, T, H): (B, S, R, H)."""
    weights = mask.unsqueeze(-1) / mask.sum(dim=1)[:, None, None]
    return torch.stack([torch.stack([state[:, 0], (state * weights).sum(dim=1)], dim=1) for state in states], dim=1)


def count_changed_tokens(states: Sequence[Tensor], mask: Tensor) -> Tensor:
    """Count how many first tokens and how many real tokens each of N updates changed, float64, (N, R).

    Args:
        states: Hidden states before the first and after each update, N + 1 tensors (B, T, H).
        mask: Mask of the unpadded tokens, boolean (B, T).
    """
    moved = torch.stack([(after != before).any(dim=-1) & mask for before, after in pairwise(states)])
    return torch.stack([moved[:, :, 0].sum(dim=1), moved.sum(dim=(1, 2))], dim=-1).double()
