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

import gc
import io
import os

from adadepth.cli.config_files import check_user_folder
from adadepth.cli.help import get_help_text
from adadepth.runtime.distributed import check_launcher, exit_with_error, stop_when_launcher_exits
from adadepth.runtime.signals import convert_signals_to_exits, exit_at_once_on_signals


def main() -> None:
    """Run the command line ``sys.argv`` and exit. User errors end in one line, unexpected errors leave a traceback."""
    show = os.environ.get("HYDRA_FULL_ERROR") == "1" or any(word.startswith("debug=") for word in sys.argv[1:])
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises to here instead of printing and exiting itself
    with convert_signals_to_exits():
        try:
            _main(show)
        finally:
            gc.freeze()  # else Python looks for garbage in all libraries, for a second, before it ends


def _main(show: bool) -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a stream in ASCII shows other characters as \\xf6
            stream.reconfigure(errors="backslashreplace")
    try:
        if sys.flags.optimize > 1:
            exit_with_error("python -OO: removes docstrings, which transformers needs; leave out -OO", 2)
        check_launcher()
        stop_when_launcher_exits()
        with exit_at_once_on_signals():
            check_user_folder()
            if (text := get_help_text(sys.argv[1:])) is not None:
                print(text, end="")
                return
            from adadepth.cli.job import run_command  # imports Hydra, without which help comes in half the time

            run_command(sys.argv[1:])
    except KeyboardInterrupt:
        exit_with_error("interrupted", 130)
    except SystemExit:
        raise
    except BaseException as error:  # a panic of a library in Rust is no Exception
        from adadepth.cli.failures import end_with_error

        end_with_error(error, show=show)
    finally:
        _leave_process_group()


def _leave_process_group() -> None:
    """Leave the process group of a distributed run. Do nothing if torch was never imported."""
    if (torch := sys.modules.get("torch")) and torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    from adadepth.run import main as entry  # the importable module, so that launchers can pickle its functions

    entry()
