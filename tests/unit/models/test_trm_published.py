"""Folders of the published TRM and HRM code, loaded by name: a plain loop's results, and refused folders."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import save_file
from torch import Tensor

from adadepth import TrmConfig, TrmForPuzzles
from adadepth.errors import CheckpointError, ConfigError
from adadepth.models.build import build_classifier
from adadepth.models.folder import read_config
from adadepth.models.trm.convert import find_published_folder
from tests.configs.support import configured
from tests.unit.models.trm_published_support import (
    CELLS,
    MAZE,
    PREFIX,
    SYMBOLS,
    build_published_arch,
    draw_published_weights,
    run_plain,
    write_published,
)

PUZZLES = torch.randint(1, SYMBOLS, (3, CELLS), generator=torch.Generator().manual_seed(1))
CONTRACTED = {"H_cycles": 1, "L_cycles": 2, "L_layers": 1}  # a random mixer of positions magnifies rounding errors


def is_equal(first: TrmForPuzzles, second: TrmForPuzzles) -> bool:
    ours, theirs = first.state_dict(), second.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("trm", {}),
        ("trm", {"mlp_t": True, "pos_encodings": "none", **CONTRACTED}),
        ("trm", {"pos_encodings": "learned", "puzzle_emb_len": 0, "halt_max_steps": 1}),
        ("hrm", {}),
        ("hrm", {"H_layers": 1, "L_layers": 3, "H_cycles": 3, "L_cycles": 1, "halt_max_steps": 2}),
    ],
)
def test_a_loaded_model_equals_a_plain_loop(tmp_path: Path, kind: str, changes: dict[str, Any]) -> None:
    arch = build_published_arch(kind, **changes)
    model = TrmForPuzzles.from_pretrained(write_published(tmp_path, kind, **changes)).double().eval()
    logits, halting = run_plain(arch, draw_published_weights(arch), PUZZLES)
    with torch.no_grad():
        output = model(input_ids=PUZZLES)
        every = model(input_ids=PUZZLES, run_all_steps=True)
    torch.testing.assert_close(every.step_logits.double(), logits, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(every.halting_logits.double(), halting, atol=1e-5, rtol=1e-5)
    assert output.trace.updates.tolist() == [arch["halt_max_steps"]] * 3, "the published evaluation never halts"
    assert model.config.answer_layers == (arch["H_layers"] or None)


def _wrap_lightning_checkpoint(weights: dict[str, Tensor], **entries: Any) -> dict[str, Any]:
    state = {f"model._orig_mod.model.inner.{name}": weight for name, weight in weights.items()}
    return {
        "state_dict": state,
        "epoch": 3,
        "pytorch-lightning_version": "2.5",
        "hyper_parameters": {"lr": 1e-4},
        **entries,
    }


def test_every_file_format_gives_the_same_model(tmp_path: Path) -> None:
    weights = draw_published_weights(build_published_arch("trm"))
    expected = TrmForPuzzles.from_pretrained(write_published(tmp_path / "published"))
    contents: dict[str, Any] = {
        "step_7": weights,
        "checkpoint": {f"model.inner.{name}": weight for name, weight in weights.items()},
        "sudoku_step_16275.pt": {f"{PREFIX}{name}": weight for name, weight in weights.items()},
        "last.ckpt": _wrap_lightning_checkpoint(weights),
    }
    for number, (file, content) in enumerate(contents.items()):
        folder = write_published(tmp_path / str(number), file=file, content=content)
        assert is_equal(TrmForPuzzles.from_pretrained(folder), expected), file
    folder = write_published(tmp_path / "safe")
    (folder / "step_100").unlink()
    save_file(weights, folder / "model.safetensors")
    assert is_equal(TrmForPuzzles.from_pretrained(folder), expected)


@pytest.mark.parametrize(
    "wrap", [lambda average: {"ema_state_dict": average}, lambda average: {"callbacks": {"EMA": {"shadow": average}}}]
)
def test_the_moving_average_is_loaded(tmp_path: Path, caplog: pytest.LogCaptureFixture, wrap: Any) -> None:
    """Load as the published evaluation; start states and puzzle embeddings have no average."""
    arch = build_published_arch("trm")
    weights, other = draw_published_weights(arch), draw_published_weights(arch, seed=1)
    buffers = ("H_init", "L_init", "puzzle_emb.weights")
    average = {f"model.inner.{name}": weight for name, weight in other.items() if name not in buffers}
    folder = write_published(
        tmp_path / "both", file="last.ckpt", content=_wrap_lightning_checkpoint(weights, **wrap(average))
    )
    expected = write_published(tmp_path / "average", content=other | {name: weights[name] for name in buffers})
    with caplog.at_level(logging.INFO):
        model = TrmForPuzzles.from_pretrained(folder)
    assert is_equal(model, TrmForPuzzles.from_pretrained(expected))
    assert "read the moving average (EMA) of the weights in last.ckpt" in caplog.text
    del average["model.inner.lm_head.weight"]
    write_published(folder, file="last.ckpt", content=_wrap_lightning_checkpoint(weights, **wrap(average)))
    with pytest.raises(CheckpointError, match=r"the moving average in its last\.ckpt lacks 'lm_head\.weight'"):
        TrmForPuzzles.from_pretrained(folder)


def test_the_newest_step_is_loaded(tmp_path: Path) -> None:
    weights = draw_published_weights(build_published_arch("trm"), seed=2)
    expected = TrmForPuzzles.from_pretrained(write_published(tmp_path / "one", content=weights))
    folder = write_published(tmp_path / "several", file="step_900")
    write_published(folder, file="step_1000", content=weights)
    torch.save({"preds": torch.zeros(2)}, folder / "step_2000_all_preds.0")
    assert is_equal(TrmForPuzzles.from_pretrained(folder), expected)


class _Code:
    """A pickle that would run code."""

    def __reduce__(self) -> Any:
        return (pytest.fail, ("code of a checkpoint has run",))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"content": {"state_dict": {}, "hook": _Code()}},
            "step_100 cannot be read: it holds other objects than tens",
        ),
        ({"content": b"no weights"}, r"step_100 has no weights, nor an entry state_dict, model_state_dict, model"),
        (
            {"name": "recursive_reasoning.trm_singlez@TinyRecursiveReasoningModel_ACTV1"},
            "must be a model of the mod",
        ),
        ({"puzzle_emb_ndim": 16}, r"all_config\.yaml: arch\.puzzle_emb_ndim=16: must be 32"),
        ({"rms_norm_eps": 1e-6}, r"arch\.rms_norm_eps=1e-06: must be 1e-05"),
        ({"data": "data/kakuro"}, r"does not give the number of cells of a puzzle; copy dataset\.json of the data"),
        ({"H_cycles": "three"}, "its configuration: .*cycles"),
        ({"H_cycles": 0}, "its configuration: cycles=0 must be at least 1"),
    ],
)
def test_invalid_folders_are_refused_in_one_line(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    folder = write_published(tmp_path / "published", **changes)
    with pytest.raises(CheckpointError, match=f"^model.pretrained=.*published: .*{message}") as caught:
        read_config("model.pretrained", str(folder))
    assert "\n" not in str(caught.value)


def test_incompatible_weights_are_refused(tmp_path: Path) -> None:
    weights = draw_published_weights(build_published_arch("trm"))
    lacking = {name: weight for name, weight in weights.items() if name != "q_head.bias"}
    with pytest.raises(CheckpointError, match=r"its weights 'q_head\.bias' are missing"):
        TrmForPuzzles.from_pretrained(write_published(tmp_path / "lacking", content=lacking))
    hrm = {name.replace("L_level.", "H_level."): weight for name, weight in weights.items() if "level" in name}
    with pytest.raises(
        CheckpointError, match=r"contains the weights 'answer_network\..* which its model does not have"
    ):
        TrmForPuzzles.from_pretrained(write_published(tmp_path / "hrm", content=weights | hrm))
    with pytest.raises(CheckpointError, match="rotary: not a parameter of the published model"):
        TrmForPuzzles.from_pretrained(write_published(tmp_path / "more", content=weights | {"rotary": torch.ones(1)}))
    shaped = weights | {"L_level.layers.1.self_attn.o_proj.weight": torch.zeros(8, 8)}
    with pytest.raises(CheckpointError, match=r"o_proj\.weight' have the shape \(8, 8\), not \(32, 32\)"):
        TrmForPuzzles.from_pretrained(write_published(tmp_path / "shaped", content=shaped))


def test_missing_files_are_reported_in_one_line(tmp_path: Path) -> None:
    folder = write_published(tmp_path)
    config = yaml.safe_load((folder / "all_config.yaml").read_text())
    del config["arch"]["L_layers"]
    (folder / "all_config.yaml").write_text(yaml.dump(config))
    with pytest.raises(CheckpointError, match=r"all_config\.yaml lacks arch\.L_layers, which the published TRM needs"):
        read_config("checkpoint", str(folder))
    (folder / "step_100").rename(folder / "one.pt")
    torch.save({}, folder / "two.pt")
    with pytest.raises(CheckpointError, match=r"must have one file of weights, .*, but has one\.pt, two\.pt"):
        read_config("checkpoint", str(folder))
    (folder / "all_config.yaml").write_text("arch: [")
    with pytest.raises(CheckpointError, match=r"all_config\.yaml is not YAML"):
        read_config("checkpoint", str(folder))


def test_the_number_of_cells_is_inferred(tmp_path: Path) -> None:
    """Infer it from the name of the data, from weights over positions, or from `dataset.json` of the data."""
    assert TrmConfig.from_pretrained(write_published(tmp_path / "sudoku")).cells == 81
    weights = draw_published_weights(build_published_arch("trm"), symbols=6)
    assert TrmConfig.from_pretrained(write_published(tmp_path / "maze", data=MAZE, content=weights)).cells == 900
    unknown = write_published(tmp_path / "unknown", data="data/kakuro")
    assert TrmForPuzzles.from_pretrained(unknown, cells=40)(input_ids=PUZZLES[:, :40]).logits.shape == (3, 40, SYMBOLS)
    (unknown / "dataset.json").write_text(json.dumps({"seq_len": 36, "vocab_size": 11}))
    assert TrmConfig.from_pretrained(unknown).cells == 36
    changes = {"mlp_t": True, "pos_encodings": "learned", "puzzle_emb_len": 5, "data": "data/kakuro"}
    assert TrmConfig.from_pretrained(write_published(tmp_path / "positions", **changes)).cells == CELLS


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["trm", "hrm"])
def test_settings_of_the_command_line_are_applied(tmp_path: Path, kind: str) -> None:
    """Check `model.pretrained=FOLDER` in training: shapes must agree, other settings come from the command line."""
    sizes = ["hidden_size=32", "num_attention_heads=4", "intermediate_size=256"]
    layers = ["num_layers=2", "answer_layers=2"] if kind == "hrm" else []
    overrides = [f"model.{change}" for change in (*sizes, *layers, f"pretrained={write_published(tmp_path, kind)}")]
    settings = configured("trm_tiny", "model=hrm" if kind == "hrm" else "model=trm_attention", *overrides).model
    model = build_classifier(settings, SYMBOLS, {"cells": CELLS}, "puzzle")
    assert is_equal(model, TrmForPuzzles.from_pretrained(tmp_path))
    assert model.config.num_steps == 16
    settings.num_layers = 3
    with pytest.raises(ConfigError, match=r"model\.num_layers=3, but the pretrained model has 2"):
        build_classifier(settings, SYMBOLS, {"cells": CELLS}, "puzzle")


@pytest.mark.slow
def test_hrm_has_its_published_number_of_parameters() -> None:
    settings = configured("trm_sudoku_extreme", "model=hrm").model
    with torch.device("meta"):
        config = TrmConfig(answer_layers=settings.answer_layers, num_layers=settings.num_layers, prefix_length=1)
        model = TrmForPuzzles(config)
    buffers = model.prefix.weight.numel()
    assert sum(parameter.numel() for parameter in model.parameters()) - buffers == 27_275_266
    assert (settings.cycles, settings.reasoning_updates, settings.num_steps) == (2, 2, 16)
    assert config.cycle_blocks == 6 * 4 + 4


def test_a_saved_model_is_no_published_folder(tmp_path: Path) -> None:
    model = TrmForPuzzles.from_pretrained(write_published(tmp_path / "published", "hrm"))
    model.save_pretrained(tmp_path / "saved")
    assert find_published_folder(tmp_path / "published", {}) == tmp_path / "published"
    assert find_published_folder(tmp_path / "saved", {}) is None
    assert is_equal(TrmForPuzzles.from_pretrained(tmp_path / "saved"), model)
