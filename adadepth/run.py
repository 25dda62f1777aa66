"""Entry point: composes and checks a configuration, runs its task, and returns the metric that a sweep optimises.

    python adadepth/run.py --config-name act_tiny [group=option] [key=value] [-m] [--help] [--cfg job]

The exit status is 0 on success, 2 after an error in the user's input (one line on stderr), and 1 after an unexpected
failure (one line on stderr and a file with the traceback). It is 129, 130 or 143 if the run was interrupted by the
closing of its terminal (SIGHUP), by Ctrl-C or by SIGTERM.
"""

# ruff: noqa: E402
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if not __package__:  # run by path: sys.path[0] is this folder, whose modules must not shadow installed ones
    sys.path[0] = str(ROOT)

import os
import traceback
from typing import TypeGuard

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from adadepth.cli.command_line import CONFIGS, arguments, check_user_folder, folders, get_help_text
from adadepth.cli.error_messages import format_config_error
from adadepth.cli.failures import end_with_failure, format_expected_error
from adadepth.cli.help import register_key_help
from adadepth.cli.hydra_keys import guard_hydra_keys
from adadepth.cli.schemas import register_schema
from adadepth.cli.validation import build_config
from adadepth.config import ExperimentConfig
from adadepth.config.env_redaction import redact_env_values
from adadepth.config.modes import modes
from adadepth.runs.commands import get_choices, list_overridden_keys, note_choices
from adadepth.runs.inheritance import describe_inheritance, describe_resumption
from adadepth.runtime.console import say
from adadepth.runtime.distributed import (
    check_launcher,
    exit_with_error,
    is_main_process,
    set_malloc_thresholds,
    stop_when_launcher_exits,
)
from adadepth.runtime.failures import activity
from adadepth.runtime.hub_access import allow_remote_code
from adadepth.runtime.signals import convert_signals_to_exits, exit_at_once_on_signals, restore_signal_handlers


@hydra.main(config_path=str(CONFIGS), config_name=None, version_base="1.3")
def run_job(composed: DictConfig) -> float | None:
    """Check a composed configuration, run its task, and return the metric named by ``optimise``."""
    try:
        with activity("checking the configuration"):
            config = build_config(composed)
        given = frozenset(list_overridden_keys(composed))
        line = describe_inheritance(composed, given) or describe_resumption(config, composed, given)
        if is_main_process():
            for message in filter(None, [line, *get_choices()]):
                say(message)
        _apply_runtime(config)
        doing = f"{modes()[config.mode].activity} {config.name}"
        with activity(doing, Path(config.output_dir)), restore_signal_handlers():
            from adadepth import tasks  # torch and transformers are imported only once the configuration is right

            return tasks.run(config)
    except Exception as error:
        if HydraConfig.get().mode is RunMode.MULTIRUN or (line := format_expected_error(error)) is None:
            raise  # of a grid Hydra names the failing job and goes on with the next
        exit_with_error(redact_env_values(line), 2)


def main() -> None:
    """Run the command line ``sys.argv`` and exit. User errors end in one line, unexpected errors leave a traceback."""
    show = os.environ.get("HYDRA_FULL_ERROR") == "1" or any(word.startswith("debug=") for word in sys.argv[1:])
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises to here instead of printing and exiting itself
    with convert_signals_to_exits():
        _main(show)


def _main(show: bool) -> None:
    try:
        check_launcher()
        stop_when_launcher_exits()
        with exit_at_once_on_signals():
            _run(sys.argv[1:])
    except KeyboardInterrupt:
        exit_with_error("interrupted", 130)
    except SystemExit:
        raise
    except BaseException as error:  # a panic of a library in Rust is no Exception
        if (line := format_expected_error(error)) is not None:
            exit_with_error(redact_env_values(line), 2)
        if _is_of_composition(error):
            exit_with_error(format_config_error(error, folders), 2)
        end_with_failure(error, show=show)
    finally:
        _leave_process_group()


def _run(given: list[str]) -> None:
    """Print the requested help, or pass the command line on to Hydra."""
    register_schema()
    register_key_help()
    guard_hydra_keys()
    check_user_folder()
    if (text := get_help_text(given)) is not None:
        print(text, end="")
        return
    sys.argv[1:] = arguments(given)
    note_choices([])
    if any(word.startswith("dataset.path=") for word in given):
        with activity("reading the table"):
            from adadepth.cli.table_settings import add_table_settings  # reads rows and tokenizers, so it needs torch

            sys.argv[1:] = add_table_settings(sys.argv[1:])
    with activity("running the sweep" if {"-m", "--multirun"} & set(given) else "composing the configuration"):
        run_job()


def _apply_runtime(config: ExperimentConfig) -> None:
    """Apply the settings that must take effect before the libraries are imported."""
    if config.runtime.offline:
        os.environ["HF_HUB_OFFLINE"] = "1"
    set_malloc_thresholds()
    allow_remote_code(config.runtime.trust_remote_code)
    if config.runtime.threads is not None:
        import torch

        torch.set_num_threads(config.runtime.threads)


def _is_of_composition(error: BaseException) -> TypeGuard[Exception]:
    """Return whether Hydra raised the error while it composed the command line and YAML files, before any job."""
    if not isinstance(error, Exception):
        return False
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    modules = [str(frame.f_globals.get("__name__")) for frame in frames]
    own = run_job.__wrapped__.__code__  # Hydra has a function of that name, too
    ours = [name for name in modules if name.startswith(("adadepth.", "hydra_plugins.")) and name != __name__]
    is_told_by_hydra = all(name.startswith("adadepth.cli.") for name in ours) and modules[-1] not in ours
    return "hydra.main" in modules and is_told_by_hydra and all(frame.f_code is not own for frame in frames)


def _leave_process_group() -> None:
    """Leave the process group of a distributed run. Do nothing if torch was never imported."""
    if (torch := sys.modules.get("torch")) and torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    from adadepth.run import main as entry  # the importable module, so that launchers can pickle its functions

    entry()
