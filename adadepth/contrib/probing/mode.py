"""The mode `probe`: its descriptor and the checks of its configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from adadepth.cli.checks.data import check_data
from adadepth.config import ExperimentConfig, Source, Task
from adadepth.config.kinds import Kind, get_kind, get_problem
from adadepth.config.modes import ModeSpec
from adadepth.models.registry import ReportSection, families, family, join_alternatives


def check_probing(config: ExperimentConfig) -> Iterator[str]:
    """Yield an error line for every setting with which hidden states cannot be probed."""
    yield from check_data(config)
    dataset, model = config.dataset, family(config.model.name)
    if config.task is not Task.finetune:
        yield f"mode=probe: reads labelled data, e.g. --config-name act_cola; not task={config.task}"
    elif not _has_sentences(get_kind(dataset)) or getattr(dataset, "source", None) is Source.embedded:
        yield f"dataset={dataset.name}: mode=probe reads labelled sentences of files or the hub, e.g. dataset=cola"
    elif (problem := get_problem(dataset)) != "classification":
        yield f"dataset={dataset.name}: mode=probe reads classes, not dataset.problem={problem}"
    if model.encoder is None:
        able = join_alternatives(name for name, spec in families().items() if spec.encoder is not None)
        yield f"model={model.name}: does not return the states after its updates, which mode=probe reads; {able} does"


def _has_sentences(kind: Kind) -> bool:
    """Return whether data are labelled sentences or pairs that the usual loader reads."""
    return kind.columns == "text_columns" and kind.loader is None


def _import_probe() -> Callable[[ExperimentConfig], None]:
    from adadepth.contrib.probing.probe import probe

    return probe


def _import_section() -> ReportSection:
    from adadepth.contrib.probing.report import SECTION

    return SECTION


PROBE = ModeSpec(
    _import_probe,
    "train linear probes on the states of every depth",
    "probing",
    checks=(check_probing,),
    checkpoints="one",
    sections=(_import_section,),
)
