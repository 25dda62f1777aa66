"""What is known of the router before torch is imported."""

from adadepth.config import BudgetUnit
from adadepth.models.registry import Budgeting, Family
from adadepth_router.settings import RouterSettings

_UNITS = (BudgetUnit.updates, BudgetUnit.macs)

FAMILY = Family(
    settings=RouterSettings,
    config="adadepth_router.configuration:RouterConfig",
    heads={
        "tagging": "adadepth_router.modeling:RouterForTokenClassification",
        "pretraining": "adadepth_router.modeling:RouterForPreTraining",
    },
    loss_parts={"router_loss": "update_price"},
    budget=Budgeting(trained=_UNITS, fitted=_UNITS, prices=("update_price",), least=0),
    depth="num_hidden_layers",
    checks=("adadepth.models.shared.albert.settings:check_sizes",),
    advice="budget.target=DEPTH model.update_price=0 holds a mean depth; model.router_bias_init=1 updates more tokens "
    "at first",
    sections=("adadepth_router.report:never_updated",),
)
