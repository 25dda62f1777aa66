"""What a kind of prediction needs: a head of the family, and metrics that measure it."""

from collections.abc import Iterator

from adadepth.analysis.measure.quality import check_metrics
from adadepth.config import DatasetConfig, ExperimentConfig, Task
from adadepth.config.generated import GeneratedConfig
from adadepth.errors import ConfigError
from adadepth.families.registry import Family, families, family, one_of, with_head
from adadepth.kinds import PREDICTED, Predicted, problem_of


def check_prediction(config: ExperimentConfig) -> Iterator[str]:
    """Whether a family can predict what is asked for, and what of the settings is read with it."""
    dataset, about = config.dataset, family(config.model.name)
    problem = problem_of(dataset)
    if problem is None:
        return
    predicted = PREDICTED[problem]
    if config.task is Task.finetune:
        yield from _tagging(about, dataset) if problem == "tagging" else _head(about, dataset, predicted)
    if config.exit_rules and not predicted.studies_exits:
        yield (
            f"exit_rules={config.exit_rules}: dataset={dataset.name} {predicted.what}; read only with classes, values "
            "and tags"
        )
    if hasattr(dataset, "metrics"):
        try:
            check_metrics(dataset.metrics, problem)
        except ConfigError as error:
            yield str(error)


def _head(about: Family, dataset: DatasetConfig, predicted: Predicted) -> Iterator[str]:
    """Which models have a head for it."""
    if predicted.head in about.heads:
        return
    if predicted.head == "classification":
        yield f"model={about.name}: task=finetune has no classifier of this family"
    else:
        able = one_of(with_head(predicted.head))
        yield f"model={about.name}: dataset={dataset.name} {predicted.what}, for {able} only"


def _tagging(about: Family, dataset: DatasetConfig) -> Iterator[str]:
    """Which models have a classifier of tokens, and can read the symbols of generated data."""
    able = [name for name in with_head("tagging") if families()[name].own_symbols]
    if isinstance(dataset, GeneratedConfig) and about.name not in able:
        yield f"model={about.name}: dataset={dataset.name} labels symbols of its own, for {one_of(able)}"
    elif "tagging" not in about.heads:
        yield f"model={about.name}: dataset={dataset.name} tags words, for {one_of(with_head('tagging'))}"
