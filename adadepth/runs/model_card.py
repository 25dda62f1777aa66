"""The card of a saved model: what it is, how good and how deep it is, on what, and how to load it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeGuard

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from jinja2 import Environment, PackageLoader, StrictUndefined

from adadepth.settings import ExperimentConfig
from adadepth.settings.declaration import telling, without_neutral
from adadepth.settings.interpolations import as_written, told_within, unresolved
from adadepth.system.files import write_atomic
from adadepth.system.plain_yaml import from_yaml

CARD = "README.md"
_ROOT = Path(__file__).resolve().parents[2]
_CITATION = "CITATION.cff"
# What a class name ends in -> the hub's name for such a task.
_TASKS = {
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForMultipleChoice": "multiple-choice",
    "ForPreTraining": "fill-mask",
    "ForMaskedLM": "fill-mask",
    "ForCausalLM": "text-generation",
}
_PREDICTED = ("text-classification", "token-classification", "fill-mask", "text-generation")
_NO_RESULT = ("runtime", "tokens_per_second")
_UNTOLD = ("name", "pretrained", "base_model", "path", "evaluation_path", "test_path")  # told above, or paths
_DEPTHS = {
    "halting/all/mean": "mean updates of a unit",
    "halting/all/median": "median",
    "halting/all/p10": "10th percentile",
    "halting/all/p90": "90th percentile",
    "halting/all/at_cap": "share of units at the greatest depth",
}


def write_card(folder: Path, config: ExperimentConfig, record: Mapping[str, Any], model: Any, first_set: str) -> Path:
    """Write README.md of a model folder.

    Args:
        folder: With the saved model.
        config: Of its run.
        record: Of its run, with the final metrics.
        model: What was saved.
        first_set: Name of the evaluation set that selected it.
    """
    metrics = record.get("final_metrics") or {}
    task = next((task for suffix, task in _TASKS.items() if type(model).__name__.endswith(suffix)), None)
    named = config.model.pretrained or getattr(config.model, "base_model", None)
    source = named if _is_hub_name(named) else None  # a path says nothing to others
    data = ModelCardData(
        model_name=config.name,
        license=_citation()["license"].lower(),
        library_name="adadepth",
        pipeline_tag=task,
        base_model=source,
        datasets=_datasets(config) or None,
        tags=["adadepth", "adaptive-depth", config.model.name],
        eval_results=list(_results(config, record, task or str(config.task), first_set)) or None,
    )
    text = _template().render(
        name=config.name,
        family=config.model.name,
        unit=model.depth_unit,
        model_class=type(model).__name__,
        parameters=record.get("parameters"),
        source=source,
        seed=config.seed,
        data=config.dataset.name,
        predicts=task in _PREDICTED,
        scores=[(result.dataset_split, result.metric_type, result.metric_value) for result in data.eval_results or []],
        depths=[(name, metrics[key]) for key, name in _DEPTHS.items() if key in metrics],
        work=[(key.removeprefix("cost/"), value) for key, value in metrics.items() if _is_work(key, value)],
        settings=_settings(config),
        versions=record.get("versions") or {},
        citation=_citation(),
        papers=[_paper(reference) for reference in _citation()["references"]],
        card=data.to_yaml(),
    )
    text = told_within(text)
    ModelCard(text)  # what is no card ends here, and not on the hub
    path = folder / CARD
    write_atomic(path, text)
    return path


def _results(config: ExperimentConfig, record: Mapping[str, Any], task: str, first_set: str) -> Iterator[EvalResult]:
    """Every metric of every evaluated set: `eval/` is the first one, which selected the model."""
    hub = getattr(getattr(config.dataset, "hub", None), "path", None)
    for key, value in (record.get("final_metrics") or {}).items():
        kind, _, metric = key.partition("/")
        is_evaluated = kind == "eval" or kind.startswith("eval_")
        if not is_evaluated or metric in _NO_RESULT or "/" in metric or not isinstance(value, float):
            continue
        yield EvalResult(
            task_type=task,
            dataset_type=hub or config.dataset.name,
            dataset_name=config.dataset.name,
            dataset_split=kind.removeprefix("eval").removeprefix("_") or first_set,
            metric_type=metric,
            metric_value=round(value, 6),
        )


def _is_work(key: str, value: Any) -> bool:
    """Whether a metric says what the model costs; how its evaluation ran does not."""
    as_run = ("cost/executed_", "cost/dense_")
    return key.startswith("cost/") and not key.startswith(as_run) and isinstance(value, int | float)


def _settings(config: ExperimentConfig) -> dict[str, str]:
    """What tells this training from others, group by group, as its command would say it."""
    groups = {name: getattr(config, name) for name in ("model", "dataset", "tokenizer", "trainer", "budget")}
    return {
        f"{group}.{name}": str(as_written(unresolved(value, f"{group}.{name}")))
        for group, settings in groups.items()
        for name, value in without_neutral(type(settings), telling(settings)).items()
        if name not in _UNTOLD and not isinstance(value, dict | list)
    }


def _datasets(config: ExperimentConfig) -> list[str]:
    """The names of its data on the hub."""
    hub = getattr(config.dataset, "hub", None)
    entries = hub if isinstance(hub, list) else [{"path": getattr(hub, "path", None)}]
    names = dict.fromkeys(entry.get("path") for entry in entries)
    return [name for name in names if _is_hub_name(name)] if str(getattr(config.dataset, "source", "")) == "hub" else []


def _is_hub_name(name: str | None) -> TypeGuard[str]:
    return name is not None and re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) is not None and not Path(name).exists()


@cache
def _citation() -> dict[str, Any]:
    """CITATION.cff of the repository, or the one that a wheel holds."""
    places = (Path(__file__).resolve().parents[1] / _CITATION, _ROOT / _CITATION)
    found: dict[str, Any] = from_yaml(next(filter(Path.is_file, places)).read_text(encoding="utf-8"))
    return found


def _paper(reference: Mapping[str, Any]) -> str:
    authors = ", ".join(author["family-names"] for author in reference["authors"])
    places = [reference.get("doi"), *(each["value"] for each in reference.get("identifiers", []))]
    place = next(filter(None, places), "")
    return f"{authors} ({reference['year']}). {reference['title']}. {place}. {reference.get('notes', '')}".rstrip()


def _words(text: object) -> str:
    """A name or value of the user's as plain words of one line: no markup, no further cell of a table."""
    return re.sub(r"([\\`*\[\]<>#|&])", r"\\\1", " ".join(str(text).split()))


def _template() -> Any:
    loader = PackageLoader("adadepth.runs")
    environment = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["words"] = _words
    return environment.get_template(f"{CARD}.j2")
