"""Descriptor of tiny recursive models."""

from adadepth.config import BudgetUnit
from adadepth.models.registry import Budgeting, ConfigClass, Family, ModelClass, ReadFolder, RenameWeights
from adadepth.models.trm.settings import TrmSettings, check_slots, check_target, fix_supervision_steps


def _import_config() -> ConfigClass:
    from adadepth.models.trm.configuration import TrmConfig

    return TrmConfig


def _import_puzzle_model() -> ModelClass:
    from adadepth.models.trm.modeling import TrmForPuzzles

    return TrmForPuzzles


def _import_weight_conversion() -> RenameWeights:
    from adadepth.models.trm.convert import rename_weights

    return rename_weights


def _import_folder_reader() -> ReadFolder:
    from adadepth.models.trm.convert import read_folder

    return read_folder


FAMILY = Family(
    settings=TrmSettings,
    title="TRM",
    option="trm_mini",
    config=_import_config,
    heads={"puzzle": _import_puzzle_model},
    loss_parts={"halt_loss": "halt_loss_weight"},
    budget=Budgeting(
        fitted=(BudgetUnit.updates, BudgetUnit.macs),
        fits_target=True,
        checks=(check_target,),
    ),
    depth="num_steps",
    fixed_depth=fix_supervision_steps,
    trains_in_slots=True,
    checks=(check_slots,),
    weights_from=_import_weight_conversion,
    folders_from=_import_folder_reader,
    advice="the Q head needs solved puzzles to distinguish them: train longer, or with fewer cycles",
)
