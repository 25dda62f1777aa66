"""Typed schema of every public key. YAML files and the command line fill it; a wrong key or type fails at composition.

Five groups say what may change a RESULT (``model``, ``dataset``, ``tokenizer``, ``trainer`` and ``seed``); ``runtime``,
``logger`` and the paths may only change speed and where things are written (see ``adadepth.results``). This package
imports neither torch nor transformers, so composing and checking a configuration takes a fraction of a second.

A module holds the settings of one thing and the enumerations that they need, whose member names are what a YAML file or
the command line says, and equal their values. Here stand the names that plugins and scripts need: the experiment with
its groups, and the kinds of text and tables that other settings extend.
"""

from adadepth.config.budget import BudgetConfig, BudgetUnit
from adadepth.config.context import ContextConfig
from adadepth.config.dataset import DatasetConfig, Source
from adadepth.config.experiment import OPTIONAL_GROUPS, ExperimentConfig, Mode, Task
from adadepth.config.features import FeaturesConfig
from adadepth.config.halting import HaltingConfig
from adadepth.config.logger import LoggerConfig
from adadepth.config.model import Activation, Attention, ModelConfig, family_name
from adadepth.config.runtime import RuntimeConfig
from adadepth.config.search import SearchConfig
from adadepth.config.tables import ChoiceConfig, LabelledConfig, QuestionConfig, TableConfig, TaggingConfig
from adadepth.config.text import CorpusConfig, StreamConfig
from adadepth.config.tokenizer import TokenizerConfig
from adadepth.config.trainer import TrainerConfig

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
