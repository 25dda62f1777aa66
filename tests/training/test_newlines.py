"""Losses of pretrained decoders on running text against transformers' own decoder on blocks of the same file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM, AutoTokenizer

from adadepth import add_exits, tasks
from adadepth.config.data import CausalConfig
from adadepth.models.folder import read_config
from adadepth.models.looped.retrofit import retrofit
from adadepth.runs.directory import get_plain_settings
from adadepth.runs.inheritance import load_run_settings
from adadepth.tasks.language_model import resolve_newlines
from tests.configs.support import configured
from tests.unit.models.early_exit.early_exit_support import build_early_exit
from tests.unit.models.early_exit.layerskip_support import LAYERS, write_layerskip
from tests.unit.models.looped.looped_support import OURO, build_looped

LENGTH = 48
TEXT = (
    "\n\n".join(["don't stop the naive cat:\n  12 of 345 cats don't", "they said: stop that now!\na cat"] * 25) + "\n"
)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a small Llama with its tokenizer, as a pretrained one is stored, and a file of text beside it."""
    folder: Path = tmp_path_factory.mktemp("newlines") / "decoder"
    write_layerskip(folder)
    (folder.parent / "text.txt").write_text(TEXT)
    return folder


def compute_transformers_loss(folder: Path, text: str, end: bool) -> float:
    """Return the loss of the decoder on equal blocks of a text that begins, and may end, with the end token."""
    words, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    bound = [words.eos_token_id]
    ids = torch.tensor(bound + words(text, add_special_tokens=False)["input_ids"] + bound * end)
    nats, predicted = 0.0, 0
    for first in range(0, len(ids) - 1, LENGTH - 1):
        block = ids[None, first : first + LENGTH]
        with torch.no_grad():
            nats += model(block, labels=block).loss.item() * (block.shape[1] - 1)
        predicted += block.shape[1] - 1
    assert predicted == len(ids) - 1
    return nats / predicted


def read_run_on_text(name: str, decoder: Path, output: Path, *overrides: str) -> dict[str, Any]:
    """Run a configuration on the text beside a decoder, and return the record."""
    file = decoder.parent / "text.txt"
    tasks.run(configured(
        name, "dataset=causal_text", f"dataset.path={file}", f"dataset.evaluation_path={file}",
        f"dataset.cache_dir={decoder.parent}/cache", f"dataset.sequence_length={LENGTH}", f"output_dir={output}",
        "logger=none", "trainer.disable_tqdm=true", "trainer.use_cpu=true", *overrides,
    ))  # fmt: skip
    record: dict[str, Any] = json.loads(next(output.glob("*/*/run.json")).read_text(encoding="utf-8"))
    return record


@pytest.mark.parametrize("append_eos", [True, False])
def test_all_layers_have_the_loss_of_the_decoder(
    decoder: Path, tmp_path: Path, append_eos: bool, capsys: pytest.CaptureFixture[str], caplog: Any
) -> None:
    record = read_run_on_text(
        "exit_tiny", decoder, tmp_path, "mode=evaluate", f"checkpoint={decoder}", f"dataset.append_eos={append_eos}"
    )
    expected = compute_transformers_loss(decoder, TEXT.strip("\n"), append_eos)
    assert record["final_metrics"][f"eval/step_{LAYERS}/loss"] == pytest.approx(expected, abs=1e-5)
    assert record["data"]["keep_newlines"] is True
    layout = "newlines kept, an end token after every document;" if append_eos else "newlines kept;"
    assert f"data: causal_text, {layout}" in caplog.text + "".join(capsys.readouterr())
    lines = read_run_on_text(
        "exit_tiny",
        decoder,
        tmp_path / "lines",
        "mode=evaluate",
        f"checkpoint={decoder}",
        "dataset.keep_newlines=false",
    )
    assert abs(lines["final_metrics"][f"eval/step_{LAYERS}/loss"] - expected) > 0.01


def test_one_loop_has_the_loss_of_the_decoder(decoder: Path, tmp_path: Path) -> None:
    looped = retrofit(AutoModelForCausalLM.from_pretrained(decoder), prelude=2, core=2, coda=1, num_loops=1)
    looped.save_pretrained(tmp_path / "looped")
    AutoTokenizer.from_pretrained(decoder).save_pretrained(tmp_path / "looped")
    record = read_run_on_text(
        "loop_retrofit", decoder, tmp_path / "run", "mode=evaluate", f"checkpoint={tmp_path}/looped"
    )
    expected = compute_transformers_loss(decoder, TEXT.strip("\n"), True)
    assert record["final_metrics"]["eval/loss"] == pytest.approx(expected, abs=1e-5)


@pytest.mark.slow
def test_models_keep_the_newlines_of_their_training_text(decoder: Path, tmp_path: Path) -> None:
    """Evaluate a copy of a saved model without its run, on text as it was trained."""
    few = ("trainer.max_steps=1", "trainer.time_budget_minutes=null", "matched_baseline=false")
    expected = compute_transformers_loss(decoder, TEXT.strip("\n"), True)
    exits = ("model.exit_layers=[2]", "model.exit_heads=own", f"model.pretrained={decoder}", *few)
    for number, (keeps, changes) in enumerate({True: (), False: ("dataset.keep_newlines=false",)}.items()):
        record = read_run_on_text("exit_retrofit", decoder, tmp_path / f"{number}", *exits, *changes)
        last = record["final_metrics"]["eval/step_2/loss"]  # its base is frozen
        assert (abs(last - expected) < 1e-5) is keeps
        model = next((tmp_path / f"{number}").glob("*/*/model"))
        assert json.loads((model / "config.json").read_text())["training_data"]["keep_newlines"] is keeps
        copy = shutil.copytree(model, tmp_path / f"copy of {number}")
        again = read_run_on_text(
            "exit_tiny", decoder, tmp_path / f"again {number}", "mode=evaluate", f"checkpoint='{copy}'"
        )
        assert again["data"]["keep_newlines"] is keeps
        assert again["final_metrics"]["eval/step_2/loss"] == pytest.approx(last, abs=1e-5)


def test_newline_settings_are_kept_and_default_to_lines_for_older_models(decoder: Path, tmp_path: Path) -> None:
    shutil.copytree(decoder, tmp_path / "older")
    file = tmp_path / "older" / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "training_data": {"dataset": "causal_text"}}))
    unset, settings = CausalConfig(name="a"), (True, False)
    for weights, keeps in ((None, False), (str(decoder), True), (str(tmp_path / "older"), False)):
        assert resolve_newlines(unset, weights).keep_newlines is keeps
        for setting in settings:
            assert resolve_newlines(CausalConfig(name="a", keep_newlines=setting), weights).keep_newlines is setting


def test_older_runs_of_pretrained_decoders_read_lines(tmp_path: Path) -> None:
    config = configured("exit_retrofit", "dataset=causal_text", "dataset.path=a.txt")
    stored = get_plain_settings(config)
    for lacks, expected in ((False, None), (True, False)):
        if lacks:
            del stored["dataset"]["keep_newlines"]
        OmegaConf.save(OmegaConf.create(stored), tmp_path / "config.yaml")
        assert load_run_settings(tmp_path, "resume").dataset.keep_newlines is expected


@pytest.mark.parametrize("layout", ["llama", "ouro"])
def test_a_saved_layout_records_how_newlines_were_read(layout: str, tmp_path: Path) -> None:
    identity = {"dataset": "lines", "keep_newlines": False}
    model = build_early_exit() if layout == "llama" else build_looped(**OURO)
    model.config.training_data = identity
    model.save_pretrained(tmp_path / "written", layout=layout)
    unset = CausalConfig(name="a", keep_newlines=None)
    assert read_config("model.pretrained", str(tmp_path / "written")).training_data == identity
    assert resolve_newlines(unset, str(tmp_path / "written")).keep_newlines is False
    if layout == "llama":
        again = add_exits(str(tmp_path / "written"), exit_layers=[2])
        again.save_pretrained(tmp_path / "again", layout=layout)
        assert resolve_newlines(unset, str(tmp_path / "again")).keep_newlines is False
