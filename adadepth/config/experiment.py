"""The root of every configuration."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from adadepth.config.budget import BudgetConfig
from adadepth.config.context import ContextConfig
from adadepth.config.dataset import DatasetConfig
from adadepth.config.features import FeaturesConfig
from adadepth.config.halting import HaltingConfig
from adadepth.config.logger import LoggerConfig
from adadepth.config.model import ModelConfig
from adadepth.config.runtime import RuntimeConfig
from adadepth.config.search import SearchConfig
from adadepth.config.tokenizer import TokenizerConfig
from adadepth.config.trainer import TrainerConfig
from adadepth.declaration import MISSING, Allowed, at_least, setting

Task = StrEnum("Task", ["pretrain", "finetune", "language_model", "architecture_search"])
Mode = StrEnum("Mode", ["train", "evaluate", "predict", "probe", "report"])
_SEED = Allowed(lambda value: 0 <= value < 2**32, "from 0 to 2^32 - 1")


@dataclass
class ExperimentConfig:
    """One experiment: the root of every configuration."""

    name: str = setting(MISSING, "folder under output_dir")
    task: Task = setting(Task.pretrain, "what is trained or evaluated")
    mode: Mode = setting(
        Mode.train, "train; evaluate, probe or ask a checkpoint; write a run's report again, or compare runs"
    )
    seed: int = setting(0, "of everything random: weights, data order, masking, dropout", _SEED)
    model: ModelConfig = setting(MISSING, "group model/")
    dataset: DatasetConfig = setting(MISSING, "group dataset/")
    tokenizer: TokenizerConfig = setting(MISSING, "group tokenizer/")
    trainer: TrainerConfig = setting(MISSING, "group trainer/")
    logger: LoggerConfig = setting(MISSING, "group logger/")
    features: FeaturesConfig = setting(FeaturesConfig, "of a frozen base: what is not run again")
    budget: BudgetConfig = setting(BudgetConfig, "group budget/: a mean depth to hold")
    halting: HaltingConfig = setting(HaltingConfig, "a second stage, in which only the halting head learns")
    search: SearchConfig = setting(SearchConfig, "task=architecture_search, and every supernet")
    context: ContextConfig = setting(ContextConfig, "of attention in the evaluation of a language model")
    runtime: RuntimeConfig = setting(RuntimeConfig, "speed only")
    seeds: int = setting(1, "runs with as many consecutive seeds; above 1 the metrics are means over them", at_least(1))
    exit_rules: list[str] = setting([], "mode=evaluate: compare these on one checkpoint; [all]")
    predictions: bool = setting(False, "task=finetune: write what is predicted of every evaluated example")
    optimise: str = setting("eval/loss", "metric a sweep optimises; what the run returns")
    checkpoint: str | None = setting(
        None, "mode=evaluate, predict or probe: a run directory, one of its checkpoints, `latest`, or a hub id"
    )
    text: Any = setting(None, "mode=predict: a text, a list of texts or of pairs of them, or @FILE with one a line")
    input: str | None = setting(
        None, "mode=predict: a table (csv, tsv, jsonl, parquet, conllu, conll, txt), every row of which is predicted"
    )
    output: str | None = setting(
        None, "its rows with what is predicted (csv, tsv, jsonl); None: predictions.* in the folder of the prediction"
    )
    run: str | None = setting(None, "mode=report: a run directory, or `latest`")
    runs: list[str] = setting([], "mode=report: compare these runs, and those in these folders, on one page")
    rival_of: str | None = setting(
        None, "train the network of one depth and as much work as that run: a directory, or `latest`"
    )
    resume: str | None = setting(None, "continue a run: its directory, or `latest`")
    output_dir: str = setting("outputs", "relative to where the command runs")
    small: bool = setting(False, "a run of seconds that learns nothing: settings with a value for that take it")


OPTIONAL_GROUPS: dict[str, type] = {
    "features": FeaturesConfig,
    "budget": BudgetConfig,
    "halting": HaltingConfig,
    "search": SearchConfig,
    "context": ContextConfig,
}
