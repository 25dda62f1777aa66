"""Mode `predict`: predictions of a checkpoint for texts or a table, with the depth that each text received."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from adadepth.config import ExperimentConfig
from adadepth.config.kinds import list_input_columns
from adadepth.data.text.local_files import read_lines
from adadepth.data.text.table import RowLocation
from adadepth.data.text.tokenizer import load_tokenizer
from adadepth.errors import DataError
from adadepth.models.build import load_model
from adadepth.models.contract import Remembers
from adadepth.models.folder import read_config
from adadepth.models.loading import name_setting
from adadepth.prediction import Pipeline
from adadepth.prediction.models import build_published_tokenizer, get_prediction_type, resolve_model_class
from adadepth.prediction.tabular import (
    check_input,
    check_output_file,
    get_output_ending,
    predict_table,
    resolve_input_columns,
    resolve_input_file,
)
from adadepth.prediction.texts_file import describe_texts
from adadepth.report.pages import write_report
from adadepth.report.predictions import format_compute_share, print_texts
from adadepth.report.run_files import TEXTS_FILE, write_json
from adadepth.runs.commands import list_overridden_keys
from adadepth.runs.data_identity import DataIdentity, get_text_length
from adadepth.runs.directory import open_run, read_settings, run_directory, run_of_checkpoint
from adadepth.runtime.console import RESULT, say
from adadepth.tasks.checks import check_positions
from adadepth.tasks.report import build_run_report
from adadepth.tasks.stored_models import (
    check_weights,
    choose_checkpoint_tokenizer,
    list_overridden_model_settings,
    record_loaded_settings,
    resolve_model_path,
)

_FILE = "@"
_PAIR = "\t"
_CUT = ("classes", "tags", "masks", "depths")  # kinds of prediction for which texts are cut at the length of training
_BLANKS = " \t"
_MAX_BYTES = 2**25  # of a file of texts, which are read at once and appear on a page


def predict(config: ExperimentConfig) -> None:
    """Predict the texts or the table that the configuration names, and write the predictions.

    Predictions of texts go to texts.json and a page in a new run directory.
    """
    texts = None if config.text is None else read_texts(config.text)
    source = None if config.input is None else resolve_input_file(config.input)
    output = None if config.output is None or source is None else check_output_file(config.output, source)
    pipeline, path = load_pipeline(config)
    config = record_loaded_settings(config, pipeline.model)
    columns = [] if source is None else _choose_columns(config, pipeline.model, source)
    if source is not None:
        check_input(pipeline, source, columns)
    if texts is not None:  # before there is a run directory, in case a text cannot be read
        content = describe_texts(pipeline, _join_puzzles(texts, pipeline) if pipeline.answers.solves_puzzles else texts)
    directory = run_directory(config)
    report = None if texts is None else lambda: say(f"report: {write_report(build_run_report(directory))}", RESULT)
    with open_run(config, directory, report=report) as run:
        if source is not None:
            output = output or directory / f"predictions{get_output_ending(source)}"
            mean, work = _predict_table(pipeline, source, columns, output)
        else:
            assert texts is not None, "validated"
            mean, work = content["mean"], content["work"]
            write_json(directory / TEXTS_FILE, content)
            print_texts(content)
        run.update(evaluated=path, final_metrics={"halting/all/mean": mean, "cost/share": work})


def _predict_table(pipeline: Pipeline, source: Path, columns: list[str], path: Path) -> tuple[float, float]:
    """Predict the rows of a table, and write them to a file.

    Return the mean updates per unit, and the compute as a share of full-depth compute.
    """
    total = predict_table(pipeline, source, columns, path)
    mean, compute, max_updates = total.depths / total.units, total.compute, pipeline.model.max_updates
    rows = f"{total.rows:,} row{'s' * (total.rows != 1)}"
    share = format_compute_share(compute.share, compute.share_with_predictions)
    say(f"{rows}: mean updates {mean:.2f} of at most {max_updates}, {share}", RESULT)
    say(f"predictions: {path}", RESULT)
    return mean, compute.share


def get_trained_columns(model: Any) -> list[str]:
    """Return the text columns on which a model was trained; the list is empty if they are unknown."""
    identity = DataIdentity.from_config("checkpoint", str(model.name_or_path), model.config)
    return [] if identity is None else list(identity.columns)


def load_pipeline(config: ExperimentConfig) -> tuple[Pipeline, str]:
    """Load the pipeline of the model that `checkpoint` names, and return it with the path of the model."""
    path = resolve_model_path(config)
    stored = read_config("checkpoint", path)
    model_class = resolve_model_class("checkpoint", path, stored)
    model: Any = load_model(path, model_class, config.model, list_overridden_model_settings(), config=stored)
    check_weights(model, path)
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    run = run_of_checkpoint(config) if isinstance(model, Remembers) else None
    pipeline = Pipeline(
        model,
        _load_tokenizer(config, model, path),
        batch_size=config.trainer.per_device_eval_batch_size,
        device=None if config.trainer.use_cpu else device,
        max_length=_choose_max_length(config, model, path),
        segment_length=None if run is None else int(read_settings(run).dataset.sequence_length),
        new_tokens=config.new_tokens,
        allow_changed_data=config.allow_changed_data,
    )
    return pipeline, path


def _join_puzzles(texts: list[str | tuple[str, str]], pipeline: Pipeline) -> list[str | tuple[str, str]]:
    """Join lines of text to puzzles of as many cells as the model expects."""
    puzzles: list[str | tuple[str, str]] = []
    cells = ""
    for text in texts:
        cells += pipeline.cells("".join(text))
        if len(cells) >= pipeline.model.config.cells:
            puzzles.append(cells)
            cells = ""
    return [*puzzles, cells] if cells else puzzles


def read_texts(value: Any) -> list[str | tuple[str, str]]:
    """Return the texts that the setting `text` contains, or those of the file that it names.

    If `text` names a file, each of its lines holds one text, or a pair of texts separated by a tab. Blank lines are
    skipped.

    Raises:
        DataError: If the file cannot be read, has no text, or has more than two texts in a line.
    """
    if isinstance(value, str) and value.startswith(_FILE):
        return _read_lines(Path(value.removeprefix(_FILE)).expanduser())
    texts = value if isinstance(value, list) else [value]
    return [text if isinstance(text, str) else (text[0], text[1]) for text in texts]


def _read_lines(file: Path) -> list[str | tuple[str, str]]:
    if file.exists() and not file.is_file():
        raise DataError(f"text={_FILE}{file}: must be a file")
    if file.is_file() and file.stat().st_size > _MAX_BYTES:
        raise DataError(f"text={_FILE}{file}: has more than {_MAX_BYTES >> 20} MiB; split it into smaller files")
    texts: list[str | tuple[str, str]] = []
    for number, line in enumerate(read_lines("text", file), start=1):
        if not line.strip(_BLANKS):
            continue
        parts = line.split(_PAIR)
        if len(parts) > 2:
            location = RowLocation(f"text={_FILE}{file}", "line", number)
            raise DataError(f"{location} has {len(parts)} texts with tabs between them, not 2")
        texts.append((parts[0], parts[1]) if len(parts) == 2 else line)
    if not texts:
        raise DataError(f"text={_FILE}{file}: holds no text")
    return texts


def _load_tokenizer(config: ExperimentConfig, model: Any, path: str) -> Any:
    """Load the tokenizer of the checkpoint, or the one that the configuration names."""
    tokenizer_path = choose_checkpoint_tokenizer(config, path).path
    assert tokenizer_path is not None
    if tokenizer_path == path:
        with name_setting("checkpoint", path):
            published = build_published_tokenizer(path, model.config)
        if published is not None:
            return published
    return load_tokenizer(tokenizer_path, ())


def _choose_max_length(config: ExperimentConfig, model: Any, path: str) -> int | None:
    """Return the maximum number of tokens per text, or None to use the training length stored with the model.

    Models of older versions do not store it; their length is read from the configuration of their run.
    """
    length, is_overridden = get_text_length(config.dataset), "dataset.sequence_length" in list_overridden_keys()
    is_recorded = DataIdentity.from_config("checkpoint", path, model.config) is not None
    if length is None or get_prediction_type(model) not in _CUT:
        return None
    if not is_overridden and (is_recorded or run_of_checkpoint(config) is None):
        return None
    check_positions(config, model)
    return length


def _choose_columns(config: ExperimentConfig, model: Any, source: Path) -> list[str]:
    """Return the table columns that serve as input of the model.

    They are those of the settings or of the run, or else those of training.
    """
    trained = get_trained_columns(model)
    is_set = any(key.partition(".")[0] == "dataset" for key in list_overridden_keys())
    is_of_run = run_of_checkpoint(config) is not None
    configured = list_input_columns(config.dataset) if is_set or is_of_run or not trained else None
    return resolve_input_columns(source, configured, trained)
