"""Typed schema of every public key. YAML files and the command line fill it; a wrong key or type fails at composition.

``model``, ``dataset``, ``tokenizer``, ``trainer`` and ``seed`` may change a result. ``runtime``, ``logger`` and paths
may only change speed and where files are written; see ``adadepth.config.fingerprint``. This package imports neither
torch nor transformers, so that composing and checking a configuration takes a fraction of a second.

Members of enumerations have the names that YAML files and the command line use, which equal their values. This module
exports the names that plugins and scripts need: the experiment with its groups, and the kinds of text and tables that
other settings extend.
"""

from adadepth.config.data import (
    ChoiceConfig,
    CorpusConfig,
    DatasetConfig,
    LabelledConfig,
    QuestionConfig,
    Source,
    StreamConfig,
    TableConfig,
    TaggingConfig,
)
from adadepth.config.experiment import (
    OPTIONAL_GROUPS,
    Activation,
    Attention,
    BudgetConfig,
    BudgetUnit,
    ContextConfig,
    ExperimentConfig,
    FeaturesConfig,
    HaltingConfig,
    LoggerConfig,
    Mode,
    ModelConfig,
    RuntimeConfig,
    SearchConfig,
    Task,
    TokenizerConfig,
    TrainerConfig,
    family_name,
)

__all__ = [
    "OPTIONAL_GROUPS",
    "Activation",
    "Attention",
    "BudgetConfig",
    "BudgetUnit",
    "ChoiceConfig",
    "ContextConfig",
    "CorpusConfig",
    "DatasetConfig",
    "ExperimentConfig",
    "FeaturesConfig",
    "HaltingConfig",
    "LabelledConfig",
    "LoggerConfig",
    "Mode",
    "ModelConfig",
    "QuestionConfig",
    "RuntimeConfig",
    "SearchConfig",
    "Source",
    "StreamConfig",
    "TableConfig",
    "TaggingConfig",
    "Task",
    "TokenizerConfig",
    "TrainerConfig",
    "family_name",
]
