"""The report section of the router family."""

from __future__ import annotations

from markupsafe import Markup

from adadepth.report.run_files import RunFiles
from adadepth.report.section import Section


def never_updated(files: RunFiles) -> Section | None:
    """Return the share of tokens that no step updated, or None before an evaluation."""
    histogram = files.halting.get("classes", {}).get("all", {}).get("histogram")
    if not histogram:
        return None
    share = histogram[0] / sum(histogram)
    html = Markup("<p>{} of all tokens were never updated: they are read as they were embedded.</p>\n")
    return Section("Tokens left alone", "left-alone", html.format(f"{share:.1%}"))
