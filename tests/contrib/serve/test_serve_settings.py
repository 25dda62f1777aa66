"""Public keys of mode=serve and their allowed values."""

from __future__ import annotations

import pytest

from adadepth.cli.keys import list_keys
from adadepth.errors import ConfigError
from tests.configs.support import configured


def test_the_public_keys_are_frozen() -> None:
    keys = ["serve.host", "serve.port", "serve.names"]
    assert [key for key in list_keys() if key.startswith("serve")] == ["serve", *keys]


@pytest.mark.parametrize("host", ["ü..x", "x..", "a" * 64, "a b", "http://x", "", "x/y"])
def test_an_invalid_host_name_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match=r"serve\.host"):
        configured("act_tiny", "mode=serve", "checkpoint=x", f"serve.host='{host}'")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", "0.0.0.0", "my-machine.example", "bücher.example"])
def test_names_and_addresses_are_hosts(host: str) -> None:
    assert configured("act_tiny", "mode=serve", "checkpoint=x", f"serve.host='{host}'").serve.host == host  # type: ignore[attr-defined]


def test_modes_accept_a_checkpoint_or_a_list() -> None:
    with pytest.raises(ConfigError, match=r"only used with mode=evaluate, predict, export, probe or serve, but mode"):
        configured("act_tiny", "checkpoint=a")
    with pytest.raises(ConfigError, match=r"must be one; a list is only used with mode=serve"):
        configured("act_tiny", "mode=evaluate", "checkpoint=[a,b]")
    with pytest.raises(ConfigError, match=r"^serve: only used with mode=serve checkpoint=latest, but mode=train"):
        configured("act_tiny", "serve.port=3")
