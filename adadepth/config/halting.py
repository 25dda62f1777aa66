"""A halting head that learns alone."""

from dataclasses import dataclass

from adadepth.declaration import POSITIVE, at_least, setting


@dataclass
class HaltingConfig:
    """A second stage of training: a trained model stays as it is, and its halting head alone learns when to stop."""

    alone: bool = setting(False, "train nothing but the halting head of the model that model.pretrained names")
    slope: float = setting(20.0, "how sharply the target turns from halting to going on", POSITIVE)
    threshold: float = setting(0.1, "of the loss: what the best further step must save to be worth it", at_least(0))
