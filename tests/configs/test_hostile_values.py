"""Any value of any public key: accepted, or refused in readable lines without a traceback, and without files.

A run writes only after composing and checking its configuration, so these two steps are all that is run here.
"""

from __future__ import annotations

import dataclasses
import json
import pickle
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from adadepth.cli.error_messages import format_config_error
from adadepth.cli.keys import list_keys
from adadepth.cli.validation import build_config
from adadepth.errors import UserError
from tests.configs.support import compose_config

# Configurations that together have every public key.
_CONFIGS = (
    ("act_tiny",), ("ponder_tiny",), ("ponder_parity",), ("adalayers_tiny",), ("par_tiny",), ("trm_tiny",),
    ("act_hops",), ("act_maze",), ("act_addition",), ("act_squad",), ("act_swag",), ("conll_tagger",),
    ("trm_tiny", "dataset=sudoku_extreme"), ("trm_tiny", "dataset=maze_path"), ("ponder_tiny", "model=pabee_mini"),
    ("ponder_tiny", "model=stock"), ("ponder_tiny", "dataset=senteval"), ("act_tiny", "dataset=treebank"),
    ("ponder_tiny", "model=looped_mini"), ("loop_trace",), ("loop_mano",), ("loop_lengths",), ("loop_tiny",),
    ("exit_tiny",), ("mor_tiny",), ("loop_tiny", "dataset=conversations", "dataset.path=a", "tokenizer.path=a"),
    ("loop_tiny", "dataset=harness", "mode=evaluate", "checkpoint=a"),
)  # fmt: skip
_READ_WITH = {  # a key that only another mode reads
    **dict.fromkeys(("checkpoint", "budget.targets"), ("mode=evaluate", "checkpoint=a")),
    **dict.fromkeys(("run", "runs"), ("mode=report",)),
    **dict.fromkeys(("text", "input", "output"), ("mode=predict", "checkpoint=a", "input=a")),
}
KEYS = sorted(set(list_keys()))
_OF_EVERY_RUN = [key for key in KEYS if not key.startswith(("model.", "dataset."))]  # one configuration has them all
_HUGE = (2**63, -(2**63) - 1, 10**400)
_NUMBERS = (0, -1, 3, 0.5, 1e308, float("nan"), float("inf"), -float("inf"), *_HUGE)
_TEXTS = (
    "", " ", "a", "-1", "1e400", "a\nb", "\x1b[31m", "a\0b", "\ud800", "ü", "x" * 5000, "9" * 5000, "/dev/zero",
    "/dev/stdin", "../..", "???", "${seed}", "${nothing}", "${oc.env:NOT_THERE}", "${model}", "${oc.create:[1,{}]}",
)  # fmt: skip
# One value of each shape.
SHAPES: tuple[Any, ...] = (
    None, True, *_NUMBERS, *_TEXTS, b"x", [], [[]], [None], [True], [3], [[3]], ["a"], [float("nan")], [2**63],
    ["\ud800"], ["a\nb"], [{}], [{"path": 3}], [{"path": ["a"]}], {}, {"a": 1}, {"a": {"b": [[]]}}, {3: 4}, {None: 1},
    ["a"] * 600, [[[[[[1]]]]]],
)  # fmt: skip


@pytest.fixture(autouse=True)
def _check_no_files_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set all output, cache and settings directories to an empty folder, and check that it stays empty."""
    monkeypatch.chdir(tmp_path)
    for name in ("HOME", "ADADEPTH_CACHE", "HF_HOME", "MPLCONFIGDIR"):
        monkeypatch.setenv(name, str(tmp_path))
    yield
    assert not list(tmp_path.iterdir())


@cache
def _pickle_config(key: str) -> bytes:
    """Return a pickled configuration that has the key; unpickling takes a sixth of the time of a copy."""
    for root, *options in _CONFIGS:
        config = compose_config(root, *options, *_READ_WITH.get(key, ()))
        if _has_key(config, key):
            with open_dict(config):
                config.hydra = {"overrides": {"task": list(config.hydra.overrides.task)}}  # the only part that is read
            return pickle.dumps(config)
    raise AssertionError(f"add to _CONFIGS a configuration that has {key}")


def _has_key(config: DictConfig, key: str) -> bool:
    parent, _, leaf = key.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    return node is not None and leaf in node


def check_value(key: str, value: Any) -> None:
    """Set a value as a YAML file does; an accepted value must be recordable, a refused one explained in lines."""
    config = pickle.loads(_pickle_config(key))
    try:
        OmegaConf.update(config, key, value, merge=True)
        taken = dataclasses.asdict(build_config(config))
    except (UserError, OmegaConfBaseException, OverflowError) as error:
        lines = format_config_error(error, list).splitlines()
        assert lines
        assert all(line and len(line) <= 2100 for line in lines)
    else:
        json.dumps(taken, ensure_ascii=False).encode()


def test_every_key_is_in_a_configuration() -> None:
    """Check that new families or dataset types have all their keys in a configuration of `_CONFIGS`."""
    configs = [compose_config(*arguments) for arguments in _CONFIGS]
    missing = [key for key in KEYS if not any(_has_key(config, key) for config in configs)]
    assert not missing, "add to _CONFIGS a configuration that has each of these keys"


def test_a_value_is_accepted_or_refused_in_lines() -> None:
    """Give every key of all runs one of the shapes, in turn."""
    for number, key in enumerate(_OF_EVERY_RUN):
        check_value(key, SHAPES[number % len(SHAPES)])


@pytest.mark.slow
@pytest.mark.parametrize("key", KEYS)
def test_every_key_accepts_or_refuses_a_third_of_the_shapes(key: str) -> None:
    """Give neighbouring keys, which are often checked alike, different thirds of the shapes."""
    for value in SHAPES[KEYS.index(key) % 3 :: 3]:
        check_value(key, value)
