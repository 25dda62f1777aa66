"""Architecture search: train a supernet, derive a network, retrain it and its baselines, and compare them."""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel, TrainingArguments

from adadepth.budget.target import TOLERANCE, is_held
from adadepth.config import BudgetConfig, ExperimentConfig, SearchConfig, Task
from adadepth.config.experiment import Costs, RetrainFrom, Stage
from adadepth.data import RunData
from adadepth.errors import CheckpointError, ConfigError
from adadepth.models.contract import LearnsGates
from adadepth.models.registry import Family, Searching, family
from adadepth.report.architectures import format_architecture_comparison
from adadepth.report.baseline_comparison import to_json
from adadepth.report.pages import RunReport, write_report
from adadepth.report.run_files import ARCHITECTURES, write_json
from adadepth.runs.directory import MODEL, Run, open_run, own_runs, read_record, run_directory
from adadepth.runtime.console import RESULT, say
from adadepth.runtime.distributed import decide, is_main_process, wait_for_processes
from adadepth.runtime.files import find_damaged_file
from adadepth.runtime.hardware import name_device
from adadepth.tasks.identity import check_resumed_data, choose_training_tokenizer
from adadepth.tasks.language_model import build_configured_model, build_language_session, load_data, settle_model_config
from adadepth.tasks.language_model import evaluate as evaluate
from adadepth.tasks.next_commands import list_next_commands
from adadepth.tasks.report import build_run_report, show_last_screen
from adadepth.tasks.results import track_figures
from adadepth.tasks.stored_models import find_resumable_checkpoint, require_checkpoint, resume_after_restart
from adadepth.training.arguments import training_arguments
from adadepth.training.tracking import finish_tracker_afterwards, measure_log_size, open_tracker


def check_latency(budget: BudgetConfig, supernet: LearnsGates) -> None:
    """Raise an error for a latency target that even the slowest network of the supernet would meet.

    Raises:
        ConfigError: If the target exceeds the latency of the slowest network.
    """
    slowest, full = supernet.config.dearest_latency, supernet.config.full_latency
    if budget.target is not None and budget.target > slowest:
        raise ConfigError(
            f"budget.target={budget.target:g}: blocks of the most expensive operation take {slowest:.3g} ms in "
            f"total on this machine; the full network takes {full:.3g} ms"
        )


def choose_affordable_architecture(supernet: LearnsGates, budget: BudgetConfig) -> str | None:
    """Return the most probable architecture that meets the latency budget, or None without a budget.

    The controller brings the latency of the most probable operations near the target. If it is within 5 % of the target
    at the end of the search, these operations are the result.
    """
    return None if budget.target is None else supernet.find_most_probable(budget.target, TOLERANCE)


def describe_latency(supernet: LearnsGates, architecture: str, target: float) -> dict[str, Any]:
    """Return the field `latency` of run.json: the summed latency of all blocks, in milliseconds.

    Args:
        supernet: Supernet with the operation costs of the search.
        architecture: Derived architecture.
        target: Target for the latency in milliseconds.

    Returns:
        `target` is the target. `derived` is the latency of the derived network. `most_probable` is the latency of the
        most probable operation of every block; `string` lists these operations. `is_held` says whether `derived` is
        within 5 % of the target; if not, `derived` is the nearest possible latency.
    """
    derived, string = supernet.config.compute_latency(architecture), supernet.architecture()
    return {
        "target": target,
        "derived": derived,
        "most_probable": supernet.config.compute_latency(string),
        "string": string,
        "is_held": is_held(derived, target, "milliseconds"),
    }


def format_latency(latency: Mapping[str, Any]) -> str:
    """Format the result of `describe_latency` as one line."""
    derived, target, probable = (f"{latency[name]:.3g} ms" for name in ("derived", "target", "most_probable"))
    line = f"latency: the blocks take {derived} for a target of {target}"
    if not latency["is_held"]:
        line += f", more than {TOLERANCE:.0%} away: no architecture with this number of blocks is closer"
    return f"{line}; the most probable operations take {probable}, {latency['string']}"


SUPERNET, DERIVED, RETRAINED = "supernet", "derived", "retrained"
_QUALITY = ("loss", "perplexity", "word_perplexity", "bits_per_character", "bits_per_byte")
_INITIALISATION = {RetrainFrom.scratch: "from scratch", RetrainFrom.supernet: "from the supernet"}
_SEARCH_METRICS = "search_metrics"  # in the record of a run whose supernet is trained


@dataclass(frozen=True)
class SearchRun:
    """State that all stages of an architecture search share: experiment, training arguments and run directory."""

    config: ExperimentConfig
    args: TrainingArguments
    directory: Path

    @cached_property
    def data(self) -> RunData:
        """Data for training networks of a fixed architecture, with all of the training text."""
        return load_data(self.config, self.args, choose_training_tokenizer(self.config, self.args), searches=False)

    @property
    def family(self) -> Family:
        """Model family of the supernet."""
        return family(self.config.model.name)


def _list_shapes(config: ExperimentConfig) -> list[list[int]]:
    """Return [length, memory, batch size] of every input shape at which networks are timed and compared.

    Networks of equal compute are those with equal costs at the first shape.
    """
    memory, rows = getattr(config.model, _get_search_space(config).memory), config.trainer.per_device_train_batch_size
    return config.search.shapes or [[config.dataset.sequence_length, memory, rows]]


def _get_search_space(config: ExperimentConfig) -> Searching:
    """Return the functions of the model family that build and derive its searchable networks."""
    space = family(config.model.name).search
    assert space is not None, "validated"
    return space


def train(config: ExperimentConfig) -> tuple[dict[str, float], Path]:
    """Run all stages of the architecture search that are not yet finished.

    Return the metrics of the derived network and of the search, and the run directory.
    """
    args = training_arguments(config)
    data = load_data(config, args, choose_training_tokenizer(config, args))
    config = resume_after_restart(settle_model_config(config, args, data), args)
    supernet = build_configured_model(config, data)  # fails before there is a run directory
    if Stage.search in config.search.stages and config.resume is None:
        _set_costs(config, args, supernet)
    search = SearchRun(config, args, decide(args, lambda: run_directory(config)))
    if config.resume is not None and (supernet_folder := search.directory / SUPERNET).is_dir():
        data = check_resumed_data(config, data, supernet, supernet_folder)
    if Stage.search in config.search.stages and not _is_searched(search):
        _search(search, data, supernet)
    wait_for_processes(args)  # until the main process has written the result of the search
    if not _is_searched(search):
        raise CheckpointError(
            f"search.stages={list(map(str, config.search.stages))}: {search.directory} holds no finished search; "
            "add the stage search, or continue a run that has one with resume=..."
        )
    earlier = read_record(search.directory)
    wait_for_processes(args)

    def report() -> None:
        report = build_run_report(search.directory)
        run.update(verdict=to_json(report.verdict))  # it includes the compared networks
        page = write_report(report)
        if Stage.compare in config.search.stages:
            _track(search, run, report)
        show_last_screen(report, page, list_next_commands(config, report.files))

    with open_run(config, search.directory, is_main_process(), report) as run:
        run.record |= {key: earlier[key] for key in earlier.keys() - run.record.keys()}  # also in the other processes
        metrics = _run_later_stages(search, run)
        run.update(final_metrics=metrics)
    return metrics, search.directory


def _is_searched(search: SearchRun) -> bool:
    """Return whether the supernet is already trained."""
    return decide(search.args, lambda: _SEARCH_METRICS in read_record(search.directory))


def _run_later_stages(search: SearchRun, run: Run) -> dict[str, float]:
    stages, metrics = search.config.search.stages, dict(run.record[_SEARCH_METRICS])
    if Stage.derive in stages:
        _derive(search, run)
    architectures: Mapping[str, str] | None = run.record.get("architectures")
    if Stage.retrain in stages or Stage.compare in stages:
        if architectures is None:
            raise CheckpointError(f"{search.directory}: no network has been derived yet; add the stage derive")
        if Stage.retrain in stages:
            for name, architecture in architectures.items():
                _retrain(search, name, architecture)
            if is_main_process():  # the retrained network is the run's model
                shutil.copytree(_get_model_folder(search, "derived"), search.directory / MODEL, dirs_exist_ok=True)
                written = read_record(_get_model_folder(search, "derived").parent).get("saved", {})
                run.update(saved={**run.record.get("saved", {}), **written})
        wait_for_processes(search.args)
        scores = {name: _read_final_metrics(search, name) for name in architectures}
        metrics = {name: value for name, value in metrics.items() if not name.startswith("eval/")} | scores["derived"]
        metrics |= {
            f"search/compare/{name}/{key}": network_scores[f"eval/{key}"]
            for name, network_scores in scores.items()
            for key in _QUALITY
            if f"eval/{key}" in network_scores
        }
        if Stage.compare in stages:
            data = search.data  # all processes load it together
            quality_set = "test" if data.test else "held_out"
            if is_main_process():
                _compare(search, architectures, scores, quality_set)
    return metrics


# ---- search


def _search(search: SearchRun, data: RunData, model: PreTrainedModel) -> None:
    """Train the supernet, including the gates that choose an operation for every block."""
    config, directory = search.config, search.directory
    _announce("search: training the supernet")
    if config.resume is not None:  # with the costs of the interrupted search
        _set_costs(config, search.args, model, read_record(directory).get("operation_costs"))
    checkpoint = None if config.resume is None else require_checkpoint(directory, search.args)
    session = build_language_session(config, search.args, data, model).with_extensions()
    with session.open(directory, checkpoint):
        session.run.update(operation_costs=model.config.operation_costs)
        metrics = session.fit(checkpoint, folder=SUPERNET)
        metrics = metrics | _rename_supernet_metrics(metrics)
        results = {name: value for name, value in metrics.items() if name.startswith(("search/", "eval/"))}
        steps, size = session.trainer.state.global_step, measure_log_size(directory)
        session.run.update(status="searched", search_steps=steps, search_log=size, **{_SEARCH_METRICS: results})


def _rename_supernet_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Rename the metrics of the supernet to `search/<evaluation>/<metric>`.

    The prefix `eval/` is reserved for the derived network.
    """
    renamed = {}
    for name, value in metrics.items():
        kind, _, rest = name.partition("/")
        if kind == "eval":
            evaluation, _, metric = rest.rpartition("/")
            renamed[f"search/{evaluation or 'soft'}/{metric}"] = value
    return renamed


def _set_costs(
    config: ExperimentConfig, args: TrainingArguments, supernet: Any, costs: list[float] | None = None
) -> None:
    """Pass the costs of the operations to the supernet, if the search penalises cost.

    If `costs` is None, the main process measures them.

    Raises:
        ConfigError: If no architecture reaches the latency target.
    """
    if config.search.latency_weight > 0 or config.budget.target is not None:
        costs = costs or decide(args, lambda: _measure_operation_costs(config, args, supernet))
        supernet.config.update({"latency_weight": config.search.latency_weight, "operation_costs": costs})
        check_latency(config.budget, supernet)


def _measure_operation_costs(config: ExperimentConfig, args: TrainingArguments, supernet: Any) -> list[float]:
    """Measure the cost of each operation at the first input shape.

    The cost is in seconds if the run has a latency budget.
    """
    by_macs, in_seconds = config.search.latency_costs is Costs.macs, config.budget.target is not None
    repeats, costs = config.search.timing_repeats, _get_search_space(config).costs()
    return costs(supernet.config, _list_shapes(config)[0], args.device, repeats, by_macs=by_macs, in_seconds=in_seconds)


# ---- derive


def _derive(search: SearchRun, run: Run) -> None:
    """Derive a network from the trained supernet, evaluate it, and choose baselines with equal compute."""
    if "architectures" in run.record:
        return
    if (
        problem := find_damaged_file(search.directory / SUPERNET, run.record.get("saved", {}).get(SUPERNET, {}))
    ) is not None:
        raise CheckpointError(f"{search.directory / SUPERNET}: {problem}")
    _announce("derive: the most probable operation of every block")
    supernet, budget = search.family.head("search").from_pretrained(search.directory / SUPERNET), search.config.budget
    derived = _get_search_space(search.config).derive()(supernet, choose_affordable_architecture(supernet, budget))
    architecture = getattr(derived.config, _get_search_space(search.config).setting)
    baselines = _choose_baselines(search, architecture, derived.config)
    _evaluate_derived(search, derived, architecture)
    run.update(architectures={"derived": architecture, **baselines})
    if budget.target is not None:
        latency = describe_latency(supernet, architecture, budget.target)
        run.update(latency=latency)
        _announce(format_latency(latency))


def _choose_baselines(search: SearchRun, architecture: str, widths: PreTrainedConfig) -> dict[str, str]:
    """Return baseline architectures with the same compute as the derived network at the first input shape.

    The result is empty if the derived network has no operations.
    """
    space, (length, memory, batch) = _get_search_space(search.config), _list_shapes(search.config)[0]
    macs = partial(space.macs(), widths, length=length, memory=memory, batch=batch)
    if macs(architecture) == 0:
        return {}
    baselines = space.baselines()(architecture, macs, search.config.search.paper_ratio, search.config.seed)
    return {str(name): baselines[str(name)] for name in search.config.search.baselines}


def _evaluate_derived(search: SearchRun, derived: PreTrainedModel, architecture: str) -> None:
    config, folder = _build_fixed_config(search, architecture), search.directory / DERIVED
    folder.mkdir(exist_ok=True)
    session = build_language_session(config, search.args, search.data, derived).with_extensions()
    with session.open(folder):
        session.trainer.evaluate()
        session.trainer.save_model(str(folder / MODEL))
        session.run.update(final_metrics=session.tracking.last_metrics)


# ---- retrain


def _retrain(search: SearchRun, name: str, architecture: str) -> None:
    """Train a network of a fixed architecture, or resume its training."""
    folder = _get_model_folder(search, name).parent
    if read_record(folder).get("status") == "finished":
        return
    _announce(f"retrain: {name} {architecture}")
    config = _build_fixed_config(search, architecture)
    args = training_arguments(config)
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = find_resumable_checkpoint(folder, args)
    model = build_configured_model(config, search.data)
    if name == "derived" and search.config.search.retrain_from is RetrainFrom.supernet:
        model = search.family.head("language_model").from_pretrained(search.directory / DERIVED / MODEL)
    session = build_language_session(config, args, search.data, model).with_extensions()
    with own_runs(search.directory), session.open(folder, checkpoint):
        session.fit(checkpoint)


def _build_fixed_config(search: SearchRun, architecture: str) -> ExperimentConfig:
    """Build the configuration that trains one network of a fixed architecture."""
    config, setting = search.config, {_get_search_space(search.config).setting: architecture}
    steps = config.search.retrain_steps or config.trainer.max_steps
    return dataclasses.replace(
        config,
        task=Task.language_model,
        model=dataclasses.replace(config.model, **setting),
        trainer=dataclasses.replace(config.trainer, max_steps=steps),
        search=SearchConfig(),
        budget=BudgetConfig(),
        resume=None,
    )


# ---- compare


def _read_final_metrics(search: SearchRun, name: str) -> dict[str, float]:
    folder = _get_model_folder(search, name).parent
    record = read_record(folder)
    if record.get("status") != "finished":
        raise CheckpointError(f"{folder}: this network has not been trained yet; add the stage retrain")
    return {key: float(value) for key, value in record["final_metrics"].items() if key.startswith("eval/")}


def _compare(
    search: SearchRun, architectures: Mapping[str, str], scores: Mapping[str, Mapping[str, float]], quality_set: str
) -> None:
    """Compare quality, compute and measured time of all networks, and write and print the table."""
    _announce("compare: timing the networks")
    model_class, device = search.family.head("language_model"), search.args.device
    networks: dict[str, Any] = {
        name: model_class.from_pretrained(_get_model_folder(search, name)) for name in architectures
    }
    networks = {name: network.to(device) for name, network in networks.items()}
    untrained = read_record(search.directory / DERIVED)["final_metrics"]
    shapes = [
        {"name": f"T={length}, M={memory}, batch={batch}", "length": length, "memory": memory, "batch": batch}
        for length, memory, batch in _list_shapes(search.config)
    ]
    repeats, space = search.config.search.timing_repeats, _get_search_space(search.config)
    time, macs = space.time(), space.macs()
    timed = {
        shape["name"]: time(networks, shape["length"], shape["memory"], shape["batch"], repeats) for shape in shapes
    }

    def row(name: str, kind: str, how: str, metrics: Mapping[str, float]) -> dict[str, Any]:
        network = networks[name]
        return {
            "name": name,
            "kind": kind,
            "trained": how,
            "architecture": architectures[name],
            "parameters": sum(weight.numel() for weight in network.parameters()),
            "quality": _select_quality(metrics, "eval/test/" if quality_set == "test" else "eval/"),
            "quality_set": quality_set,
            "macs": {
                shape["name"]: macs(
                    network.config, architectures[name], shape["length"], shape["memory"], shape["batch"]
                )
                for shape in shapes
            },
            "seconds": {shape["name"]: timed[shape["name"]][name] for shape in shapes},
        }

    rows = [
        row("derived", "searched", "not retrained", untrained),
        row("derived", "searched", _INITIALISATION[search.config.search.retrain_from], scores["derived"]),
        *(row(name, "baseline", "from scratch", scores[name]) for name in architectures if name != "derived"),
    ]
    comparison = {
        "reference": "alternating" if "alternating" in architectures else "derived",
        "derived": architectures["derived"],
        "shapes": shapes,
        "conditions": {
            "device": name_device(device),
            "torch": torch.__version__,
            "dtype": "float32",
            "threads": torch.get_num_threads(),
            "repeats": repeats,
        },
        "rows": rows,
    }
    write_json(search.directory / ARCHITECTURES, comparison)
    say(format_architecture_comparison(comparison), RESULT)


def _select_quality(metrics: Mapping[str, float], prefix: str) -> dict[str, float] | None:
    """Return a network's quality metrics for the comparison, or None if one of them is not finite."""
    scores = {key: float(metrics[prefix + key]) for key in _QUALITY}
    return scores if all(map(math.isfinite, scores.values())) else None


def _get_model_folder(search: SearchRun, name: str) -> Path:
    """Return the folder with the trained weights of a network."""
    return search.directory / RETRAINED / name / MODEL


def _track(search: SearchRun, run: Run, report: RunReport) -> None:
    """Send the table and figures of the network comparison to the trackers."""
    step = run.record["search_steps"]
    tracker = open_tracker(search.config, run, size=run.record.get("search_log"))
    with finish_tracker_afterwards(tracker):
        columns = ["name", "trained", "architecture", "parameters"]
        rows = report.files.of(ARCHITECTURES)["rows"]
        qualities: list[dict[str, float]] = [row["quality"] or {} for row in rows]
        table = [
            [*(row[key] for key in columns), *map(quality.get, _QUALITY)]
            for row, quality in zip(rows, qualities, strict=True)
        ]
        tracker.table("search/architectures", [*columns, *_QUALITY], table, step)
        track_figures(report, tracker, step)


def _announce(text: str) -> None:
    if is_main_process():
        say(text)
