"""Quality against size at equal training compute: four budgets times five widths of a looped language model.

    python examples/isoflop.py outputs/isoflop [OVERRIDE ...]

A first run of one step for every width measures the operations of a step, from which the steps of every budget follow.
Each width is then a sweep of four runs. The last command writes the page that compares all runs. A repeated command
skips the widths whose runs are complete.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from adadepth.report.isoflop import compute_training_operations
from adadepth.report.run_files import read_run

WIDTHS = (16, 32, 48, 64, 96)
STEPS = (25, 50, 100, 200)  # of the middle width, one number for each budget
COMMAND = [sys.executable, str(Path(__file__).parents[1] / "adadepth" / "run.py")]
SETTINGS = [
    "--config-name", "loop_tiny", "tokenizer=bytes", "tokenizer.vocab_size=null", "baseline=none", "quiet=true",
    "trainer.time_executions=false", "trainer.eval_strategy=no", "trainer.save_strategy=no",
    "trainer.load_best_model_at_end=false", "trainer.warmup_steps=5",
]  # fmt: skip


def train(folder: Path, width: int, steps: list[int], overrides: list[str]) -> list[Path]:
    """Train networks of a width for numbers of steps unless the folder has them, and return their directories."""
    if len(list(folder.glob("*/*/model"))) < len(steps):
        sizes = [f"model.hidden_size={width}", f"model.intermediate_size={3 * width}"]
        lengths = ["-m", f"trainer.max_steps={','.join(map(str, steps))}"]
        subprocess.run([*COMMAND, *SETTINGS, *lengths, *sizes, *overrides, f"output_dir={folder}"], check=True)
    return [model.parent for model in folder.glob("*/*/model")]


def main(folder: Path, overrides: list[str]) -> None:
    """Train all runs in a folder, and compare them."""
    probes = {width: train(folder / "probes" / str(width), width, [1], overrides) for width in WIDTHS}
    per_step = {width: compute_training_operations(read_run(run)) or 0.0 for width, (run, *_) in probes.items()}
    for width in WIDTHS:
        ratio = per_step[WIDTHS[len(WIDTHS) // 2]] / per_step[width]
        train(folder / "runs" / str(width), width, [round(steps * ratio) for steps in STEPS], overrides)
    subprocess.run([*COMMAND, "mode=report", f"runs=[{folder / 'runs'}]", f"output_dir={folder}"], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
