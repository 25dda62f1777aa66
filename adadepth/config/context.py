"""What attention sees of the distance and the past."""

from dataclasses import dataclass

from adadepth.declaration import at_least, setting


@dataclass
class DistanceConfig:
    """How distances look to attention; the configuration of a model says it, too."""

    clamp_length: int | None = setting(None, "distances beyond count as this one; None: no limit", at_least(1))
    same_length: bool = setting(
        False,
        "every position sees as many others, as the first one does",
        more="The last `memory_length`, itself included.",
    )


@dataclass
class ContextConfig(DistanceConfig):
    """What attention sees in evaluation, where that differs from training."""

    memory_length: int | None = setting(None, "positions before the segment; None: the model's", at_least(0))
