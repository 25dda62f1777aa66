"""Several seeds in one command: an interrupted summary is resumed, and a finished one gets more seeds."""

import json
import re
import signal

import pytest

from adadepth import tasks
from adadepth.errors import CheckpointError
from adadepth.training.trainer import DepthTrainer
from tests.configs.support import configured, write_run
from tests.training.finetune_support import SMALL
from tests.training.support import read_log

SEEDS = ("seeds=2", "seed=5", "trainer.max_steps=4", "trainer.save_steps=1", "trainer.eval_steps=1", *SMALL)


def train_seeds(folder, *overrides):
    fixed = ("debug=default", f"output_dir={folder}/out", "trainer.disable_tqdm=true")
    return tasks.run(configured("ponder_tiny", *fixed, *overrides))


def find_summary(folder):
    (path,) = folder.glob("out/*/*/seeds.json")
    return path.parent


def find_runs_by_seed(folder):
    seeds = json.loads((find_summary(folder) / "seeds.json").read_text())
    return {int(seed): (find_summary(folder) / path).resolve() for seed, path in seeds["runs"].items()}


@pytest.mark.slow
def test_an_interrupted_summary_ends_as_an_uninterrupted_one(tmp_path, capsys, monkeypatch):
    train_seeds(tmp_path / "whole", *SEEDS)

    def interrupt(trainer, *args, **kwargs):
        if (trainer.args.seed, trainer.state.global_step) == (6, 2):
            raise SystemExit(128 + signal.SIGTERM)
        return step(trainer, *args, **kwargs)

    step = DepthTrainer.training_step
    monkeypatch.setattr(DepthTrainer, "training_step", interrupt)
    with pytest.raises(SystemExit):
        train_seeds(tmp_path / "cut", *SEEDS)
    monkeypatch.undo()
    summary = find_summary(tmp_path / "cut")
    printed = capsys.readouterr().out.splitlines()
    assert printed[printed.index("interrupted by SIGTERM at step 2") + 1].endswith(f" resume={summary}")

    metric = train_seeds(tmp_path / "cut", "resume=latest")
    assert len(list((tmp_path / "cut").glob("out/*/*"))) == 3, "no run of its own for a seed that has one"
    expected = find_runs_by_seed(tmp_path / "whole")
    assert find_runs_by_seed(tmp_path / "cut").keys() == expected.keys() == {5, 6}
    for seed, directory in find_runs_by_seed(tmp_path / "cut").items():
        assert read_log(directory) == read_log(expected[seed])
    whole = json.loads((find_summary(tmp_path / "whole") / "run.json").read_text())
    record = json.loads((summary / "run.json").read_text())
    assert metric == record["final_metrics"]["eval/score"] == whole["final_metrics"]["eval/score"]
    assert record["status"] == "finished"

    resume = ("ponder_tiny", "debug=default", f"resume={summary}")
    with pytest.raises(CheckpointError, match=re.escape(f"to train one more: resume={summary} seeds=3")):
        configured(*resume)
    with pytest.raises(CheckpointError, match=r"trainer\.max_steps was 4 and now is 6"):
        tasks.run(configured(*resume, "seeds=3", "trainer.max_steps=6"))
    tasks.run(configured(*resume, "seeds=3"))
    assert find_runs_by_seed(tmp_path / "cut").keys() == {5, 6, 7}
    with pytest.raises(CheckpointError, match="seeds was 3 and now is 2"):
        tasks.run(configured(*resume, "seeds=2"))


def test_a_run_of_one_seed_gets_no_more_seeds(tmp_path):
    directory = write_run(tmp_path, configured("act_tiny"))
    (directory / "run.json").write_text(json.dumps({"status": "interrupted"}))
    config = configured("act_tiny", f"resume={directory}", "seeds=2")
    with pytest.raises(CheckpointError, match="these settings of the run differ: seeds was 1 and now is 2"):
        tasks.run(config)
