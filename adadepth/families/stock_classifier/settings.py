"""The settings of stock classifiers."""

from dataclasses import dataclass

from adadepth.config import Attention, ModelConfig, family_name
from adadepth.declaration import setting


@dataclass
class StockClassifierSettings(ModelConfig):
    """A classifier of sequences or tokens as transformers has it, every block of it: the baseline.

    `pretrained` names what is trained; what is evaluated is named by `checkpoint`.
    """

    name: str = family_name("stock_classifier")
    attn_implementation: Attention | None = setting(None, "None: the best that torch offers here", in_model=False)
