"""The page of a first paper: its code is that of the example, and its commands write the table and the figure."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "first_paper.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "examples" / "first_paper" / "accumulator.py"
SMALL = (
    "trainer.max_steps=4 trainer.eval_steps=4 trainer.save_steps=4 trainer.warmup_steps=1 trainer.time_executions=false"
)


def test_the_page_has_the_code_of_the_example() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    source = re.sub(r'\n *"""(?:.|\n)*?"""(?=\n)', "", EXAMPLE.read_text(encoding="utf-8"))
    assert code.replace("\n\n", "\n") in source.replace("\n\n", "\n")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_commands_of_the_page_write_the_table_and_the_figure(tmp_path: Path) -> None:
    blocks = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 3
    script = "\n".join(["set -e", *blocks]).replace('"$@"', f'{SMALL} output_dir={tmp_path} "$@"')
    script = script.replace("seeds=5", "seeds=2").replace("outputs/", f"{tmp_path}/")
    script = script.replace("mode=report", f"mode=report output_dir={tmp_path}")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    subprocess.run(["bash", "-c", script], check=True, cwd=ROOT, env={**os.environ, "PATH": path})
    (paper,) = tmp_path.glob("comparisons/*/paper")
    assert {"table.tex", "table.csv", "commands.txt", "figure.pdf", "figure.png"} <= {
        file.name for file in paper.iterdir()
    }
    with (paper / "table.csv").open(encoding="utf-8", newline="") as file:
        rows = [(row["data"], row["method"], row["score/n"]) for row in csv.DictReader(file)]
    for data in ("hops", "addition"):
        methods = {method for name, method, n in rows if name == data and n == "2"}
        assert {f"ACT-ALBERT (halting unit {unit})" for unit in ("accumulator", "linear")} <= methods
        assert any(method.startswith("ACT-ALBERT, fixed depth ") for method in methods)
