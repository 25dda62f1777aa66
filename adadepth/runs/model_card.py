"""Model card that is saved with a model: family, results, depth, training data, and how to load it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeGuard, cast

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from jinja2 import Environment, PackageLoader, StrictUndefined

from adadepth.config import ExperimentConfig
from adadepth.config.declaration import drop_neutral, select_notable_settings
from adadepth.config.env_redaction import redact_env_values, redact_record, with_references
from adadepth.config.export import ExportConfig, export_formats
from adadepth.runtime.files import write_atomic
from adadepth.runtime.plain_yaml import parse_yaml

CARD = "README.md"
_ROOT = Path(__file__).resolve().parents[2]
_CITATION = "CITATION.cff"
# Suffix of a class name -> the hub's name of its task.
_TASKS = {
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForMultipleChoice": "multiple-choice",
    "ForPreTraining": "fill-mask",
    "ForMaskedLM": "fill-mask",
    "ForCausalLM": "text-generation",
}
_PIPELINE_TASKS = ("text-classification", "token-classification", "fill-mask", "text-generation")
_NO_RESULT = ("runtime", "tokens_per_second")
_HIDDEN = (
    "name",
    "pretrained",
    "base_model",
    "path",
    "evaluation_path",
    "test_path",
)  # in the card, or paths
_DEPTHS = {
    "halting/all/mean": "mean updates per unit",
    "halting/all/median": "median",
    "halting/all/p10": "10th percentile",
    "halting/all/p90": "90th percentile",
    "halting/all/at_cap": "share of units at the maximum depth",
}


def write_card(folder: Path, config: ExperimentConfig, record: Mapping[str, Any], model: Any, first_set: str) -> Path:
    """Write the model card README.md into a model folder, and return its path.

    Args:
        folder: Folder of the saved model.
        config: Configuration of its run.
        record: Record of its run, which contains the final metrics.
        model: The saved model.
        first_set: Name of the evaluation set that selected the model.
    """
    metrics = record.get("final_metrics") or {}
    task = next((task for suffix, task in _TASKS.items() if type(model).__name__.endswith(suffix)), None)
    base = config.model.pretrained or getattr(config.model, "base_model", None)
    source = base if _is_hub_name(base) else None  # a local path means nothing elsewhere
    data = ModelCardData(
        model_name=config.name,
        license=_read_citation()["license"].lower() if base is None else None,  # other weights have their own
        library_name="adadepth",
        pipeline_tag=task,
        base_model=source,
        datasets=_list_hub_datasets(config) or None,
        tags=["adadepth", "adaptive-depth", config.model.name],
        eval_results=list(_list_results(config, record, task or str(config.task), first_set)) or None,
    )
    text = _load_template().render(
        name=config.name,
        description=_describe_model(model, record.get("parameters")),
        rule=_describe_rule(model),
        first_set=first_set,
        source=source,
        seed=config.seed,
        data=config.dataset.name,
        predicts=task in _PIPELINE_TASKS,
        scores=[(result.dataset_split, result.metric_type, result.metric_value) for result in data.eval_results or []],
        depths=[(name, metrics[key]) for key, name in _DEPTHS.items() if key in metrics],
        work=[(key.removeprefix("cost/"), value) for key, value in metrics.items() if _is_model_cost(key, value)],
        settings=_select_settings(config),
        versions=record.get("versions") or {},
        citation=_read_citation(),
        papers=_list_papers(config.model.name),
        card=data.to_yaml(),
    )
    text = redact_env_values(text)
    ModelCard(text)  # raises an error for an invalid card here, not on the hub
    path = folder / CARD
    write_atomic(path, text)
    return path


def write_layout_card(
    folder: Path,
    source: Path,
    model: Any,
    settings: ExportConfig,
    facts: Sequence[tuple[str, str]] = (),
    *,
    has_checks: bool = False,
    is_untrained: bool = False,
) -> Path:
    """Write the model card of an exported model, and return its path.

    The card is that of the model's source, with another description and another section on its use. If the source has
    none, or its figures are those of exits that the model no longer has, the card has no measurements.

    Args:
        folder: Folder of the exported files.
        source: Folder with the model in its former layout.
        model: The model.
        settings: Settings of mode `export`.
        facts: Names and values of what the files compute.
        has_checks: Whether the folder has check.py.
        is_untrained: Whether the weights are those of a frozen network, whose trained exits are left out.
    """
    former = source / CARD
    unmeasured = f"# {_escape_markup(folder.name)}\n\n## Use\n\n## Depth and compute\n\nNo measurements.\n"
    card = ModelCard(
        former.read_text(encoding="utf-8") if former.is_file() else unmeasured, ignore_metadata_errors=True
    )
    entry = export_formats()[settings.format]
    layers = f"all {model.config.num_hidden_layers} layers for every token" if settings.drop_exits else None
    use = _load_template("LAYOUT.md.j2").render(
        format=settings.format,
        layout=settings.layout,
        use=entry.use,
        model_class=type(model).__name__,
        rule=_describe_rule(model) if layers is None else f"The model runs {layers}.",
        updates=model.max_updates,
        facts=facts,
        has_checks=has_checks,
        has_engine=entry.engine is not None,
        serves=type(model).__name__.endswith("ForCausalLM"),
    )
    text = _replace_section(card.text, "Use", use)
    if settings.drop_exits:
        cast(ModelCardData, card.data).eval_results = None
        for heading in ("Results", "Depth and compute"):
            if f"\n## {heading}\n" in text:
                unmeasured = "No measurements: those of the run were made with its early exits, which are left out."
                text = _replace_section(text, heading, f"## {heading}\n\n{unmeasured}")
    if is_untrained:
        unchanged = "The run trained the early exits alone. The weights are those of its frozen network, unchanged."
        text = _replace_section(text, "Training", f"## Training\n\n{unchanged}")
    size = sum(parameter.numel() for parameter in model.parameters())
    description = _describe_model(model, size)
    if layers is not None:
        origin = "the frozen network of a run of adadepth" if is_untrained else "trained with adadepth"
        description = (
            f"A decoder of the layout `{settings.layout or settings.format}` ({size:,} parameters), {origin}, without "
            f"early exits. It has its full depth: {layers}."
        )
    card.text = re.sub(r"(?m)^A model of the family `.*$", lambda _: description, text, count=1)
    path = folder / CARD
    write_atomic(path, str(card))
    return path


def _replace_section(text: str, heading: str, section: str) -> str:
    """Replace a section of a card by another one, which is appended if the card has none with this heading."""
    before, _, rest = text.partition(f"\n## {heading}\n")
    rest = rest[rest.find("\n## ") :] if "\n## " in rest else ""
    return f"{before.rstrip()}\n\n{section.strip()}\n{rest}"


def _describe_model(model: Any, parameters: int | None) -> str:
    """Return sentences on the family, class and size of a model, and on whether its depth is adaptive."""
    size = "" if parameters is None else f", {parameters:,} parameters"
    origin = f"A model of the family `{model.config.model_type}` ({type(model).__name__}{size}), trained with adadepth."
    every = "every" if model.depth_unit in ("token", "sequence") else "the"
    kind, _, updates = str(getattr(model.config, "exit_rule", "")).partition(":")
    if kind == "fixed":
        return f"{origin} Its depth is fixed: {every} {model.depth_unit} gets {updates} of {model.max_updates} updates."
    if kind == "None":
        return f"{origin} It has its full depth: {every} {model.depth_unit} gets {model.max_updates} updates."
    if model.one_depth is not None:
        return f"{origin} Its depth is fixed: {every} {model.depth_unit} gets {model.one_depth} updates."
    return f"{origin} Its depth is adaptive: the model decides it for {every} {model.depth_unit}."


def _describe_rule(model: Any) -> str:
    """Return a sentence on what decides the depth of a model."""
    rule, every = getattr(model.config, "exit_rule", None), "every unit gets"
    if rule is not None:
        return f"The depth is decided by the exit rule `{rule}`."
    if hasattr(model.config, "exit_rule"):
        return f"No exit rule is set: {every} the prediction of the last of {model.max_updates} updates."
    if model.one_depth is not None:
        return f"The depth is fixed: {every} {model.one_depth} updates."
    return "The depth is decided by the model itself."


def _list_results(
    config: ExperimentConfig, record: Mapping[str, Any], task: str, first_set: str
) -> Iterator[EvalResult]:
    """Yield a model-card row for every metric on every evaluation set.

    `eval/` is the first set, which selected the model.
    """
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


def _is_model_cost(key: str, value: Any) -> bool:
    """Return whether a metric measures the cost of the model itself, not of the way it was evaluated."""
    is_execution = key.startswith(("cost/executed_", "cost/dense_"))
    return key.startswith("cost/") and not is_execution and isinstance(value, int | float)


def _select_settings(config: ExperimentConfig) -> dict[str, str]:
    """Return the settings that distinguish this training run, by configuration key."""
    groups = {name: getattr(config, name) for name in ("model", "dataset", "tokenizer", "trainer", "budget")}
    return {
        f"{group}.{name}": str(redact_record(with_references(value, f"{group}.{name}")))
        for group, settings in groups.items()
        for name, value in drop_neutral(type(settings), select_notable_settings(settings)).items()
        if name not in _HIDDEN and not isinstance(value, dict | list)
    }


def _list_hub_datasets(config: ExperimentConfig) -> list[str]:
    if str(getattr(config.dataset, "source", "")) != "hub":
        return []
    hub = getattr(config.dataset, "hub", None)
    entries = hub if isinstance(hub, list) else [{"path": getattr(hub, "path", None)}]
    names = dict.fromkeys(entry.get("path") for entry in entries)
    return list(filter(_is_hub_name, names))


def _is_hub_name(name: str | None) -> TypeGuard[str]:
    return name is not None and re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) is not None and not Path(name).exists()


@cache
def _read_citation() -> dict[str, Any]:
    """Return the citation of this package from its file CITATION.cff."""
    paths = (Path(__file__).resolve().parents[1] / _CITATION, _ROOT / _CITATION)
    citation: dict[str, Any] = parse_yaml(next(filter(Path.is_file, paths)).read_text(encoding="utf-8"))
    return citation


def _list_papers(family: str) -> list[str]:
    """Return the papers of a model family, which are the references that have its name as a keyword."""
    return [_format_paper(reference) for reference in _read_citation()["references"] if family in reference["keywords"]]


def _format_paper(reference: Mapping[str, Any]) -> str:
    authors = ", ".join(author.get("family-names") or author["name"] for author in reference["authors"])
    identifiers = [reference.get("doi"), *(entry["value"] for entry in reference.get("identifiers", []))]
    parts = [f"{authors} ({reference['year']})", reference["title"], *filter(None, identifiers)]
    return f"{'. '.join(parts)}. {reference['notes']}"


def _escape_markup(text: object) -> str:
    """Convert a user's text to one line without Markdown markup or table separators."""
    return re.sub(r"([\\`*\[\]<>#|&])", r"\\\1", " ".join(str(text).split()))


def _load_template(name: str = f"{CARD}.j2") -> Any:
    loader = PackageLoader("adadepth.runs")
    environment = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["words"] = _escape_markup
    return environment.get_template(name)
