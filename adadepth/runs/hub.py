"""Upload of a run's model to the Hugging Face hub."""

from __future__ import annotations

import logging
import shlex
from pathlib import Path
from typing import Any

from adadepth.config import ExperimentConfig
from adadepth.errors import ConfigError, DataError
from adadepth.runtime.hub_access import check_hub, get_first_line

logger = logging.getLogger(__name__)


def open_repository(config: ExperimentConfig) -> str | None:
    """Create or find the hub repository for the model before training, and return its id; None without an upload.

    This is done before training, so that a wrong login does not waste hours.

    Raises:
        ConfigError: If the hub cannot be reached, or if it refuses because the login is missing or the name belongs to
            another user.
    """
    trainer = config.trainer
    if not trainer.push_to_hub:
        return None
    name = trainer.hub_model_id or config.name
    key = f"trainer.hub_model_id={name}"
    try:
        check_hub(key, "leave out trainer.push_to_hub")
        repository = _get_api().create_repo(name, private=trainer.hub_private_repo, exist_ok=True)
    except DataError as error:
        raise ConfigError(str(error)) from error
    except (OSError, ValueError) as error:  # all errors of the hub are one of these
        raise ConfigError(
            f"{key}: the hub rejected the upload ({get_first_line(error)}); log in with `hf auth login`, or set "
            "HF_TOKEN"
        ) from error
    return str(repository.repo_id)


def push(folder: Path, repository: str, message: str) -> str | None:
    """Upload a model folder to the Hugging Face hub, and return its address.

    If the upload fails, log a warning and return None, so that a finished training run does not fail.
    """
    try:
        upload = _get_api().upload_folder(repo_id=repository, folder_path=folder, commit_message=message)
    except (OSError, ValueError) as error:
        again = shlex.join(["hf", "upload", repository, str(folder)])
        logger.warning("%s was not uploaded (%s); try again with: %s", folder, get_first_line(error), again)
        return None
    return str(upload.repo_url)


def _get_api() -> Any:
    from huggingface_hub import HfApi

    return HfApi()
