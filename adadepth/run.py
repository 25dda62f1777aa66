"""Entry point: compose and check a configuration, run its task, return the metric that a sweep optimises.

    python adadepth/run.py --config-name act_tiny [group=option] [key=value] [-m] [--help] [--cfg job]

Exit status: 0 done, 2 a mistake in what the user gave (one line on stderr), 1 an unexpected failure (with traceback),
129, 130 and 143 interrupted by a terminal that closes (SIGHUP), Ctrl-C and SIGTERM.
"""

# ruff: noqa: E402
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if not __package__:  # run by path: sys.path[0] is this folder, whose modules must not shadow installed ones
    sys.path[0] = str(ROOT)

import os
import traceback

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from adadepth.cli.command_line import CONFIGS, arguments, check_own_folder, folders, help_text
from adadepth.cli.composition import register_schema
from adadepth.cli.debugging import given_keys
from adadepth.cli.hints import explain
from adadepth.cli.hydra_keys import close_hydra_keys
from adadepth.cli.validation import checked
from adadepth.errors import UserError
from adadepth.runs.inheritance import inheritance, resumption
from adadepth.settings import ExperimentConfig
from adadepth.settings.interpolations import told_within
from adadepth.system.console import patient_streams, say
from adadepth.system.files import full_disk
from adadepth.system.places import allow_remote_code
from adadepth.system.processes import (
    check_launcher,
    end_with_launcher,
    exit_with,
    is_first_process,
    keep_freed_memory,
    short_memory,
)
from adadepth.system.signals import ending_as_exits, held_back, let_through


@hydra.main(config_path=str(CONFIGS), config_name=None, version_base="1.3")
def run_job(composed: DictConfig) -> float | None:
    """Check one composed configuration and run its task; return the metric named by ``optimise``."""
    try:
        config = checked(composed)
        given = given_keys(composed)
        line = inheritance(composed, given) or resumption(config, composed, given)
        if line and is_first_process():
            say(line)
        _apply_runtime(config)
        from adadepth import tasks  # torch and transformers are imported only once the configuration is right

        with let_through():
            return tasks.run(config)
    except Exception as error:
        if HydraConfig.get().mode is RunMode.MULTIRUN or (line := _in_a_line(error)) is None:
            raise  # of a grid Hydra names the failing job and goes on with the next
        exit_with(told_within(line), 2)


def main() -> None:
    """Run the command line ``sys.argv`` and exit; mistakes end in one line, everything else keeps its traceback."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises to here instead of printing and exiting itself
    with patient_streams(), ending_as_exits():
        _main()


def _main() -> None:
    try:
        check_launcher()
        end_with_launcher()
        with held_back():
            _run(sys.argv[1:])
    except KeyboardInterrupt:
        exit_with("interrupted", 130)
    except Exception as error:
        if (line := _in_a_line(error)) is not None:
            exit_with(line, 2)
        if _started(error):
            raise
        exit_with(explain(error, folders), 2)
    finally:
        _leave_process_group()


def _in_a_line(error: Exception) -> str | None:
    """What a person gave wrongly or the machine lacks; None of what nobody foresaw."""
    if isinstance(error, UserError | HydraException | OmegaConfBaseException):
        return explain(error, folders)
    return full_disk(error) or short_memory(error)


def _run(given: list[str]) -> None:
    """Say the help that is asked for, or hand the command line on to Hydra."""
    register_schema()
    close_hydra_keys()
    check_own_folder()
    if (text := help_text(given)) is not None:
        print(text, end="")
        return
    sys.argv[1:] = arguments(given)
    run_job()


def _apply_runtime(config: ExperimentConfig) -> None:
    """Set what must be in place before the libraries are imported."""
    if config.runtime.offline:
        os.environ["HF_HUB_OFFLINE"] = "1"
    keep_freed_memory()
    allow_remote_code(config.runtime.trust_remote_code)
    if config.runtime.threads is not None:
        import torch

        torch.set_num_threads(config.runtime.threads)


def _started(error: BaseException) -> bool:
    """Whether a job was running: what Hydra and YAML raise before that is about the command line or a YAML file."""
    own = run_job.__wrapped__.__code__  # Hydra has a function of that name, too
    return any(frame.f_code is own for frame, _ in traceback.walk_tb(error.__traceback__))


def _leave_process_group() -> None:
    """Part from the other processes of a run in good order; if torch was never imported there are none."""
    if (torch := sys.modules.get("torch")) and torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    from adadepth.run import main as entry  # the importable module, so that launchers can pickle its functions

    entry()
