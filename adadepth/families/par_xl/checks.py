"""What the settings of PAR-XL and of its search need of each other and of a budget."""

from collections.abc import Iterator

from adadepth.config import ExperimentConfig, SearchConfig, Task
from adadepth.config.search import GatePath, SearchMethod, Stage
from adadepth.config.trainer import EvalStrategy
from adadepth.families.par_xl.settings import ParXLSettings
from adadepth.processes import is_one_of_several


def check_settings(config: ExperimentConfig) -> Iterator[str]:
    """Sizes fit, and how gates learn is read only where there are gates."""
    model = config.model
    assert isinstance(model, ParXLSettings)
    heads, hidden = model.num_attention_heads, model.hidden_size
    if heads >= 1 and hidden % heads:
        yield f"model.num_attention_heads={heads}: must divide model.hidden_size={hidden}"
    cutoffs = model.cutoffs
    if any(cutoff < 1 for cutoff in cutoffs) or cutoffs != sorted(set(cutoffs)):
        yield f"model.cutoffs={cutoffs}: must be positive and increase"
    tails = len(cutoffs) if model.cutoff_clusters is None else model.cutoff_clusters - 1
    if cutoffs and model.cutoff_clusters is not None:
        yield f"model.cutoff_clusters={model.cutoff_clusters}: chooses the cutoffs; set model.cutoffs=[]"
    if (widths := model.proj_dims) is not None:
        if model.proj_factor != ParXLSettings.proj_factor:
            yield f"model.proj_factor={model.proj_factor}: read only without model.proj_dims={widths}"
        if len(widths) != tails or min(widths, default=1) < 1:
            yield f"model.proj_dims={widths}: must be a positive width for each tail, of which there are {tails}"
    if model.architecture is None:
        yield from _search(config)
        return
    if config.task is Task.architecture_search:
        yield f"model.architecture={model.architecture}: task=architecture_search searches it; use task=language_model"
    if config.search != SearchConfig():
        yield (
            "search: read only with a supernet, model=par_xl_* without model.architecture; one network trains with "
            "--config-name par_network"
        )


def check_budget(config: ExperimentConfig) -> Iterator[str]:
    """Only a search chooses what a network costs."""
    given = f"budget.target={config.budget.target:g}"
    if config.task is not Task.architecture_search:
        yield f"{given}: of model=par_xl read only with task=architecture_search, but task={config.task}"
    if (share := config.search.stop_unchanged) is not None:
        yield f"{given}: search.stop_unchanged={share:g} may end the search before its schedule; set it to null"
    if weight := config.search.latency_weight:
        yield f"{given}: search.latency_weight={weight:g} is a price beside it; set it to 0, or budget=none"


def _search(config: ExperimentConfig) -> Iterator[str]:
    """Each setting of a search only where it means something."""
    search, is_search = config.search, config.task is Task.architecture_search
    if search.method is SearchMethod.two_phase:
        if search.gate_learning_rate is None:
            yield "search.gate_learning_rate: search.method=two_phase needs it, e.g. 1e-2"
        if config.trainer.max_steps == -1:
            yield "trainer.max_steps=-1: search.method=two_phase needs the number of updates"
    if search.stop_unchanged is not None and config.trainer.eval_strategy is EvalStrategy.no:
        yield f"search.stop_unchanged={search.stop_unchanged:g}: compares evaluations, but trainer.eval_strategy=no"
    if search.latency_weight > 0 and not is_search:
        yield f"search.latency_weight={search.latency_weight}: read only with task=architecture_search"
    if is_search and not search.stages:
        yield f"search.stages=[]: at least one is needed, of {', '.join(Stage)}"
    for shape in search.shapes:
        if len(shape) != 3 or shape[0] < 1 or shape[1] < 0 or shape[2] < 1:
            yield f"search.shapes={shape}: must be [length, memory, batch], e.g. [64, 640, 1]"
    several = is_one_of_several()
    if several and search.path is GatePath.sampled and not config.trainer.ddp_find_unused_parameters:
        yield "trainer.ddp_find_unused_parameters: search.path=sampled leaves parameters unused, set it to true"
