"""Export of a run as a Hugging Face space: one folder with the web demo, the model and its settings.

python -m adadepth.contrib.serve.space RUN [FOLDER]
"""

from __future__ import annotations

import json
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from adadepth.errors import CheckpointError, ConfigError, UserError
from adadepth.models.shared.published_files import find_publishable_file
from adadepth.report.section import load_templates
from adadepth.runs.directory import CONFIG_FILE, MODEL, RECORD, read_record, read_settings
from adadepth.runs.model_card import CARD
from adadepth.runtime.files import write_atomic

_RUN_FOLDER = "run"  # folder of the run inside the space
# Fields of run.json without details of the machine.
_RECORD_FIELDS = ("config_name", "dataset_schema", "mode", "status")
_GRADIO = "6.31.0"  # version without an installed gradio
_FILES = {"app.py": "space_app.py.j2", "requirements.txt": "space_requirements.txt.j2", "README.md": "space_card.md.j2"}


def write_space(run: Path, folder: Path) -> Path:
    """Write a folder that can be pushed to the hub as a Hugging Face space with the web demo of a run.

    Args:
        run: Directory of a finished run.
        folder: New or empty folder.

    Raises:
        CheckpointError: If the run does not exist or has no model.
        ConfigError: If the folder is not empty.
    """
    if not (run / RECORD).is_file() or not (run / MODEL).is_dir():
        raise CheckpointError(f"RUN={run}: must be a run directory that contains {MODEL}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"FOLDER={folder}: must be a new or empty folder")
    settings, record = read_settings(run), read_record(run)
    run_folder = folder / _RUN_FOLDER
    saved = record.get("saved", {}).get(MODEL) or [path.name for path in (run / MODEL).iterdir() if not path.is_dir()]
    try:
        model = [find_publishable_file(run / MODEL, name) for name in (*saved, *({CARD} - set(saved)))]
        settings_file = find_publishable_file(run, CONFIG_FILE)
    except CheckpointError as error:
        raise CheckpointError(f"RUN={run}: {error}") from error
    for file in filter(None, [*model, settings_file]):
        target = run_folder / file.relative_to(run)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    record_fields = {name: record[name] for name in _RECORD_FIELDS if name in record}
    write_atomic(run_folder / RECORD, json.dumps(record_fields, indent=2) + "\n")
    variables = {
        "name": str(settings.name),
        "run": _RUN_FOLDER,
        "gradio": _get_version("gradio", _GRADIO),
        "version": _get_version("adadepth", "0"),
    }
    templates = load_templates("adadepth.contrib.serve")
    for name, template in _FILES.items():
        write_atomic(folder / name, templates.get_template(template).render(**variables) + "\n")
    return folder


def _get_version(package: str, default: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return default


def make_space(arguments: list[str]) -> int:
    """Write a Hugging Face space for the command line `make space`, and return the exit status."""
    if len(arguments) not in (1, 2):
        print("error: make space RUN=outputs/NAME/RUN [FOLDER=space]", file=sys.stderr)
        return 2
    try:
        folder = write_space(Path(arguments[0]), Path(arguments[1] if len(arguments) == 2 else "space"))
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"space: {folder} (check it before pushing it to the hub: {_RUN_FOLDER}/{CONFIG_FILE} contains your paths)")
    return 0


if __name__ == "__main__":
    sys.exit(make_space(sys.argv[1:]))
