"""`mode=serve` before the page opens: refused settings, and values read from a run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from adadepth import tasks
from adadepth.contrib.serve import serve
from adadepth.contrib.serve.ports import find_free_port
from adadepth.errors import ConfigError
from adadepth.report.exits import write_exit_study
from tests.configs.support import configured
from tests.contrib.serve.support import save_untrained
from tests.unit.report.synthetic_exits import make_records, make_study

SERVE = ("mode=serve", "checkpoint=somewhere")


def test_without_gradio_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gradio", None)
    monkeypatch.setattr(serve, "find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"^mode=serve: the package gradio is missing; install it with pip install 'ad"
    ):
        tasks.run(configured("act_hops", *SERVE))


def test_several_checkpoints_have_the_settings_of_their_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    config = configured("act_hops", "mode=serve", "checkpoint=[a,b]")
    monkeypatch.setattr(
        serve, "list_overridden_keys", lambda: ["mode", "checkpoint", "serve.port", "model.act_epsilon"]
    )
    with pytest.raises(ConfigError, match=r"^model\.act_epsilon: only allowed with one checkpoint"):
        serve._list_configs(config)


def test_checkpoints_that_read_different_inputs_are_refused(tmp_path: Path) -> None:
    hops = serve.load_served_checkpoint(save_untrained(tmp_path / "hops", "act_hops", "budget=none"))
    maze = serve.load_served_checkpoint(save_untrained(tmp_path / "maze", "act_maze", "budget=none"))
    serve.check_same_inputs([hops, hops])
    with pytest.raises(ConfigError, match=r"^checkpoint: .*hops/model and .*maze/model have different types of input"):
        serve.check_same_inputs([hops, hops, maze])


def test_a_taken_port_is_a_one_line_error() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"^serve\.host=127\.0\.0\.1 serve\.port={port}: cannot be opened"):
            find_free_port("127.0.0.1", port)
    assert find_free_port("127.0.0.1", 0) > 0


def test_the_curve_has_the_points_of_the_exit_study(tmp_path: Path) -> None:
    """Read a file as an exit study writes it."""
    newest = tmp_path / "evaluations" / "2"
    study = make_study(make_records(40), timed=False)
    write_exit_study(newest, {"validation": study})
    full = max(row["macs"] for row in study["rows"] if row["rule"].startswith("fixed"))
    rules = [row for row in study["rows"] if not row["rule"].startswith("oracle")]  # they see labels
    assert 2 < len(rules) < len(study["rows"])
    points = sorted((row["macs"] / full, row["quality"]["score"]) for row in rules)
    curve = serve._read_curve(tmp_path)
    assert curve is not None
    assert curve == ("score", [pytest.approx(point) for point in points])
    assert curve[1][-1][0] == 1.0, "full depth"
    assert serve._read_curve(newest / "none") is None


def test_data_and_command_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    served_checkpoint = serve.load_served_checkpoint(save_untrained(tmp_path, "act_hops", "budget=none"))
    assert list(served_checkpoint.synthetic.sets if served_checkpoint.synthetic else ()) == ["inside", "beyond"]
    assert served_checkpoint.evaluator is not None
    assert served_checkpoint.command[-1] == f"checkpoint={tmp_path}/model"
