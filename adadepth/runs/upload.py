"""The Hugging Face hub: where the model of a run goes if the user wants it there."""

from __future__ import annotations

import logging
import shlex
from pathlib import Path
from typing import Any

from adadepth.errors import ConfigError, DataError
from adadepth.settings import ExperimentConfig
from adadepth.system.places import first_line, require_hub

logger = logging.getLogger(__name__)


def open_repository(config: ExperimentConfig) -> str | None:
    """Make the repository that the model goes to, or find it, before hours of training; None: it goes nowhere.

    Raises:
        ConfigError: If the hub cannot be reached or refuses: nobody is logged in, or the name is not theirs.
    """
    trainer = config.trainer
    if not trainer.push_to_hub:
        return None
    name = trainer.hub_model_id or config.name
    key = f"trainer.hub_model_id={name}"
    try:
        require_hub(key, "leave out trainer.push_to_hub")
        made = _api().create_repo(name, private=trainer.hub_private_repo, exist_ok=True)
    except DataError as error:
        raise ConfigError(str(error)) from error
    except (OSError, ValueError) as error:  # all errors of the hub are one of these
        raise ConfigError(
            f"{key}: the hub does not take it ({first_line(error)}); log in with `hf auth login`, or set HF_TOKEN"
        ) from error
    return str(made.repo_id)


def push(folder: Path, repository: str, message: str) -> str | None:
    """Upload a model folder; returns its address, or None where that failed, which no finished training ends on."""
    try:
        found = _api().upload_folder(repo_id=repository, folder_path=folder, commit_message=message)
    except (OSError, ValueError) as error:
        again = shlex.join(["hf", "upload", repository, str(folder)])
        logger.warning("%s was not uploaded (%s); try again with: %s", folder, first_line(error), again)
        return None
    return str(found.repo_url)


def _api() -> Any:
    from huggingface_hub import HfApi

    return HfApi()
