"""What the settings of ACT-ALBERT need of each other."""

from collections.abc import Iterator

from adadepth.choices import StateRule
from adadepth.config import Attention, ExperimentConfig, QuestionConfig, Task
from adadepth.errors import ConfigError
from adadepth.families.albert_act.settings import AlbertActSettings, Execution, Pooling
from adadepth.halting.rules import halting_rule
from adadepth.kinds import problem_of

_OF_SEQUENCES = ("classification", "multi_label", "regression")


def check_execution(config: ExperimentConfig) -> Iterator[str]:
    """Leaving halted tokens out wants states that stay as they are, a kernel for it, and shapes that may change."""
    model = config.model
    assert isinstance(model, AlbertActSettings)
    if model.execution is not Execution.ragged:
        return
    setting = "model.execution=ragged"
    if model.state_rule not in (StateRule.single, StateRule.graves):
        yield f"{setting}: needs model.state_rule=single or graves; halted states of {model.state_rule} keep moving"
    if model.attn_implementation is Attention.flex_attention:
        yield f"{setting}: needs model.attn_implementation eager, sdpa or flash_attention_2, not flex_attention"
    if config.runtime.compile:
        yield f"{setting}: not with runtime.compile=true, whose graph has one shape; set model.execution=auto"


def check_halting_rule(config: ExperimentConfig) -> Iterator[str]:
    """The rule is one that there is, with parameters that it has."""
    model = config.model
    assert isinstance(model, AlbertActSettings)
    try:
        halting_rule(model.halting_rule)
    except ConfigError as error:
        yield f"model.halting_rule={model.halting_rule}: {error}"


def check_readouts(config: ExperimentConfig) -> Iterator[str]:
    """A question's answer is read once."""
    model = config.model
    assert isinstance(model, AlbertActSettings)
    if isinstance(config.dataset, QuestionConfig) and model.readout_weight:
        yield f"model.readout_weight={model.readout_weight:g}: question answering has no readouts; set it to 0"


def check_pooling(config: ExperimentConfig) -> Iterator[str]:
    """The mean of the tokens is read once, of whole sequences."""
    model = config.model
    assert isinstance(model, AlbertActSettings)
    if model.pooling is Pooling.first:
        return
    if config.task is not Task.finetune or problem_of(config.dataset) not in _OF_SEQUENCES:
        yield f"model.pooling={model.pooling}: read only where whole sequences are classified"
    if model.readout_weight:
        yield (
            f"model.readout_weight={model.readout_weight:g}: readouts read the first token; set it to 0 or "
            "model.pooling=first"
        )
