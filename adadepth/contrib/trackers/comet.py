"""Comet tracker: writes to the service, or offline to an archive in the run's ``comet`` folder for `comet upload`."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adadepth.config import ExperimentConfig
from adadepth.config.experiment import TrackerMode
from adadepth.report.table import escape_csv_formula
from adadepth.runs.directory import flat, get_plain_settings
from adadepth.training.trackers.base import Tracker, Value, select_numbers
from adadepth.training.trackers.run_labels import describe_run

# What Comet would log by itself about libraries that are imported before it.
_LOGS = ("log_code", "log_graph", "parse_args", "log_git_metadata", "log_git_patch", "log_env_details")
_AUTOMATIC = ("auto_param_logging", "auto_metric_logging", "auto_output_logging", "auto_log_co2")
_DISABLED = (*_LOGS, *_AUTOMATIC)


class CometTracker(Tracker):
    """Tracker with one experiment per run. A resumed run continues the experiment with its key."""

    def __init__(
        self, config: ExperimentConfig, directory: Path, identity: str | None = None, resume_step: int | None = None
    ) -> None:
        if config.logger.mode is not TrackerMode.online:
            os.environ.setdefault("COMET_ERROR_TRACKING_ENABLE", "false")  # error reports go to Comet over the network
        import comet_ml

        self.comet_ml = comet_ml
        labels = describe_run(config, directory)
        disabled: dict[str, Any] = dict.fromkeys(_DISABLED, False)
        self.experiment = comet_ml.start(
            workspace=config.logger.entity,
            project_name=config.logger.project,
            experiment_key=identity,
            mode="create" if identity is None else "get",
            online=config.logger.mode is TrackerMode.online,
            experiment_config=comet_ml.ExperimentConfig(
                disabled=config.logger.mode is TrackerMode.disabled,
                offline_directory=str(directory / "comet"),
                display_summary_level=0,
                name=labels.name,
                tags=[*([] if labels.group is None else [labels.group]), *labels.tags],
                **disabled,
            ),
        )
        self.identity = self.experiment.get_key()
        self.experiment.log_parameters(flat(get_plain_settings(config)) | labels.facts)

    def log(self, metrics: Mapping[str, Value], step: int) -> None:
        self.experiment.log_metrics(select_numbers(metrics), step=step)

    def histogram(self, name: str, counts: Sequence[float], first_bin: int, step: int) -> None:
        from comet_ml.data_structure import Histogram

        histogram = Histogram()
        histogram.add(values=[float(first_bin + number) for number in range(len(counts))], counts=list(counts))
        self.experiment.log_histogram_3d(histogram, name=name, step=step)

    def table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int) -> None:
        table = [list(map(escape_csv_formula, row)) for row in rows]  # Comet stores tables as CSV
        self.experiment.log_table(f"{name}/step_{step:06d}.csv", table, headers=list(columns))

    def image(self, name: str, path: Path, step: int) -> None:
        self.experiment.log_image(str(path), name=name, step=step)

    animation = image

    def artifact(self, kind: str, path: Path) -> None:
        if path.is_dir():
            self.experiment.log_model(kind, str(path))
        else:
            self.experiment.log_asset(str(path), file_name=path.name)

    def objective(self, value: float) -> None:
        self.experiment.log_other("objective", value)

    def finish(self, exit_code: int = 0) -> None:
        self.experiment.end()
