"""The descriptor of the router family, which does not import torch."""

from adadepth.config import BudgetUnit
from adadepth.models.registry import Budgeting, ConfigClass, Family, ModelClass, ReportSection
from adadepth.models.shared.albert.settings import check_sizes
from adadepth_router.settings import RouterSettings

_UNITS = (BudgetUnit.updates, BudgetUnit.macs)


def _import_config() -> ConfigClass:
    from adadepth_router.configuration import RouterConfig

    return RouterConfig


def _import_tagger() -> ModelClass:
    from adadepth_router.modeling import RouterForTokenClassification

    return RouterForTokenClassification


def _import_pretraining_model() -> ModelClass:
    from adadepth_router.modeling import RouterForPreTraining

    return RouterForPreTraining


def _import_section() -> ReportSection:
    from adadepth_router.report import never_updated

    return never_updated


FAMILY = Family(
    settings=RouterSettings,
    config=_import_config,
    heads={
        "tagging": _import_tagger,
        "pretraining": _import_pretraining_model,
    },
    loss_parts={"router_loss": "update_price"},
    budget=Budgeting(trained=_UNITS, fitted=_UNITS, prices=("update_price",), least=0),
    depth="num_hidden_layers",
    checks=(check_sizes,),
    advice="budget.target=DEPTH model.update_price=0 holds a mean depth; model.router_bias_init=1 updates more tokens "
    "at first",
    sections=(_import_section,),
)
