"""The model families. Importing this package registers them with the Auto classes of transformers."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)
from transformers.models.albert import AlbertTokenizer

from adadepth.models.albert_act.configuration import AlbertActConfig
from adadepth.models.albert_act.heads import (
    AlbertActForMultipleChoice,
    AlbertActForQuestionAnswering,
    AlbertActForSequenceClassification,
    AlbertActForTokenClassification,
)
from adadepth.models.albert_act.modeling import AlbertActForMaskedLM, AlbertActForPreTraining, AlbertActModel
from adadepth.models.convert import convert_reference_config, convert_reference_state_dict

AutoConfig.register(AlbertActConfig.model_type, AlbertActConfig)
AutoTokenizer.register(AlbertActConfig, fast_tokenizer_class=AlbertTokenizer)
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

__all__ = [
    "AlbertActConfig",
    "AlbertActForMaskedLM",
    "AlbertActForMultipleChoice",
    "AlbertActForPreTraining",
    "AlbertActForQuestionAnswering",
    "AlbertActForSequenceClassification",
    "AlbertActForTokenClassification",
    "AlbertActModel",
    "convert_reference_config",
    "convert_reference_state_dict",
]
