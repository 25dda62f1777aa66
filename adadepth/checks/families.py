"""What the model's family needs, in its own words, and what only some families read."""

from collections.abc import Iterator

from adadepth.config import OPTIONAL_GROUPS, ExperimentConfig, Mode
from adadepth.families.registry import family, load, one_of, reading

# Groups that say nothing unless a family reads them; a budget is checked by itself.
_GROUPS = [name for name in OPTIONAL_GROUPS if name != "budget"]


def check_family(config: ExperimentConfig) -> Iterator[str]:
    """The checks that the family's descriptor names, and groups that it does not read."""
    of_model = family(config.model.name)
    for group in _GROUPS:
        if group not in of_model.reads and getattr(config, group) != OPTIONAL_GROUPS[group]():
            yield f"{group}: read only with model={one_of(reading(group))}, but model={config.model.name}"
    for place in of_model.checks:
        yield from load(place)(config)


def check_halting_stage(config: ExperimentConfig) -> Iterator[str]:
    """The second stage trains the halting head of a model that has been trained."""
    halting, model = config.halting, config.model
    if "halting" not in family(model.name).reads:
        return
    if not halting.alone:
        if halting != OPTIONAL_GROUPS["halting"]():
            yield "halting: read only with halting.alone=true"
        return
    if config.mode is not Mode.train:
        yield f"halting.alone=true: read only with mode=train, but mode={config.mode}"
    if model.pretrained is None:
        yield "model.pretrained: halting.alone=true needs it, the folder of a trained model, e.g. RUN/model"
