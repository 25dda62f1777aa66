"""Support for tests of runs that write predictions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.configs.support import configured
from tests.training import finetune_support
from tests.training.support import run_config

SMALL = (
    "debug=default", *finetune_support.SMALL, "dataset.max_evaluation_examples=24", "trainer.disable_tqdm=true",
    "predictions=true",
)  # fmt: skip


def predict_sets(
    folder: Path, root: str, *overrides: str
) -> tuple[Path, dict[str, float], dict[str, list[dict[str, Any]]]]:
    """Run a configuration, and return its run directory, its final metrics, and its predictions by set."""
    directory, _ = run_config(configured(root, f"output_dir={folder}", *overrides))
    metrics = json.loads((directory / "run.json").read_text())["final_metrics"]
    files = {path.stem: path.read_text().splitlines() for path in (directory / "predictions").glob("*.jsonl")}
    return directory, metrics, {name: [json.loads(line) for line in lines] for name, lines in files.items()}
