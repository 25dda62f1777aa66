"""The mode `probe`: its descriptor and the checks of its configuration."""

from __future__ import annotations

from collections.abc import Iterator

from adadepth.cli.checks.data import check_data
from adadepth.config import ExperimentConfig, Source, Task
from adadepth.config.kinds import get_kind, get_problem, kinds
from adadepth.config.modes import ModeSpec
from adadepth.models.registry import families, family, join_alternatives

PROBE = ModeSpec(
    "adadepth.contrib.probing.probe:probe",
    "train linear probes on the states of every depth",
    "probing",
    checks=(f"{__name__}:check_probing",),
    checkpoints="one",
    sections=("adadepth.contrib.probing.report:SECTION",),
)


def check_probing(config: ExperimentConfig) -> Iterator[str]:
    """Yield an error line for every setting with which hidden states cannot be probed."""
    yield from check_data(config)
    dataset, model = config.dataset, family(config.model.name)
    if config.task is not Task.finetune:
        yield f"mode=probe: reads labelled data, e.g. --config-name act_cola; not task={config.task}"
    elif get_kind(dataset).loader != kinds()["labelled"].loader or getattr(dataset, "source", None) is Source.embedded:
        yield f"dataset={dataset.name}: mode=probe reads labelled sentences of files or the hub, e.g. dataset=cola"
    elif (problem := get_problem(dataset)) != "classification":
        yield f"dataset={dataset.name}: mode=probe reads classes, not dataset.problem={problem}"
    if model.encoder is None:
        able = join_alternatives(name for name, spec in families().items() if spec.encoder is not None)
        yield f"model={model.name}: does not return the states after its updates, which mode=probe reads; {able} does"
