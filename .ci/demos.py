"""Make the models that lie in the package: train each from its seed, and copy what is needed of its run.

    python .ci/demos.py [NAME ...] [--runs outputs/demos] [--into adadepth/demos]

One process with one thread trains one model at a time, so that the same machine and libraries make the same bits. A
training that was stopped goes on with its newest checkpoint, and one that is finished is not repeated. Weights are
stored as float16 and loaded as float32: together the models have at most 1 MB.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import yaml
from safetensors.torch import load_file, save_file

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from adadepth.runs.directory import read_record  # noqa: E402
from adadepth.runtime.files import describe_files, write_atomic  # noqa: E402

DEMOS: dict[str, tuple[str, ...]] = {
    "hops": ("--config-name", "act_hops"),
    "loop": (
        "--config-name", "loop_hops", "dataset.drawing=even", "dataset.nodes=16", "dataset.sequence_length=16",
        "trainer.max_steps=1000", "trainer.eval_steps=500",
    ),
    "maze": ("--config-name", "act_maze"),
    "words": (
        "--config-name", "act_wikitext2", "dataset=python_docs", "dataset.sentence_order=false", "budget.target=3.8",
        "model.embedding_size=48", "model.intermediate_size=256", "tokenizer.vocab_size=2000",
        "trainer.time_budget_minutes=null",
    ),
}  # fmt: skip
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
WEIGHTS, CARD, CODE = "model.safetensors", "README.md", "modeling_adadepth.py"
# Fields of run.json that later runs, the page and a reader need; none tells of the machine, its paths or its clone.
RECORD_FIELDS = (
    "status", "config_name", "mode", "seed", "dataset_schema", "versions", "parameters", "precision",
)  # fmt: skip
METRICS = re.compile(r"eval/(?!.*(?:runtime|per_second)).*|halting/.*/mean|cost/(?:\w+/)?adaptive_over_full")


def train_demo(name: str, runs: Path) -> Path:
    """Train a demo, go on with its training, or find the finished one; return the run directory.

    Args:
        name: One of `DEMOS`.
        runs: Folder of the trainings, one below it for each demo and recipe.

    Raises:
        CalledProcessError: The training failed.
    """
    given = DEMOS[name]
    folder = runs / f"{name}-{zlib.crc32(shlex.join(given).encode()):08x}"  # of another recipe another one
    trainings = sorted(path.parent for path in folder.glob("*/*/run.json"))
    if finished := [run for run in trainings if read_record(run)["status"] == "finished"]:
        return finished[-1]
    stopped = [run for run in trainings if any(run.glob("checkpoints/checkpoint-*/trainer_state.json"))]
    words = [f"resume={stopped[-1]}"] if stopped else [*given, f"output_dir={folder}"]
    command = [sys.executable, str(ROOT / "adadepth" / "run.py"), *words]
    subprocess.run(command, cwd=ROOT, env={**os.environ, **ENVIRONMENT}, check=True)
    return train_demo(name, runs)


def export_demo(run: Path, place: Path) -> None:
    """Write what evaluations, predictions and the page read of a run; whatever was there goes.

    Args:
        run: Directory of a finished training.
        place: Directory of the demo, which has its name.
    """
    shutil.rmtree(place, ignore_errors=True)
    model = place / "model"
    shutil.copytree(run / "model", model, ignore=shutil.ignore_patterns(WEIGHTS, CODE))
    weights = {key: value.half() for key, value in load_file(run / "model" / WEIGHTS).items()}
    save_file(weights, model / WEIGHTS, metadata={"format": "pt"})
    (model / WEIGHTS).chmod(0o644)
    for file in model.glob("*.json"):
        described = json.loads(file.read_text(encoding="utf-8"))
        write_atomic(file, json.dumps(described, ensure_ascii=False, separators=(",", ":")) + "\n")
    card = (model / CARD).read_text(encoding="utf-8").replace("FOLDER OR NAME OF THIS MODEL", f"demo:{place.name}")
    write_atomic(model / CARD, re.sub(rf" Where adadepth is installed[^\n]*`{CODE}`[^\n]*", "", card))
    settings: dict[str, Any] = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    settings |= {"output_dir": "outputs", "resume": None}
    write_atomic(place / "config.yaml", yaml.safe_dump(settings, sort_keys=False))
    record = read_record(run)
    kept = {field: record[field] for field in RECORD_FIELDS}
    kept["final_metrics"] = {key: value for key, value in record["final_metrics"].items() if METRICS.fullmatch(key)}
    kept["saved"] = {"model": describe_files(model)}
    write_atomic(place / "run.json", json.dumps(kept, indent=1) + "\n")


def main() -> None:
    """Make the demos that the command line names, or all."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(DEMOS)}")
    options.add_argument("--runs", type=Path, default=ROOT / "outputs" / "demos", help="where they are trained")
    options.add_argument("--into", type=Path, default=ROOT / "adadepth" / "demos", help="where they are put")
    given = options.parse_args()
    if unknown := [name for name in given.names if name not in DEMOS]:
        options.error(f"{unknown[0]}: must be one of {', '.join(DEMOS)}")
    for name in given.names or DEMOS:
        place = given.into / name
        export_demo(train_demo(name, given.runs.resolve()), place)
        size = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
        print(f"demo:{name}: {size:,} bytes in {place}", flush=True)


if __name__ == "__main__":
    main()
