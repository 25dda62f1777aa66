"""Hydra's part of the program: composes the configuration of a command line, checks it and runs its task.

Hydra's `--config-name NAME --help` shows the keys of an experiment with their values and meanings.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from adadepth.cli.command_line import arguments
from adadepth.cli.config_files import CONFIGS
from adadepth.cli.failures import format_expected_error
from adadepth.cli.help import format_yaml_value
from adadepth.cli.hydra_keys import guard_hydra_keys
from adadepth.cli.schemas import register_schema
from adadepth.cli.validation import build_config
from adadepth.config import ExperimentConfig
from adadepth.config.declaration import choices, format_help, get_field_specs
from adadepth.config.env_redaction import redact_env_values
from adadepth.config.modes import modes
from adadepth.runs.commands import get_choices, list_overridden_keys, note_choices
from adadepth.runs.inheritance import describe_inheritance, describe_resumption
from adadepth.runtime.console import limit_output, say
from adadepth.runtime.distributed import exit_with_error, is_main_process, set_malloc_thresholds
from adadepth.runtime.failures import activity
from adadepth.runtime.hub_access import allow_remote_code
from adadepth.runtime.signals import restore_signal_handlers


def run_command(words: list[str]) -> None:
    """Pass the words of a command line on to Hydra, which calls `run_job` for every job."""
    register_schema()
    register_key_help()
    guard_hydra_keys()
    sys.argv[1:] = arguments(words)
    note_choices([])
    if any(word.startswith("dataset.path=") for word in words):
        with activity("reading the table"):
            from adadepth.cli.table_settings import add_table_settings  # reads rows and tokenizers, so it needs torch

            sys.argv[1:] = add_table_settings(sys.argv[1:])
    with activity("running the sweep" if {"-m", "--multirun"} & set(words) else "composing the configuration"):
        run_job()


@hydra.main(config_path=str(CONFIGS), config_name=None, version_base="1.3")
def run_job(composed: DictConfig) -> float | None:
    """Check a composed configuration, run its task, and return the metric named by ``optimise``."""
    is_sweep = HydraConfig.get().mode is RunMode.MULTIRUN
    try:
        with activity("checking the configuration"):
            config = build_config(composed)
        with limit_output(is_sweep if config.quiet is None else config.quiet):
            return _run_task(config, composed)
    except Exception as error:
        if is_sweep or (line := format_expected_error(error)) is None:
            raise  # of a grid Hydra names the failing job and goes on with the next
        exit_with_error(redact_env_values(line), 2)


def _run_task(config: ExperimentConfig, composed: DictConfig) -> float | None:
    """Run the task of a checked configuration, after the lines that explain its settings."""
    overridden = frozenset(list_overridden_keys(composed))
    line = describe_inheritance(composed, overridden) or describe_resumption(config, composed, overridden)
    if is_main_process():
        for message in filter(None, [line, *get_choices()]):
            say(message)
    _apply_runtime(config)
    doing = f"{modes()[config.mode].activity} {config.name}"
    with activity(doing, Path(config.output_dir)), restore_signal_handlers():
        from adadepth import tasks  # torch and transformers are imported only once the configuration is right

        return tasks.run(config)


def _apply_runtime(config: ExperimentConfig) -> None:
    """Apply the settings that must take effect before the libraries are imported."""
    if config.runtime.offline:
        os.environ["HF_HUB_OFFLINE"] = "1"
    set_malloc_thresholds()
    allow_remote_code(config.runtime.trust_remote_code)


# ---- help with the keys of an experiment


_RESOLVER = "adadepth_keys"  # of the template of Hydra's help
_INDENT = "  "


def register_key_help() -> None:
    """Register the resolver `${adadepth_keys:}`, which inserts the keys of an experiment into Hydra's help."""
    OmegaConf.register_new_resolver(
        _RESOLVER,
        lambda *, _root_: "\n".join(_annotate_keys(_root_, 0)).replace("$", "$$"),  # the text is a template
        replace=True,
    )


def _annotate_keys(node: DictConfig, depth: int) -> Iterator[str]:
    """Yield a composed configuration as YAML lines, with the help of every key as a comment."""
    schema = OmegaConf.get_type(node) or dict
    allowed = choices(schema)
    for name, spec in get_field_specs(schema).items():
        comment = f"  # {format_help(spec, allowed.get(name, ()))}"
        is_missing = OmegaConf.is_missing(node, name)
        value = "???" if is_missing else node._get_node(name)
        if isinstance(value, DictConfig) and get_field_specs(OmegaConf.get_type(value) or object):
            yield f"{_INDENT * depth}{name}:{comment}"
            yield from _annotate_keys(value, depth + 1)
        else:
            yield f"{_INDENT * depth}{name}: {value if is_missing else _format_node(node[name])}{comment}"


def _format_node(value: Any) -> str:
    return format_yaml_value(OmegaConf.to_container(value) if OmegaConf.is_config(value) else value)
