"""MLflow tracker on `mlflow-skinny`: writes files below ``output_dir``, or to the server of MLFLOW_TRACKING_URI."""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adadepth.config import ExperimentConfig
from adadepth.runs.directory import flat, get_plain_settings, jsonable
from adadepth.training.trackers.base import Tracker, Value, select_numbers
from adadepth.training.trackers.run_labels import describe_run

_MAX_PARAMETER_LENGTH = 500  # characters


class MlflowTracker(Tracker):
    """Tracker with one MLflow run in the experiment ``logger.project``.

    Histograms and tables are stored as JSON files in the artifacts of the run.
    """

    def __init__(
        self, config: ExperimentConfig, directory: Path, identity: str | None = None, resume_step: int | None = None
    ) -> None:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # a database needs more than mlflow-skinny
        import mlflow
        from mlflow.entities import Metric, Param

        self._metric = Metric
        tracking_uri = os.environ.get("MLFLOW_TRACKING_URI") or (Path(config.output_dir) / "mlruns").resolve().as_uri()
        self.client = mlflow.MlflowClient(tracking_uri=tracking_uri)
        if identity is None:
            existing = self.client.get_experiment_by_name(config.logger.project)
            experiment = existing.experiment_id if existing else self.client.create_experiment(config.logger.project)
            labels = describe_run(config, directory)
            tags = {"experiment": config.name, "mode": config.mode.value, "job_type": labels.job_type}
            tags |= {} if labels.group is None else {"group": labels.group}
            tags |= dict.fromkeys(config.logger.tags, "")
            identity = self.client.create_run(experiment, run_name=labels.name, tags=tags).info.run_id
            settings = flat(get_plain_settings(config)) | labels.facts
            params = [Param(key, str(value)[:_MAX_PARAMETER_LENGTH]) for key, value in settings.items()]
            for begin in range(0, len(params), 100):  # the limit of one call
                self.client.log_batch(identity, params=params[begin : begin + 100])
        self.identity: str = identity
        self.client.update_run(identity, status="RUNNING")

    def log(self, metrics: Mapping[str, Value], step: int) -> None:
        now, scalars = int(time.time() * 1000), select_numbers(metrics)
        if scalars:
            logged = [self._metric(name, float(value), now, step) for name, value in scalars.items()]
            self.client.log_batch(self.identity, metrics=logged)

    def histogram(self, name: str, counts: Sequence[float], first_bin: int, step: int) -> None:
        self._log_json(name, {"first_bin": first_bin, "counts": list(counts)}, step)

    def table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int) -> None:
        self._log_json(name, {"columns": list(columns), "data": [list(row) for row in rows]}, step)

    def image(self, name: str, path: Path, step: int) -> None:
        self.client.log_artifact(self.identity, str(path), str(Path(name).parent))

    animation = image

    def artifact(self, kind: str, path: Path) -> None:
        if path.is_dir():
            self.client.log_artifacts(self.identity, str(path), kind)
        else:
            self.client.log_artifact(self.identity, str(path), kind)

    def objective(self, value: float) -> None:
        self.client.log_metric(self.identity, "objective", value)

    def finish(self, exit_code: int = 0) -> None:
        self.client.set_terminated(self.identity, "FAILED" if exit_code else "FINISHED")

    def _log_json(self, name: str, value: Mapping[str, Any], step: int) -> None:
        self.client.log_dict(self.identity, jsonable(value), f"{name}/step_{step:06d}.json")
