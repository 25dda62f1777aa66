"""The option `preset=paper`: the published run of a configuration, and nothing else."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from adadepth.cli.command_line import arguments, expand_preset
from adadepth.cli.config_files import list_config_folders, list_published_configs
from adadepth.errors import ConfigError
from adadepth.runtime.plain_yaml import parse_yaml
from tests.configs.support import CONFIGS, GLUE, compose_config, configured, write_run
from tests.marks_support import keep_one_quick, mark_mostly_slow

PAPER = CONFIGS / "preset" / "paper"
PUBLISHED = list_published_configs([CONFIGS])
TINY = ("act_tiny", "ponder_tiny", "adalayers_tiny", "par_tiny", "trm_tiny")
# The same run without the preset.
WRITTEN_OUT = {
    **{f"act_{size}": ("act_cola", "task=pretrain", f"model=albert_act_{size}", "dataset=wikipedia_bookcorpus",
                       "tokenizer=albert", "trainer=albert_phase1", "optimise=eval/loss")
       for size in ("tiny", "small", "base")},
    "ponder_tiny": ("ponder_cola", "model=palbert_pretrained", "trainer=palbert"),
    **{f"ponder_{task}": ("finetune", f"dataset={task}", "model=palbert_pretrained", "trainer=palbert")
       for task in GLUE if task != "wnli"},
    "adalayers_tiny": ("adalayers_cola",),
    "par_tiny": ("par_base",),
    "par_network": ("par_network", "model=par_xl_base", "model.architecture=" + "sfff" * 6 + "f" * 8,
                    "dataset=stream_wikitext103", "tokenizer=words", "trainer=par_base", "estimate.words=267735",
                    "context.memory_length=640", "context.clamp_length=400", "context.same_length=true"),
    "trm_tiny": ("trm_sudoku_extreme",),
}  # fmt: skip
QUICK = (*TINY, "act_small", "act_base", "par_network", "ponder_rte")
GRIDS = [f"act_{task}" for task in GLUE]
AS_THEY_ARE = sorted(set(PUBLISHED) - set(WRITTEN_OUT) - set(GRIDS) - {"ponder_parity"})


def configure_published(name: str, *overrides: str) -> dict[str, Any]:
    """Return the settings of a configuration's published run, without its name."""
    return configure_without_name(name, f"preset=paper/{name}", *overrides)


def configure_without_name(root: str, *overrides: str) -> dict[str, Any]:
    settings = dataclasses.asdict(configured(root, *overrides))
    del settings["name"]
    return settings


@pytest.mark.parametrize("name", mark_mostly_slow(WRITTEN_OUT, ("act_tiny", "ponder_rte", "par_network").__contains__))
def test_the_preset_equals_the_settings_written_out(name: str) -> None:
    assert configure_published(name) == configure_without_name(*WRITTEN_OUT[name])


@pytest.mark.parametrize("name", keep_one_quick(6, AS_THEY_ARE))
def test_some_configurations_are_the_published_run(name: str) -> None:
    assert {"par_base", "trm_sudoku_extreme", "trm_maze_hard", "adalayers_imdb_bart"} <= set(AS_THEY_ARE)
    assert configure_published(name) == configure_without_name(name)


@pytest.mark.parametrize("name", keep_one_quick(2, ["act_cola", "act_wnli"]))
def test_published_fine_tuning_is_a_grid(name: str) -> None:
    assert sorted(GRIDS) == sorted(set(PUBLISHED) & set(GRIDS))
    assert (
        compose_config(name, f"preset=paper/{name}").hydra.sweeper == compose_config(name, "sweep=glue").hydra.sweeper
    )
    assert configure_published(name) == configure_without_name(name, "sweep=glue")


@pytest.mark.parametrize("name", mark_mostly_slow(PUBLISHED, lambda name: name in (*QUICK, "ponder_parity")))
def test_a_published_run_belongs_to_a_configuration_whose_name_it_keeps(name: str) -> None:
    assert configured(name, f"preset=paper/{name}").name == name
    lines = (PAPER / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "# @package _global_"
    assert lines[1].startswith("# ")


@pytest.mark.parametrize("name", [*TINY, "act_small", "act_base", "par_network", "ponder_parity"])
def test_no_group_of_a_small_configuration_is_left_in_the_published_run(name: str) -> None:
    entries = parse_yaml((PAPER / f"{name}.yaml").read_text(encoding="utf-8"))["defaults"]
    groups = {key.removeprefix("override /") for entry in entries for key in entry if not key.startswith("optional")}
    assert groups == {"model", "dataset", "tokenizer", "trainer", "budget"}


def test_the_command_line_wins_over_the_published_run() -> None:
    config = configured("act_tiny", "preset=paper/act_tiny", "trainer=short", "model.act_penalty=0.5")
    short = configured("act_tiny", "trainer=short")
    assert (config.trainer, config.model.act_penalty) == (short.trainer, 0.5)  # type: ignore[attr-defined]
    assert config.dataset.name == "wikipedia_bookcorpus"


@pytest.mark.parametrize("flags", [["--config-name", "act_tiny"], ["--config-name=act_tiny"], ["-cn", "act_tiny"]])
def test_the_preset_names_its_configuration(flags: list[str]) -> None:
    assert arguments([*flags, "preset=paper", "seed=1"]) == [*flags, "preset=paper/act_tiny", "seed=1"]


@pytest.mark.parametrize(("override", "expanded"), [
    ("preset=none,paper", "preset=none,paper/trm_tiny"),
    ("preset=paper, none", "preset=paper/trm_tiny,none"),
    ("preset=paper/act_base", "preset=paper/act_base"),
    ("preset=seed", "preset=seed"),
    ("preset=papers", "preset=papers"),
    ("name=paper", "name=paper"),
    ("dataset.path=preset=paper", "dataset.path=preset=paper"),
])  # fmt: skip
def test_the_preset_changes_no_other_settings(override: str, expanded: str) -> None:
    assert expand_preset(override, "trm_tiny") == expanded


def test_a_run_records_its_published_configuration(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text('{"config_name": "par_tiny"}', encoding="utf-8")
    assert arguments([f"resume={run}", "preset=paper"]) == [
        "--config-name", "par_tiny", f"resume={run}", "preset=paper/par_tiny",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["act_hops", "loop_mano", "par_wikitext2"])
def test_the_error_lists_configurations_with_a_published_run(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        arguments(["--config-name", name, "seed=1", "preset=none,paper"])
    assert str(caught.value) == f"preset=paper: {name} has no published run; only {', '.join(PUBLISHED)} have one"


def test_an_unknown_configuration_is_left_to_hydra() -> None:
    assert expand_preset("preset=paper", "act_tin") == "preset=paper"
    assert list_published_configs(list_config_folders()) == PUBLISHED


def test_a_resumed_run_accepts_the_same_preset(tmp_path: Path) -> None:
    trained = configured("trm_tiny", "preset=paper/trm_tiny", "seed=3")
    run = write_run(tmp_path, trained)
    (run / "run.json").write_text('{"status": "stopped"}', encoding="utf-8")
    for again in ([], ["preset=paper/trm_tiny"]):
        config = configured("trm_tiny", f"resume={run}", *again)
        assert dataclasses.replace(config, resume=None, output_dir=trained.output_dir) == trained


def test_an_evaluation_reads_the_data_of_the_published_run(tmp_path: Path) -> None:
    trained = configured("ponder_tiny", "preset=paper/ponder_tiny", "dataset.path=glue/cola")
    run = write_run(tmp_path, trained)
    for again in ([], ["preset=paper/ponder_tiny"]):
        config = configured("ponder_tiny", "mode=evaluate", f"checkpoint={run}", *again)
        assert config.dataset == trained.dataset
