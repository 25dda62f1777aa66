"""Mode `export`: a checkpoint in the layout in which others publish such models, with its tokenizer and model card."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from adadepth.config import ExperimentConfig
from adadepth.config.modes import get_mode_settings
from adadepth.errors import CheckpointError, ConfigError
from adadepth.models.build import load_model
from adadepth.models.folder import read_config
from adadepth.models.shared.published_files import find_folder
from adadepth.prediction.models import resolve_model_class
from adadepth.runs.model_card import write_layout_card
from adadepth.runtime.console import say
from adadepth.runtime.files import convert_full_disk_errors
from adadepth.tasks.stored_models import check_weights, list_overridden_model_settings, resolve_model_path

_TOKENIZER = (
    "tokenizer*", "special_tokens_map.json", "added_tokens.json", "chat_template*", "vocab*", "merges.txt", "*.model",
)  # fmt: skip


def export(config: ExperimentConfig) -> None:
    """Write the checkpoint in the configured layout to a new folder, with its tokenizer and a model card.

    Raises:
        ConfigError: If the layout cannot express the model, or the folder is not new.
    """
    settings = get_mode_settings(config, "export")
    folder = Path(settings.folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"export.folder={folder}: must be new or empty")
    path = resolve_model_path(config)
    stored = read_config("checkpoint", path)
    model_class = resolve_model_class("checkpoint", path, stored)
    model: Any = load_model(path, model_class, config.model, list_overridden_model_settings(), config=stored)
    check_weights(model, path)
    source = find_folder(path, {})
    try:
        with convert_full_disk_errors(folder):
            model.save_pretrained(folder, layout=settings.layout)
            for file in (file for pattern in _TOKENIZER for file in source.glob(pattern)):
                shutil.copyfile(file, folder / file.name)
            write_layout_card(folder, source, model, settings.layout)
    except ConfigError as error:
        raise ConfigError(f"export.{error}" if str(error).startswith("layout=") else f"model.{error}") from error
    except OSError as error:
        raise CheckpointError(f"export.folder={folder}: cannot be written ({error.strerror})") from error
    say(f"{type(model).__name__} in the layout {settings.layout}: {folder}")
