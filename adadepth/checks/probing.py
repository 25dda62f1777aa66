"""What probes need: labelled sentences with classes, and a model that shows its states."""

from collections.abc import Iterator

from adadepth.config import ExperimentConfig, LabelledConfig, Mode, Source, Task
from adadepth.config.tables import Problem
from adadepth.families.registry import families, family, one_of


def check_probing(config: ExperimentConfig) -> Iterator[str]:
    """Which models and data can be probed."""
    if config.mode is not Mode.probe:
        return
    dataset, about = config.dataset, family(config.model.name)
    if config.task is not Task.finetune:
        yield f"mode=probe: reads labelled data, task=finetune, e.g. --config-name act_cola; not task={config.task}"
    elif not isinstance(dataset, LabelledConfig) or dataset.source is Source.embedded:
        yield f"dataset={dataset.name}: mode=probe reads labelled sentences of files or the hub, e.g. dataset=cola"
    elif dataset.problem is not Problem.classification:
        yield f"dataset={dataset.name}: mode=probe reads classes, not dataset.problem={dataset.problem}"
    if about.encoder is None:
        able = one_of(name for name, each in families().items() if each.encoder is not None)
        yield f"model={about.name}: shows no states after its updates, which mode=probe reads; {able} does"
