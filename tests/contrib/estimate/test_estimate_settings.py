"""Public keys of mode=estimate and their allowed values."""

from __future__ import annotations

import pytest

from adadepth.cli.keys import list_keys
from adadepth.errors import ConfigError
from tests.configs.support import configured


def test_the_public_keys_are_frozen() -> None:
    keys = ["estimate.device", "estimate.devices", "estimate.share", "estimate.words"]
    assert [key for key in list_keys() if key.startswith("estimate")] == ["estimate", *keys]


@pytest.mark.parametrize(("override", "message"), [
    ("estimate.words=1000000000000", "estimate.words=1000000000000: must be from 1 to "),
    ("estimate.share=0", "estimate.share=0.0: must be above 0 and at most 1"),
    ("trainer.per_device_train_batch_size=1000000000", "trainer.per_device_train_batch_size=1000000000: "),
    ("estimate.device=H10", "estimate.device=H10: must be a number of TFLOPS or one of "),
])  # fmt: skip
def test_other_tasks_are_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configured("par_tiny", "mode=estimate", override)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("root", ["act_tiny", "loop_hops", "par_tiny"])
def test_any_training_is_estimated(root: str) -> None:
    configured(root, "mode=estimate")


def test_other_modes_read_only_the_device() -> None:
    assert configured("par_tiny", "estimate.words=7").estimate.words == 7  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"^estimate: only used with mode=estimate, but mode=train$"):
        configured("par_tiny", "estimate.devices=2")
