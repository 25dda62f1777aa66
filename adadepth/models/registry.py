"""Descriptors of the model families, and their discovery without importing torch.

A family is a folder of `adadepth.models`. Its module `family` contains the descriptor `FAMILY`, or `FAMILIES` if the
folder has several. Installed packages add families through entry points of the group `adadepth.families`. A YAML file
only names a family. A descriptor refers to what imports torch or transformers by importers; see
`adadepth.config.plugins`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from adadepth.config import BudgetUnit, ExperimentConfig, ModelConfig
from adadepth.config.kinds import Kind, kinds
from adadepth.config.modes import ModeSpec, modes
from adadepth.config.plugins import Importer, find_wrong_path, list_plugin_files, load_plugins, replace_paths
from adadepth.errors import ConfigError, nearest

if TYPE_CHECKING:  # what descriptors import later
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from adadepth.models.shared.published_files import LayoutFiles, PublishedFolder
    from adadepth.report.console_summary import ReferenceDepth
    from adadepth.report.run_files import RunFiles
    from adadepth.report.section import SectionEntry, SectionOf
    from adadepth.training.extension import Extension

GROUP = "adadepth.families"
_GROUPS_WITH_CONFIGS = ("adadepth.sweepers", "adadepth.loggers")  # beside families, kinds of data and modes

# A supernet has none: its configuration is that of a language model without an architecture.
_AUTO = {
    "pretraining": "AutoModelForPreTraining",
    "classification": "AutoModelForSequenceClassification",
    "tagging": "AutoModelForTokenClassification",
    "question_answering": "AutoModelForQuestionAnswering",
    "multiple_choice": "AutoModelForMultipleChoice",
    "language_model": "AutoModelForCausalLM",
}

# Classes and functions that descriptors import.
ConfigClass: TypeAlias = "type[PreTrainedConfig]"
ModelClass: TypeAlias = "type[PreTrainedModel]"
TokenizerClass: TypeAlias = "type[PreTrainedTokenizerBase]"
Check: TypeAlias = Callable[[ExperimentConfig], Iterator[str]]
LoadSource: TypeAlias = "Callable[[Any, str, Any, dict[str, Any]], PreTrainedModel]"
BuildModel: TypeAlias = "Callable[[Any, Any, int | None, Mapping[str, Any]], PreTrainedModel]"
Adopt: TypeAlias = "Callable[[Any, Any, PreTrainedConfig, int | None, Mapping[str, Any]], PreTrainedModel]"
ToLayout: TypeAlias = "Callable[[Any, Mapping[str, Tensor], str], LayoutFiles]"
RenameWeights: TypeAlias = "Callable[[Mapping[str, Tensor], bool], dict[str, Tensor]]"
ReadConfig: TypeAlias = "Callable[[dict[str, Any]], PreTrainedConfig]"
ReadFolder: TypeAlias = "Callable[[Any, Mapping[str, Any]], PublishedFolder | None]"
ReportSection: TypeAlias = "SectionOf | SectionEntry"
FixDepth: TypeAlias = Callable[[Any, int], dict[str, Any]]
FindReferenceDepth: TypeAlias = "Callable[[RunFiles], ReferenceDepth | None]"


@dataclass(frozen=True)
class Budgeting:
    """Depth budgets that a model family supports: their units, and whether they hold in training or are fitted later.

    Attributes:
        trained: Units of depth (`BudgetUnit`) for which training can keep the mean depth at a target.
        fitted: Units of depth (`BudgetUnit`) for which a trained model can be fitted to a target.
        fits_target: Whether the trained model is fitted to `budget.target`, because training has no depth penalty.
        prices: Settings of depth penalties. They must be 0 if a budget is set.
        grows: Whether the model can train at any fixed depth, which lets the depth grow at the start of training.
        whole: Whether the depth is a whole number of blocks.
        least: Minimum number of updates of a unit.
        checks: Checks of a target, which take a configuration and yield one line per mistake.
    """

    trained: tuple[BudgetUnit, ...] = ()
    fitted: tuple[BudgetUnit, ...] = ()
    fits_target: bool = False
    prices: tuple[str, ...] = ()
    grows: bool = False
    whole: bool = False
    least: int = 1
    checks: tuple[Check, ...] = ()

    @property
    def targets(self) -> tuple[BudgetUnit, ...]:
        """Units in which `budget.target` can be given, such as updates or MACs."""
        return self.fitted if self.fits_target else self.trained


@dataclass(frozen=True)
class Searching:
    """Architecture search that a model family supports.

    Functions are given by importers. Each takes the arguments of the function of `adadepth.models.par_xl` that is named
    below. A shape is the length, the number of memory positions and the batch size of a segment of text.

    Attributes:
        setting: Setting of the architecture. If its value is None, the model is the supernet `heads["search"]`.
        memory: Setting of the number of positions before a segment that attention sees.
        costs: Function that returns the cost of each operation, in seconds or multiply-accumulates:
            `latency.operation_costs`.
        derive: Function that builds the network of one architecture with the supernet's weights: `latency.derive`.
        baselines: Function that returns architectures of equal compute by name: `configuration.baseline_architectures`.
        macs: Function that counts the multiply-accumulates of an architecture at a shape:
            `configuration.architecture_macs`.
        time: Function that measures the seconds of several networks at a shape: `latency.model_latencies`.
    """

    setting: str
    memory: str
    costs: Importer[Callable[..., list[float]]]
    derive: Importer[Callable[..., PreTrainedModel]]
    baselines: Importer[Callable[[str, Callable[[str], float], int, int], dict[str, str]]]
    macs: Importer[Callable[..., float]]
    time: Importer[Callable[..., dict[str, dict[str, float]]]]


@dataclass(frozen=True)
class Family:
    """Descriptor of a model family. Classes and functions that need torch are given by importers.

    Attributes:
        settings: Settings class, a subclass of `ModelConfig`. Its `name` is the name of the family in `model.name`.
        config: Configuration class, a `PreTrainedConfig`. Its `model_type` is the same name. If it is transformers'
            `PreTrainedConfig` itself, checkpoints may have any model type that the heads can load.
        heads: Class of the model by kind of task: `pretraining`, `classification` (and regression), `tagging`,
            `question_answering`, `multiple_choice`, `language_model`, `search`.
        auto: Classes to register with further Auto classes of transformers, by Auto class. Those of the heads are
            registered anyway.
        encoder: Class of the model without a head, which probes read; see `DepthModel`. None if its states cannot be
            read.
        encoder_traces: Whether the output of `encoder` has a `DepthTrace`, because its tokens halt without a head.
        tokenizer: Fast tokenizer class that AutoTokenizer loads for the family, or None if the family has none of its
            own.
        public: Objects that the package `adadepth` exports additionally, by public name.
        loss_parts: Losses that an evaluation reports besides the task loss, each with the setting that must be above 0
            for it, or None if it is always reported.
        movable_metrics: Function that takes settings or a configuration and returns the metrics of an evaluation that
            training can change, or None if it can change all. No other metric can select a model. If it is None,
            training changes all metrics.
        budget: Depth budgets that the family supports.
        depth: Setting of the maximum number of updates, or None if the pretrained model determines it.
        fixed_depth: Function, given directly, that takes the settings of a model and a depth in its updates. It returns
            the settings with which the same network trains and runs at this depth for every unit, as a matched
            baseline. It raises ConfigError if these settings have no such network. A family without fixed depths has
            the reason instead, which ends a sentence that begins with the name of the family.
        matched_baseline: Settings and description of the fixed-depth network that is trained on the cached states at
            the end of a run. If it is None, a run evaluates its own network at a fixed depth instead.
        search: Architecture search, or None if the family has no supernet.
        reads: Optional groups of a configuration (`OPTIONAL_GROUPS`) that the family reads, besides `budget`.
        starts_from: Other families that can provide the initial weights, each with the function that loads them. The
            function is called like `adadepth.models.albert_act.convert.load_albert`. If it is None, the model's own
            `from_pretrained` loads them.
        build: Function that builds a classifier if its configuration is unknown until its base model is read. It is
            called like `adadepth.models.adalayers.base.build_on_base`.
        published: Model types of published models that the configuration and the heads can load.
        networks: Model types of transformers whose causal language models the configuration and the language model can
            load as the network that they wrap.
        layouts: Published layouts in which the language model can be written, each with its function. The function
            takes the model, its weights and the layout, and returns a `LayoutFiles` (`models.shared.layouts`).
        adopts: Function that builds a model from the layers of a pretrained decoder that belongs to no family. It is
            called like `adadepth.models.looped.retrofit.build_from_decoder`. If it is None, such a checkpoint is
            refused.
        text: Format of the text on which the language model is trained; see `Kind.reading`.
        settle: Function that derives settings from the training text before a language model is built. It is called
            like `adadepth.models.par_xl.configuration.settle_cutoffs`.
        first_tokens: Function, given directly, that takes settings or a configuration and returns arguments of
            `load_labelled_data`, which set the number of [CLS] tokens at the start of a text. If it is None, there is
            one.
        reads_vectors: Whether the family reads vectors instead of tokens.
        trains_in_slots: Whether an example stays in its slot of the batch until it halts; see `DepthModel`.
        own_symbols: Whether the family can learn embeddings of arbitrary symbols, not only of a pretrained tokenizer's
            words.
        checks: Checks of the family's settings against each other and the rest of a configuration, given directly; see
            `Budgeting.checks`.
        warnings: Warnings about settings with which a part of the model is not trained, given as `checks` are; printed
            at the start of training.
        option: Option of the group `model` that messages recommend for this family.
        advice: Advice for the case that the depth does not adapt: one line of overrides and their effects, separated by
            "; ". DEPTH stands for half of the maximum depth. Overrides that a run has already are left out.
        offline: Alternative to pretrained weights from the hub when there is no network, one line.
        weights_from: Function that renames the parameters of the reference implementation, for
            `convert_reference_state_dict`.
        config_from: Function that reads the configuration of the reference implementation, for
            `convert_reference_config`.
        folders_from: Function that reads folders of the reference implementation, which have no configuration of
            transformers. It is called like `adadepth.models.trm.convert.read_folder`.
        extensions: Extensions of training, besides those that follow from the data and from what the model can do. Each
            is called with any of `config`, `args` (of transformers' trainer), `model`, `data` and `seed`. It returns an
            `adadepth.training.extension.Extension`, or None if a run does not need it.
        sections: Additional sections of the report. Each function takes the files of a run and returns a section or
            None; see `adadepth.report.section`.
        reference_depth: Published depths of the family's models. The function takes the files of a run and returns an
            `adadepth.report.console_summary.ReferenceDepth` or None.
        title: Name of the family in the table of a paper. If it is empty, `name` stands there.
    """

    settings: type[ModelConfig]
    config: Importer[ConfigClass]
    heads: Mapping[str, Importer[ModelClass]]
    auto: Mapping[str, Importer[ModelClass]] = field(default_factory=dict)
    encoder: Importer[ModelClass] | None = None
    encoder_traces: bool = False
    tokenizer: Importer[TokenizerClass] | None = None
    public: Mapping[str, Importer[Callable[..., Any]]] = field(default_factory=dict)
    loss_parts: Mapping[str, str | None] = field(default_factory=dict)
    movable_metrics: Callable[[Any], tuple[str, ...] | None] | None = None
    budget: Budgeting = field(default_factory=Budgeting)
    depth: str | None = None
    fixed_depth: FixDepth | str = "describes no fixed depth (Family.fixed_depth)"
    matched_baseline: tuple[Mapping[str, Any], str] | None = None
    search: Searching | None = None
    reads: frozenset[str] = frozenset()
    starts_from: Mapping[str, Importer[LoadSource] | None] = field(default_factory=dict)
    build: Importer[BuildModel] | None = None
    published: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    layouts: Mapping[str, Importer[ToLayout]] = field(default_factory=dict)
    adopts: Importer[Adopt] | None = None
    text: str = "streams"
    settle: Importer[Callable[[Any, Callable[[], Any]], ModelConfig]] | None = None
    first_tokens: Callable[[Any], dict[str, Any]] | None = None
    reads_vectors: bool = False
    trains_in_slots: bool = False
    own_symbols: bool = True
    checks: tuple[Check, ...] = ()
    warnings: tuple[Check, ...] = ()
    option: str | None = None
    advice: str | None = None
    offline: str | None = None
    weights_from: Importer[RenameWeights] | None = None
    config_from: Importer[ReadConfig] | None = None
    folders_from: Importer[ReadFolder] | None = None
    extensions: tuple[Importer[Callable[..., Extension | None]], ...] = ()
    sections: tuple[Importer[ReportSection], ...] = ()
    reference_depth: Importer[FindReferenceDepth] | None = None
    title: str = ""

    @property
    def name(self) -> str:
        """Name of the family, as used in the setting `model.name`."""
        return self.settings.name

    @property
    def groups(self) -> frozenset[str]:
        """Optional groups of settings (`OPTIONAL_GROUPS`) that the family uses."""
        holds_budget = self.budget.trained or self.budget.fitted
        return self.reads | {"budget"} if holds_budget else self.reads

    def reported_losses(self, settings: ModelConfig) -> tuple[str, ...]:
        """Return the names of the losses, besides the task loss, that an evaluation reports for this family."""
        return tuple(
            part for part, weight in self.loss_parts.items() if weight is None or getattr(settings, weight) > 0
        )

    def list_movable_metrics(self, described: object) -> tuple[str, ...] | None:
        """Return the metrics of an evaluation that training can change, or None if it can change all of them.

        Args:
            described: Settings or configuration of a model.
        """
        return None if self.movable_metrics is None else self.movable_metrics(described)

    def auto_classes(self) -> Mapping[str, Importer[ModelClass]]:
        """Return the importer of the model class that each transformers Auto class builds for this family."""
        return {_AUTO[kind]: importer for kind, importer in self.heads.items() if kind in _AUTO} | dict(self.auto)

    def searches(self, described: object) -> bool:
        """Return whether the model is a supernet, because its settings or configuration give no architecture."""
        return self.search is not None and getattr(described, self.search.setting, "") is None

    def head(self, kind: str) -> Any:
        """Import and return the family's model class for a kind of task, such as classification.

        Raises:
            ConfigError: If the family has no model for it.
        """
        if kind not in self.heads:
            raise ConfigError(f"model={self.name}: has no model for {kind}; it has models for {', '.join(self.heads)}")
        return self.heads[kind]()


# See `replace_paths`.
_IMPORTED = (
    "config", "heads", "auto", "encoder", "tokenizer", "public", "starts_from", "build", "layouts", "adopts", "settle",
    "weights_from", "config_from", "folders_from", "extensions", "sections", "reference_depth",
)  # fmt: skip
_IMPORTED_BY_SEARCH = ("costs", "derive", "baselines", "macs", "time")


@cache
def families() -> Mapping[str, Family]:
    """Return all model families by name: those of this package in alphabetical order, then those of plug-ins.

    Raises:
        ConfigError: If the family of an installed package is broken, or its name is taken.
    """
    here = Path(__file__).parent
    folders = sorted(path.parent.name for path in here.glob("*/family.py"))
    modules = [import_module(f"{__package__}.{folder}.family") for folder in folders]
    specs = [spec for module in modules for spec in getattr(module, "FAMILIES", None) or (module.FAMILY,)]
    by_name = {spec.name: spec for spec in specs}
    plugins = load_plugins(GROUP, "family", by_name, _check_descriptor)
    return by_name | {name: _replace_paths_of_family(spec) for name, spec in plugins.items()}


def _replace_paths_of_family(spec: Family) -> Family:
    """Return a plug-in's descriptor with functions in place of the strings `"module:name"`."""
    search = None if spec.search is None else replace_paths(spec.search, _IMPORTED_BY_SEARCH)
    spec = replace(spec, search=search, budget=replace_paths(spec.budget, [], ["checks"]))
    return replace_paths(spec, _IMPORTED, ["checks", "warnings", "first_tokens"])


def family(name: str) -> Family:
    """Return the descriptor of the model family with the given name.

    Raises:
        ConfigError: If there is no such family.
    """
    specs = families()
    if name not in specs:
        raise ConfigError(f"model.name={name}: unknown model family{nearest(name, specs)}; known: {', '.join(specs)}")
    return specs[name]


def find_unfixable_depth(config: ExperimentConfig) -> str | None:
    """Return why the network of a configuration cannot be trained with a fixed depth, or None if it can."""
    descriptor = family(config.model.name)
    if isinstance(descriptor.fixed_depth, str):
        return f"model={descriptor.name} {descriptor.fixed_depth}"
    if config.halting.alone:
        return "halting.alone=true trains no network; compare with exit_rules=[fixed:N] instead"
    try:
        descriptor.fixed_depth(config.model, 1)
    except ConfigError as error:
        return str(error)
    return None


def budget_mode(config: ExperimentConfig) -> Literal["held", "fitted"] | None:
    """Return when `budget.target` is met: `held` (in training), `fitted` (after training), or None without a target."""
    if config.budget.target is None:
        return None
    return "fitted" if family(config.model.name).budget.fits_target else "held"


def config_folders() -> list[Path]:
    """Return the folders `configs` with YAML files of this package and of installed plug-ins.

    A folder is beside the settings of families, kinds of data and modes, or beside the modules of sweepers and loggers.
    """
    specs: tuple[Family | Kind | ModeSpec, ...] = (*families().values(), *kinds().values(), *modes().values())
    settings = [spec.settings for spec in specs if spec.settings is not None]
    files = [Path(file) for group in settings if (file := sys.modules[group.__module__].__file__) is not None]
    files += (file for group in _GROUPS_WITH_CONFIGS for file in list_plugin_files(group))
    folders = dict.fromkeys(file.parent / "configs" for file in files)
    return [folder for folder in folders if folder.is_dir()]


def list_families_with_head(kind: str) -> list[str]:
    """Return the names of the families that have a model for a kind of task."""
    return [name for name, spec in families().items() if kind in spec.heads]


def list_families_reading(group: str) -> list[str]:
    """Return the names of the families that use an optional group of settings."""
    return [name for name, spec in families().items() if group in spec.reads]


def join_alternatives(names: Iterable[str]) -> str:
    """Join names as alternatives in a sentence, such as `a, b or c`."""
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


def _check_descriptor(descriptor: object, name: str) -> str | None:
    """Return why an object is not a valid descriptor of a family with this name, or None if it is valid."""
    if not isinstance(descriptor, Family):
        return f"must be an adadepth.models.registry.Family, not {type(descriptor).__name__}"
    if not issubclass(descriptor.settings, ModelConfig):
        return f"its settings must be a ModelConfig, not {descriptor.settings.__name__}"
    if descriptor.name != name:
        return f"its settings name it {descriptor.name!r}"
    wrong = find_wrong_path((descriptor.config, descriptor.heads))
    return None if wrong is None else f"{wrong!r} must be 'module:Class'"
