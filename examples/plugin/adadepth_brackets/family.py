"""What adadepth knows of the counter, a family: settings and descriptor. Read for `--help`, without torch."""

from dataclasses import dataclass

from adadepth.config import BudgetUnit, ModelConfig, family_name
from adadepth.config.declaration import FINITE, OPEN_SHARE, at_least, setting
from adadepth.models.registry import Budgeting, ConfigClass, Family, ModelClass

_UNITS = (BudgetUnit.updates, BudgetUnit.macs)


@dataclass
class CounterSettings(ModelConfig):
    """One convolution over a token and its neighbours, applied until the token has counted enough."""

    name: str = family_name("counter")
    vocab_size: int | None = setting(None, "pieces; None: the tokenizer's", at_least(1), shape=True)
    hidden_size: int = setting(64, "H, width of the states", at_least(1), shape=True, debug=16)
    max_rounds: int = setting(8, "N, the most updates of a token", at_least(1))
    max_position_embeddings: int = setting(128, "positions", at_least(1), shape=True)
    going_on_bias: float = setting(2.0, "initial bias; above 0 every token goes on at first", FINITE)
    threshold: float = setting(0.5, "a token goes on while it is surer than this that it must", OPEN_SHARE)
    round_price: float = setting(0.0, "what an update of a token costs in the loss", at_least(0))


def _import_config() -> ConfigClass:
    from adadepth_brackets.modeling import CounterConfig

    return CounterConfig


def _import_tagger() -> ModelClass:
    from adadepth_brackets.modeling import CounterForTokenClassification

    return CounterForTokenClassification


COUNTER = Family(
    settings=CounterSettings,
    config=_import_config,
    heads={"tagging": _import_tagger},
    loss_parts={"round_loss": "round_price"},
    budget=Budgeting(trained=_UNITS, fitted=_UNITS, prices=("round_price",), least=0),
    depth="max_rounds",
    advice="budget=depth holds a mean depth; model.going_on_bias=4 lets tokens go on for longer at first",
)
