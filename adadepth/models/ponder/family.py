"""Descriptors of PonderALBERT and of PonderNet's recurrent cell."""

from collections.abc import Callable
from typing import Any

from adadepth.config import BudgetUnit
from adadepth.models.ponder.settings import (
    PonderAlbertSettings,
    PonderRnnSettings,
    check_budget,
    check_halting_head,
    check_prior,
    first_tokens,
    fix_ponder_steps,
    fix_rnn_steps,
)
from adadepth.models.registry import Budgeting, ConfigClass, Family, ModelClass, RenameWeights
from adadepth.models.shared.albert.settings import check_sizes
from adadepth.models.shared.tokenizer_classes import import_albert_tokenizer


def _import_config() -> ConfigClass:
    from adadepth.models.ponder.configuration import PonderAlbertConfig

    return PonderAlbertConfig


def _import_classifier() -> ModelClass:
    from adadepth.models.ponder.modeling import PonderAlbertForSequenceClassification

    return PonderAlbertForSequenceClassification


def _import_model() -> ModelClass:
    from adadepth.models.ponder.modeling import PonderAlbertModel

    return PonderAlbertModel


def _import_ponder_albert_classifier() -> Callable[..., Any]:
    from adadepth.models.ponder.modeling import PonderAlbertClassifier

    return PonderAlbertClassifier


def _import_ponder_classification_loss() -> Callable[..., Any]:
    from adadepth.models.ponder.modeling import PonderClassificationLoss

    return PonderClassificationLoss


def _import_weight_conversion() -> RenameWeights:
    from adadepth.models.ponder.convert import rename_weights

    return rename_weights


def _import_rnn_config() -> ConfigClass:
    from adadepth.models.ponder.configuration import PonderRnnConfig

    return PonderRnnConfig


def _import_rnn_classifier() -> ModelClass:
    from adadepth.models.ponder.rnn import PonderRnnForClassification

    return PonderRnnForClassification


_BUDGET = Budgeting(
    trained=(BudgetUnit.updates, BudgetUnit.macs),
    fitted=(BudgetUnit.updates, BudgetUnit.macs),
    checks=(check_budget,),
)
_ADVICE = (
    "model.prior=uniform model.target_halt_probability=null keeps later steps trained; budget.target=DEPTH "
    "model.prior=uniform model.target_halt_probability=null trains to a mean depth; halting.alone=true "
    "model.pretrained=RUN/model trains only the halting head of this run"
)
FAMILIES = (
    Family(
        settings=PonderAlbertSettings,
        title="PonderALBERT",
        option="ponder_albert_mini",
        config=_import_config,
        heads={"classification": _import_classifier},
        auto={"AutoModel": _import_model},
        tokenizer=import_albert_tokenizer,
        public={
            "PonderAlbertClassifier": _import_ponder_albert_classifier,
            "PonderClassificationLoss": _import_ponder_classification_loss,
        },
        loss_parts={"kl_loss": None},
        budget=_BUDGET,
        depth="num_hidden_layers",
        fixed_depth=fix_ponder_steps,
        reads=frozenset({"halting"}),
        starts_from={"albert": None, "albert_act": None},
        first_tokens=first_tokens,
        checks=(
            check_sizes,
            check_prior,
            check_halting_head,
        ),
        advice=_ADVICE,
        weights_from=_import_weight_conversion,
    ),
    Family(
        settings=PonderRnnSettings,
        title="PonderNet",
        option="parity_rnn",
        config=_import_rnn_config,
        heads={"classification": _import_rnn_classifier},
        loss_parts={"kl_loss": None},
        budget=_BUDGET,
        depth="num_steps",
        fixed_depth=fix_rnn_steps,
        reads=frozenset({"halting"}),
        reads_vectors=True,
        checks=(check_prior,),
        advice=_ADVICE,
    ),
)
