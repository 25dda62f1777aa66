"""Public keys of mode=serve, their allowed values, and mistakes in them."""

from __future__ import annotations

import pytest

from adadepth.cli.keys import list_keys
from adadepth.errors import ConfigError
from tests.configs.support import configured


def test_the_public_keys_are_frozen() -> None:
    keys = ["serve.host", "serve.port", "serve.names"]
    assert [key for key in list_keys() if key.startswith("serve")] == ["serve", *keys]


SERVE = ("mode=serve", "checkpoint=x")


@pytest.mark.parametrize(("overrides", "message"), [
    (["mode=serve"], "checkpoint: required by mode=serve"),
    (["checkpoint=a"], "checkpoint=a: only used with mode=evaluate, predict, export, probe or serve, but mode"),
    (["mode=predict", "checkpoint=[a,b]", "text=x"], "checkpoint=.*: must be one; a list is only used with mode=serve"),
    (["mode=serve", "checkpoint=[]"], "checkpoint=.*: must be one"),
    (["mode=serve", "checkpoint=[a,'']"], "checkpoint: is empty"),
    (["serve.port=1"], "serve: only used with mode=serve checkpoint=latest, but mode=train"),
    ([*SERVE, "serve.port=70000"], "serve.port=70000: must be from 0 to 65535"),
    ([*SERVE, "text=x"], "text=.*: only used with mode=predict, but mode=serve"),
    *(([*SERVE, f"serve.host='{host}'"], "serve.host=")
      for host in ("ü..x", "x..", "a" * 64, "a b", "http://x", "", "x/y")),
])  # fmt: skip
def test_a_mistake_is_a_one_line_error(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=f"(?m)^{message}"):
        configured("act_hops", *overrides)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", "0.0.0.0", "my-machine.example", "bücher.example"])
def test_names_and_addresses_are_hosts(host: str) -> None:
    assert configured("act_tiny", *SERVE, f"serve.host='{host}'").serve.host == host  # type: ignore[attr-defined]
