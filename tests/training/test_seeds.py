"""Several seeds in one command: an interrupted summary is resumed, and a finished one gets more seeds."""

import json
import re
import signal

import pytest

from adadepth import tasks
from adadepth.errors import CheckpointError
from adadepth.training.trainer import DepthTrainer
from tests.configs.support import configured, write_run
from tests.training.finetune_support import SMALL, run
from tests.training.support import lines

SEEDS = ("seeds=2", "seed=5", "trainer.max_steps=4", "trainer.save_steps=1", "trainer.eval_steps=1", *SMALL)


def summary_of(folder):
    (path,) = folder.glob("out/*/*/seeds.json")
    return path.parent


def runs_by_seed(folder):
    found = json.loads((summary_of(folder) / "seeds.json").read_text())
    return {int(seed): (summary_of(folder) / place).resolve() for seed, place in found["runs"].items()}


@pytest.mark.slow
def test_an_interrupted_summary_ends_as_one_that_was_left_alone(tmp_path, capsys, monkeypatch):
    run(tmp_path / "whole", "ponder_tiny", *SEEDS)

    def interrupted(trainer, *args, **kwargs):
        if (trainer.args.seed, trainer.state.global_step) == (6, 2):
            raise SystemExit(128 + signal.SIGTERM)
        return step(trainer, *args, **kwargs)

    step = DepthTrainer.training_step
    monkeypatch.setattr(DepthTrainer, "training_step", interrupted)
    with pytest.raises(SystemExit):
        run(tmp_path / "cut", "ponder_tiny", *SEEDS)
    monkeypatch.undo()
    summary = summary_of(tmp_path / "cut")
    said = capsys.readouterr().out.splitlines()
    assert said[said.index("interrupted by SIGTERM at step 2") + 1].endswith(f" resume={summary}")

    resumed, metric = run(tmp_path / "cut", "ponder_tiny", "resume=latest")
    assert len(resumed) == 3, "no run of its own for a seed that has one"
    expected = runs_by_seed(tmp_path / "whole")
    assert runs_by_seed(tmp_path / "cut").keys() == expected.keys() == {5, 6}
    for seed, directory in runs_by_seed(tmp_path / "cut").items():
        assert lines(directory) == lines(expected[seed])
    whole = json.loads((summary_of(tmp_path / "whole") / "run.json").read_text())
    record = json.loads((summary / "run.json").read_text())
    assert metric == record["final_metrics"]["eval/score"] == whole["final_metrics"]["eval/score"]
    assert record["status"] == "finished"

    resume = ("ponder_tiny", "debug=default", f"resume={summary}")
    with pytest.raises(CheckpointError, match=re.escape(f"to train one more: resume={summary} seeds=3")):
        configured(*resume)
    with pytest.raises(CheckpointError, match=r"trainer\.max_steps was 4 and now is 6"):
        tasks.run(configured(*resume, "seeds=3", "trainer.max_steps=6"))
    tasks.run(configured(*resume, "seeds=3"))
    assert runs_by_seed(tmp_path / "cut").keys() == {5, 6, 7}
    with pytest.raises(CheckpointError, match="seeds was 3 and now is 2"):
        tasks.run(configured(*resume, "seeds=2"))


def test_a_run_of_one_seed_gets_no_others(tmp_path):
    directory = write_run(tmp_path, configured("act_tiny"))
    (directory / "run.json").write_text(json.dumps({"status": "interrupted"}))
    config = configured("act_tiny", f"resume={directory}", "seeds=2")
    with pytest.raises(CheckpointError, match="these settings of the run differ: seeds was 1 and now is 2"):
        tasks.run(config)
