"""The model families. Importing this package registers them with the Auto classes of transformers."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.models.albert import AlbertTokenizer

from adadepth.families.adalayers.configuration import AdaLayersConfig
from adadepth.families.adalayers.heads import AdaLayersForSequenceClassification, AdaLayersForTokenClassification
from adadepth.families.albert.modeling import PlainAlbertForSequenceClassification
from adadepth.families.albert_act.configuration import AlbertActConfig
from adadepth.families.albert_act.heads import (
    AlbertActForMultipleChoice,
    AlbertActForQuestionAnswering,
    AlbertActForSequenceClassification,
    AlbertActForTokenClassification,
)
from adadepth.families.albert_act.modeling import AlbertActForMaskedLM, AlbertActForPreTraining, AlbertActModel
from adadepth.families.multi_exit_albert.configuration import MultiExitAlbertConfig
from adadepth.families.multi_exit_albert.modeling import MultiExitAlbertForSequenceClassification
from adadepth.families.par_xl.configuration import ParXLConfig
from adadepth.families.par_xl.derive import derive as derive_par_xl
from adadepth.families.par_xl.modeling import ParXLForCausalLM, ParXLSupernet
from adadepth.families.ponder_albert.configuration import PonderAlbertConfig
from adadepth.families.ponder_albert.modeling import PonderAlbertClassifier, PonderAlbertForSequenceClassification
from adadepth.families.ponder_rnn.configuration import PonderRnnConfig
from adadepth.families.ponder_rnn.modeling import PonderRnnForClassification
from adadepth.families.shared.convert import convert_reference_config, convert_reference_state_dict
from adadepth.families.shared.ponder_objective import PonderClassificationLoss
from adadepth.families.shared.steps import StepwiseOutput

for _config in (AlbertActConfig, PonderAlbertConfig, MultiExitAlbertConfig):
    AutoConfig.register(_config.model_type, _config)
    AutoTokenizer.register(_config, fast_tokenizer_class=AlbertTokenizer)
AutoConfig.register(PonderRnnConfig.model_type, PonderRnnConfig)
AutoConfig.register(AdaLayersConfig.model_type, AdaLayersConfig)
AutoConfig.register(ParXLConfig.model_type, ParXLConfig)
AutoTokenizer.register(ParXLConfig, fast_tokenizer_class=PreTrainedTokenizerFast)
# The supernet has the same configuration without an architecture; only its own class loads it.
AutoModelForCausalLM.register(ParXLConfig, ParXLForCausalLM)
for _auto, _model in (
    (AutoModel, AlbertActModel),
    (AutoModelForPreTraining, AlbertActForPreTraining),
    (AutoModelForMaskedLM, AlbertActForMaskedLM),
    (AutoModelForSequenceClassification, AlbertActForSequenceClassification),
    (AutoModelForTokenClassification, AlbertActForTokenClassification),
    (AutoModelForQuestionAnswering, AlbertActForQuestionAnswering),
    (AutoModelForMultipleChoice, AlbertActForMultipleChoice),
):
    _auto.register(AlbertActConfig, _model)

# Family -> its classifier and regressor of sequences, or of vectors.
SEQUENCE_CLASSIFIERS: dict[str, type[PreTrainedModel]] = {
    "albert": PlainAlbertForSequenceClassification,
    AlbertActConfig.model_type: AlbertActForSequenceClassification,
    PonderAlbertConfig.model_type: PonderAlbertForSequenceClassification,
    MultiExitAlbertConfig.model_type: MultiExitAlbertForSequenceClassification,
    PonderRnnConfig.model_type: PonderRnnForClassification,
    AdaLayersConfig.model_type: AdaLayersForSequenceClassification,
}
# Family -> its classifier of tokens.
TOKEN_CLASSIFIERS: dict[str, type[PreTrainedModel]] = {
    AlbertActConfig.model_type: AlbertActForTokenClassification,
    AdaLayersConfig.model_type: AdaLayersForTokenClassification,
}
# Family -> its head that finds a span of the text, and the one that chooses among texts.
QUESTION_ANSWERERS: dict[str, type[PreTrainedModel]] = {AlbertActConfig.model_type: AlbertActForQuestionAnswering}
CHOICE_CLASSIFIERS: dict[str, type[PreTrainedModel]] = {AlbertActConfig.model_type: AlbertActForMultipleChoice}
for _name in ("ponder_albert", "multi_exit_albert", "ponder_rnn", "adalayers"):
    AutoModelForSequenceClassification.register(SEQUENCE_CLASSIFIERS[_name].config_class, SEQUENCE_CLASSIFIERS[_name])
AutoModelForTokenClassification.register(AdaLayersConfig, AdaLayersForTokenClassification)

__all__ = [
    "AdaLayersConfig",
    "AdaLayersForSequenceClassification",
    "AdaLayersForTokenClassification",
    "AlbertActConfig",
    "AlbertActForMaskedLM",
    "AlbertActForMultipleChoice",
    "AlbertActForPreTraining",
    "AlbertActForQuestionAnswering",
    "AlbertActForSequenceClassification",
    "AlbertActForTokenClassification",
    "AlbertActModel",
    "MultiExitAlbertConfig",
    "MultiExitAlbertForSequenceClassification",
    "ParXLConfig",
    "ParXLForCausalLM",
    "ParXLSupernet",
    "PlainAlbertForSequenceClassification",
    "PonderAlbertClassifier",
    "PonderAlbertConfig",
    "PonderAlbertForSequenceClassification",
    "PonderClassificationLoss",
    "PonderRnnConfig",
    "PonderRnnForClassification",
    "StepwiseOutput",
    "convert_reference_config",
    "convert_reference_state_dict",
    "derive_par_xl",
]
