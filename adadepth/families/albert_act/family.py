"""What is known of ACT-ALBERT."""

from adadepth.config import BudgetUnit
from adadepth.families.albert_act.settings import AlbertActSettings
from adadepth.families.registry import Budgeting, Family

_MODELING = "adadepth.families.albert_act.modeling"
_PRETRAINING = "adadepth.families.albert_act.pretraining"
_HEADS = "adadepth.families.albert_act.heads"

FAMILY = Family(
    settings=AlbertActSettings,
    config="adadepth.families.albert_act.configuration:AlbertActConfig",
    heads={
        "pretraining": f"{_PRETRAINING}:AlbertActForPreTraining",
        "classification": f"{_HEADS}:AlbertActForSequenceClassification",
        "tagging": f"{_HEADS}:AlbertActForTokenClassification",
        "question_answering": f"{_HEADS}:AlbertActForQuestionAnswering",
        "multiple_choice": f"{_HEADS}:AlbertActForMultipleChoice",
    },
    encoder=f"{_MODELING}:AlbertActModel",
    auto={"AutoModel": f"{_MODELING}:AlbertActModel", "AutoModelForMaskedLM": f"{_PRETRAINING}:AlbertActForMaskedLM"},
    tokenizer="transformers.models.albert:AlbertTokenizer",
    loss_parts={"ponder_loss": None, "readouts_loss": "readout_weight"},
    budget=Budgeting(
        trained=(BudgetUnit.updates, BudgetUnit.macs),
        fitted=(BudgetUnit.updates, BudgetUnit.macs),
        prices=("act_penalty",),
        grows=True,
    ),
    depth="num_hidden_layers",
    fixed_depth="fixed_depth",
    starts_from={"albert": "adadepth.families.albert_act.pretrained:load_albert"},
    checks=(
        "adadepth.families.shared.albert.checks:check_sizes",
        "adadepth.families.albert_act.checks:check_execution",
        "adadepth.families.albert_act.checks:check_halting_rule",
        "adadepth.families.albert_act.checks:check_readouts",
        "adadepth.families.albert_act.checks:check_pooling",
    ),
    advice="budget=depth holds a mean depth; model.halt_bias_init=-2 starts deeper; tasks that need depth need "
    "model.state_rule=graves and model.recall=true",
    sections=("adadepth.families.albert_act.report:published",),
    weights_from="adadepth.families.shared.albert.convert:from_albert",
    config_from="adadepth.families.albert_act.convert:read_config",
)
