"""Descriptor of ACT-ALBERT."""

from adadepth.config import BudgetUnit
from adadepth.models.albert_act.settings import (
    AlbertActSettings,
    check_execution,
    check_halting,
    check_pooling,
    check_readouts,
    fix_updates,
)
from adadepth.models.registry import (
    Budgeting,
    ConfigClass,
    Family,
    FindReferenceDepth,
    LoadSource,
    ModelClass,
    ReadConfig,
    RenameWeights,
    ReportSection,
)
from adadepth.models.shared.albert.settings import check_sizes
from adadepth.models.shared.tokenizer_classes import import_albert_tokenizer


def _import_config() -> ConfigClass:
    from adadepth.models.albert_act.configuration import AlbertActConfig

    return AlbertActConfig


def _import_pretraining_model() -> ModelClass:
    from adadepth.models.albert_act.heads import AlbertActForPreTraining

    return AlbertActForPreTraining


def _import_classifier() -> ModelClass:
    from adadepth.models.albert_act.heads import AlbertActForSequenceClassification

    return AlbertActForSequenceClassification


def _import_tagger() -> ModelClass:
    from adadepth.models.albert_act.heads import AlbertActForTokenClassification

    return AlbertActForTokenClassification


def _import_question_answering_model() -> ModelClass:
    from adadepth.models.albert_act.heads import AlbertActForQuestionAnswering

    return AlbertActForQuestionAnswering


def _import_multiple_choice_model() -> ModelClass:
    from adadepth.models.albert_act.heads import AlbertActForMultipleChoice

    return AlbertActForMultipleChoice


def _import_model() -> ModelClass:
    from adadepth.models.albert_act.modeling import AlbertActModel

    return AlbertActModel


def _import_masked_lm() -> ModelClass:
    from adadepth.models.albert_act.heads import AlbertActForMaskedLM

    return AlbertActForMaskedLM


def _import_source_loader() -> LoadSource:
    from adadepth.models.albert_act.convert import load_albert

    return load_albert


def _import_published_section() -> ReportSection:
    from adadepth.models.albert_act.report import PUBLISHED_SECTION

    return PUBLISHED_SECTION


def _import_reference_depth() -> FindReferenceDepth:
    from adadepth.models.albert_act.report import reference_depth

    return reference_depth


def _import_weight_conversion() -> RenameWeights:
    from adadepth.models.shared.albert.convert import from_albert

    return from_albert


def _import_config_reader() -> ReadConfig:
    from adadepth.models.albert_act.convert import read_config

    return read_config


FAMILY = Family(
    settings=AlbertActSettings,
    title="ACT-ALBERT",
    option="albert_act_mini",
    config=_import_config,
    heads={
        "pretraining": _import_pretraining_model,
        "classification": _import_classifier,
        "tagging": _import_tagger,
        "question_answering": _import_question_answering_model,
        "multiple_choice": _import_multiple_choice_model,
    },
    encoder=_import_model,
    encoder_traces=True,
    auto={"AutoModel": _import_model, "AutoModelForMaskedLM": _import_masked_lm},
    tokenizer=import_albert_tokenizer,
    loss_parts={"ponder_loss": None, "readouts_loss": "readout_weight"},
    budget=Budgeting(
        trained=(BudgetUnit.updates, BudgetUnit.macs),
        fitted=(BudgetUnit.updates, BudgetUnit.macs),
        prices=("act_penalty",),
        grows=True,
    ),
    depth="num_hidden_layers",
    fixed_depth=fix_updates,
    starts_from={"albert": _import_source_loader},
    checks=(
        check_sizes,
        check_execution,
        check_halting,
        check_readouts,
        check_pooling,
    ),
    advice="budget.target=DEPTH model.act_penalty=0 trains to a mean depth; model.halt_bias_init=-2 starts deeper; "
    "model.state_rule=graves model.recall=true helps tasks that need depth",
    sections=(_import_published_section,),
    reference_depth=_import_reference_depth,
    weights_from=_import_weight_conversion,
    config_from=_import_config_reader,
)
