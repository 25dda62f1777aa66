"""Mistakes on the command line or in a YAML file: a one-line error, exit status 2, nothing run, nothing left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from adadepth import AlbertActForPreTraining
from tests.cli.support import Command, Refusal
from tests.marks_support import keep_one_quick
from tests.models_support import make_small_config
from tests.plugins_support import install_package

TINY = ["--config-name", "act_tiny"]
MISTAKES = [
    (["seed=1"], "--config-name is missing; known configurations: act_addition, act_base, act_cola"),
    (["act_tiny", "seed=1"], "act_tiny: to choose a configuration, write --config-name act_tiny"),
    (["--verison"], "--verison: unknown option (did you mean '--version'?)"),
    ([*TINY, "mode=evaluate", "checkpoint=lates"], "checkpoint=lates: run or folder not "
                                                   "found (did you mean 'latest'?)"),
    (["--config-name", "finetune", "mode=evaluate", "checkpoint=lates"], "(did you mean 'latest'?)"),
    ([*TINY, "--multirn"], "--multirn: unknown option (did you mean '--multirun'?)"),
    ([*TINY, "--cfg", "jb"], "--cfg/-c: invalid choice: 'jb' (choose from 'job', 'hydra', 'all')"),
    ([*TINY, "--config-dir"], "--config-dir/-cd: expected one argument"),
    (["--help", "learning_rat"], "--help learning_rat: no such group, experiment or key"),
    (["--help", "trainer.learning_rat"], "experiment or key (did you mean 'trainer.learning_rate'?)"),
    (["--config-dir", "mine", "--config-name", "mine"], "--config-dir mine: no such folder"),
    (["--config-name", "act_tny"], "unknown configuration 'act_tny' (did you mean 'act_tiny'?); known: act_addition"),
    ([*TINY, "model=albert_act_tyny"], "model=albert_act_tyny: unknown option (did you mean 'albert_act_tiny'?)"),
    ([*TINY, "dataset=hop"], "dataset=hop: unknown option (did you mean 'hops'?); known: addition, agreement, bigram"),
    ([*TINY, "sweep=penalti"], "sweep=penalti: unknown option (did you mean 'penalty'?); known: glue, none, optuna"),
    (["--config-name", "act_hops", "preset=paper"], "preset=paper: act_hops has no published run; only act_base"),
    ([*TINY, "preset=papr"], "preset=papr: unknown option (did you mean 'paper'?); known: none, paper, seed"),
    ([*TINY, "model=null"], "Config group override must be a string"),
    ([*TINY, "trainer.lerning_rate=1"], "trainer.lerning_rate: unknown key (did you mean 'trainer.learning_rate' or"),
    ([*TINY, "learning_rate=1"], "learning_rate: unknown key (did you mean 'trainer.learning_rate'?)"),
    ([*TINY, "modle=albert_act_mini"], "modle: unknown key (did you mean 'mode' or 'model'?); known: adopt_rule"),
    ([*TINY, "dataset.masking.probabilty=1"], "did you mean 'dataset.masking.probability'?); known in dataset.masking"),
    ([*TINY, "~trainer.foo"], "trainer.foo: unknown key"),
    ([*TINY, "+trainer.foo=1"], "trainer.foo: unknown key; remove the +"),
    ([*TINY, "+seed=1"], "seed: this key already exists; remove the +"),
    ([*TINY, "hydra.sweeper.foo=1"], "hydra.sweeper.foo: unknown key"),
    ([*TINY, "-m", "hydra.launcher.n_jobs=2"], "no such key; select another one, e.g. hydra/launcher=joblib"),
    ([*TINY, "trainer.max_steps=many"], "trainer.max_steps: value 'many' of type 'str' could not be converted"),
    ([*TINY, "seed=1.5"], "seed: value '1.5' of type 'float' could not be converted to Integer"),
    ([*TINY, "model.cap_remainder=refrence"], "one of [reference, penalty, forced] (did you mean 'reference'?)"),
    ([*TINY, "mode=trian"], "mode: invalid value 'trian', expected one of [train, evaluate, predict, export, report,"),
    ([*TINY, "name=???"], "name: a value is missing"),
    ([*TINY, "trainer.max_steps=[1"], "cannot read the override 'trainer.max_steps=[1'"),
    ([*TINY, "dataset.text_column=Kategorie (Ressort)"],
     """put quotes around a text with such characters: 'dataset.text_column="Kategorie (Ressort)"'"""),
    ([*TINY, "name=a!b"], "cannot read the override 'name=a!b'; put quotes around a text with such characters: 'name="),
    ([*TINY, "output_dir=a\nb"], "cannot read the override 'output_dir=a\\nb': it has unmatched quotes, or"),
    ([*TINY, "output_dir=~/x"], "cannot read the override 'output_dir=~/x': ~ is not expanded here; write $HOME"),
    ([*TINY, "output_dir='~/x'"], "output_dir=~/x: ~ is not expanded here; write $HOME"),
    ([*TINY, "ü=3"], "cannot read the override 'ü=3': it has unmatched quotes, or characters that need quo"),
    ([*TINY, "output_dir=a,b"], "output_dir=a,b: several values are a sweep and need -m; put "
                                "quotes around a text with such"),
    ([*TINY, "logger.report_to=[a (b), "
             "c]"], """put quotes around a text with such characters: 'logger.report_to=["a (b)","c"]'"""),
    ([*TINY, "-m", "seed=0,x"], "seed: value 'x' of type 'str'"),
    ([*TINY, "-m", "seed=0,-1"], "seed=-1: must be from 0"),
    ([*TINY, "-m", "seed=range(0)"], "seed=range(0): it has no values"),
    ([*TINY, "-m", "seed=range(0,1000000000)"], "seed=range(0,1000000000): a grid of more than 10,000 jobs"),
    ([*TINY, "-m", "seed=interval(0,1)"], "seed=interval(0,1): a grid supports no intervals"),
    ([*TINY, "sweep=penalty", "model.act_epsilon=2"], "model.act_epsilon=2.0: must be above 0"),
    ([*TINY, "trainer.max_steps=99999999999999999999"], "must be an integer of 64 bits"),
    (["mode=report", "runs=[[a]]"], "runs=[['a']]: must be a list, each a text"),
    (["mode=report", "runs=[latest]"], "latest: "),
    ([*TINY, "mode=report", "runs=['']"], "runs=['']: every entry must name a folder"),
    ([*TINY, "name=\udcff"], "'name=\\udcff': not in UTF-8"),
    ([*TINY, "seed=${seed}"], "recursive interpolation detected"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), keep_one_quick(2, MISTAKES), ids=str)
def test_a_mistake_is_a_one_line_error(arguments: list[str], message: str, refused: Refusal) -> None:
    assert message in refused(*arguments)


@pytest.mark.parametrize("group", ["adadepth.families", "adadepth.datasets"])
@pytest.mark.parametrize("arguments", [[], TINY], ids=["help", "run"])
def test_a_broken_package_is_a_one_line_error(
    group: str, arguments: list[str], refused: Refusal, tmp_path: Path
) -> None:
    with install_package(tmp_path, "half-done", {group: {"mine": "not_there:MINE"}}):
        message = refused(*arguments)
    assert "'mine' of package half-done (not_there:MINE): cannot be imported (ModuleNotFoundError" in message


@pytest.mark.parametrize("arguments", [["--help"], TINY], ids=["help", "run"])
@pytest.mark.parametrize("value", ["evil plug:::", "a b", "1:2:3"])
def test_an_entry_point_without_an_object_is_a_one_line_error(
    value: str, arguments: list[str], refused: Refusal, tmp_path: Path
) -> None:
    with install_package(tmp_path, "half-done", {"adadepth.families": {"mine": value}}):
        message = refused(*arguments)
    assert f"entry point 'mine' of package half-done ({value}): must be MODULE:NAME" in message


def test_a_package_that_exits_is_a_one_line_error(command: Command, tmp_path: Path) -> None:
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit(7)\n")
    with install_package(tmp_path, "half-done", {"adadepth.families": {"mine": "leaving:MINE"}}):
        result = command(*TINY)
    assert (result.status, result.out) == (2, "")
    assert "of package half-done (leaving:MINE): cannot be imported (SystemExit: 7)" in result.err


@pytest.fixture
def refused_yaml(refused: Refusal, tmp_path: Path) -> Refusal:
    """Return a function that runs an invalid configuration, `mine.yaml`, and returns the error."""

    def run(text: str, lines: int = 1) -> str:
        (tmp_path / "mine").mkdir()
        head = "" if text.startswith("defaults") else "defaults: [act_tiny, _self_]\n"
        (tmp_path / "mine" / "mine.yaml").write_text(f"{head}{text}\n")
        return refused("--config-dir", str(tmp_path / "mine"), "--config-name", "mine", lines=lines)

    return run


def test_a_pipe_is_no_yaml_file(refused: Refusal, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    os.mkfifo(tmp_path / "mine" / "mine.yaml")
    message = refused("--config-dir", "mine", "--config-name", "mine")
    assert message == "error: mine/mine.yaml: must be a file\n"


def test_all_mistakes_are_reported_at_once(command: Command) -> None:
    result = command(*TINY, "seed=-1", "model.act_penalty=-1", "trainer.max_steps=0")
    assert [line[:7] for line in result.err.splitlines()] == ["error: "] * 3


@pytest.mark.parametrize(("text", "message"), keep_one_quick(3, [
    ("trainer: {lerning_rate: 1}", "in mine.yaml: trainer.lerning_rate: unknown key (did you mean"),
    ("trainer: {max_steps: many}", "in mine.yaml: trainer.max_steps: value 'many' of type 'str'"),
    ("model: {state_rule: grave}", "model.state_rule: invalid value 'grave', expected one of [single, graves"),
    ("epochs: 3", "in mine.yaml: epochs: unknown key"),
    ("trainer: [", "mine.yaml, line 3: expected the node content"),
    ("defaults: [act_tny]", "act_tny"),
    ("model: {act_penalty: -1}", "model.act_penalty=-1.0: "),
]))  # fmt: skip
def test_a_mistake_in_a_users_yaml_is_a_one_line_error(text: str, message: str, refused_yaml: Refusal) -> None:
    assert message in refused_yaml(text)


HOSTILE = [
    (["+hydra.callbacks.x._target_=pathlib.Path.touch"], "hydra.callbacks.x._target_=pathlib.Path.touch: names code"),
    (["+hydra.callbacks.x._args_=[planted]", "+hydra.callbacks.x._target_=pathlib.Path.touch"], "names code"),
    (["+hydra.launcher.x._target_=pathlib.Path.touch"], "hydra.launcher.x._target_=pathlib.Path.touch: names code"),
    (["-m", "hydra.sweeper._target_=pathlib.Path"], "Invalid plugin 'pathlib.Path'"),
    (["hydra.job_logging.handlers.console.class=pathlib.Path"], "console.class=pathlib.Path: must be logging.Str"),
    (["hydra.hydra_logging.handlers.console.stream=ext://os.sep"], "ext://os.sep: must be ext://sys.stdout or ext"),
    (["+hydra.job.env_set.PATH=planted"], "hydra.job.env_set={'PATH': 'planted'}: set environment variables"),
    (["hydra.searchpath=[pkg://antigravity]"], "hydra.searchpath: not supported; give the folder with --config-dir"),
    (["--experimental-rerun", "job.pickle"], "--experimental-rerun: not supported"),
    (["--exper=job.pickle"], "--experimental-rerun: not supported"),
    (["hydra/job_logging=default"], "handlers.file.class=logging.FileHandler: must be logging.StreamHandler"),
    (["~hydra.job_logging.formatters"], "Unable to configure handler 'console'"),
    (["hydra.job_logging.root.level=LOUD"], "Unable to configure root logger"),
    (["hydra.run.dir=../planted"], "hydra.run.dir=../planted: Hydra writes no files; set output_dir"),
    (["hydra.output_subdir=planted"], "hydra.output_subdir=planted: Hydra writes no files"),
    (["hydra.job.chdir=true"], "hydra.job.chdir=True: a run does not change the working"),
    (["-m", "hydra.sweep.subdir=../planted"], "hydra.sweep.subdir=../planted: Hydra writes no files"),
    (["++hydra.callbacks=${dataset.hub}", "dataset.hub=[{_target_:pathlib.Path.touch}]"], "callbacks.0._target_="),
    (["hydra.job_logging=${dataset.hub.0}", "dataset.hub=[{x:{class:logging.FileHandler}}]"], "FileHandler: must be"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), keep_one_quick(3, HOSTILE), ids=str)
def test_no_setting_of_hydras_runs_code(arguments: list[str], message: str, refused: Refusal) -> None:
    assert message in refused(*TINY, *arguments, lines=4)  # a line for each key


BOMB = "\n".join(["a0: &a0 [1, 1]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9))])


@pytest.mark.parametrize(("text", "message"), keep_one_quick(3, [
    ("hydra: {callbacks: {x: {_target_: pathlib.Path.touch, _args_: [planted]}}}", "names code"),
    ("hydra: {searchpath: ['pkg://antigravity']}", "hydra.searchpath: not supported; give "
                                                   "the folder with --config-dir"),
    ("hydra: {job_logging: {handlers: {x: {(): pathlib.Path.touch, self: planted}}}}", "Path.touch: names code"),
    ("hydra: {job_logging: {formatters: {x: {class: pathlib.Path, format: planted}}}}", "Path: must be logging.Str"),
    ("hydra: {sweeper: {params: {a.b: "
     "'${logger.${hydra.job.num}}'}}}", "params.a.b: refers to a value that is not known yet"),
    ("hydra: {sweeper: {params: {a.b: '${dataset.hub}'}}}\ndataset: {hub: [{_target_: x}]}", "a.b.0._target_=x: names"),
    (
        "hydra: {job_logging: {handlers: {x: {class: logging.FileHandler, filename: planted}}}}",
        "handlers.x.class=logging.FileHandler: must be logging.StreamHandler",
    ),
    ("hydra: {sweeper: {params: {+hydra.job.env_set.PATH: planted}}, mode: MULTIRUN}", "PATH': 'planted'}: set env"),
    ("hydra: {job: {env_set: {PATH: planted}}}", "hydra.job.env_set={'PATH': 'planted'}: set environment variables"),
    (BOMB, "its aliases expand to more than 100000 values"),
    ("model: &a {act_penalty: *a}", "its aliases expand to more than 100000 values"),
    (f"name: {'[' * 60}{']' * 60}", "nested too deeply"),
    ("name: ${logger.project}\nlogger: {project: '${name}'}", "recursive interpolation"),
]))  # fmt: skip
def test_a_users_yaml_runs_no_code_and_ends(text: str, message: str, refused_yaml: Refusal) -> None:
    assert message in refused_yaml(text, lines=4)


def test_a_users_yaml_cannot_be_data(refused_yaml: Refusal) -> None:
    assert refused_yaml(f"#{' ' * 2**20}").endswith("mine.yaml: has more than 1 MiB\n")


@pytest.mark.parametrize(("mode", "key", "name", "content", "message"), [
    ("evaluate", "checkpoint", "model.safetensors", b"\0", "its weights are damaged (Error while deserial"),
    ("evaluate", "checkpoint", "config.json", b"[]", "its config.json must contain a JSON object, not list"),
    ("predict", "checkpoint", "config.json", None, "a folder without a model"),
    ("train", "model.pretrained", "config.json", b"[]", "its config.json must contain a JSON object, not list"),
])  # fmt: skip
def test_a_damaged_model_is_a_one_line_error(
    mode: str, key: str, name: str, content: bytes | None, message: str, command: Command, tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    model = tmp_path / "colleagues"
    AlbertActForPreTraining(make_small_config()).save_pretrained(model)
    capfd.readouterr()  # a bar of progress
    (model / name).unlink() if content is None else (model / name).write_bytes(content)
    overrides = ("debug=default", "text=a", f"dataset.cache_dir={tmp_path}/cache", f"mode={mode}", f"{key}=colleagues")
    result = command(*TINY, *(override for override in overrides if mode == "predict" or override != "text=a"))
    assert (result.status, result.err.count("\n")) == (2, 1)
    assert result.err.startswith(f"error: {key}=colleagues: {message}")
    assert {path.name for path in tmp_path.iterdir()} <= {"colleagues", "cache"}


def test_a_maze_without_paths_is_a_one_line_error(command: Command, tmp_path: Path) -> None:
    """Check that the error comes when the mazes are drawn, before a run has a folder."""
    walls = ("dataset=maze_path", "dataset.walls=0.99", f"dataset.cache_dir={tmp_path}/cache")
    result = command("--config-name", "trm_tiny", "debug=default", *walls)
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith("error: dataset.walls=0.99: ")
    assert result.err.count("\n") == 1
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK"])
def test_a_process_without_a_launcher_does_not_wait(
    name: str, refused: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "1")
    assert refused(*TINY).startswith(f"error: {name}=1: needs ")


@pytest.mark.parametrize(("text", "message"), [
    ("setup: [touch planted]", "hydra.launcher.setup.0=touch planted: may run or write anything, so it is"),
    ("additional_parameters: {output: planted}", "additional_parameters.output=planted: may run or write anything"),
    ('partition: "gpu\\ntouch planted"', "hydra.launcher.partition='gpu\\ntouch planted': must be a text of one line"),
])  # fmt: skip
def test_a_users_yaml_cannot_write_into_a_cluster_script(text: str, message: str, refused_yaml: Refusal) -> None:
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    defaults = "defaults: [act_tiny, override /hydra/launcher: submitit_slurm, _self_]"
    assert message in refused_yaml(f"{defaults}\nhydra:\n  launcher:\n    {text}", lines=4)
