"""Entry point: compose and check a configuration, run its task, return the metric that a sweep optimises.

    python adadepth/run.py --config-name act_tiny [group=option] [key=value] [-m] [--help] [--cfg job]

Exit status: 0 done, 2 a mistake in what the user gave (one line on stderr), 1 an unexpected failure (with traceback),
130 and 143 interrupted by Ctrl-C and SIGTERM.
"""

# ruff: noqa: E402
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if not __package__:  # run by path: sys.path[0] is this folder, whose modules must not shadow installed ones
    sys.path[0] = str(ROOT)

import errno
import os
import signal
import traceback
import types
from typing import NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from adadepth.composition import register_schema
from adadepth.config import ExperimentConfig
from adadepth.debugging import given_keys
from adadepth.errors import ConfigError, UserError
from adadepth.hints import explain, known_configs
from adadepth.inheritance import inheritance
from adadepth.resuming import resumption
from adadepth.training.run_directory import read_record
from adadepth.validation import checked

_INSTALLED = Path(__file__).resolve().parent / "configs"  # where a wheel puts those of the repository
CONFIGS = _INSTALLED if _INSTALLED.is_dir() else ROOT / "configs"

# Of Hydra's flags, those that take a value after an equals sign.
_HYDRA_FLAGS = frozenset({
    "--cfg", "--package", "--shell-completion", "--config-path", "--config-name", "--config-dir", "--info",
    "--experimental-rerun",
})  # fmt: skip


@hydra.main(config_path=str(CONFIGS), config_name=None, version_base="1.3")
def run_job(composed: DictConfig) -> float | None:
    """Check one composed configuration and run its task; return the metric named by ``optimise``."""
    try:
        config = checked(composed)
        given = given_keys(composed)
        line = inheritance(composed, given) or resumption(config, composed, given)
        if line and _is_first_process():
            print(line, flush=True)
        _apply_runtime(config)
        from adadepth import tasks  # torch and transformers are imported only once the configuration is right

        return tasks.run(config)
    except (UserError, OmegaConfBaseException) as error:
        if HydraConfig.get().mode is RunMode.MULTIRUN:
            raise  # Hydra names the failing job and goes on with the next
        _exit(explain(error, CONFIGS), 2)


def main() -> None:
    """Run the command line ``sys.argv`` and exit; mistakes end in one line, everything else keeps its traceback."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises to here instead of printing and exiting itself
    previous = signal.signal(signal.SIGTERM, _terminate)
    try:
        register_schema()
        sys.argv[1:] = _arguments(sys.argv[1:])
        run_job()
    except (UserError, HydraException, OmegaConfBaseException) as error:
        _exit(explain(error, CONFIGS), 2)
    except KeyboardInterrupt:
        _exit("interrupted", 130)
    except Exception as error:
        if _disk_is_full(error):
            _exit(f"no space left on the device: {error}", 2)
        if _started(error):
            raise
        _exit(explain(error, CONFIGS), 2)
    finally:
        signal.signal(signal.SIGTERM, previous)
        _leave_process_group()


def _arguments(given: list[str]) -> list[str]:
    """Put the overrides last, where Hydra's parser wants them together, and see to it that there is a configuration.

    ``--key=value``, as the agent of a W&B sweep writes it, is an override, too. A run's folder says its configuration.
    Raises ``ConfigError`` without ``--config-name``, which Hydra would run as an empty configuration.
    """
    given = [item.removeprefix("--") if _is_dashed_override(item) else item for item in given]
    overrides = [item for item in given if not item.startswith("-") and ("=" in item or item.startswith("~"))]
    options = [item for item in given if item not in overrides]
    flags = {option.split("=")[0] for option in options}
    if not flags & {"--config-name", "-cn"} and (root := _root_of_run(overrides)):
        return ["--config-name", root, *options, *overrides]
    if flags & {"--help", "-h"} and not flags & {"--config-name", "-cn"}:
        options += ["--config-name", "act_tiny"]  # to have something to show
    elif not flags & {"--config-name", "-cn", "--version", "--hydra-help", "--shell-completion", "-sc"}:
        raise ConfigError(f"--config-name is missing; known configurations: {', '.join(known_configs(CONFIGS))}")
    return options + overrides


def _is_dashed_override(item: str) -> bool:
    flag, equals, _ = item.partition("=")
    return flag.startswith("--") and bool(equals) and flag not in _HYDRA_FLAGS


def _root_of_run(overrides: list[str]) -> str | None:
    """The configuration of the run whose folder is to be continued or reported; None where none is named.

    Its settings are the run's own, so any root will do for a run whose name is that of none.
    """
    for key, _, value in (override.partition("=") for override in overrides):
        if key == "runs" and "latest" not in value:
            return "act_tiny"
        if key in ("resume", "run") and value != "latest":
            name = read_record(Path(value)).get("config_name")
            return name if name in known_configs(CONFIGS) else "act_tiny"
    return None


def _apply_runtime(config: ExperimentConfig) -> None:
    """Set what must be in place before the libraries are imported."""
    if config.runtime.offline:
        os.environ["HF_HUB_OFFLINE"] = "1"
    if config.runtime.threads is not None:
        import torch

        torch.set_num_threads(config.runtime.threads)


def _started(error: BaseException) -> bool:
    """Whether a job was running: what Hydra and YAML raise before that is about the command line or a YAML file."""
    return any(frame.f_code.co_name == run_job.__name__ for frame, _ in traceback.walk_tb(error.__traceback__))


def _leave_process_group() -> None:
    """Part from the other processes of a run in good order; if torch was never imported there are none."""
    if (torch := sys.modules.get("torch")) and torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _disk_is_full(error: BaseException | None) -> bool:
    """Whether a full disk or quota is the cause; the checkpoint writers report it in their own exception types."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if "No space left on device" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _is_first_process() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _terminate(number: int, frame: types.FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _exit(message: str, status: int) -> NoReturn:
    """End the process; of several processes only the first speaks."""
    if _is_first_process():
        for line in message.splitlines():
            print(f"error: {line}", file=sys.stderr)
    raise SystemExit(status)


if __name__ == "__main__":
    from adadepth.run import main as entry  # the importable module, so that launchers can pickle its functions

    entry()
