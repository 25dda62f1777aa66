"""Public configuration keys: frozen, documented, and where borrowed, those of transformers."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from enum import StrEnum
from pathlib import Path

import pytest
from transformers import TrainingArguments

from adadepth.cli.keys import list_declared_keys, list_keys
from adadepth.config import TrainerConfig
from adadepth.config.declaration import get_field_specs
from adadepth.config.experiment import BorrowedConfig
from adadepth.config.modes import modes

ROOT = Path(__file__).resolve().parents[2]
KEYS = Path(__file__).parent / "public_keys.txt"
BORROWED = dataclasses.fields(BorrowedConfig)
# Set by adadepth from its own settings, or fixed because another value breaks what it promises.
CONTROLLED = {
    "output_dir", "seed", "data_seed", "bf16", "fp16", "optim", "lr_scheduler_type", "report_to", "run_name",
    "logging_nan_inf_filter", "remove_unused_columns", "label_names", "ignore_data_skip", "dataloader_num_workers",
    "torch_compile", "resume_from_checkpoint", "do_train", "do_eval",
}  # fmt: skip


def test_the_public_keys_are_frozen() -> None:
    """Compare the keys with the list: a key that goes or changes its name breaks users' files, so the changelog must
    tell.

    Keys of contributed modes and data are not listed, since their folders can be deleted.
    """
    core = {key for key, owner in list_declared_keys() if not owner.__module__.startswith("adadepth.contrib.")}
    keys = [key for key in list_keys() if key in core and key.partition(".")[0] not in modes()]
    assert keys == KEYS.read_text().split()


def test_every_key_has_a_line_of_help() -> None:
    """Read the line of help at the place where the key is declared."""
    groups = {owner for _, owner in list_declared_keys()}
    missing = [
        f"{group.__name__}.{field.name}"
        for group in groups
        for field in dataclasses.fields(group)
        if field.name not in get_field_specs(group) or not get_field_specs(group)[field.name].help
    ]
    assert len(groups) > 30
    assert missing == []


def test_every_key_is_set_by_a_configuration_or_named_on_a_page() -> None:
    """Check that a YAML file or a page has every key: no user could know of another one."""
    files = [*(ROOT / "configs").rglob("*.yaml"), *(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    words = {word for path in files for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}
    assert [key for key in list_keys() if key.rpartition(".")[2] not in words] == []


@pytest.mark.parametrize("field", BORROWED, ids=lambda field: field.name)
def test_borrowed_trainer_fields_are_those_of_transformers(field: dataclasses.Field) -> None:
    theirs = {other.name: other.type for other in dataclasses.fields(TrainingArguments)}
    if field.name == "fsdp":  # declared as a string for old command lines, and read as a switch
        assert "fsdp" in theirs
        return
    allowed = list_plain_types(theirs[field.name])
    assert list_plain_types(field.type) <= (allowed | {int} if float in allowed else allowed)


def list_plain_types(annotation: object) -> set[object]:
    """Return the plain types of an annotation: enumerations are strings, containers themselves, Any is nothing."""
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return set().union(*(list_plain_types(part) for part in typing.get_args(annotation)))
    origin = typing.get_origin(annotation) or annotation
    if origin is typing.Any:
        return set()
    return {str} if isinstance(origin, type) and issubclass(origin, StrEnum) else {origin}


def test_fields_adadepth_controls_are_not_offered() -> None:
    assert {field.name for field in BORROWED}.isdisjoint(CONTROLLED)
    assert {field.name for field in dataclasses.fields(TrainingArguments)} >= CONTROLLED


def test_own_trainer_fields_do_not_hide_a_transformers_field() -> None:
    own_fields = {field.name for field in dataclasses.fields(TrainerConfig)} - {field.name for field in BORROWED}
    assert "halting_statistics" in own_fields
    assert own_fields.isdisjoint(field.name for field in dataclasses.fields(TrainingArguments))
