"""A W&B workspace with the panels of docs/tracking.md: needs `pip install wandb-workspaces`.

python examples/wandb_workspace.py ENTITY [PROJECT]     make it, and print its address (wants W&B's server)
python examples/wandb_workspace.py --dry-run            print the panels
"""

import argparse
from itertools import groupby

import wandb_workspaces.reports.v2 as reports
import wandb_workspaces.workspaces as workspaces

from adadepth.training.trackers.main_metrics import PANELS


def workspace(entity: str, project: str) -> workspaces.Workspace:
    """Build a workspace with a section for each group of panels, every panel a chart over updates, then tables."""
    sections = [
        workspaces.Section(
            name=name,
            is_open=True,
            panels=[reports.LinePlot(title=panel.title, x="step", y=list(panel.metrics)) for panel in panels],
        )
        for name, panels in groupby(PANELS, key=lambda panel: panel.section)
    ]
    tables = [reports.WeavePanelSummaryTable(table_name=name) for name in ("halting/classes", "halting/sentences")]
    sections.append(workspaces.Section(name="Tables", panels=tables))
    return workspaces.Workspace(entity=entity, project=project, name="adadepth", sections=sections)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("entity", nargs="?")
    parser.add_argument("project", nargs="?", default="adadepth")
    parser.add_argument("--dry-run", action="store_true", help="print the panels, reach no server")
    given = parser.parse_args()
    if given.entity is None and not given.dry_run:
        parser.error("name the entity (user or team) that owns the project, or give --dry-run")
    made = workspace(given.entity or "entity", given.project)
    if given.dry_run:
        for section in made.sections:
            titles = (getattr(panel, "title", None) or panel.table_name for panel in section.panels)
            print(section.name, *titles, sep="\n  ")
        return
    print(made.save().url)


if __name__ == "__main__":
    main()
