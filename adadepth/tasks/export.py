"""Mode `export`: a checkpoint in a file format and layout that other programs read, with tokenizer and model card."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from adadepth.config import ExperimentConfig
from adadepth.config.export import ExportConfig, export_formats
from adadepth.config.modes import get_mode_settings
from adadepth.data.text.tokenizer import load_tokenizer
from adadepth.errors import CheckpointError, ConfigError, DataError
from adadepth.models.build import load_model
from adadepth.models.folder import read_config
from adadepth.models.shared.published_files import (
    TOKENIZER_FILES,
    VOCABULARY_FILES,
    find_folder,
    find_publishable_file,
)
from adadepth.prediction.models import build_published_tokenizer, resolve_model_class
from adadepth.runs.model_card import CARD, write_layout_card
from adadepth.runtime.console import RESULT, say
from adadepth.runtime.files import convert_full_disk_errors
from adadepth.tasks.handover import collect_inputs, describe_export, write_checks
from adadepth.tasks.stored_models import check_weights, list_overridden_model_settings, resolve_model_path


def export(config: ExperimentConfig) -> None:
    """Write the checkpoint in the configured file format to a new folder, with tokenizer, model card and check.py.

    If it fails, the folder is as it was before.

    Raises:
        ConfigError: If the format or layout cannot express the model, or the folder is not new.
        CheckpointError: If a file of the tokenizer or the model card is a link out of the checkpoint, or cannot be
            read, or the folder cannot be written.
    """
    settings: ExportConfig = get_mode_settings(config, "export")
    entry = export_formats()[settings.format]
    if missing := [name for name in entry.libraries if find_spec(name) is None]:
        raise ConfigError(f"export.format={settings.format}: needs {', '.join(missing)}; pip install '{entry.needs}'")
    folder = Path(str(settings.folder))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"export.folder={folder}: must be new or empty")
    path = resolve_model_path(config)
    stored = read_config("checkpoint", path)
    model_class = resolve_model_class("checkpoint", path, stored)
    stored_rule = getattr(stored, "exit_rule", None)  # before the settings of the command
    model: Any = load_model(path, model_class, config.model, list_overridden_model_settings(), config=stored)
    check_weights(model, path)
    is_untrained = settings.drop_exits and getattr(stored, "trains", None) == "exits"
    if settings.drop_exits:
        _drop_exits(model)
    source = find_folder(path, {})
    try:
        names = (*TOKENIZER_FILES, *VOCABULARY_FILES)
        files = [file for name in names if (file := find_publishable_file(source, name)) is not None]
        find_publishable_file(source, CARD)
    except CheckpointError as error:
        raise CheckpointError(f"checkpoint={path}: {error}") from error
    try:
        with _emptied_after_error(folder), convert_full_disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            entry.write()(model, folder, source, settings)
            for file in files:
                shutil.copyfile(file, folder / file.name)
            tokenizer = _load_tokenizer(path, model, files)
            inputs = [] if tokenizer is None else collect_inputs(config, model, tokenizer, path)
            if inputs:
                write_checks(folder, model, tokenizer, inputs, settings)
            else:
                say("check.json is left out: it needs a tokenizer, and inputs that are rows of tokens", logging.WARNING)
            facts = describe_export(config, model, stored_rule, inputs)
            write_layout_card(
                folder, source, model, settings, facts, has_checks=bool(inputs), is_untrained=is_untrained
            )
    except ConfigError as error:
        raise ConfigError(f"export.{error}" if str(error).startswith("layout=") else f"model.{error}") from error
    except OSError as error:
        raise CheckpointError(f"export.folder={folder}: cannot be written ({error.strerror})") from error
    written = settings.format if settings.layout is None else f"{settings.format} in the layout {settings.layout}"
    say(f"{type(model).__name__} as {written}: {folder}", RESULT)


def _drop_exits(model: Any) -> None:
    """Remove the early exits of a model."""
    try:
        model.drop_exits()
    except ConfigError as error:
        raise ConfigError(f"export.{error}") from error


def _load_tokenizer(path: str, model: Any, files: Sequence[Path]) -> Any:
    """Return the tokenizer of a checkpoint, or None if it has none that can be used, which a warning says."""
    try:
        if (published := build_published_tokenizer(path, model.config)) is not None:
            return published
        if files:
            return load_tokenizer(path, ())
    except (CheckpointError, DataError) as error:
        say(f"the tokenizer cannot be used: {error}", logging.WARNING)
    return None


@contextmanager
def _emptied_after_error(folder: Path) -> Iterator[None]:
    """Remove what was written into an empty or new folder in the `with` block, if the block fails."""
    is_new = not folder.exists()
    try:
        yield
    except BaseException:
        for entry in folder.iterdir() if folder.is_dir() else ():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        if is_new and folder.is_dir():
            folder.rmdir()
        raise
