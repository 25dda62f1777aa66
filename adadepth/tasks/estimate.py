"""`mode=estimate`: what a training costs, before anything is prepared or allocated: memory, operations, days.

The model is made without weights and its own step runs on fake tensors, see `adadepth.measure.rehearsal`: forward pass,
loss, backward pass and optimiser on a micro-batch of the longest examples, nobody halting before the last update.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from adadepth.data.batches import IGNORE
from adadepth.errors import ConfigError
from adadepth.families.build import build_classifier, build_language_model, build_pretraining_model
from adadepth.families.contract import ReadsCachedStates, Remembers
from adadepth.families.folder import without_weights
from adadepth.families.registry import family
from adadepth.halting.trace import DepthTrace
from adadepth.measure.devices import Held, capacity, days, device_of, most_rows, peak_of, per_device
from adadepth.measure.rehearsal import FakeTensorMode, KnownNumbers, Ledger
from adadepth.report.table import clock, number
from adadepth.settings import ExperimentConfig, Task
from adadepth.settings.data import (
    ChoiceConfig,
    CorpusConfig,
    DrawnPuzzleConfig,
    GeneratedConfig,
    PuzzleTableConfig,
)
from adadepth.settings.experiment import GateConfig, Precision, TokenizerKind
from adadepth.settings.kinds import kind_of, loaded_data, problem_of
from adadepth.system.console import say
from adadepth.tasks.finetune import cls_options, head_fields
from adadepth.tasks.session import check_positions
from adadepth.training.optimization import build_optimizer

_GIB, _MIB, _DAY = 2**30, 2**20, 86400
_WORD = 5  # a piece that every vocabulary has
_DRAWN = 64  # puzzles that are drawn to see what they are
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}

Batch = dict[str, Tensor]


class Subject(NamedTuple):
    """What is estimated: a model to be made, and its batches.

    Attributes:
        build: Makes the model.
        batch: From a number of rows to a micro-batch of the longest examples.
        examples: Of an epoch; None: not known before data are read.
    """

    build: Callable[[], Any]
    batch: Callable[[int], Batch]
    examples: int | None


class Rehearsed(NamedTuple):
    """What a micro-batch of so many rows takes.

    Attributes:
        held: Bytes when the most live.
        operations: Of forward and backward pass.
        work: Multiply-accumulates of a forward pass at full depth, by the model's own cost model.
        tokens: Of the micro-batch.
        parameters: All of them, and those that train.
        largest_block: Bytes of the weights of the largest block.
    """

    held: Held
    operations: int
    work: float
    tokens: int
    parameters: tuple[int, int]
    largest_block: int


def estimate(config: ExperimentConfig) -> None:
    """Say what the training that the configuration describes costs."""
    say(as_text(config, estimated(config)))


def estimated(config: ExperimentConfig) -> dict[str, Any]:
    """What a training costs.

    Returns:
        `parameters` and `trained`; `macs_per_token` at full depth, forward; `operations_per_token` of a training step;
        `held`, bytes a device; `rows_that_fit`, where the configuration's do not; `fits`, None where the device's memory
        is not known; `tokens_per_second` of all devices at `share` of their peak; `tokens` of the whole training and
        `days`, None where data decide how many steps there are.

    Raises:
        ConfigError: If the step cannot be rehearsed, or what only data say is missing.
    """
    wanted, device = config.estimate, device_of(config.estimate.device)
    subject, rows = subject_of(config), config.trainer.per_device_train_batch_size
    found = rehearse_step(config, subject, rows)
    held, limit = _on_device(config, found), capacity(device)
    per_token = found.operations / found.tokens
    speed = wanted.share * peak_of(device, precision_of(config), bool(config.trainer.tf32)) * wanted.devices / per_token
    tokens = _tokens(config, subject, found.tokens)
    fits = None if limit is None else held.total <= limit
    return {
        "length": found.tokens // rows,
        "parameters": found.parameters[0],
        "trained": found.parameters[1],
        "macs_per_token": found.work / found.tokens,
        "operations_per_token": per_token,
        "held": held._asdict() | {"total": held.total},
        "fits": fits,
        "rows_that_fit": rows if fits is not False else rows_that_fit(config, subject, held.total, limit or 0),
        "tokens_per_second": speed,
        "tokens": tokens,
        "days": None if tokens is None else days(tokens, speed),
    }


def rows_that_fit(config: ExperimentConfig, subject: Subject, of_rows: float, limit: float) -> int | None:
    """The largest power of two of rows whose micro-batch fits into so many bytes; None: not one row does.

    Args:
        config: The experiment.
        subject: Its model and batches.
        of_rows: Bytes that a micro-batch of the configuration's rows takes.
        limit: Bytes that there are.
    """
    rows = config.trainer.per_device_train_batch_size
    if rows == 1:
        return None
    few = max(rows // 4, 1)
    of_few = _on_device(config, rehearse_step(config, subject, few)).total
    return most_rows(rows, few, of_rows, of_few, limit)


def fitting_rows(config: ExperimentConfig, limit: float) -> int | None:
    """`rows_that_fit` of a training in one process whose rows do not fit."""
    subject = subject_of(config)
    held = _on_device(config, rehearse_step(config, subject, config.trainer.per_device_train_batch_size))
    return rows_that_fit(config, subject, held.total, limit)


def _on_device(config: ExperimentConfig, found: Rehearsed) -> Held:
    return per_device(found.held, config.estimate.devices, config.trainer.fsdp, found.largest_block)


def _tokens(config: ExperimentConfig, subject: Subject, of_batch: int) -> float | None:
    """Tokens of all steps; None where nobody knows how many there are."""
    trainer = config.trainer
    of_step = of_batch * trainer.gradient_accumulation_steps * config.estimate.devices
    if trainer.max_steps > 0:
        return float(trainer.max_steps * of_step)
    if subject.examples is None:
        return None
    return trainer.num_train_epochs * subject.examples * of_batch / trainer.per_device_train_batch_size


def precision_of(config: ExperimentConfig) -> str:
    """That of the products; `auto` is bf16, which all devices of the table have."""
    asked = config.trainer.precision
    return "bf16" if asked is Precision.auto else str(asked)


# ---- a step without memory


def rehearse_step(config: ExperimentConfig, subject: Subject, rows: int) -> Rehearsed:
    """Run a step of the real code on fake tensors.

    Raises:
        ConfigError: If the model reads of its weights how to go on.
    """
    real = subject.batch(rows)
    with FakeTensorMode():
        with without_weights():
            model = subject.build()
        _prepare(config, model)
        known = KnownNumbers()
        with known, Ledger() as ledger:
            return _step(config, model, ledger, known, real)


def _prepare(config: ExperimentConfig, model: Any) -> None:
    """Set a model as it is trained at the end: in training mode, at full depth, every place computed."""
    if hasattr(model.config, "execution"):
        model.config.execution = "dense"
    model.train()
    model.set_step(1, 1)
    if config.trainer.gradient_checkpointing:
        if not model.supports_gradient_checkpointing:
            name = model.config.model_type
            raise ConfigError(
                f"trainer.gradient_checkpointing=true: model={name} computes nothing again; leave it false"
            )
        model.gradient_checkpointing_enable({"use_reentrant": False})


def _step(config: ExperimentConfig, model: Any, ledger: Ledger, known: KnownNumbers, real: Batch) -> Rehearsed:
    parameters = list(model.parameters())
    trained = [each for each in parameters if each.requires_grad]
    for tensor in (*parameters, *model.buffers()):
        ledger.add(tensor)
    for each in trained:
        ledger.watch(each)
    weights, gradients = ledger.now, sum(each.nbytes for each in trained)
    inputs = {name: known.fake(value) for name, value in real.items()}
    dtype = _DTYPES.get(precision_of(config))
    with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
        inputs |= _carried(config, model, inputs)
        ledger.begin()
        outputs = model(**inputs)
        work = _full_work(model, outputs.trace, known)
    outputs.loss.backward()
    del outputs
    operations = ledger.operations
    at_once = gradients if config.trainer.gradient_accumulation_steps > 1 else ledger.gradients_at_peak
    activations = ledger.peak - weights - ledger.gradients_at_peak
    kept, after = _optimizer_bytes(config, model, trained, ledger)
    optimizer = kept + (weights if config.trainer.ema_decay is not None else 0)
    moments = [Held(weights, at_once, optimizer, activations), Held(weights, gradients, optimizer, after)]
    return Rehearsed(
        max(moments, key=lambda held: held.total),
        operations,
        work,
        _tokens_of(real),
        (_distinct(parameters), _distinct(trained)),
        _largest_block(model),
    )


def _carried(config: ExperimentConfig, model: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What a step gets from the one before: memory, slots, or states of a frozen base, as in the middle of a training."""
    if isinstance(model, ReadsCachedStates) and config.features.cache:
        with torch.no_grad():
            names = ("input_ids", "attention_mask", "token_type_ids")
            states = model.base_states(model.states_to_read(), **{each: inputs[each] for each in names if each in inputs})
        return {"states": states}
    if model.trains_in_slots:
        rows = len(inputs["input_ids"])
        slots: dict[str, Any] = {"draws": torch.rand(rows, 2), "carry": {}}
        with torch.no_grad():
            return slots | {"carry": model(**inputs, **slots).carry}
    if isinstance(model, Remembers):
        with torch.no_grad():
            return {"memory": model(**inputs, memory=None).memory}  # type: ignore[operator]
    return {}


def _optimizer_bytes(
    config: ExperimentConfig, model: Any, trained: list[nn.Parameter], ledger: Ledger
) -> tuple[int, int]:
    """Bytes of the optimizer's state, and the most that a step of it takes beside state, weights and gradients."""
    optimizer = build_optimizer(model, config.trainer)
    before = ledger.now
    ledger.begin()
    if config.trainer.max_grad_norm:
        nn.utils.clip_grad_norm_(trained, config.trainer.max_grad_norm)
    optimizer.step()
    state = ledger.now - before
    return state, max(ledger.peak - ledger.now, 0)


def _full_work(model: Any, trace: DepthTrace, known: KnownNumbers) -> float:
    """Multiply-accumulates of a batch in which every unit is updated as often as can be."""
    from torch.utils import _pytree as pytree
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():

        def as_real(tensor: Tensor) -> Tensor:
            numbers = known.real(tensor)
            return torch.ones(tensor.shape, dtype=tensor.dtype) if numbers is None else numbers

        whole: DepthTrace = pytree.tree_map_only(Tensor, as_real, trace)
        updates = (whole.valid * trace.max_updates).to(whole.updates.dtype)
        return float(model.price(dataclasses.replace(whole, updates=updates)).full)


def _tokens_of(batch: Batch) -> int:
    """Places of a micro-batch; of vectors, their values."""
    read = batch["input_ids"] if "input_ids" in batch else batch["inputs"]
    return read.numel()


def _distinct(parameters: list[nn.Parameter]) -> int:
    return sum(each.numel() for each in {id(each): each for each in parameters}.values())


def _largest_block(model: nn.Module) -> int:
    """Bytes of the weights of the largest member of a list of blocks, or of what is none."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    sizes = [sum(each.nbytes for each in block.parameters()) for blocks in lists for block in blocks]
    return max(sizes, default=sum(each.nbytes for each in model.parameters()))


# ---- the model and its batches


def subject_of(config: ExperimentConfig) -> Subject:
    """The model that a configuration trains, and micro-batches of its data, of which none are prepared.

    Raises:
        ConfigError: If nobody says how large the vocabulary is.
    """
    if isinstance(config.dataset, GeneratedConfig):
        return _of_generated(config)
    if config.task is Task.pretrain:
        size = vocabulary_size(config)
        return Subject(partial(build_pretraining_model, config.model, size), partial(_masked, config), None)
    if config.task is Task.finetune:
        fields = _fields(config)
        problem = problem_of(config.dataset)
        assert problem is not None, "validated"
        build = partial(build_classifier, config.model, vocabulary_size(config), fields, problem)
        return Subject(build, partial(_labelled, config, fields), None)
    gates: dict[str, Any] = {field.name: getattr(config.search, field.name) for field in dataclasses.fields(GateConfig)}
    gates |= {"gate_path": config.search.path, "gate_seed": config.seed}
    searches = family(config.model.name).searches(config.model)
    model, size = _settled(config), vocabulary_size(config)
    return Subject(
        partial(build_language_model, model, size, gates if searches else None), partial(_running, config), None
    )


def vocabulary_size(config: ExperimentConfig) -> int | None:
    """How many pieces there are: those of a trained tokenizer at the most; None: those of the pretrained model.

    Raises:
        ConfigError: If the text decides, and nobody says it.
    """
    tokenizer, model = config.tokenizer, config.model
    if isinstance(config.dataset, PuzzleTableConfig):
        return len(config.dataset.symbols) + 1
    if tokenizer.path is not None:
        return None if _has_own_vocabulary(model) else _stored_vocabulary(tokenizer.path)
    if tokenizer.kind is TokenizerKind.byte:
        return 256 + 3
    found = tokenizer.vocab_size or config.estimate.words or getattr(model, "vocab_size", None)
    if found is None:
        raise ConfigError(
            "estimate.words: how many there are, where the tokenizer takes all words of a text (tokenizer.vocab_size="
            "null), which mode=estimate does not read; 267735 of WikiText-103"
        )
    return int(found)


def _has_own_vocabulary(model: Any) -> bool:
    return bool(model.pretrained or getattr(model, "base_model", None) or getattr(model, "vocab_size", None))


def _stored_vocabulary(path: str) -> int:
    from adadepth.data.text.tokenizer import load_tokenizer

    return len(load_tokenizer(path))


def _settled(config: ExperimentConfig) -> Any:
    """The model's settings; clusters of words, which are cut where a text says, are cut evenly."""
    clusters = getattr(config.model, "cutoff_clusters", None)
    if clusters is None:
        return config.model
    size = vocabulary_size(config) or 0
    cutoffs = [size * part // clusters for part in range(1, clusters)]
    return dataclasses.replace(config.model, cutoffs=cutoffs, cutoff_clusters=None)  # type: ignore[call-arg]


def _of_generated(config: ExperimentConfig) -> Subject:
    """Of data that are drawn, the first examples tell all."""
    dataset: Any = config.dataset
    if isinstance(dataset, DrawnPuzzleConfig):
        dataset = dataclasses.replace(dataset, train_examples=_DRAWN, max_evaluation_examples=8)
    options = cls_options(config.model.name, config.model)
    data = loaded_data(dataset, tokenizer=config.tokenizer, seed=config.seed, **options)
    size = None if data.tokenizer is None else len(data.tokenizer)
    build = partial(build_classifier, config.model, size, head_fields(data), data.problem)

    def batch(rows: int) -> Batch:
        return _known_names(data.collate([data.train[row % len(data.train)] for row in range(rows)]))

    return Subject(build, batch, config.dataset.train_examples)  # type: ignore[attr-defined]


def _known_names(batch: Mapping[str, Tensor]) -> Batch:
    """Without what is for statistics."""
    left_out = ("index", "difficulty", "special_tokens_mask", "feature_row", "mask_kind")
    return {name: value for name, value in batch.items() if name not in left_out}


def _fields(config: ExperimentConfig) -> dict[str, Any]:
    """What data would decide of the model; two classes where nobody names them."""
    dataset: Any = config.dataset
    if isinstance(dataset, PuzzleTableConfig):
        return {"cells": dataset.sequence_length}
    problem = problem_of(dataset)
    if problem == "regression":
        return {"num_labels": 1, "problem_type": "regression"}
    if problem in ("question_answering", "multiple_choice"):
        return {}
    names = list(dataset.labels or ("0", "1"))
    kinds = {"classification": "single_label_classification", "multi_label": "multi_label_classification"}
    return {
        "id2label": dict(enumerate(names)),
        "label2id": {name: place for place, name in enumerate(names)},
        "problem_type": kinds.get(str(problem)),
    }


def _words(config: ExperimentConfig, *shape: int) -> Tensor:
    return torch.full((*shape, config.dataset.sequence_length), _WORD)


def _masked(config: ExperimentConfig, rows: int) -> Batch:
    """Whole sequences, of which as many places are predicted as can be."""
    dataset = config.dataset
    assert isinstance(dataset, CorpusConfig), "validated"
    ids = _words(config, rows)
    masking, length = dataset.masking, dataset.sequence_length
    predicted = min(masking.max_predictions or length, max(1, round(masking.probability * length)))
    labels = ids.where(torch.arange(length) < predicted, torch.tensor(IGNORE))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": ids * 0, "labels": labels}
    return batch | ({"sentence_order_label": ids[:, 0] * 0} if dataset.sentence_order else {})


def _labelled(config: ExperimentConfig, fields: Mapping[str, Any], rows: int) -> Batch:
    """Whole sequences with a label of the first class for whatever has one."""
    dataset, problem = config.dataset, problem_of(config.dataset)
    choices = len(dataset.ending_columns) if isinstance(dataset, ChoiceConfig) else None
    ids = _words(config, rows) if choices is None else _words(config, rows, choices)
    of_rows = torch.zeros(rows, dtype=torch.long)
    if problem == "puzzle":
        return {"input_ids": ids.clamp(max=1), "labels": ids.clamp(max=1)}
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": ids * 0}
    if problem == "question_answering":
        return batch | {"start_positions": of_rows, "end_positions": of_rows}
    labels = {
        "tagging": ids * 0,
        "regression": of_rows.float(),
        "multi_label": torch.zeros(rows, len(fields.get("id2label", ()))),
    }
    return batch | {"labels": labels.get(str(problem), of_rows)}


def _running(config: ExperimentConfig, rows: int) -> Batch:
    """Text without an end of a document: a segment of every stream, or packed blocks."""
    ids = _words(config, rows)
    if kind_of(config.dataset).reading == "blocks":
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids, "documents": ids * 0}
    return {"input_ids": ids, "targets": ids}


# ---- words


def as_text(config: ExperimentConfig, found: Mapping[str, Any]) -> str:
    """The estimate as lines of a table."""
    wanted, held = config.estimate, found["held"]
    trainer, several = config.trainer, config.estimate.devices > 1
    batch = f"{trainer.per_device_train_batch_size} rows of {found['length']:,}"
    how = [precision_of(config), batch]
    how += ["gradient checkpointing"] if trainer.gradient_checkpointing else []
    how += [f"{wanted.devices} devices, {'sharded' if trainer.fsdp else 'each with a copy'}"] if several else []
    rows = [
        ("parameters", f"{found['parameters']:,} ({found['trained']:,} are trained)"),
        ("multiply-accumulates a token", f"{found['macs_per_token']:,.0f} (forward, full depth)"),
        ("operations a token", f"{found['operations_per_token']:,.0f} (a step of training)"),
        *((f"memory: {name}", _bytes(held[name])) for name in Held._fields if held[name]),
        ("memory a device", f"{_bytes(held['total'])} at its peak{_fit(config, found)}"),
        ("tokens a second", f"{found['tokens_per_second']:,.0f} at {wanted.share:.0%} of {_peak(config)}"),
        ("training", _length(found)),
    ]
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {value}" for name, value in rows]
    return "\n".join([f"estimate of {config.name}: {', '.join(how)}", *lines])


def _peak(config: ExperimentConfig) -> str:
    device = config.estimate.device
    name = device if isinstance(device, str) else f"{device:g} TFLOPS"
    return f"{config.estimate.devices} x {name}" if config.estimate.devices > 1 else str(name)


def _fit(config: ExperimentConfig, found: Mapping[str, Any]) -> str:
    if found["fits"] is not False:
        return ""
    most = found["rows_that_fit"]
    advice = "not even one row does" if most is None else f"trainer.per_device_train_batch_size={most} does"
    return f", more than {config.estimate.device} has: does not fit; {advice}"


def _length(found: Mapping[str, Any]) -> str:
    if found["days"] is None:
        return "data decide how many steps, see trainer.num_train_epochs"
    length = clock(found["days"] * _DAY) if found["days"] < 1 else f"{number(found['days'], 1)} days"
    return f"{found['tokens']:,.0f} tokens, {length}"


def _bytes(size: float) -> str:
    return f"{size / _GIB:,.2f} GiB" if size >= _GIB else f"{size / _MIB:,.1f} MiB"
