"""Automatic settings for `--config-name finetune`, chosen from the user's table: columns, metric, model and training.

A key that the command line sets keeps its value. Every automatic choice is printed in a line and added to the command
line. The run, its record and the commands that it suggests therefore treat it like any other setting.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from adadepth.cli.command_line import is_override
from adadepth.cli.config_files import parse_config_name
from adadepth.config import LabelledConfig, Source, TableConfig, TaggingConfig, TokenizerConfig
from adadepth.config.modes import modes
from adadepth.config.overrides import format_override
from adadepth.data.cache import get_cache_root
from adadepth.data.held_out import HELD_OUT
from adadepth.data.labelled.classes import format_label, is_numeric
from adadepth.data.labelled.columns import choose_columns, choose_tag_column
from adadepth.data.labelled.sequence_classification import load_tokenizer_for_texts
from adadepth.data.labelled.splits import open_splits
from adadepth.data.labelled.token_classification import load_tokenizer_for_words
from adadepth.data.text.table import DataTable, Rows
from adadepth.data.text.tokenizer import encode_sentences, parallel_encoding
from adadepth.errors import ConfigError, DataError
from adadepth.runs.commands import note_choices
from adadepth.runtime.hub_access import check_hub

_CONFIGURATION = "finetune"
_SCHEMAS: dict[str, type[TableConfig]] = {"table": LabelledConfig, "tagging_table": TaggingConfig}
_MAX_INTEGER_CLASSES = 20  # more different whole numbers are values, not classes
_UNBALANCED = 2.0  # ratio of the most frequent class to the mean of the others
_COVERAGE = 0.98  # share of the texts that fit into the length
_MAX_ROWS_MEASURED = 5000  # rows whose lengths are counted
_MAX_LENGTH = {True: 256, False: 512}  # tokens of a text, by whether a model begins from scratch
_FEW_ROWS, _SHARE_OF_MANY, _SHARE_OF_FEW = 1000, 0.1, 0.2  # held-out shares
_EPOCHS, _MIN_UPDATES = 20, 100  # from scratch
_SMALL_TOKENS_PER_SECOND, _SECONDS = 4000, 180  # speed of one thread with the small model, and time for its training
_POSITIONS = 128  # of the small models
_BATCH = 32  # `trainer=finetune`
_TOKENS_PER_SECOND = 100  # of one CPU core that trains ALBERT's base model
_PATIENCE_MINUTES = 15  # for the training of pretrained weights
_PRETRAINED_EPOCHS = 4  # `trainer=finetune`
_FROM_SCRATCH = "_mini"  # suffix of options of small models
_MAX_CLASSES_PRINTED = 5


class _Choice(NamedTuple):
    """Automatic choice for a table: the overrides, and a line that explains them to the user."""

    line: str
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Models:
    """Models for one type of table: a small one to train from scratch, with its trainer, and a pretrained one."""

    scratch: str
    trainer: str
    max_updates: int
    width: int
    pretrained: str
    weights: str


_MODELS = {
    "table": _Models("albert_act_mini", "scratch", 1500, 192, "ponder_albert_pretrained", "albert/albert-base-v2"),
    "tagging_table": _Models("albert_act_mini", "pos", 600, 192, "albert_act_pretrained", "asi/albert-act-base"),
}


@dataclass(frozen=True)
class _Command:
    """Parsed command line of `--config-name finetune`: overrides by key, and type and settings of the table."""

    values: Mapping[str, Any]
    name: str
    dataset: Any

    def has(self, *keys: str) -> bool:
        """Return whether the user set any of these keys or groups on the command line."""
        return any(key in self.values for key in keys)

    @property
    def models(self) -> _Models:
        """Models that suit the type of table on the command line."""
        return _MODELS[self.name]


def add_table_settings(words: Sequence[str]) -> list[str]:
    """Add overrides chosen from the user's table to a command line, and record their explanations.

    Args:
        words: Command line for Hydra, which is returned unchanged if it does not train on a user's table.

    Raises:
        DataError: If the table cannot be read, or if its columns cannot be recognised.
    """
    command = _read_command(words)
    choices = [] if command is None else list(_choose_settings(command))
    note_choices([choice.line for choice in choices])
    return [*words, *chain.from_iterable(choice.overrides for choice in choices)]


def _read_command(words: Sequence[str]) -> _Command | None:
    """Parse a command line with `--config-name finetune`: return its overrides and the settings of its examples.

    The result is None if it does not train on a table, or if Hydra will refuse it.
    """
    if parse_config_name(words) != _CONFIGURATION:
        return None
    try:
        overrides = OverridesParser.create().parse_overrides(list(filter(is_override, words)))
        values: dict[str, Any] = {override.key_or_group: override.value() for override in overrides}
        is_swept = any(override.is_sweep_override() for override in overrides if override.key_or_group[:7] == "dataset")
    except HydraException:
        return None
    name = values.get("dataset", "table")
    mode = modes().get(values.get("mode", "train"))
    is_training = mode is not None and mode.describes_training and not {"resume", "rival_of"} & values.keys()
    if name not in _SCHEMAS or not values.get("dataset.path") or not is_training or is_swept:
        return None
    settings = OmegaConf.structured(_SCHEMAS[name](name=name, source=Source.local))
    try:
        for key, value in values.items():
            if key.startswith("dataset."):
                OmegaConf.update(settings, key.removeprefix("dataset."), value, merge=False)
        dataset = OmegaConf.to_object(settings)
    except OmegaConfBaseException:
        return None
    return _Command(values, name, dataset) if cast(Any, dataset).source == Source.local else None


def _choose_settings(command: _Command) -> Iterator[_Choice]:
    """Yield the automatic choices for the table, in the order in which they are printed."""
    dataset = command.dataset
    tables = open_splits(replace(dataset, evaluation_splits=[]), {}, optional=["validation", "test"])
    train = tables[dataset.train_split]
    if command.name == "table":
        texts, label = choose_columns(dataset, train)
        columns = {"text_columns": texts, "label_column": label}
        rows = _read_column(train, label)
        problem = _choose_problem(command, train, label, rows)
    else:
        label = choose_tag_column(dataset, train)
        texts, columns = [dataset.token_column], {"tag_column": label}
        rows = [value if isinstance(value, list) else [value] for value in _read_column(train, label)]
        problem = _choose_tag_metric(command, rows)
    yield _describe_columns(command, texts, label, columns)
    yield from _choose_splits(command, tables, label, len(rows))
    yield from problem
    yield from _choose_model(command, train, texts, min(len(rows), dataset.max_train_examples or len(rows)))


def _describe_columns(command: _Command, texts: list[str], label: str, columns: Mapping[str, Any]) -> _Choice:
    line = f"columns: {'text' if command.name == 'table' else 'words'}={','.join(texts)}, label={label}"
    overrides = (
        _format_list_override(f"dataset.{key}", value)
        for key, value in columns.items()
        if not command.has(f"dataset.{key}")
    )
    return _Choice(line, tuple(overrides))


def _format_list_override(key: str, value: Any) -> str:
    """Format an override whose value is a list of names, with quotes where Hydra's grammar requires them."""
    if not isinstance(value, list):
        return format_override(key, value)
    return f"{key}=[{','.join(format_override('name', name).partition('=')[2] for name in value)}]"


def _make_choice(line: str, *overrides: str) -> _Choice:
    return _Choice(f"{line} ({' '.join(overrides)})" if overrides else line, overrides)


# ---- rows


def _read_column(table: DataTable, column: str) -> list[Any]:
    return [value for batch in table.batches() for value in batch.get(column, [])]


def _choose_splits(command: _Command, tables: Mapping[str, DataTable], label: str, rows: int) -> Iterator[_Choice]:
    """Yield how many rows to hold out for validation and test, unless files or settings determine it."""
    if command.has("dataset.evaluation_splits", "dataset.held_out", "dataset.train_split") or "validation" in tables:
        return
    share = _SHARE_OF_MANY if rows >= _FEW_ROWS else _SHARE_OF_FEW
    splits, test_note = [HELD_OUT], ""
    if "test" in tables and _has_labels(tables["test"], label):
        splits, test_note = [HELD_OUT, "test"], "; the split test is evaluated, too"
    overrides = (f"dataset.held_out={share}", _format_list_override("dataset.evaluation_splits", splits))
    line = f"splits: {share:.0%} of the {rows:,} training rows are held out to select the model{test_note}"
    yield _make_choice(line, *overrides)


def _has_labels(table: DataTable, column: str) -> bool:
    """Return whether every row of a table has a label in the label column.

    Published test sets use -1 for a missing label.
    """
    if column not in table.columns:
        return False
    labels = {_format_label(value) for value in _read_column(table, column)}
    return bool(labels) and None not in labels and labels != {"-1"}


def _format_label(value: Any) -> str | None:
    try:
        return str(value) if isinstance(value, list) else format_label(value)
    except ValueError:  # bytes, which the loader refuses and names the row
        return repr(value)


# ---- what is predicted


def _choose_problem(command: _Command, table: DataTable, column: str, values: Sequence[Any]) -> Iterator[_Choice]:
    """Yield the kind of prediction (classes, several labels per row, or values) and its metrics."""
    is_set = command.has("dataset.problem")
    problem = str(command.dataset.problem) if is_set else _find_problem(command, table, column, values)
    if problem == "regression":
        texts = filter(None, map(_format_label, values))
        numbers = np.array([float(text) for text in texts if is_numeric(text)])
        line = f"values: {numbers.min():g} to {numbers.max():g}, mean {numbers.mean():.3g}" if len(numbers) else ""
        metrics, reason = ["pearson", "spearman"], "of values"
    elif problem == "multi_label":
        line = f"labels: several per text, {len(set(_split_labels(values, command.dataset.label_separator)))} in all"
        metrics, reason = ["micro_f1", "macro_f1"], "of several labels"
    else:
        counts = _count_classes(table, column, values)
        line = _describe_classes(counts)
        metrics, reason = _choose_class_metrics(counts)
    yield _make_choice(line, *([] if is_set or problem == "classification" else [f"dataset.problem={problem}"]))
    yield from _choose_metrics(command, metrics, reason)


def _choose_metrics(command: _Command, metrics: list[str], reason: str) -> Iterator[_Choice]:
    if command.has("dataset.metrics"):
        return
    is_default = metrics == type(command.dataset)().metrics
    overrides = [] if is_default else [_format_list_override("dataset.metrics", metrics)]
    yield _make_choice(f"metric: {', '.join(metrics)}, {reason}", *overrides)


def _find_problem(command: _Command, table: DataTable, column: str, values: Sequence[Any]) -> str:
    if column in table.class_names or command.dataset.labels:
        return "classification"
    present = [value for value in values if value is not None]
    if present and all(isinstance(value, list) or _is_list_literal(value) for value in present):
        return "multi_label"
    texts = {text for text in map(_format_label, present) if text is not None}
    if not texts or not all(map(is_numeric, texts)):
        return "classification"
    are_whole = all(float(text).is_integer() for text in texts)
    return "classification" if are_whole and len(texts) <= _MAX_INTEGER_CLASSES else "regression"


def _is_list_literal(value: Any) -> bool:
    return isinstance(value, str) and value.strip()[:1] == "[" and value.strip()[-1:] == "]"


def _split_labels(values: Sequence[Any], separator: str) -> Iterator[str]:
    for value in values:
        parts = value if isinstance(value, list) else str(value).strip().strip("[]").split(separator or ",")
        yield from (str(part).strip(" '\"") for part in parts if str(part).strip())


def _count_classes(table: DataTable, column: str, values: Sequence[Any]) -> Counter[str]:
    """Count the rows of each class of a table, in the declared class order if there is one."""
    declared = table.class_names.get(column)
    counts = Counter(text for text in map(_format_label, values) if text is not None)
    if declared is None:
        are_numbers = all(map(is_numeric, counts))
        return Counter({name: counts[name] for name in sorted(counts, key=float if are_numbers else str)})
    return Counter({name: counts[str(number)] for number, name in enumerate(declared)})


def _describe_classes(counts: Counter[str]) -> str:
    total = max(counts.total(), 1)
    names = [f"{name} {count / total:.0%}" for name, count in islice(counts.items(), _MAX_CLASSES_PRINTED)]
    more = f", and {len(counts) - _MAX_CLASSES_PRINTED} more" if len(counts) > _MAX_CLASSES_PRINTED else ""
    rare = [name for name, count in counts.items() if count == 1][:_MAX_CLASSES_PRINTED]
    note = f"; seen once, so they cannot be both trained and evaluated: {', '.join(rare)}" if rare else ""
    return f"classes: {len(counts)} ({', '.join(names)}{more}){note}"


def _choose_class_metrics(counts: Counter[str]) -> tuple[list[str], str]:
    """Return metrics that suit the class balance, and the reason as text."""
    if len(counts) < 2:
        return ["accuracy"], "the share of correct classes"
    name, most = counts.most_common(1)[0]
    if most > _UNBALANCED * (counts.total() - most) / (len(counts) - 1):
        share = most / counts.total()
        return [
            "f1_macro"
        ], f"every class has the same weight: always predicting {name} would have accuracy {share:.2f}"
    return ["accuracy"], "no class is much more frequent than the others"


def _choose_tag_metric(command: _Command, rows: Sequence[Sequence[Any]]) -> Iterator[_Choice]:
    counts = Counter(text for row in rows for text in map(_format_label, row) if text is not None)
    counts = Counter({name: counts[name] for name in sorted(counts)})
    yield _make_choice(_describe_classes(counts).replace("classes", "tags", 1))
    entities = [name for name in counts if name != "O"]
    if entities and all(name[:2] in ("B-", "I-") for name in entities):
        yield from _choose_metrics(command, ["entity_f1"], "F1 over whole entities")
    elif not all(map(is_numeric, counts)):
        yield from _choose_metrics(command, ["token_accuracy"], "the share of words with the right tag")


# ---- model, length of its texts, training


def _choose_model(command: _Command, table: DataTable, texts: list[str], rows: int) -> Iterator[_Choice]:
    models, option = command.models, command.values.get("model")
    if option is None and not command.has("model.pretrained"):
        reason = _find_reason_for_scratch(command, rows)
        option = models.pretrained if reason is None else models.scratch
        origin = (
            f"{models.width} wide, trained from scratch: {reason}" if reason else f"from the weights {models.weights}"
        )
        yield _Choice(f"model: {option}, {origin}", (f"model={option}",))
    is_scratch = str(option).endswith(_FROM_SCRATCH) and not command.has("model.pretrained")
    has_known_tokenizer = (is_scratch or option == models.pretrained) and not command.has("tokenizer", "tokenizer.path")
    lengths = np.empty(0)
    if has_known_tokenizer:
        lengths = _count_tokens(command, table, texts, None if is_scratch else models.weights)
        lengths = lengths + len(texts) + (2 if str(option).startswith("ponder") else 1)  # [SEP] and [CLS]
    if len(lengths) and not command.has("dataset.sequence_length"):
        yield _choose_length(command, lengths, is_scratch)
    if is_scratch and not command.has("trainer"):
        yield _choose_training(
            command, rows, float(lengths.mean()) if len(lengths) else command.dataset.sequence_length
        )


def _find_reason_for_scratch(command: _Command, rows: int) -> str | None:
    """Return why to train a small model from scratch, or None to fine-tune a pretrained one."""
    weights, option = command.models.weights, command.models.pretrained
    if not _can_load(command, weights):
        return f"{weights} is not in the local cache, and the hub cannot be reached"
    if torch.cuda.is_available() and not command.values.get("trainer.use_cpu"):
        return None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    minutes = rows * command.dataset.sequence_length * _PRETRAINED_EPOCHS / (_TOKENS_PER_SECOND * cores * 60)
    if minutes <= _PATIENCE_MINUTES:
        return None
    return f"{weights} would train for about {minutes:,.0f} minutes on {cores} CPU cores (model={option})"


def _can_load(command: _Command, weights: str) -> bool:
    """Return whether pretrained weights are on this machine, or the hub answers within seconds."""
    from huggingface_hub import try_to_load_from_cache

    files = (try_to_load_from_cache(weights, name) for name in ("model.safetensors", "pytorch_model.bin"))
    if any(isinstance(file, str) for file in files):
        return True
    if command.values.get("runtime.offline") or os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
        return False
    try:
        check_hub("model.pretrained", "")
    except (DataError, ConfigError):
        return False
    return True


def _choose_length(command: _Command, lengths: np.ndarray, is_scratch: bool) -> _Choice:
    """Choose the sequence length such that nearly all texts of the table fit.

    `lengths` is the number of tokens per row, (rows,).
    """
    length = min(max(8 * int(np.ceil(np.quantile(lengths, _COVERAGE) / 8)), 16), _MAX_LENGTH[is_scratch])
    overrides = [f"dataset.sequence_length={length}"]
    if is_scratch and length > _POSITIONS and not command.has("model.max_position_embeddings"):
        overrides.append(f"model.max_position_embeddings={length}")
    share = float((lengths <= length).mean())
    return _make_choice(f"length: {length} tokens cover {share:.0%} of the texts", *overrides)


def _count_tokens(command: _Command, table: DataTable, columns: list[str], path: str | None) -> np.ndarray:
    """Count the tokens of the table's first rows, summed over the texts of a row, (rows,)."""
    options = {
        key.removeprefix("tokenizer."): value for key, value in command.values.items() if key[:10] == "tokenizer."
    }
    settings = TokenizerConfig(**{"path": path, "vocab_size": 3000, **options})
    root, cls_tokens = get_cache_root(command.dataset.cache_dir), 1
    with parallel_encoding():
        if command.name == "table":
            tokenizer = load_tokenizer_for_texts(settings, root, table, columns, cls_tokens)
        else:
            tokenizer = load_tokenizer_for_words(settings, root, table, columns[0], cls_tokens)
        rows = list(islice(_join_texts(table, columns), _MAX_ROWS_MEASURED))
        return np.array([len(tokens) for tokens in encode_sentences(tokenizer, rows)], dtype=np.int64)


def _join_texts(table: DataTable, columns: list[str]) -> Iterator[str]:
    """Yield the texts of every table row, joined to one."""
    batch: Rows
    for batch in table.batches():
        for values in zip(*(batch[name] for name in columns), strict=True):
            parts = [" ".join(map(str, value)) if isinstance(value, list) else str(value or "") for value in values]
            yield " ".join(parts)


def _choose_training(command: _Command, rows: int, tokens: float) -> _Choice:
    """Choose trainer settings for a small model that is trained from scratch on the table.

    It makes as many optimiser steps as the rows need and a few minutes allow.

    Args:
        command: Overrides and table of the command line.
        rows: Number of training rows.
        tokens: Mean number of tokens of a row.
    """
    models, overrides = command.models, [f"trainer={command.models.trainer}"]
    if command.has("trainer.max_steps", "trainer.num_train_epochs", "debug", "small"):
        return _make_choice("training: from scratch", *overrides)
    batch = int(command.values.get("trainer.per_device_train_batch_size", _BATCH))
    needed = min(max(_EPOCHS * rows // batch, _MIN_UPDATES), models.max_updates)
    updates, limit = needed, ""
    if not torch.cuda.is_available() or command.values.get("trainer.use_cpu"):
        threads = int(command.values.get("runtime.threads") or torch.get_num_threads())
        possible = int(_SMALL_TOKENS_PER_SECOND * threads * _SECONDS / (batch * tokens))
        updates = max(min(needed, possible), _MIN_UPDATES)
        limit = f", as many as {threads} CPU threads train in a few minutes" if updates < needed else ""
    overrides.append(f"trainer.max_steps={updates}")
    if not command.has("trainer.eval_steps", "trainer.eval_strategy"):
        overrides.append(f"trainer.eval_steps={max(updates // 6, 1)}")
    epochs = round(updates * batch / max(rows, 1), 1)
    line = f"training: {updates:,} optimiser steps of {batch} texts, about {epochs:g} epochs{limit}"
    return _make_choice(line, *overrides)
