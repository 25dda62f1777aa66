"""`mode=predict`: a user's own texts or table, what a checkpoint says about them, and the depth that it gives them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from adadepth.data.text.local_files import text_lines
from adadepth.data.text.tokenizer import load_tokenizer
from adadepth.errors import DataError
from adadepth.families.build import load_model
from adadepth.families.contract import Remembers
from adadepth.families.folder import read_config
from adadepth.prediction import Pipeline
from adadepth.prediction.models import predicting_class, what_is_predicted
from adadepth.prediction.pipeline import describe_texts
from adadepth.prediction.tabular import (
    check_input,
    check_output_file,
    input_columns,
    input_file,
    output_ending,
    predict_table,
)
from adadepth.report.run_files import TEXTS_FILE, write_json
from adadepth.report.texts import print_texts
from adadepth.runs.data_identity import DataIdentity, text_length
from adadepth.runs.directory import open_run, read_settings, run_directory, run_of_checkpoint
from adadepth.runs.program import overridden_keys
from adadepth.settings import ExperimentConfig
from adadepth.settings.kinds import columns_of
from adadepth.system.console import say
from adadepth.tasks.checks import check_positions
from adadepth.tasks.report import write_run_report
from adadepth.tasks.stored import check_weights, checked_model_path, checkpoint_tokenizer, overridden_model_settings

_FILE = "@"
_PAIR = "\t"
_CUT = ("classes", "tags", "masks")  # what is predicted of texts that are cut where they are longer than in training
_BLANKS = " \t"
_MOST_BYTES = 2**25  # of a file of texts, which are read at once and shown on a page


def predict(config: ExperimentConfig) -> None:
    """Predict texts, print them, and write texts.json and a page into a new folder; or the rows of a table."""
    texts = None if config.text is None else read_texts(config.text)
    source = None if config.input is None else input_file(config.input)
    chosen = None if config.output is None or source is None else check_output_file(config.output, source)
    pipeline, path = load_pipeline(config)
    columns = [] if source is None else _columns(config, pipeline.model, source)
    if source is not None:
        check_input(pipeline, source, columns)
    if texts is not None:  # before there is a folder: a text that cannot be read leaves none
        found = describe_texts(pipeline, _puzzles(texts, pipeline) if pipeline.predicts == "cells" else texts)
    directory = run_directory(config)
    with open_run(config, directory) as run:
        if source is not None:
            mean, work = _predict_table(pipeline, source, columns, chosen or _place(directory, source))
        else:
            assert texts is not None, "validated"
            mean, work = found["mean"], found["work"]
            write_json(directory / TEXTS_FILE, found)
            print_texts(found)
        run.update(evaluated=path, final_metrics={"halting/all/mean": mean, "cost/share": work})
    if source is None:
        say(f"report: {write_run_report(directory)}")


def _place(directory: Path, source: Path) -> Path:
    """Where the predictions of a table are written if nobody says where."""
    return directory / f"predictions{output_ending(source)}"


def _predict_table(pipeline: Pipeline, source: Path, columns: list[str], path: Path) -> tuple[float, float]:
    """Write what is predicted of every row; return the mean updates of a unit and the share of the work."""
    found = predict_table(pipeline, source, columns, path)
    mean, work, max_updates = found.depths / found.units, found.needed / found.full, pipeline.model.max_updates
    rows = f"{found.rows:,} row{'s' * (found.rows != 1)}"
    say(f"{rows}: mean updates {mean:.2f} of at most {max_updates}, {work:.0%} of the work of full depth")
    say(f"predictions: {path}")
    return mean, work


def trained_columns(model: Any) -> list[str]:
    """Return the columns of texts that a model was trained on; none where it does not say them."""
    identity = DataIdentity.from_config("checkpoint", str(model.name_or_path), model.config)
    return [] if identity is None else list(identity.columns)


def load_pipeline(config: ExperimentConfig) -> tuple[Pipeline, str]:
    """The model that `checkpoint` names, ready to predict, and where it lies."""
    path = checked_model_path(config)
    stored = read_config("checkpoint", path)
    model_class = predicting_class("checkpoint", path, stored)
    model: Any = load_model(path, model_class, config.model, overridden_model_settings(), config=stored)
    check_weights(model, path)
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    pipeline = Pipeline(
        model,
        _tokenizer(config, path),
        batch_size=config.trainer.per_device_eval_batch_size,
        device=None if config.trainer.use_cpu else device,
        max_length=_max_length(config, model, path),
        segment_length=_segment_length(config, model),
        new_tokens=config.new_tokens,
        allow_changed_data=config.allow_changed_data,
    )
    return pipeline, path


def _puzzles(texts: list[str | tuple[str, str]], pipeline: Pipeline) -> list[str | tuple[str, str]]:
    """Puzzles of which some are in several lines: lines are put together until they have the cells of one."""
    found: list[str | tuple[str, str]] = []
    held = ""
    for text in texts:
        held += pipeline.cells("".join(text))
        if len(held) >= pipeline.model.config.cells:
            found.append(held)
            held = ""
    return [*found, held] if held else found


def read_texts(given: Any) -> list[str | tuple[str, str]]:
    """Return the texts that `text` names; in a file one a line, or two with a tab between, and blank lines are none.

    Files are read as `input` reads them: without a byte-order mark, and lines end where `text_lines` says.

    Raises:
        DataError: The file cannot be read, holds no text, or more than two texts in a line.
    """
    if isinstance(given, str) and given.startswith(_FILE):
        return _lines(Path(given.removeprefix(_FILE)).expanduser())
    texts = given if isinstance(given, list) else [given]
    return [text if isinstance(text, str) else (text[0], text[1]) for text in texts]


def _lines(file: Path) -> list[str | tuple[str, str]]:
    if file.exists() and not file.is_file():
        raise DataError(f"text={_FILE}{file}: must be a file")
    if file.is_file() and file.stat().st_size > _MOST_BYTES:
        raise DataError(f"text={_FILE}{file}: has more than {_MOST_BYTES >> 20} MiB; give it in parts")
    found: list[str | tuple[str, str]] = []
    for number, line in enumerate(text_lines("text", file), start=1):
        if not line.strip(_BLANKS):
            continue
        parts = line.split(_PAIR)
        if len(parts) > 2:
            raise DataError(f"text={_FILE}{file}: line {number} has {len(parts)} texts with tabs between them, not 2")
        found.append((parts[0], parts[1]) if len(parts) == 2 else line)
    if not found:
        raise DataError(f"text={_FILE}{file}: holds no text")
    return found


def _tokenizer(config: ExperimentConfig, path: str) -> Any:
    """That of the checkpoint, unless another is asked for."""
    chosen = checkpoint_tokenizer(config, path).path
    assert chosen is not None
    return load_tokenizer(chosen, ())


def _max_length(config: ExperimentConfig, model: Any, path: str) -> int | None:
    """The most tokens of a text; None: as many as the model says that its training read.

    Models of older versions do not say it; the settings of their runs do.
    """
    length, is_set = text_length(config.dataset), "dataset.sequence_length" in overridden_keys()
    says_it = DataIdentity.from_config("checkpoint", path, model.config) is not None
    if length is None or what_is_predicted(model) not in _CUT:
        return None
    if not is_set and (says_it or run_of_checkpoint(config) is None):
        return None
    check_positions(config, model)
    return length


def _columns(config: ExperimentConfig, model: Any, source: Path) -> list[str]:
    """Return the columns of a table that are read: as settings or the run say, else as the model was trained."""
    trained = trained_columns(model)
    is_set = any(key.partition(".")[0] == "dataset" for key in overridden_keys())
    is_of_run = run_of_checkpoint(config) is not None
    configured = columns_of(config.dataset) if is_set or is_of_run or not trained else None
    return input_columns(source, configured, trained)


def _segment_length(config: ExperimentConfig, model: Any) -> int | None:
    """That of the run's evaluations; None: the model knows no segments, or is from no run."""
    run = run_of_checkpoint(config) if isinstance(model, Remembers) else None
    return None if run is None else int(read_settings(run).dataset.sequence_length)
