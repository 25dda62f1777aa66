"""Data, tokenizer and context of an evaluation: those of the run, unless the command line sets them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from omegaconf.errors import OmegaConfBaseException

from adadepth.cli.error_messages import format_config_error
from adadepth.config import (
    ContextConfig,
    CorpusConfig,
    ExperimentConfig,
    LabelledConfig,
    StreamConfig,
    TokenizerConfig,
)
from adadepth.runs.commands import list_overridden_keys
from adadepth.runs.inheritance import describe_inheritance
from tests.configs.support import compose_config, configured, write_run
from tests.marks_support import keep_one_quick


def configure_evaluation(root: str, checkpoint: Path | str, *overrides: str) -> ExperimentConfig:
    return configured(root, "mode=evaluate", f"checkpoint={checkpoint}", *overrides)


@pytest.mark.parametrize("folder", keep_one_quick(2, ["", "model", "checkpoints/checkpoint-2"]))
def test_data_and_tokenizer_are_those_of_the_run(tmp_path: Path, folder: str) -> None:
    trained = configured(
        "act_tiny", "dataset=text", "dataset.path=a.txt", "dataset.masking.max_ngram=2", "tokenizer=albert"
    )
    run = write_run(tmp_path, trained)
    config = configure_evaluation("act_tiny", run / folder)
    assert config.dataset == trained.dataset
    assert isinstance(config.dataset, CorpusConfig)
    tokenizer_folder = run / (folder or "model")
    assert config.tokenizer == dataclasses.replace(trained.tokenizer, path=str(tokenizer_folder))
    assert config.trainer == configured("act_tiny").trainer


def test_the_newest_run_is_inherited(tmp_path: Path) -> None:
    for name, length in (("1", 16), ("2", 24)):
        write_run(tmp_path, configured("act_tiny", f"dataset.sequence_length={length}"), name=name)
    config = configure_evaluation("act_tiny", "latest", f"output_dir={tmp_path}")
    assert config.dataset.sequence_length == 24


def test_a_key_of_the_command_line_wins_over_the_run(tmp_path: Path) -> None:
    run = write_run(tmp_path, configured("ponder_tiny", "dataset=table", "dataset.path=folder", "dataset.held_out=0.1",
                                         "dataset.evaluation_splits=[held_out]"))  # fmt: skip
    config = configure_evaluation(
        "ponder_cola", run, "dataset.max_evaluation_examples=7", "trainer.metric_for_best_model=eval_score"
    )
    assert isinstance(config.dataset, LabelledConfig)
    assert (config.dataset.name, config.dataset.path, config.dataset.held_out) == ("table", "folder", 0.1)
    assert config.dataset.max_evaluation_examples == 7


def test_a_key_that_the_data_of_the_run_lack_is_named_in_full(tmp_path: Path) -> None:
    run = write_run(tmp_path, configured("act_tiny"))
    with pytest.raises(OmegaConfBaseException) as caught:
        configure_evaluation("ponder_cola", run, "dataset.text_columns=[a]")
    line = format_config_error(caught.value, list)
    assert line == "dataset.text_columns: this dataset has no such key; other options of the group have it"


def test_a_group_of_the_command_line_replaces_the_inherited_one(tmp_path: Path) -> None:
    run = write_run(tmp_path, configured("act_tiny", "dataset=text", "dataset.path=a.txt", "tokenizer.vocab_size=99"))
    config = configure_evaluation("act_tiny", run, "dataset=python_docs", "tokenizer=albert")
    plain = configured("act_tiny", "dataset=python_docs", "tokenizer=albert")
    assert (config.dataset, config.tokenizer) == (plain.dataset, plain.tokenizer)
    inherited = configure_evaluation("act_tiny", run, "dataset=python_docs")
    assert inherited.tokenizer == TokenizerConfig(path=str(run / "model"), vocab_size=99)


def test_local_files_replace_the_hub(tmp_path: Path) -> None:
    run = write_run(tmp_path, configured("par_wikitext2"))
    assert configure_evaluation("par_tiny", run).dataset == configured("par_wikitext2").dataset
    config = configure_evaluation("par_tiny", run, "dataset.path=folder")
    assert isinstance(config.dataset, StreamConfig)
    assert (config.dataset.source, config.dataset.path) == ("local", "folder")


def test_context_is_inherited_key_by_key(tmp_path: Path) -> None:
    run = write_run(tmp_path, configured("par_base"))
    config = configure_evaluation("par_tiny", run, "context.memory_length=8")
    assert config.context == ContextConfig(memory_length=8, clamp_length=400, same_length=True)


def test_a_missing_tokenizer_of_a_run_is_named(tmp_path: Path) -> None:
    run = write_run(tmp_path, configured("act_tiny", "tokenizer=albert"), has_tokenizer=False)
    assert configure_evaluation("act_tiny", run).tokenizer.path == "albert/albert-base-v2"


@pytest.mark.parametrize("checkpoint", keep_one_quick(2, ["some/set", "elsewhere/model", "latest"]))
def test_a_checkpoint_without_a_run_changes_no_settings(tmp_path: Path, checkpoint: str) -> None:
    write_run(tmp_path, configured("act_tiny", "dataset.sequence_length=16"))
    (tmp_path / "elsewhere" / "model").mkdir(parents=True)
    overrides = ("mode=evaluate", f"checkpoint={tmp_path / checkpoint if 'else' in checkpoint else checkpoint}")
    config = configured("act_tiny", *overrides, f"output_dir={tmp_path}/none")
    plain = configured("act_tiny")
    assert (config.dataset, config.tokenizer) == (plain.dataset, plain.tokenizer)


GATED = ("model.prelude=0", "model.gate=true", "model.objective=gate", "model.exit_rule=quantile:0.7")


def test_model_settings_are_those_of_the_run(tmp_path: Path) -> None:
    trained = configured("loop_tiny", *GATED)
    run = write_run(tmp_path, trained)
    assert configure_evaluation("loop_tiny", run).model == trained.model
    assert configure_evaluation("loop_tiny", run, "debug=default").model == trained.model
    assert configure_evaluation("loop_tiny", run, "model=looped_mini").model == trained.model
    changed = configure_evaluation("loop_tiny", run, "model.exit_rule=quantile:0.5:1", "model.num_loops=3").model
    assert changed == dataclasses.replace(trained.model, exit_rule="quantile:0.5:1", num_loops=3)


def test_among_null_settings_only_the_exit_rule_changes_a_checkpoint(tmp_path: Path) -> None:
    trained = configured("loop_tiny", *GATED, "model.num_key_value_heads=2")
    run = write_run(tmp_path, trained)
    model = configure_evaluation("loop_tiny", run, "model.exit_rule=null", "model.num_key_value_heads=null").model
    assert model == dataclasses.replace(trained.model, exit_rule=None)


def test_a_model_of_another_family_is_not_inherited(tmp_path: Path) -> None:
    run = write_run(tmp_path, configured("ponder_cola"))
    assert configure_evaluation("act_cola", run).model == configured("act_cola").model


def test_a_setting_that_no_longer_exists_is_not_inherited(tmp_path: Path) -> None:
    trained = configured("loop_tiny", *GATED)
    file = write_run(tmp_path, trained) / "config.yaml"
    file.write_text(file.read_text().replace("  prelude: 0\n", "  prelude: 0\n  abandoned: 1\n"))
    assert "abandoned" in file.read_text()
    assert configure_evaluation("loop_tiny", file.parent).model == trained.model


def test_the_default_target_of_a_configuration_refuses_no_checkpoint(tmp_path: Path) -> None:
    run = write_run(tmp_path, configured("act_hops", "budget=none", "model.act_penalty=0.01"))
    assert configure_evaluation("act_hops", run).model.act_penalty == 0.01


def test_a_line_reports_the_inherited_groups(tmp_path: Path) -> None:
    run = write_run(tmp_path, configured("act_tiny"))

    def describe(*overrides: str) -> str | None:
        config = compose_config("act_tiny", *overrides)
        return describe_inheritance(config, frozenset(list_overridden_keys(config)))

    evaluation = ("mode=evaluate", f"checkpoint={run}")
    assert describe(*evaluation) == f"dataset, tokenizer, context, model as in {run}"
    assert describe(*evaluation, "tokenizer=albert", "dataset.sequence_length=16") == (
        f"dataset, context, model as in {run}, except dataset.sequence_length"
    )
    assert describe() is None
