"""What the settings of generated data need of each other."""

from collections.abc import Iterator

from adadepth.analysis.measure.quality import check_metrics
from adadepth.config import ExperimentConfig
from adadepth.config.generated import AdditionConfig, HopsConfig, LabelledUnit, MazeConfig
from adadepth.config.kinds import has_puzzles
from adadepth.errors import ConfigError


def check_generated(config: ExperimentConfig) -> Iterator[str]:
    """Whether what is drawn fits into its field and into a sequence."""
    dataset = config.dataset
    if isinstance(dataset, MazeConfig):
        yield from _maze(dataset)
    elif isinstance(dataset, HopsConfig):
        yield from _hops(dataset)
    elif isinstance(dataset, AdditionConfig):
        yield from _addition(dataset)
    if has_puzzles(dataset):
        try:
            check_metrics(getattr(dataset, "metrics", ()), "puzzle")
        except ConfigError as error:
            yield str(error)


def _maze(dataset: MazeConfig) -> Iterator[str]:
    if dataset.size < 2:
        yield f"dataset.size={dataset.size}: a maze needs at least 2"
    if dataset.size > dataset.field:
        yield f"dataset.size={dataset.size}: must be at most dataset.field={dataset.field}"
    yield from _beyond("beyond_sizes", dataset.beyond_sizes, "size", dataset.size, dataset.field)
    cells = max([dataset.size, *dataset.beyond_sizes]) ** 2
    if cells > dataset.sequence_length:
        yield f"dataset.sequence_length={dataset.sequence_length}: the largest maze has {cells} cells"


def _addition(dataset: AdditionConfig) -> Iterator[str]:
    longest = max([dataset.digits, *dataset.beyond_digits]) + 1
    if dataset.digits >= dataset.field:
        yield f"dataset.digits={dataset.digits}: must be below dataset.field={dataset.field}: a sum has a digit more"
    yield from _beyond("beyond_digits", dataset.beyond_digits, "digits", dataset.digits, dataset.field - 1)
    if longest > dataset.sequence_length:
        yield f"dataset.sequence_length={dataset.sequence_length}: the longest sum has {longest} digits"


def _beyond(key: str, values: list[int], trained: str, low: int, high: int) -> Iterator[str]:
    """Sizes that are also evaluated are larger than the trained one, fit into the field, and are named once."""
    wrong = [value for value in values if not low < value <= high]
    if wrong or len(set(values)) < len(values):
        yield f"dataset.{key}={values}: must be above dataset.{trained}={low} and at most {high}, each once"


def _hops(dataset: HopsConfig) -> Iterator[str]:
    most = dataset.nodes // 2 - 1  # there are two chains of that length at least
    for key in ("train_hops", "beyond_hops"):
        hops = getattr(dataset, key)
        if hops is not None and (len(hops) != 2 or not 0 <= hops[0] <= hops[1] <= most):
            yield f"dataset.{key}={hops}: must be [lowest, highest] within 0 and dataset.nodes / 2 - 1 = {most}"
    if dataset.unit is LabelledUnit.token and dataset.nodes > dataset.sequence_length:
        yield f"dataset.sequence_length={dataset.sequence_length}: there are dataset.nodes={dataset.nodes}"
