"""Comparison of a run's depths with the published depths of ACT-ALBERT, for the report and the console.

Source: Simoulin & Crabbé 2021, "How many layers and why? An analysis of the model depth in transformers", ACL-IJCNLP
Student Research Workshop, 2021.acl-srw.23. The figures come from the table of mean updates in the README of their
repository (adaptive-depth-transformers), which has one decimal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from adadepth.metrics.metric_names import CLASS_DEFINITIONS
from adadepth.report.console_summary import ReferenceDepth
from adadepth.report.run_files import RunFiles, max_updates
from adadepth.report.section import Section, SectionEntry
from adadepth.report.table import Column, Table, make_number_format, text, to_html


@dataclass(frozen=True)
class PublishedModel:
    """Training settings and mean depths of a published ACT-ALBERT model.

    Attributes:
        most: Maximum number of updates, its `num_hidden_layers`.
        penalty: Weight of the ponder cost.
        means: Mean updates by token class. The row [MASK/random] of the source also includes [MASK] tokens; see
            `_BLEND`.
    """

    most: int
    penalty: float
    means: Mapping[str, float]


_BLEND = "mask/random_reference"
_CLASSES = ("all", "unmasked", "mask/mask", _BLEND, "mask/original", "cls", "sep")
MODELS: Mapping[str, PublishedModel] = {
    name: PublishedModel(most, penalty, dict(zip(_CLASSES, means, strict=True)))
    for name, most, penalty, means in (
        ("tiny", 6, 1e-3, (3.8, 3.5, 5.8, 5.8, 4.0, 6.0, 2.5)),
        ("small", 12, 5e-4, (7.1, 6.5, 10.9, 10.9, 7.4, 12.0, 7.6)),
        ("base", 24, 2.5e-4, (10.0, 9.2, 16.0, 16.0, 10.5, 22.5, 8.4)),
    )
}
# Shared by all three models: 112,500 steps at length 128, then 12,500 at 512.
_WIDTH, _STEPS, _BATCH = 768, 125_000, 4096
_WITHOUT_PAIRS = (
    '<p class="note">Without sentence pairs no loss reads [CLS] and [SEP], two tokens of a sequence that hardly count '
    "in the mean: they keep the depth that they had while the budget held all tokens at full depth. In the paper the "
    "penalty pulls on [SEP] from the first update on.</p>\n"
)
_CORPUS = "wikipedia_bookcorpus"  # name in the configuration group `dataset`


def reference_depth(files: RunFiles) -> ReferenceDepth | None:
    """Return the published depths for a run's maximum depth, and how its training settings differ from the paper's."""
    name = _find_published_model(files)
    if name is None:
        return None
    differences = ", ".join(_list_differences(files.config, MODELS[name])) or "trained alike"
    means = {token_class: mean for token_class, mean in MODELS[name].means.items() if token_class != _BLEND}
    return ReferenceDepth(means, f"paper: Simoulin & Crabbé 2021, {name}; here {differences}")


def _find_published_model(files: RunFiles) -> str | None:
    """Return the published model with the same maximum depth as a pretraining run, or None."""
    if files.config.get("task") != "pretrain" or not files.halting.get("classes", {}).get("mask/mask", {}).get("n"):
        return None
    return next((name for name, model in MODELS.items() if model.most == max_updates(files)), None)


def _list_differences(config: Mapping[str, Any], model: PublishedModel) -> Iterator[str]:
    """Yield the settings of a run that differ from those of the paper."""
    settings, data, trainer = (config.get(name) or {} for name in ("model", "dataset", "trainer"))
    if (width := settings.get("hidden_size", _WIDTH)) != _WIDTH:
        yield f"width {width} ({_WIDTH})"
    if (corpus := data.get("name", _CORPUS)) != _CORPUS:
        yield f"other text ({corpus})"
    batch = trainer.get("per_device_train_batch_size", _BATCH) * trainer.get("gradient_accumulation_steps", 1)
    if (steps := trainer.get("max_steps", _STEPS)) < _STEPS:
        if steps > 0:
            yield f"{steps:,} steps of {batch} ({_STEPS:,} of {_BATCH:,})"
        else:
            yield f"{trainer.get('num_train_epochs', 0):g} epochs ({_STEPS:,} steps)"
    if not _has_pairs(config):
        yield "no sentence pairs"
    target, penalty = (config.get("budget") or {}).get("target"), settings.get("act_penalty", model.penalty)
    if target is not None:
        yield "a depth budget (paper: a penalty)"
    elif penalty != model.penalty:
        yield f"penalty {penalty:g} ({model.penalty:g})"


def _has_pairs(config: Mapping[str, Any]) -> bool:
    return bool((config.get("dataset") or {}).get("sentence_order", True))


def published(files: RunFiles) -> Section | None:
    """Return the report section that compares a run's depths by token class with published ones, or None."""
    classes = files.halting.get("classes", {})
    if not classes.get("mask/mask", {}).get("n"):
        return None
    paper, reference = _find_published_model(files), reference_depth(files)
    columns = [
        Column("class", "class", text, "text", remark="definition"),
        Column("mean", f"this run (of {max_updates(files)})", make_number_format(2)),
        *(
            Column(name, f"{'paper, ' if name == paper else ''}{name} (of {model.most})", make_number_format(1))
            for name, model in sorted(MODELS.items(), key=lambda item: item[0] != paper)
        ),
        Column("n"),
    ]
    rows = [
        {
            "class": name,
            "definition": CLASS_DEFINITIONS[name],
            **{model_name: model.means[name] for model_name, model in MODELS.items()},
            **classes[name],
        }
        for name in _CLASSES
    ]
    table = Table("published_depth", columns, rows)
    note = Markup(
        '<p class="note">Mean updates of the published models (Simoulin &amp; Crabbé 2021, README of their '
        "repository), trained on Wikipedia and BookCorpus and evaluated on text of those, beside this run's. Their "
        "depths by part of speech and relation were published as plots, without numbers.{}</p>\n"
    ).format("" if reference is None else f" {reference.remark[:1].upper()}{reference.remark[1:]}.")
    if not _has_pairs(files.config) and (files.config.get("budget") or {}).get("target") is not None:
        note += Markup(_WITHOUT_PAIRS)
    return Section("Published depths", "published", note + to_html(table), tables=[table])


PUBLISHED_SECTION = SectionEntry(75, published)  # directly above depth by class
