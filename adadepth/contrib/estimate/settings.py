"""Settings of mode `estimate`, and their validation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from adadepth.config import ExperimentConfig
from adadepth.config.declaration import Allowed, at_least, between, setting
from adadepth.config.kinds import get_positions_setting
from adadepth.config.modes import get_mode_settings
from adadepth.contrib.estimate.devices import resolve_device
from adadepth.errors import ConfigError

_SHARE = Allowed(lambda value: 0 < value <= 1, "above 0 and at most 1")


_MAX_WORDS, _MAX_TOKENS = 2**31 - 1, 2**28


@dataclass
class EstimateConfig:
    """Settings of mode `estimate`: assumptions about the devices, and values that otherwise depend on the data."""

    device: Any = setting("H100", "device: a name, or a peak rate in TFLOPS without known memory")
    devices: int = setting(
        1, "number of devices, one process each; trainer.fsdp=true shards the model over them", at_least(1)
    )
    share: float = setting(0.4, "fraction of the device's peak rate that training reaches", _SHARE)
    words: int | None = setting(
        None,
        "vocabulary size of a tokenizer with all words of a text, which mode=estimate does not read",
        between(1, _MAX_WORDS),
    )


def check_estimate(config: ExperimentConfig) -> Iterator[str]:
    """Yield an error line for every setting that makes an estimate impossible."""
    settings = get_estimate_settings(config)
    try:
        resolve_device(settings.device)
    except ConfigError as error:
        yield str(error)
    if config.trainer.fsdp and settings.devices == 1:
        yield "trainer.fsdp=true: shards over several devices; set their number with estimate.devices"
    if config.halting.alone:
        yield "halting.alone=true: mode=estimate estimates the first stage; leave it out"
    key, length = get_positions_setting(config.dataset)
    rows = config.trainer.per_device_train_batch_size
    if rows * length > _MAX_TOKENS:
        problem = f"with {key}={length} a batch has more than {_MAX_TOKENS} tokens"
        yield f"trainer.per_device_train_batch_size={rows}: {problem}"


def get_estimate_settings(config: ExperimentConfig) -> EstimateConfig:
    """Return the settings of mode `estimate` in a configuration."""
    settings: EstimateConfig = get_mode_settings(config, "estimate")
    return settings
