"""What a kill leaves half-written in the folder of a run."""

from pathlib import Path

from adadepth.atomic import remove_leftovers


def test_what_a_kill_left_is_removed_wherever_it_lies(tmp_path: Path) -> None:
    left = [
        ".run.json.12.tmp",
        "model/.README.md.12.tmp",
        "retrained/derived/.pareto.csv.7.tmp",
        "figures/.7.exits.png",
    ]
    kept = ["run.json", "model/.gitattributes", ".hydra/config.yaml", "evaluations/one/.run.json.12.tmp"]
    for name in (*left, *kept):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    remove_leftovers(tmp_path, "evaluations")
    assert [name for name in left if (tmp_path / name).exists()] == []
    assert [name for name in kept if not (tmp_path / name).exists()] == []
