"""Settings that a table of one's own decides by itself: what `--config-name finetune` takes from the rows it reads.

A key that the command line gives stays as it is given. What is chosen becomes a part of the command line, so that the
run, its record and the commands that it advises say it like any other setting, and is told in a line each.
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

from adadepth.data.cache import cache_root
from adadepth.data.labelled.classes import is_numeric, label_text
from adadepth.data.labelled.columns import choose_columns, choose_tag_column
from adadepth.data.labelled.sentences import tokenizer_of_texts
from adadepth.data.labelled.splits import HELD_OUT, open_splits
from adadepth.data.labelled.tagging import tokenizer_of_words
from adadepth.data.text.data_table import DataTable, Rows
from adadepth.data.text.tokenizer import encode_sentences, parallel_encoding
from adadepth.errors import ConfigError, DataError
from adadepth.runs.program import note_choices
from adadepth.settings import LabelledConfig, Source, TableConfig, TaggingConfig, TokenizerConfig
from adadepth.settings.modes import modes
from adadepth.settings.overrides import format_override
from adadepth.system.places import require_hub

_CONFIGURATION = "finetune"  # whose tables choose for themselves
_SCHEMAS: dict[str, type[TableConfig]] = {"table": LabelledConfig, "tagging_table": TaggingConfig}
_MOST_WHOLE_NUMBERS = 20  # different whole numbers that are still taken for classes
_UNBALANCED = 2.0  # so many times as often as the other classes in the mean
_COVERED = 0.98  # of the texts
_ROWS_MEASURED = 5000  # whose lengths are looked at
_LONGEST = {True: 256, False: 512}  # tokens of a text, by whether a model begins from scratch
_FEW_ROWS, _SHARE_OF_MANY, _SHARE_OF_FEW = 1000, 0.1, 0.2  # what is held out
_EPOCHS, _LEAST_UPDATES = 20, 100  # from scratch
_SMALL_TOKENS_A_SECOND, _SECONDS = 4000, 180  # of one thread that trains the small model, and what it is given
_POSITIONS = 128  # of the small models
_BATCH = 32  # `trainer=finetune`
_TOKENS_A_SECOND = 100  # of one CPU core that trains ALBERT's base model
_PATIENCE_MINUTES = 15  # for the training of pretrained weights
_PRETRAINED_EPOCHS = 4  # `trainer=finetune`
_FROM_SCRATCH = "_mini"  # how options of small models end
_SHOWN = 5  # classes that a line names


class _Choice(NamedTuple):
    """What was chosen, in a line, and the settings that say it."""

    line: str
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Models:
    """Options of a kind of table: small models that begin from scratch, and pretrained ones, each with its trainer."""

    scratch: str
    trainer: str
    most_updates: int
    width: int
    pretrained: str
    weights: str


_MODELS = {
    "table": _Models("albert_act_mini", "scratch", 1500, 192, "ponder_albert_pretrained", "albert/albert-base-v2"),
    "tagging_table": _Models("albert_act_mini", "pos", 600, 192, "albert_act_pretrained", "asi/albert-act-base"),
}


@dataclass(frozen=True)
class _Given:
    """What a command line says: its overrides by key, the kind of its table, and the table's settings."""

    values: Mapping[str, Any]
    name: str
    dataset: Any

    def has(self, *keys: str) -> bool:
        """Return whether one of some keys or groups is given."""
        return any(key in self.values for key in keys)

    @property
    def models(self) -> _Models:
        """The models for such a table."""
        return _MODELS[self.name]


def add_table_settings(words: Sequence[str]) -> list[str]:
    """Return a command line with the settings that its table decides, and note the lines that tell them.

    Args:
        words: As Hydra is to read them; where they train on no table of one's own they are returned as they are.

    Raises:
        DataError: The table cannot be read, or its columns do not say which they are.
    """
    given = _read_command(words)
    choices = [] if given is None else list(_choose(given))
    note_choices([choice.line for choice in choices])
    return [*words, *chain.from_iterable(choice.overrides for choice in choices)]


def _read_command(words: Sequence[str]) -> _Given | None:
    """Return what a command line says of a table to train on; None: it trains on none, or Hydra will refuse it."""
    if _config_name(words) != _CONFIGURATION:
        return None
    try:
        overrides = OverridesParser.create().parse_overrides([word for word in words if _is_override(word)])
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
    return _Given(values, name, dataset) if cast(Any, dataset).source == Source.local else None


def _config_name(words: Sequence[str]) -> str | None:
    for word, following in zip(words, [*words[1:], ""], strict=True):
        flag, equals, value = word.partition("=")
        if flag in ("--config-name", "-cn"):
            return value if equals else following
    return None


def _is_override(word: str) -> bool:
    return not word.startswith("-") and ("=" in word or word.startswith("~"))


def _choose(given: _Given) -> Iterator[_Choice]:
    """Yield what the table decides, in the order in which it is told."""
    dataset = given.dataset
    tables = open_splits(replace(dataset, evaluation_splits=[]), {}, optional=["validation", "test"])
    train = tables[dataset.train_split]
    if given.name == "table":
        texts, label = choose_columns(dataset, train)
        columns = {"text_columns": texts, "label_column": label}
        rows = _read_sentences(train, label)
        subject = _choose_problem(given, train, label, rows)
    else:
        label = choose_tag_column(dataset, train)
        texts, columns = [dataset.token_column], {"tag_column": label}
        rows = _read_tags(train, label)
        subject = _choose_tags(given, rows)
    yield _told_columns(given, texts, label, columns)
    yield from _choose_splits(given, tables, label, len(rows))
    yield from subject
    yield from _choose_model(given, train, texts, len(rows))


def _told_columns(given: _Given, texts: list[str], label: str, columns: Mapping[str, Any]) -> _Choice:
    line = f"columns: {'text' if given.name == 'table' else 'words'}={','.join(texts)}, label={label}"
    chosen = {key: value for key, value in columns.items() if not given.has(f"dataset.{key}")}
    return _Choice(line, tuple(_written(f"dataset.{key}", value) for key, value in chosen.items()))


def _written(key: str, value: Any) -> str:
    """Return an override; names in a list have quotes where Hydra's grammar needs them."""
    if not isinstance(value, list):
        return format_override(key, value)
    return f"{key}=[{','.join(format_override('name', name).partition('=')[2] for name in value)}]"


def _told(line: str, *overrides: str) -> _Choice:
    return _Choice(f"{line} ({' '.join(overrides)})" if overrides else line, overrides)


# ---- rows


def _read_sentences(table: DataTable, column: str) -> list[Any]:
    return [value for batch in table.batches() for value in batch.get(column, [])]


def _read_tags(table: DataTable, column: str) -> list[list[Any]]:
    return [value if isinstance(value, list) else [value] for value in _read_sentences(table, column)]


def _choose_splits(given: _Given, tables: Mapping[str, DataTable], label: str, rows: int) -> Iterator[_Choice]:
    """Yield what selects the model and what is measured, where the files do not say it."""
    if given.has("dataset.evaluation_splits", "dataset.held_out", "dataset.train_split") or "validation" in tables:
        return
    share = _SHARE_OF_MANY if rows >= _FEW_ROWS else _SHARE_OF_FEW
    splits, further = [HELD_OUT], ""
    if "test" in tables and _has_labels(tables["test"], label):
        splits, further = [HELD_OUT, "test"], "; test is measured, too"
    overrides = (f"dataset.held_out={share}", _written("dataset.evaluation_splits", splits))
    line = f"splits: {share:.0%} of the {rows:,} training rows are held out and select the model{further}"
    yield _told(line, *overrides)


def _has_labels(table: DataTable, column: str) -> bool:
    """Return whether every row of a table has a label; -1 stands for none in published test sets."""
    if column not in table.columns:
        return False
    labels = {_text_of(value) for value in _read_sentences(table, column)}
    return bool(labels) and None not in labels and labels != {"-1"}


def _text_of(value: Any) -> str | None:
    try:
        return str(value) if isinstance(value, list) else label_text(value)
    except ValueError:  # of bytes: the loader says it with the row
        return repr(value)


# ---- what is predicted


def _choose_problem(given: _Given, table: DataTable, column: str, values: Sequence[Any]) -> Iterator[_Choice]:
    """Yield whether there are classes, several labels or values, and the metric of these."""
    problem = (
        str(given.dataset.problem) if given.has("dataset.problem") else _find_problem(given, table, column, values)
    )
    chosen = [] if given.has("dataset.problem") or problem == "classification" else [f"dataset.problem={problem}"]
    if problem == "regression":
        numbers = np.array([float(text) for text in map(_text_of, values) if text is not None and is_numeric(text)])
        described = f"values: {numbers.min():g} to {numbers.max():g}, mean {numbers.mean():.3g}" if len(numbers) else ""
        metrics, why = ["pearson", "spearman"], "of values"
    elif problem == "multi_label":
        described = f"labels: several a text, {len(set(_labels_of(values, given.dataset.label_separator)))} in all"
        metrics, why = ["micro_f1", "macro_f1"], "of several labels"
    else:
        counts = _count_classes(table, column, values)
        described = _describe_classes(counts)
        metrics, why = _metrics_of_classes(counts)
    yield _told(described, *chosen)
    yield from _told_metrics(given, metrics, why)


def _told_metrics(given: _Given, metrics: list[str], why: str) -> Iterator[_Choice]:
    if given.has("dataset.metrics"):
        return
    is_default = metrics == type(given.dataset)().metrics
    yield _told(f"metric: {', '.join(metrics)}, {why}", *([] if is_default else [_written("dataset.metrics", metrics)]))


def _find_problem(given: _Given, table: DataTable, column: str, values: Sequence[Any]) -> str:
    if column in table.class_names or given.dataset.labels:
        return "classification"
    present = [value for value in values if value is not None]
    if present and all(isinstance(value, list) or _is_written_list(value) for value in present):
        return "multi_label"
    texts = {text for text in map(_text_of, present) if text is not None}
    if not texts or not all(map(is_numeric, texts)):
        return "classification"
    are_whole = all(float(text).is_integer() for text in texts)
    return "classification" if are_whole and len(texts) <= _MOST_WHOLE_NUMBERS else "regression"


def _is_written_list(value: Any) -> bool:
    return isinstance(value, str) and value.strip()[:1] == "[" and value.strip()[-1:] == "]"


def _labels_of(values: Sequence[Any], separator: str) -> Iterator[str]:
    for value in values:
        parts = value if isinstance(value, list) else str(value).strip().strip("[]").split(separator or ",")
        yield from (str(part).strip(" '\"") for part in parts if str(part).strip())


def _count_classes(table: DataTable, column: str, values: Sequence[Any]) -> Counter[str]:
    """Return how often every class occurs, in the order of the classes where the table declares one."""
    declared = table.class_names.get(column)
    counts = Counter(text for text in map(_text_of, values) if text is not None)
    if declared is None:
        are_numbers = all(map(is_numeric, counts))
        return Counter({name: counts[name] for name in sorted(counts, key=float if are_numbers else str)})
    return Counter({name: counts[str(number)] for number, name in enumerate(declared)})


def _describe_classes(counts: Counter[str]) -> str:
    total = max(counts.total(), 1)
    names = [f"{name} {count / total:.0%}" for name, count in islice(counts.items(), _SHOWN)]
    more = f", and {len(counts) - _SHOWN} more" if len(counts) > _SHOWN else ""
    once = [name for name, count in counts.items() if count == 1]
    single = f"; seen once, so not both learned and measured: {', '.join(once[:_SHOWN])}" if once else ""
    return f"classes: {len(counts)} ({', '.join(names)}{more}){single}"


def _metrics_of_classes(counts: Counter[str]) -> tuple[list[str], str]:
    if len(counts) < 2:
        return ["accuracy"], "the share of right classes"
    name, most = counts.most_common(1)[0]
    if most > _UNBALANCED * (counts.total() - most) / (len(counts) - 1):
        return [
            "f1_macro"
        ], f"every class counts alike: accuracy would be {most / counts.total():.2f} for always {name}"
    return ["accuracy"], "no class is much more frequent than the others"


def _choose_tags(given: _Given, rows: Sequence[Sequence[Any]]) -> Iterator[_Choice]:
    counts = Counter(text for row in rows for text in map(_text_of, row) if text is not None)
    counts = Counter({name: counts[name] for name in sorted(counts)})
    yield _told(_describe_classes(counts).replace("classes", "tags", 1))
    entities = [name for name in counts if name != "O"]
    if entities and all(name[:2] in ("B-", "I-") for name in entities):
        yield from _told_metrics(given, ["entity_f1"], "entities that are found whole")
    elif not all(map(is_numeric, counts)):
        yield from _told_metrics(given, ["token_accuracy"], "the share of words with the right tag")


# ---- the model, and how long its texts and its training are


def _choose_model(given: _Given, table: DataTable, texts: list[str], rows: int) -> Iterator[_Choice]:
    models, option = given.models, given.values.get("model")
    if option is None and not given.has("model.pretrained"):
        reason = _why_from_scratch(given, rows)
        option = models.pretrained if reason is None else models.scratch
        told = f", {models.width} wide, from scratch: {reason}" if reason else f", from the weights {models.weights}"
        yield _Choice(f"model: {option}{told}", (f"model={option}",))
    is_scratch = str(option).endswith(_FROM_SCRATCH) and not given.has("model.pretrained")
    has_known_tokenizer = (is_scratch or option == models.pretrained) and not given.has("tokenizer", "tokenizer.path")
    lengths = np.empty(0)
    if has_known_tokenizer:
        lengths = _count_tokens(given, table, texts, None if is_scratch else models.weights)
        lengths = lengths + len(texts) + (2 if str(option).startswith("ponder") else 1)  # [SEP] and [CLS]
    if len(lengths) and not given.has("dataset.sequence_length"):
        yield _choose_length(given, lengths, is_scratch)
    if is_scratch and not given.has("trainer"):
        yield _choose_training(given, rows, float(lengths.mean()) if len(lengths) else given.dataset.sequence_length)


def _why_from_scratch(given: _Given, rows: int) -> str | None:
    """Return why no pretrained weights are trained; None: they can be had, and are trained within minutes."""
    weights, option = given.models.weights, given.models.pretrained
    if not _can_load(given, weights):
        return f"{weights} is not in the local cache, and no hub can be reached"
    if torch.cuda.is_available() and not given.values.get("trainer.use_cpu"):
        return None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    minutes = rows * given.dataset.sequence_length * _PRETRAINED_EPOCHS / (_TOKENS_A_SECOND * cores * 60)
    if minutes <= _PATIENCE_MINUTES:
        return None
    return f"{weights} would train for about {minutes:,.0f} minutes on {cores} CPU cores (model={option})"


def _can_load(given: _Given, weights: str) -> bool:
    """Return whether weights are on this machine, or the hub answers within seconds."""
    from huggingface_hub import try_to_load_from_cache

    files = (try_to_load_from_cache(weights, name) for name in ("model.safetensors", "pytorch_model.bin"))
    if any(isinstance(file, str) for file in files):
        return True
    if given.values.get("runtime.offline") or os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
        return False
    try:
        require_hub("model.pretrained", "")
    except (DataError, ConfigError):
        return False
    return True


def _choose_length(given: _Given, lengths: np.ndarray, is_scratch: bool) -> _Choice:
    """Return the length that covers nearly all texts, by the tokens of each, (rows,)."""
    length = min(max(8 * int(np.ceil(np.quantile(lengths, _COVERED) / 8)), 16), _LONGEST[is_scratch])
    overrides = [f"dataset.sequence_length={length}"]
    if is_scratch and length > _POSITIONS and not given.has("model.max_position_embeddings"):
        overrides.append(f"model.max_position_embeddings={length}")
    share = float((lengths <= length).mean())
    return _told(f"length: {length} tokens cover {share:.0%} of the texts", *overrides)


def _count_tokens(given: _Given, table: DataTable, columns: list[str], path: str | None) -> np.ndarray:
    """Return the number of tokens of every one of the first rows, all its texts together, (rows,)."""
    named = {key.removeprefix("tokenizer."): value for key, value in given.values.items() if key[:10] == "tokenizer."}
    settings = TokenizerConfig(**{"path": path, "vocab_size": 3000, **named})
    root, cls_tokens = cache_root(given.dataset.cache_dir), 1
    with parallel_encoding():
        if given.name == "table":
            tokenizer = tokenizer_of_texts(settings, root, table, columns, cls_tokens)
        else:
            tokenizer = tokenizer_of_words(settings, root, table, columns[0], cls_tokens)
        rows = list(islice(_texts_of_rows(table, columns), _ROWS_MEASURED))
        return np.array([len(tokens) for tokens in encode_sentences(tokenizer, rows)], dtype=np.int64)


def _texts_of_rows(table: DataTable, columns: list[str]) -> Iterator[str]:
    batch: Rows
    for batch in table.batches():
        for values in zip(*(batch[name] for name in columns), strict=True):
            parts = [" ".join(map(str, value)) if isinstance(value, list) else str(value or "") for value in values]
            yield " ".join(parts)


def _choose_training(given: _Given, rows: int, tokens: float) -> _Choice:
    """Return the trainer of a small model from scratch, with as many updates as the rows need and minutes allow.

    Args:
        given: What the command line says.
        rows: Training rows.
        tokens: Mean tokens of a row.
    """
    models, overrides = given.models, [f"trainer={given.models.trainer}"]
    if given.has("trainer.max_steps", "trainer.num_train_epochs", "debug", "small"):
        return _told("training: from scratch", *overrides)
    batch = int(given.values.get("trainer.per_device_train_batch_size", _BATCH))
    wanted = min(max(_EPOCHS * rows // batch, _LEAST_UPDATES), models.most_updates)
    updates, why = wanted, ""
    if not torch.cuda.is_available() or given.values.get("trainer.use_cpu"):
        threads = int(given.values.get("runtime.threads") or torch.get_num_threads())
        possible = int(_SMALL_TOKENS_A_SECOND * threads * _SECONDS / (batch * tokens))
        updates = max(min(wanted, possible), _LEAST_UPDATES)
        why = f", as many as {threads} CPU threads do in some minutes" if updates < wanted else ""
    overrides.append(f"trainer.max_steps={updates}")
    if not given.has("trainer.eval_steps", "trainer.eval_strategy"):
        overrides.append(f"trainer.eval_steps={max(updates // 6, 1)}")
    epochs = updates * batch / max(rows, 1)
    return _told(f"training: {updates:,} updates of {batch} texts, each text about {epochs:.0f} times{why}", *overrides)
