"""The section of the report that only ACT-ALBERT has: the published depths beside those of the run."""

from __future__ import annotations

from markupsafe import Markup

from adadepth.measure.names import CLASS_DEFINITIONS
from adadepth.report.run_files import RunFiles, max_updates
from adadepth.report.section import Section
from adadepth.report.table import Column, Table, as_html, rounded, text

# Mean updates of the published models, tiny, small and base, by class: the table of Simoulin & Crabbé's repository
# (adaptive-depth-transformers, README). Their row [MASK/random] selects [MASK], too.
MODELS = {"tiny": 6, "small": 12, "base": 24}  # most updates
PUBLISHED = {
    "all": (3.8, 7.1, 10.0),
    "unmasked": (3.5, 6.5, 9.2),
    "mask/mask": (5.8, 10.9, 16.0),
    "mask/random_reference": (5.8, 10.9, 16.0),
    "mask/original": (4.0, 7.4, 10.5),
    "cls": (6.0, 12.0, 22.5),
    "sep": (2.5, 7.6, 8.4),
}


def published(files: RunFiles) -> Section | None:
    """Depth by class of the published models, on their own held-out text, and of this run on its own."""
    classes = files.halting.get("classes", {})
    if not classes.get("mask/mask", {}).get("n"):
        return None
    columns = [
        Column("class", "class", text, "text", remark="definition"),
        *(Column(name, f"{name} (of {most})", rounded(1)) for name, most in MODELS.items()),
        Column("mean", f"this run (of {max_updates(files)})", rounded(2)),
        Column("n"),
    ]
    rows = [
        {"class": name, "definition": CLASS_DEFINITIONS[name], **dict(zip(MODELS, means, strict=True)), **classes[name]}
        for name, means in PUBLISHED.items()
    ]
    table = Table("published_depth", columns, rows)
    note = Markup(
        '<p class="note">Mean updates of the published models (Simoulin &amp; Crabbé 2021, README of their '
        "repository), trained on Wikipedia and BookCorpus and evaluated on text of those, beside this run's. Their "
        "depths by part of speech and relation were published as plots, without numbers.</p>\n"
    )
    return Section("Published depths", "published", note + as_html(table), tables=[table])
