"""adadepth: transformers whose depth is not fixed.

Names are imported when they are first used, so that `import adadepth` costs nothing. Using any of them registers the
models with the Auto classes of transformers.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_MODELS = (
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
)
__all__ = ["DepthTrace", "Pipeline", "__version__", *_MODELS]


def __getattr__(name: str) -> Any:
    if name in _MODELS:
        return getattr(import_module("adadepth.families"), name)
    if name == "DepthTrace":
        return import_module("adadepth.halting.trace").DepthTrace
    if name == "Pipeline":
        return import_module("adadepth.prediction").Pipeline
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
