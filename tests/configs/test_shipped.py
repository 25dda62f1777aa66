"""Shipped YAML files: each composes and validates, and has the values of its source."""

from __future__ import annotations

import dataclasses
import itertools
import re

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import open_dict

from adadepth.cli.schemas import register_schema
from adadepth.cli.validation import build_config
from adadepth.config import OPTIONAL_GROUPS, ExperimentConfig, SearchConfig
from adadepth.config.fingerprint import hash_result_settings, select_result_settings
from adadepth.runtime.plain_yaml import parse_yaml
from tests.configs.support import CONFIGS, GLUE, NEEDS, OPTIONS, ROOTS, choose_root, compose_config, configured
from tests.marks_support import mark_mostly_slow

NEEDS_OF_ROOTS = dict.fromkeys(("finetune", "adalayers"), NEEDS["dataset", "table"])


def test_the_shipped_configs_are_found() -> None:
    assert {"act_tiny", "act_base", "ponder_tiny", "ponder_parity", "act_cola", "ponder_rte"} <= set(ROOTS)
    assert ("model", "albert_act_mini") in OPTIONS


@pytest.mark.parametrize(("root", "overrides"), [
    ("act_tiny", ["seed=3", "trainer.learning_rate=1e-4", "name=other", "dataset.path=[a.txt,b.txt]"]),
    ("par_tiny", ["model.cutoffs=[9]", "debug=default", "tokenizer.vocab_size=null", "search.shapes=[[8,8,2]]"]),
    ("act_tiny", ["trainer.deepspeed={zero_optimization: {stage: 2}}", "trainer=albert_phase2", "+trainer.foo=1"]),
], ids=str)  # fmt: skip
def test_compositions_of_these_tests_equal_those_of_hydra(root: str, overrides: list[str]) -> None:
    register_schema()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        whole = compose(root, overrides=overrides)
    config = compose_config(root, *overrides)
    overrides_of_task = set(config.hydra.overrides.task)
    with open_dict(config):
        del config["hydra"]
    assert (config, overrides_of_task) == (whole, set(overrides))


# Files equal to `..._cola` except for their task.
LIKE_COLA = {
    f"{family}_{task}" for family, task in itertools.product(("ponder", "exit"), GLUE) if task != "cola"
} - {"exit_stsb"}  # fmt: skip


def test_configurations_of_glue_differ_in_their_task_alone() -> None:
    """Compare the texts, so that composing one of them shows that the others compose."""
    for family, roots in itertools.groupby(sorted(LIKE_COLA), lambda name: name.partition("_")[0]):
        texts = {name: (CONFIGS / f"{name}.yaml").read_text(encoding="utf-8").partition("\n")[2] for name in roots}
        first = texts[f"{family}_sst2"]
        assert texts == {name: first.replace("sst2", name.partition("_")[2]) for name in texts}


DISTINCT = [root for root in ROOTS if root not in LIKE_COLA or root.endswith("_sst2")]


@pytest.mark.parametrize("root", mark_mostly_slow(ROOTS, lambda root: root in DISTINCT[::2]))
def test_every_root_composes_under_its_own_name(root: str) -> None:
    config = configured(root, *NEEDS_OF_ROOTS.get(root, []))
    assert isinstance(config, ExperimentConfig)
    assert config.name == root


def list_options_of_roots() -> set[tuple[str, str]]:
    """Return the options that a root names, which are composed with it."""
    entries = [entry for root in ROOTS for entry in parse_yaml((CONFIGS / f"{root}.yaml").read_text())["defaults"]]
    pairs = [pair for entry in entries if isinstance(entry, dict) for pair in entry.items()]
    return {(str(group).removeprefix("override ").removeprefix("/"), str(option)) for group, option in pairs}


CHOSEN = list_options_of_roots()


NAMED = [option for option in OPTIONS if option not in CHOSEN]


@pytest.mark.parametrize(("group", "option"), mark_mostly_slow(OPTIONS, lambda option: option in NAMED[::3]))
def test_every_option_composes(group: str, option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adadepth.training.trackers.find_spec", lambda name: name)  # some are extras
    configured(choose_root(group, option), f"{group}={option}", *NEEDS.get((group, option), []))


@pytest.mark.parametrize(
    ("task", "family"),
    mark_mostly_slow(itertools.product(GLUE, ["ponder", "act", "exit"]), lambda case: case[0] == "cola"),
)
def test_every_glue_root_takes_every_family(task: str, family: str) -> None:
    """Check all options at once: they belong to different groups, and none sets what another sets."""
    options = ("logger=wandb", "trainer=finetune_lamb", "model=albert_mini", "sweep=glue")
    node = compose_config(f"{family}_{task}", *options)
    config = build_config(node)
    assert config.dataset.name == task
    assert config.trainer.metric_for_best_model == "eval_score"
    for option in options:
        group, _, name = option.partition("=")
        assert node.hydra.runtime.choices[group] == name


@pytest.mark.parametrize(("task", "metrics"), [
    ("cola", ["matthews"]), ("sst2", ["accuracy"]), ("mrpc", ["accuracy", "f1"]), ("stsb", ["pearson", "spearman"]),
    ("qqp", ["accuracy", "f1"]), ("mnli", ["accuracy"]), ("qnli", ["accuracy"]), ("rte", ["accuracy"]),
    ("wnli", ["accuracy"]),
])  # fmt: skip
def test_glue_tasks_have_their_official_metrics(task: str, metrics: list[str]) -> None:
    assert sorted(configured(f"act_{task}").dataset.metrics) == sorted(metrics)


def test_every_option_has_a_comment() -> None:
    files = [CONFIGS / group / f"{option}.yaml" for group, option in OPTIONS]
    assert [path for path in files if not re.search(r"^# ", path.read_text(encoding="utf-8"), re.MULTILINE)] == []


def test_the_command_line_wins_over_a_preset_of_another_group() -> None:
    config = configured("act_tiny", "trainer=albert_phase2", "dataset.sequence_length=256")
    assert config.dataset.sequence_length == 256


def test_the_embedded_corpus_is_the_default_and_needs_no_network() -> None:
    config = configured("act_tiny")
    assert (config.dataset.source, config.dataset.path, config.tokenizer.path) == ("embedded", None, None)


@pytest.mark.parametrize(("root", "option"), [
    ("act_tiny", "wikitext2"), ("par_tiny", "stream_wikitext2"), ("adalayers_imdb", "imdb"), ("act_squad", "squad"),
])  # fmt: skip
def test_data_of_the_hub_are_read_from_a_given_path(root: str, option: str) -> None:
    override = f"dataset={option}"
    assert configured(root, override).dataset.source == "hub"
    local = configured(root, override, "dataset.path=folder")
    assert local.dataset.source == "local"
    assert hash_result_settings(local) == hash_result_settings(
        configured(root, override, "dataset.path=folder", "dataset.source=local")
    )


@pytest.mark.parametrize("override", [
    "runtime.num_workers=2", "runtime.threads=1", "logger=tensorboard", "output_dir=elsewhere",
    "trainer.logging_steps=3", "dataset.cache_dir=cache",
])  # fmt: skip
def test_the_hash_ignores_settings_without_effect_on_results(override: str) -> None:
    assert hash_result_settings(configured("act_tiny", override)) == hash_result_settings(configured("act_tiny"))


@pytest.mark.parametrize("override", [
    "seed=1", "model.act_epsilon=0.02", "dataset.masking.max_ngram=1", "tokenizer.vocab_size=900",
    "trainer.learning_rate=1e-4",
])  # fmt: skip
def test_the_hash_depends_on_settings_that_change_results(override: str) -> None:
    assert hash_result_settings(configured("act_tiny", override)) != hash_result_settings(configured("act_tiny"))


def test_the_hash_does_not_depend_on_groups_that_a_run_does_not_use(monkeypatch: pytest.MonkeyPatch) -> None:
    config = configured("act_tiny")
    before = hash_result_settings(config)
    monkeypatch.setitem(OPTIONAL_GROUPS, "search", lambda: dataclasses.replace(SearchConfig(), tau_start=2.0))
    config.search.tau_start = 2.0  # as if the default had changed
    assert hash_result_settings(config) == before


def test_the_hash_depends_on_groups_that_a_run_uses() -> None:
    assert hash_result_settings(configured("par_tiny", "search.tau_end=0.2")) != hash_result_settings(
        configured("par_tiny")
    )
    budget = ("model.act_penalty=0", "budget=depth")
    assert hash_result_settings(configured("act_tiny", *budget)) != hash_result_settings(
        configured("act_tiny", "model.act_penalty=0")
    )


def test_the_file_of_an_older_run_gets_defaults_of_newer_groups() -> None:
    now = dataclasses.asdict(configured("act_tiny", "budget=none"))
    older = {key: value for key, value in now.items() if key not in ("budget", "halting")}
    assert select_result_settings(older) == select_result_settings(now)
