"""Schema of the configuration: dataclasses with every public key, which YAML files and the command line fill.

``model``, ``dataset``, ``tokenizer``, ``trainer`` and ``seed`` may change a result. ``runtime``, ``logger`` and paths
may only change speed and where files are written; see ``adadepth.config.fingerprint``. This package does not import
torch or transformers, so that a configuration is composed and checked in a fraction of a second.

The members of enumerations have the names that YAML files and the command line use; their values are equal to their
names. This module exports what plugins and scripts need: the experiment with its groups, and the settings of texts and
tables that other settings extend.
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
