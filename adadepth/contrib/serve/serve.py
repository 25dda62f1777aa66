"""`mode=serve`: loads checkpoints with their data, and starts a web demo in which visitors query them at any depth."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig

from adadepth.config import ExperimentConfig, Mode, Task
from adadepth.config.kinds import get_problem, list_input_columns
from adadepth.config.overrides import format_override
from adadepth.contrib.serve.checkpoint import DepthQuality, QualityEvaluator, ServedCheckpoint, SyntheticData
from adadepth.contrib.serve.knobs import build_budget_knob, list_knobs
from adadepth.contrib.serve.settings import get_serve_settings
from adadepth.data import RunData, load_labelled_data
from adadepth.data.registry import find_editable_grid
from adadepth.errors import ConfigError, missing_package
from adadepth.metrics.exit_pareto import select_rules_without_labels
from adadepth.metrics.unit_costs import compute_share_with_predictions
from adadepth.prediction import Pipeline
from adadepth.report.budgets import has_targets, select_compute, select_drawn_quality
from adadepth.report.run_files import BUDGETS, EXIT_RULES, read_run
from adadepth.runs.commands import list_overridden_keys, program
from adadepth.runs.directory import run_of_checkpoint
from adadepth.runs.inheritance import load_run_settings
from adadepth.runtime.console import say
from adadepth.runtime.demos import format_run, is_demo
from adadepth.runtime.threads import fit_threads
from adadepth.tasks.finetune import build_finetuning_session
from adadepth.tasks.identity import get_class_names
from adadepth.tasks.model_fields import cls_options
from adadepth.tasks.predict import get_trained_columns, load_pipeline
from adadepth.tasks.session import Session
from adadepth.tasks.stored_models import choose_checkpoint_tokenizer
from adadepth.training.arguments import training_arguments

_TRAINING_EXAMPLES = 64  # generated training examples, which the page does not show
_EVALUATION_EXAMPLES = 16, 128  # minimum and maximum number of evaluated examples
_EVALUATION_SECONDS = 0.5  # target duration of a measurement
_BATCH_ROWS = 32
_INITIAL_TEXT = "The first sentence of a text, long enough that some of its words need more thought than others."
# A long text: in short ones, a model trained on full sequences gives masks no more depth than other words.
_INITIAL_MASKED_TEXT = (
    "The expression list is evaluated once; it should yield an iterable object. An iterator is created for the result "
    "of the expression list. The suite is then executed once for each {mask} provided by the iterator, in the order of "
    "ascending indices."
)
# Overrides that several checkpoints can share.
_SHARED_KEYS = ("checkpoint", "mode", "serve", "runtime", "output_dir", "hydra")


def serve(config: ExperimentConfig) -> None:
    """Start the web demo for the configured checkpoints, and wait until Ctrl-C closes it."""
    if find_spec("gradio") is None:
        raise ConfigError(f"mode=serve: {missing_package('gradio', 'adadepth[app]')}")
    checkpoints = [load_served_checkpoint(single) for single in _list_configs(config)]
    check_same_inputs(checkpoints)
    from adadepth.contrib.serve.page import open_page

    settings = get_serve_settings(config)
    open_page(checkpoints, settings.host, settings.port, settings.names)


def check_same_inputs(checkpoints: Sequence[ServedCheckpoint]) -> None:
    """Check that all served checkpoints accept the same type of input, so that they can be compared.

    Raises:
        ConfigError: If two checkpoints read different inputs. The message names them.
    """
    kinds = [None if checkpoint.synthetic is None else type(checkpoint.synthetic.dataset) for checkpoint in checkpoints]
    for checkpoint, kind in zip(checkpoints, kinds, strict=True):
        if kind is not kinds[0] or checkpoint.reads_pairs != checkpoints[0].reads_pairs:
            names = f"{checkpoints[0].name} and {checkpoint.name}"
            raise ConfigError(f"checkpoint: {names} have different types of input and cannot be compared")


def open_page_of_run(run: Path, host: str, port: int) -> None:
    """Start the web demo for one run, given its run directory. The app.py of a Hugging Face space calls this."""
    from adadepth.contrib.serve.page import open_page

    settings = load_run_settings(run, "checkpoint")
    config = dataclasses.replace(settings, checkpoint=str(run), mode=Mode.predict)
    open_page([load_served_checkpoint(config)], host, port)


def _list_configs(config: ExperimentConfig) -> list[ExperimentConfig]:
    """Return one configuration per checkpoint. With several checkpoints, each uses the configuration of its own run."""
    if not isinstance(config.checkpoint, list):
        return [dataclasses.replace(config, mode=Mode.predict)]
    if ignored := [key for key in list_overridden_keys() if key.partition(".")[0] not in _SHARED_KEYS]:
        raise ConfigError(
            f"{ignored[0]}: only allowed with one checkpoint; with several, each uses the settings of its run"
        )
    return [_load_run_config(config, path) for path in config.checkpoint]


def _load_run_config(config: ExperimentConfig, path: str) -> ExperimentConfig:
    """Return the configuration of the run that wrote a checkpoint, or the current one if there is no run."""
    single = dataclasses.replace(config, checkpoint=path, mode=Mode.predict)
    run = run_of_checkpoint(single)
    if run is None:
        return single
    settings = load_run_settings(run, "checkpoint")
    return dataclasses.replace(settings, checkpoint=str(run) if path == "latest" else path, mode=Mode.predict)


def load_served_checkpoint(config: ExperimentConfig) -> ServedCheckpoint:
    """Load a checkpoint for the web demo, with its depth controls, data and initial input."""
    pipeline, path = load_pipeline(config)
    copy_weights(pipeline.model)
    run = run_of_checkpoint(config)
    data = _load_data(config, pipeline, path)
    synthetic = None
    if data is not None and hasattr(config.dataset, "train_examples"):
        grid = find_editable_grid(config.dataset)
        synthetic = SyntheticData(config.dataset, data.evaluation, data.collate, grid)
    evaluator = None if data is None else _build_evaluator(config, data, pipeline.model)
    knobs = list_knobs(pipeline.model)
    budget = None if evaluator is None else build_budget_knob(pipeline.model, lambda: evaluator.evaluate().updates)
    columns = list_input_columns(config.dataset)
    columns = get_trained_columns(pipeline.model) if columns is None else columns
    reads_pairs = pipeline.answers.classifies_texts and synthetic is None and len(columns) == 2
    checkpoint = ServedCheckpoint(
        name=path if run is None else _name_run(config, run),
        pipeline=pipeline,
        knobs=knobs if budget is None else [*knobs[:1], budget, *knobs[1:]],
        command=[
            *program(),
            "--config-name",
            _get_config_name(config),
            format_override("checkpoint", path if run is None else format_run(run)),
        ],
        reads_pairs=reads_pairs,
        synthetic=synthetic,
        evaluator=evaluator,
        curve=None if run is None else _read_curve(run),
        initial_text="" if synthetic is not None else _choose_initial_text(run, pipeline),
    )
    knob_names = ", ".join(knob.name for knob in checkpoint.knobs) or "none, because its depth is fixed"
    model_name = f"{type(pipeline.model).__name__}, {pipeline.model.depth_unit} depth"
    say(f"{checkpoint.name}: {model_name}; depth controls: {knob_names}")
    return checkpoint


def _name_run(config: ExperimentConfig, run: Path) -> str:
    """Return the name of a run as a column title in the web demo."""
    return format_run(run) if is_demo(run) else f"{config.name}/{run.name}"


def copy_weights(model: torch.nn.Module) -> None:
    """Copy memory-mapped model weights into RAM, so that changes of the file do not affect the model.

    If another process truncated the mapped file, this process would end (SIGBUS). If another process overwrote it, the
    model would change.
    """
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    for module in model.modules():
        for name, buffer in module.named_buffers(
            recurse=False
        ):  # assigning `data` would leave the base of a view mapped
            setattr(module, name, buffer.clone())


def _get_config_name(config: ExperimentConfig) -> str:
    config_name = HydraConfig.get().job.config_name if HydraConfig.initialized() else None
    return config.name if config_name is None or isinstance(config.checkpoint, list) else str(config_name)


# ---- data


def _load_data(config: ExperimentConfig, pipeline: Pipeline, path: str) -> RunData | None:
    """Load the labelled data of a run for the web demo, or return None if they would need a download."""
    dataset: Any = config.dataset
    is_at_hand = hasattr(dataset, "train_examples") or str(getattr(dataset, "source", "")) == "embedded"
    if config.task is not Task.finetune or get_problem(dataset) is None or not is_at_hand:
        return None
    if hasattr(dataset, "train_examples"):  # the number of evaluation examples decides which they are
        most = dataset.max_evaluation_examples or dataset.train_examples
        few = min(_TRAINING_EXAMPLES, dataset.train_examples)
        dataset = dataclasses.replace(dataset, max_evaluation_examples=most, train_examples=few)
    options = cls_options(config.model.name, pipeline.model.config)
    options |= {"classes": get_class_names(pipeline.model.config)}
    data: RunData = load_labelled_data(dataset, choose_checkpoint_tokenizer(config, path), config.seed, **options)
    if data.labels:
        pipeline.model.take_classes(data.labels)
    return data


def _build_evaluator(config: ExperimentConfig, data: RunData, model: Any) -> QualityEvaluator | None:
    """Build an evaluator of the model on a few examples of the first evaluation set."""
    if not config.trainer.halting_statistics:
        return None
    name, examples = next(iter(data.evaluation.items()))
    session = build_finetuning_session(config, training_arguments(config), data, model)
    fewest, most = (min(count, len(examples)) for count in _EVALUATION_EXAMPLES)
    start = perf_counter()
    _evaluate(session, name, examples, fewest, data)
    count = min(max(fewest, int(fewest * _EVALUATION_SECONDS / (perf_counter() - start))), most)
    description = f"{count} examples of {name}"
    copies = [copy.deepcopy(dict(examples[number])) for number in range(count)]  # the arrays may be mapped from a file
    return QualityEvaluator("score", description, partial(_evaluate, session, name, copies, count, data))


def _evaluate(session: Session, name: str, examples: Any, count: int, data: RunData) -> DepthQuality:
    """Evaluate the model at its current depth: metric, compute and mean number of updates."""
    model: Any = session.model
    evaluation = session.start_evaluation(name)
    model.eval()
    parameters = inspect.signature(model.forward).parameters
    for first in range(0, count, _BATCH_ROWS):
        batch = data.collate([examples[number] for number in range(first, min(first + _BATCH_ROWS, count))])
        batch = {key: value.to(model.device) for key, value in batch.items()}
        fit_threads(model, batch)
        inputs = {key: value for key, value in batch.items() if key in parameters}
        with torch.no_grad():
            outputs = model(**inputs, **evaluation.options(batch))
        evaluation.update(batch, outputs)
    evaluation.merge()
    report = evaluation.report()
    assert report is not None
    cost, depths = report.statistics["cost"], report.statistics["classes"]["all"]
    with_predictions = compute_share_with_predictions(report.statistics)
    share = cost["adaptive_over_full"] if with_predictions is None else with_predictions
    return DepthQuality(evaluation.metrics()["score"], share, depths["mean"])


# ---- results and sentences of a run


def _read_curve(run: Path) -> tuple[str, Sequence[tuple[float, float]]] | None:
    """Read (compute, quality) of the exit rules or budgets compared in earlier evaluations of a run.

    Compute is a share of full depth. Oracles are left out, as in the first figure of the report: they see labels.
    They come from the newest evaluation of the run that has them, or from the run itself.
    """
    for folder in [*sorted((run / "evaluations").glob("*"), reverse=True), run]:
        files = read_run(folder)
        for study in files.of(EXIT_RULES).get("sets", {}).values():
            rules = select_rules_without_labels(study)
            measured = [row for row in rules if "macs_ratio" in row and "score" in row["quality"]]
            if measured:
                return "score", sorted((1 / row["macs_ratio"], row["quality"]["score"]) for row in measured)
        budgets = files.of(BUDGETS)
        if has_targets(budgets) and (name := select_drawn_quality(budgets)) is not None:
            compute = select_compute(budgets["rows"])
            rows = [row for row in budgets["rows"] if compute in row and name in row["metrics"]]
            return name, sorted((row[compute], row["metrics"][name]) for row in rows)
    return None


def _choose_initial_text(run: Path | None, pipeline: Pipeline) -> str:
    """Choose the initial text of the input box: an example sentence of the run, or a default."""
    if pipeline.answers.fills_masks:
        return _INITIAL_MASKED_TEXT.format(mask=pipeline.tokenizer.mask_token)
    sentences = read_run(run).sentences if run is not None else []
    ids = [
        pipeline.tokenizer.convert_tokens_to_ids(list(map(str, sentence.get("tokens") or ()))) for sentence in sentences
    ]
    texts = [str(pipeline.tokenizer.decode(sentence, skip_special_tokens=True)).strip() for sentence in ids if sentence]
    return next((text for text in texts if 20 <= len(text) <= 400), _INITIAL_TEXT)
