"""Every way of training, as rows generated from the configuration classes and run by each of several processes.

A row is a base of a family and one change of it: one choice of one enumeration, one switch, one unit of a budget.
`BASES` has a base for every head of every family. `NEEDS` lists what a choice requires. A new choice without its
requirements is refused by the checks of its configuration, and a new head without a base by the test.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import traceback
import typing
from collections.abc import Iterator
from enum import StrEnum
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch.distributed.tensor import DTensor

from adadepth.config import Activation, Attention, BudgetUnit, ExperimentConfig, ModelConfig, Task
from adadepth.config.experiment import Optimizer, Schedule, SearchConfig
from adadepth.halting.step_losses import BUILT_IN
from adadepth.models.looped.settings import Objective
from adadepth.models.registry import Family, families
from adadepth.tasks.extensions import prepare_model
from adadepth.tasks.session import Session
from adadepth.training.callbacks import EpochCallback, StepCallback
from adadepth.training.trainer import DepthTrainer
from tests.configs.support import configured
from tests.training.questions_support import write_tables

INPUTS = Path(__file__).resolve().parents[1] / "before" / "inputs"
EXAMPLES, STEPS = 4, 3  # examples of a step over all processes; steps of a training
COMMON = (
    "debug=default", "trainer.disable_tqdm=true", "trainer.logging_steps=1", f"trainer.max_steps={STEPS}",
    "trainer.eval_strategy=no", "trainer.eval_on_start=false", "trainer.load_best_model_at_end=false",
    "trainer.save_strategy=no", "trainer.warmup_steps=0", "trainer.time_budget_minutes=null",
)  # fmt: skip

# Base of every head: a shipped experiment and its overrides. {folder} has the files of the tests.
BASES: dict[tuple[str, str], tuple[str, ...]] = {
    ("adalayers", "classification"): ("adalayers_tiny",),
    ("adalayers", "tagging"): (
        "adalayers_tiny", "dataset=tagging_table", "dataset.path={folder}/tags", "dataset.sequence_length=16",
    ),
    ("albert", "classification"): ("ponder_tiny", "model=albert_mini"),
    ("albert_act", "pretraining"): ("act_tiny", "dataset.max_documents=12", "budget=none"),
    ("albert_act", "classification"): (
        "ponder_tiny", "model=albert_act_mini", "dataset.sequence_length=128", "budget=none",
        "model.pooling=mean",
    ),
    ("albert_act", "tagging"): ("act_hops", "budget=none"),
    ("albert_act", "question_answering"): (
        "act_squad", "model=albert_act_mini", "budget=none", "dataset=question_table",
        "dataset.path={folder}/questions",
        "dataset.sequence_length=40", "dataset.stride=8", "dataset.max_question_length=12", "tokenizer.path=null",
        "tokenizer.vocab_size=90", "model.max_position_embeddings=64", "trainer.gradient_accumulation_steps=1",
    ),
    ("albert_act", "multiple_choice"): (
        "act_swag", "model=albert_act_mini", "budget=none", "dataset=choice_table", "dataset.path={folder}/choices",
        "dataset.sequence_length=40", "tokenizer.path=null", "tokenizer.vocab_size=90",
        "model.max_position_embeddings=64", "trainer.gradient_accumulation_steps=1",
    ),
    ("early_exit", "pretraining"): ("exit_mlm",),
    ("early_exit", "language_model"): ("exit_tiny", "model.num_hidden_layers=3", "model.exit_layers=null"),
    ("early_exit", "classification"): ("ponder_tiny", "model=early_exit_mini"),
    ("early_exit", "tagging"): ("exit_hops", "model.num_hidden_layers=3", "model.exit_layers=null"),
    ("looped", "language_model"): ("loop_tiny",),
    ("looped", "classification"): ("ponder_tiny", "model=looped_mini"),
    ("looped", "tagging"): ("act_hops", "model=looped_mini", "budget=none"),
    ("multi_exit_albert", "classification"): ("ponder_tiny", "model=pabee_mini"),
    ("par_xl", "language_model"): ("par_network", "model.architecture=sf-s", "dataset.evaluation_length=null"),
    ("par_xl", "search"): ("par_tiny", "search.latency_costs=macs"),
    ("ponder_albert", "classification"): ("ponder_tiny",),
    ("ponder_rnn", "classification"): ("ponder_parity",),
    ("routed", "language_model"): ("mor_tiny",),
    ("routed", "tagging"): ("mor_hops",),
    ("stock_classifier", "classification"): (
        "ponder_tiny", "model=stock", f"model.pretrained={INPUTS}/base", "tokenizer=pretrained",
        f"tokenizer.path={INPUTS}/base", "dataset.sequence_length=16",
    ),
    ("stock_classifier", "tagging"): (
        "finetune", "model=stock", f"model.pretrained={INPUTS}/base", "dataset=tagging_table",
        "dataset.path={folder}/tags", f"tokenizer.path={INPUTS}/base", "dataset.sequence_length=16",
    ),
    ("trm", "puzzle"): ("trm_tiny", "dataset.train_examples=64", "dataset.max_evaluation_examples=16"),
}  # fmt: skip
FURTHER: dict[str, tuple[str, ...]] = {
    "looped language_model trainer.lora.rank=1": (
        "loop_retrofit", "dataset=conversations", f"dataset.path={INPUTS}/chat.jsonl", "dataset.sequence_length=32",
        "dataset.evaluation_fraction=0.2", f"model.pretrained={INPUTS}/decoder", f"tokenizer.path={INPUTS}/decoder",
        "model.prelude=1", "model.core=1", "model.coda=1", "model.num_loops=2", "model.gate=true",
        "model.objective=mean", "trainer.lora.rank=1",
    ),
    "routed language_model model.trains=routers": (
        "router_tuning", "dataset=causal_text", f"dataset.path={INPUTS}/text.txt", "dataset.document_separator=line",
        "dataset.sequence_length=16", "dataset.evaluation_fraction=0.2", f"model.pretrained={INPUTS}/decoder",
        f"tokenizer.path={INPUTS}/decoder",
    ),
}  # fmt: skip
_GROWING = ("budget.target=2", "budget.grow=0.5", "budget.hold=0", "budget.ramp=0.5")
# Settings that a choice requires, because without them it is refused or leaves parameters idle.
NEEDS: dict[str, tuple[str, ...]] = {
    "adalayers model.freeze_base_model=false": ("features.cache=false",),
    "albert_act budget.unit=updates": ("model.act_penalty=0", *_GROWING),
    "albert_act budget.unit=macs": ("model.act_penalty=0", "budget.target=0.5"),
    "adalayers budget.unit=deepest_layer": ("budget.target=2", "model.distribution_cutoff=0.01"),
    "adalayers budget.unit=expected_layer": ("budget.target=2",),
    "adalayers budget.unit=macs": ("budget.target=0.5", "model.distribution_cutoff=0.01"),
    "ponder_albert budget.unit=updates": ("budget.target=2", "model.kl_penalty_factor=0"),
    "ponder_albert budget.unit=macs": ("budget.target=0.5", "model.kl_penalty_factor=0"),
    "ponder_rnn budget.unit=updates": ("budget.target=2", "model.kl_penalty_factor=0"),
    "ponder_rnn budget.unit=macs": ("budget.target=0.5", "model.kl_penalty_factor=0"),
    "trainer.schedule=plateau": (
        "trainer.plateau_patience=1", "trainer.eval_strategy=steps", "trainer.eval_steps=1",
        "trainer.metric_for_best_model=eval_loss",
    ),
    "model.dropout_growth=exponential": ("model.layer_dropout=0.5",),
    "model.trains=exits": ("model.exit_heads=own",),
    "model.exit_curriculum=rotational": ("model.exit_heads=own", "model.rotation=2"),
    "model.exit_curriculum=gradual": ("model.exit_heads=own",),
    "early_exit model.exit_weights=last": ("model.exit_heads=own",),
    "early_exit model.exit_weights=layerskip": ("model.exit_heads=own",),
    "model.injection=restart": ("model.queries=previous",),
    "model.objective=gate": ("model.gate=true",),
    "model.objective=gate_alone": ("model.gate=true",),
    "model.gate_pairing=made": ("model.gate=true", "model.objective=gate_alone"),
    "model.gate_loss=ponder": ("model.gate=true", "model.objective=gate_alone"),
    "model.gate_pairing=later": ("model.gate=true", "model.objective=gate_alone"),
    "model.train_loops=drawn": ("model.objective=last",),
    "model.loop_curriculum=linear": ("model.loop_lora_rank=1",),
    "model.prior=uniform": ("model.target_halt_probability=null",),
    "model.router=threshold": (
        "model.recursions=null", "model.prelude=0", "model.coda=0", "model.keys_and_values=all",
    ),
    "model.sharing=none": ("model.recursions=2",),
    "model.balance=bias": ("model.router=token", "model.bias_step=0.1"),
    "model.balance=none": ("model.router=token",),
}  # fmt: skip
# Choices that a head does not have.
IMPOSSIBLE = frozenset(
    {
        *(f"albert_act {head} model.pooling=mean" for head in ("pretraining", "question_answering", "multiple_choice")),
        "albert_act tagging model.pooling=mean",
        *(f"routed {head} model.trains=routers" for head in ("language_model", "tagging")),  # in FURTHER
    }
)
# Rows in which every process draws numbers of its own: they train, but not as one process does.
DRAWN = frozenset({"model.dropout_growth=exponential", "model.start=drawn", "model.router=random"})
# Rows whose loss is not linear in the examples, because it has shares of all tokens of a process.
SHARES = frozenset({"routed language_model model.router=token", "routed language_model model.trains=routers"})
# Weights whose gradients are 0 but for rounding, in rows whose updates do not depend on the size of a gradient.
ROUNDED = {"trainer.optimizer=adam_atan2": "key.bias"}
# Rows that the checks refuse to shard.
WHOLE = frozenset({
    "trainer.optimizer=muon", "trainer.lora.rank=1", "model.freeze_base_model=false", "par_xl search",
    "model.mix=scalar",
})  # fmt: skip
# Settings that select a kernel or a function without parameters.
_NEUTRAL = (Activation, Attention)


# Settings that are losses over exits.
LOSSES = {"exit_weights": tuple(BUILT_IN), "objective": tuple(dict.fromkeys([*Objective, *BUILT_IN]))}


class Row(NamedTuple):
    """Training with a name and a command line."""

    name: str
    overrides: tuple[str, ...]


def list_choices(settings: type) -> Iterator[tuple[str, Any]]:
    """Yield every setting that is an enumeration, a switch or a loss over exits, with each of its built-in values."""
    types = typing.get_type_hints(settings)
    for field in dataclasses.fields(settings):
        yield from ((field.name, value) for value in LOSSES.get(field.name, ()))
        kind = types[field.name]
        for one in typing.get_args(kind) if isinstance(kind, UnionType) else (kind,):
            if one is bool:
                yield from ((field.name, value) for value in (False, True))
            elif isinstance(one, type) and issubclass(one, StrEnum) and one not in _NEUTRAL:
                yield from ((field.name, value) for value in one)


def list_rows(folder: Path, *bases: tuple[str, str]) -> list[Row]:
    """Return the rows of some bases, or of all, whose files are in a folder."""
    rows = []
    for name, head in bases or BASES:
        root, *overrides_of_base = BASES[name, head]
        family = families()[name]
        still = [*COMMON, *_switch_off_dropout(family.settings), *overrides_of_base]
        base = configured(root, *(part.format(folder=folder) for part in still))
        for change in ("", *_list_changes(family, head, base)):
            needs = [need for key in (change, f"{name} {change}") for need in NEEDS.get(key, ())]
            overrides = (part.format(folder=folder) for part in (*still, *needs, *change.split()))
            if (title := f"{name} {head} {change}".strip()) not in IMPOSSIBLE:
                rows.append(Row(title, (root, *overrides)))
    more_rows = [item for item in FURTHER.items() if not bases or item[0].split()[0] in {name for name, _ in bases}]
    if find_spec("peft") is None:  # an optional package
        more_rows = [(title, command) for title, command in more_rows if "trainer.lora" not in title]
    return [
        *rows,
        *(Row(title, (root, *COMMON, *overrides_of_base)) for title, (root, *overrides_of_base) in more_rows),
    ]


def _switch_off_dropout(settings: type[ModelConfig]) -> list[str]:
    """Return overrides that disable all dropout."""
    names = [field.name for field in dataclasses.fields(settings)]
    return [f"model.{name}=0" for name in names if name.endswith("dropout_prob")]


def _list_changes(family: Family, head: str, base: ExperimentConfig) -> Iterator[str]:
    """Yield the changes of a base, as overrides.

    The first head of a family has all of them. The other heads share those that leave the shape of weights as it is.
    """
    first, *other_heads = [known_head for known_head in family.heads if known_head != "search"]
    shapes = {field.name: field.metadata["adadepth"].shape for field in dataclasses.fields(family.settings)}
    model = [(name, value) for name, value in list_choices(family.settings) if value != getattr(base.model, name)]
    free = [choice for choice in model if not shapes[choice[0]]]
    if head == "search":
        changed = [(name, value) for name, value in list_choices(SearchConfig) if value != getattr(base.search, name)]
        yield from (f"search.{name}={_format(value)}" for name, value in changed)
        return
    for name, value in model if head == first else free[other_heads.index(head) :: len(other_heads)]:
        yield f"model.{name}={_format(value)}"
    if callable(family.fixed_depth):
        fixed = family.fixed_depth(base.model, 2).items()
        yield " ".join(f"model.{name}={_format(value)}" for name, value in fixed if value != getattr(base.model, name))
    yield from (f"budget.unit={unit}" for unit in family.budget.trained if unit is not BudgetUnit.milliseconds)
    if head == first:
        yield from ("trainer.ema_decay=0.5", "trainer.gradient_accumulation_steps=2")
        if family.head(head).supports_gradient_checkpointing:
            yield "trainer.gradient_checkpointing=true"
    if family.name == "albert_act" and head == first:
        for kind, name in ((Optimizer, "optimizer"), (Schedule, "schedule")):
            yield from (f"trainer.{name}={value}" for value in kind if value != getattr(base.trainer, name))


def _format(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


# ---- One training


def train(config: ExperimentConfig, sharded: bool) -> dict[str, Any]:
    """Train a row, and return its losses by step, and its weights."""
    rows = EXAMPLES // int(os.environ.get("WORLD_SIZE", "1"))
    sizes = {"per_device_train_batch_size": rows, "per_device_eval_batch_size": rows}
    trainers: list[DepthTrainer] = []
    config = dataclasses.replace(config, trainer=dataclasses.replace(config.trainer, fsdp=sharded, **sizes))
    with patch.object(Session, "train", lambda session, *_: (trainers.append(_train(session)), ({}, Path()))[1]):
        _find_task(config).train(config)
    (trainer,) = trainers
    logged = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    weights = {name: _gather(weight) for name, weight in trainer.unwrapped_model.named_parameters()}
    return {"losses": logged, "weights": weights}


def _find_task(config: ExperimentConfig) -> Any:
    """Return the module of the task; a search trains its supernet as a language model."""
    name = "language_model" if config.task is Task.architecture_search else config.task
    return import_module(f"adadepth.tasks.{name}")


def _train(session: Session) -> DepthTrainer:
    """Train as `Session.train` does, without a run."""
    prepare_model(session.config, session.model)
    for module in session.model.modules():
        if isinstance(module, torch.nn.Dropout):  # of a network of transformers, for which there is no setting
            module.p = 0.0
    session, epochs = session.with_extensions(), EpochCallback()
    epochs.trainer = trainer = DepthTrainer(
        session.model, session.args, session.data, session.evaluation_sets, session.start_evaluation,
        session.config.trainer, [epochs, StepCallback()], session.extensions,
    )  # fmt: skip
    trainer.train()
    return trainer


def _gather(weight: Any) -> torch.Tensor:
    return (weight.full_tensor() if isinstance(weight, DTensor) else weight).detach().clone()


def write_files(folder: Path) -> None:
    """Write the tables that some bases read."""
    write_tables(folder / "questions", "act_squad")
    write_tables(folder / "choices", "act_swag")
    (folder / "tags").mkdir()
    for split in ("train", "validation"):
        line = '{"tokens": ["the", "cat", "sat", "on", "a", "mat"], "ner_tags": ["O", "B-X", "O", "O", "O", "B-X"]}\n'
        (folder / "tags" / f"{split}.jsonl").write_text(line * 12)


def main(folder: Path) -> None:
    """Train the rows of a file, and write their results; the folder is named after the way of training."""
    configs: dict[str, ExperimentConfig] = pickle.loads((folder.parent / "rows.pickle").read_bytes())
    if folder.name == "one":
        for variable in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            os.environ.pop(variable, None)
    os.chdir(folder.parent)
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for name, config in configs.items():
        try:
            results[name] = train(config, folder.name == "sharded")
        except Exception:
            results[name] = {"error": traceback.format_exc()}
            if folder.name != "one":
                break  # the other processes may wait for this one
    torch.save(results, folder / f"{os.environ.get('RANK', '0')}.pt")
