"""Code of models, tokenizers and metrics from elsewhere: it runs only if that is allowed, and its source is named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from adadepth.data.text.tokenizer import load_tokenizer
from adadepth.errors import CheckpointError, DataError
from adadepth.models.adalayers.base import load_base
from adadepth.models.folder import read_config
from adadepth.runtime.hub_access import allow_remote_code

PLANTED = """from pathlib import Path

from transformers import PretrainedConfig

Path(__file__).parent.joinpath("ran").touch()
Path({ran!r}).touch()


class Config(PretrainedConfig):
    model_type = "planted"
"""


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """Return a folder whose configuration and tokenizer name code that leaves the file `ran` beside it."""
    folder = tmp_path / "planted"
    folder.mkdir()
    code_map = {"auto_map": {"AutoConfig": "planted.Config", "AutoModel": "planted.Model"}}
    (folder / "config.json").write_text(json.dumps({"model_type": "planted", **code_map}))
    tokens = {"tokenizer_class": "Planted", "auto_map": {"AutoTokenizer": ["planted.Tokens", "planted.Tokens"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokens))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "planted.py").write_text(PLANTED.format(ran=str(tmp_path / "ran")))
    return folder


@pytest.fixture
def _allow_remote_code() -> Iterator[None]:
    allow_remote_code(True)
    yield
    allow_remote_code(False)


LOADERS = [lambda path: read_config("checkpoint", path), load_base, load_tokenizer]


@pytest.mark.parametrize("load", LOADERS, ids=["configuration", "base", "tokenizer"])
def test_no_code_runs_and_no_question_is_asked(
    load: Callable[[str], Any], planted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked in a terminal"))
    with pytest.raises((CheckpointError, DataError), match=r"runs only with runtime\.trust_remote_code=true") as error:
        load(str(planted))
    assert len(str(error.value).splitlines()) == 1
    assert not (planted.parent / "ran").exists()


@pytest.mark.usefixtures("_allow_remote_code")
def test_allowed_code_runs_and_is_named(planted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert read_config("checkpoint", str(planted)).model_type == "planted"
    assert (planted.parent / "ran").exists()
    assert f"running code of {planted}: runtime.trust_remote_code=true" in capsys.readouterr().err
