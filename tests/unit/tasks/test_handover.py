"""Hand-over of an export: check.py agrees with the exported files and fails where they were changed."""

from __future__ import annotations

import copy
import json
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from adadepth import (
    LoopedForSequenceClassification,
    LoopedForTokenClassification,
    Pipeline,
    TrmConfig,
    TrmForPuzzles,
    tasks,
)
from adadepth.config import export
from adadepth.config.export import ExportConfig, ExportFormat
from adadepth.data.puzzles.dataset import build_puzzle_tokenizer
from adadepth.tasks import handover
from tests.configs.support import configured
from tests.scripts_support import load_script
from tests.sources_support import PACKAGE
from tests.unit.data.tokenizers_support import tokenizer
from tests.unit.models.looped.looped_support import build_looped

PLAIN = {"num_loops": 1, "prelude": 1, "core": 2, "coda": 1, "num_key_value_heads": 2}
SCRIPTS = PACKAGE / "tasks" / "handover_files"


def save_model(folder: Path, **fields: Any) -> Path:
    """Write a run with a small Llama of ours and a tokenizer of bytes."""
    words = tokenizer("roberta")
    model = build_looped(**{**PLAIN, "vocab_size": len(words), "bos_token_id": 0, "eos_token_id": 2, **fields})
    model.save_pretrained(folder / "model")
    words.save_pretrained(folder / "model")
    return folder


def export_model(run: Path, folder: Path) -> Path:
    arguments = ("mode=export", f"checkpoint={run}/model", "export.layout=llama", f"export.folder={folder}")
    tasks.run(configured("loop_tiny", *arguments))
    return folder


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a small model that was exported as a Llama."""
    folder = tmp_path_factory.mktemp("llama")
    return export_model(save_model(folder), folder / "written")


def read_checks(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "check.json").read_text(encoding="utf-8"))


def run_check(folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Run check.py of a folder in this process, and return its exit status and last line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setattr(sys, "argv", ["check.py", *arguments])
        patch.delitem(sys.modules, "engine", raising=False)
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(folder / "check.py"), run_name="__main__")
        sys.modules.pop("engine", None)
    return int(ended.value.code or 0), capsys.readouterr().out.splitlines()[-1]


def test_the_answers_are_those_of_transformers(llama: Path) -> None:
    model = LlamaForCausalLM.from_pretrained(llama).eval()
    content = read_checks(llama)
    assert (content["weights"], content["task"], len(content["inputs"])) == ("float32", "language", 10)
    for entry in content["inputs"]:
        ids = torch.tensor([entry["token_ids"]])
        with torch.no_grad():
            loss = model(ids, labels=ids).loss
            written = model.generate(ids, max_new_tokens=16, do_sample=False)[0, ids.shape[1] :].tolist()
        assert entry["log_probability"] == pytest.approx(-float(loss), abs=1e-5)
        expected = entry["continuation"]["token_ids"]
        assert written[: len(expected)] == expected
        assert len(expected) == 16 or written[len(expected)] == 2
        assert entry["continuation"]["certain"] > 0
    assert len({tuple(entry["continuation"]["token_ids"]) for entry in content["inputs"]}) > 3


def test_a_check_agrees(llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, line = run_check(llama, capsys)
    assert status == 0
    assert line.startswith("10 of 10 inputs agree; largest difference of log probabilities ")
    assert float(line.split()[-1]) < 1e-5


def test_a_changed_weight_fails_the_check(llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(llama, tmp_path, dirs_exist_ok=True)
    weights = load_file(llama / "model.safetensors")
    weights["model.layers.2.mlp.down_proj.weight"][3, 5] += 1.0
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    status, line = run_check(tmp_path, capsys)
    assert status == 1
    assert not line.startswith("10 of 10")


@pytest.mark.slow
def test_check_is_a_script(llama: Path) -> None:
    process = subprocess.run([sys.executable, llama / "check.py"], capture_output=True, text=True, cwd="/", timeout=300)
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines()[-1].startswith("10 of 10 inputs agree")


def test_a_model_without_a_tokenizer_has_no_check(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    build_looped(**PLAIN).save_pretrained(tmp_path / "model")
    folder = export_model(tmp_path, tmp_path / "written")
    assert "check.json is left out: it needs a tokenizer" in caplog.text
    assert not (folder / "check.py").exists()
    assert "### Check" not in (folder / "README.md").read_text()


def test_a_layout_that_transformers_does_not_know_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "a_layout"}')
    engine = load_script("adadepth/tasks/handover_files/run_transformers.py", monkeypatch)
    with pytest.raises(SystemExit, match=r"does not know the layout a_layout; .* check\.py --url"):
        engine.load(tmp_path)


# ---- servers


@contextmanager
def serve(checks: dict[str, Any], *, takes_ids: bool = True, is_wrong: bool = False) -> Iterator[tuple[str, list[Any]]]:
    """Serve the answers of check.json as a server of completions does; yield its address and the requests."""
    requests: list[Any] = []
    answers = {str(entry["token_ids"]): entry["continuation"]["text"] for entry in checks["inputs"]}
    answers |= {entry["text"]: entry["continuation"]["text"] for entry in checks["inputs"]}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(200, {"data": [{"id": "a-model"}]})

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            requests.append(request)
            if isinstance(request["prompt"], list) and not takes_ids:
                self.answer(422, {"error": "prompt: must be a string"})
            else:
                text = "Z" * 9 if is_wrong else f" {answers[str(request['prompt'])]}"
                self.answer(200, {"choices": [{"text": text}]})

        def answer(self, status: int, content: Any) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(content).encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", requests
    finally:
        server.shutdown()
        server.server_close()


def ask(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run check.py with the standard library alone."""
    command = [sys.executable, "-S", "-E", str(folder / "check.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_server_is_asked_for_completions(llama: Path) -> None:
    checks = read_checks(llama)
    with serve(checks) as (url, requests):
        process = ask(llama, "--url", url)
    compared = sum(entry["continuation"]["certain"] for entry in checks["inputs"])
    last = f"10 of 10 inputs agree; {compared} tokens compared"
    assert (process.returncode, process.stdout.splitlines()[-1]) == (0, last)
    assert [request["prompt"] for request in requests] == [entry["token_ids"] for entry in checks["inputs"]]
    assert {(request["model"], request["temperature"]) for request in requests} == {("a-model", 0)}
    with serve(checks, is_wrong=True) as (url, _):
        process = ask(llama, "--url", url, "--model", "another")
    assert (process.returncode, process.stdout.splitlines()[-1]) == (1, last.replace("10 of", "0 of"))
    process = ask(llama, "--url", url)
    assert process.returncode == 2
    assert process.stderr.count("\n") == 1


def test_a_server_that_takes_no_token_ids_gets_texts(llama: Path) -> None:
    with serve(read_checks(llama), takes_ids=False) as (url, requests):
        refused = ask(llama, "--url", url)
        process = ask(llama, "--url", url, "--text")
    assert refused.returncode == 2
    assert "422" in refused.stderr
    assert "add --text" in refused.stderr
    assert process.returncode == 0
    assert process.stdout.splitlines()[-1].startswith("10 of 10 inputs agree")
    assert all(isinstance(request["prompt"], str) for request in requests[1:])


# ---- classifiers, taggers and puzzles

ENGINE = """
import torch
from adadepth import Pipeline
def load(folder):
    return Pipeline.from_pretrained(folder / "model").model
def compute_logits(model, token_ids):
    logits = model(torch.tensor([token_ids])).logits[0].tolist()
    return logits if isinstance(logits[0], list) else [logits]
"""


@pytest.fixture
def format_with_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return a file format whose engine is adadepth."""
    (tmp_path / "an_engine.py").write_text(ENGINE)

    def write(model: Any, folder: Path, source: Path, settings: ExportConfig) -> None:
        model.save_pretrained(folder / "model")
        tokenizer("bert").save_pretrained(folder / "model")

    monkeypatch.setitem(
        export._FORMATS, "ours", ExportFormat(lambda: write, engine=tmp_path / "an_engine.py", use="A.")
    )
    export.export_formats.cache_clear()
    yield "ours"
    export.export_formats.cache_clear()


@pytest.mark.parametrize("model_class", [LoopedForSequenceClassification, LoopedForTokenClassification])
def test_check_agrees_for_a_classifier(
    model_class: Any, format_with_engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = tokenizer("bert")
    fields = {"vocab_size": len(words), "pad_token_id": words.pad_token_id, "id2label": {0: "no", 1: "yes", 2: "maybe"}}
    model = build_looped(model_class, **PLAIN, **fields, exit_rule="fixed:1")
    model.save_pretrained(tmp_path / "model")
    words.save_pretrained(tmp_path / "model")
    arguments = (
        f"checkpoint={tmp_path}/model",
        f"export.format={format_with_engine}",
        f"export.folder={tmp_path}/w",
    )
    tasks.run(configured("loop_hops", "mode=export", *arguments))
    folder = tmp_path / "w"
    content = read_checks(folder)
    predictions = Pipeline.from_pretrained(folder / "model")(list(handover.PROMPTS))
    for entry, prediction in zip(content["inputs"], predictions, strict=True):
        assert entry["depth"] == prediction.updates == 1
        if content["task"] == "text":
            assert (entry["label"], len(entry["logits"])) == (prediction.label, 3)
        else:
            pieces = [token.label for token in prediction.tokens if token.label is not None]
            assert [
                label for label, token in zip(entry["labels"], prediction.tokens, strict=True) if token.label
            ] == pieces
    assert run_check(folder, capsys)[0] == 0
    card = (folder / "README.md").read_text()
    assert "The files have the format `ours`" in card
    assert "python check.py  " in card
    assert "\n\n\n" not in card
    assert not any(part in card for part in ("--url", "vllm", "from_pretrained"))
    first = content["inputs"][0]
    if content["task"] == "text":
        first["logits"][0] += 0.01
    else:
        first["classes"][1] = (first["classes"][1] + 1) % 3
        first["ties"] = []
    (folder / "check.json").write_text(json.dumps(content))
    assert run_check(folder, capsys)[0] == 1


def test_the_tolerance_of_other_number_formats_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Round weights to a thousandth of the largest one; a row that is changed afterwards is found."""
    (tmp_path / "an_engine.py").write_text(ENGINE)

    def write(model: Any, folder: Path, source: Path, settings: ExportConfig) -> None:
        model = copy.deepcopy(model)
        for weight in model.parameters():
            scale = weight.detach().abs().max() / 1000
            weight.data = (weight.data / scale).round() * scale
        model.save_pretrained(folder / "model")
        tokenizer("bert").save_pretrained(folder / "model")

    entry = ExportFormat(lambda: write, weights=("int11",), engine=tmp_path / "an_engine.py", use="A.")
    monkeypatch.setitem(export._FORMATS, "ours", entry)
    export.export_formats.cache_clear()
    words = tokenizer("bert")
    model = build_looped(LoopedForTokenClassification, **PLAIN, vocab_size=len(words), pad_token_id=words.pad_token_id)
    model.save_pretrained(tmp_path / "model")
    words.save_pretrained(tmp_path / "model")
    arguments = (f"checkpoint={tmp_path}/model", "export.format=ours", f"export.folder={tmp_path}/w")
    tasks.run(configured("loop_hops", "mode=export", *arguments))
    export.export_formats.cache_clear()
    folder = tmp_path / "w"
    content = read_checks(folder)
    written = Pipeline.from_pretrained(folder / "model").model
    differences = []
    for entry in content["inputs"]:
        ids = torch.tensor([entry["token_ids"]])
        with torch.no_grad():
            pairs = [network(ids).logits[0].softmax(dim=-1) for network in (model.eval(), written)]
        classes = torch.tensor(entry["classes"])[:, None]
        differences.append(float((pairs[0] - pairs[1]).gather(1, classes).abs().max()))
    assert content["tolerance"] == pytest.approx(max(1e-3, 3 * max(differences)), rel=0.02)
    assert content["tolerance"] < 0.05
    assert run_check(folder, capsys)[0] == 0
    weights = load_file(folder / "model" / "model.safetensors")
    name = next(name for name in weights if name.endswith("down_proj.weight"))
    weights[name][3] *= -1
    save_file(weights, folder / "model" / "model.safetensors", metadata={"format": "pt"})
    assert run_check(folder, capsys)[0] == 1


# ---- facts for the model card


def write_run(folder: Path, **files: Any) -> None:
    """Write the record of a run whose exit rule was fitted to a budget."""
    (folder / "run.json").write_text('{"status": "finished"}')
    (folder / "config.yaml").write_text("name: a\ndataset: {name: causal_python_docs}\n")
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


def test_a_card_has_the_measurements_of_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    histogram = {"n": 8, "mean": 1.75, "histogram": [0, 2, 6]}
    rows = [
        {"target": None, "fit": None, "rule": "margin:0.5", "mean": 2.0},
        {"target": 1.5, "fit": {"level": 0.25}, "rule": "margin:0.25", "mean": 1.52},
    ]
    budgets = {"unit": "updates", "set": "held_out", "fitted_on": 1000, "measured_on": 1001, "rows": rows}
    write_run(tmp_path, halting={"unit": "token", "classes": {"all": histogram}}, budgets=budgets)
    stored = build_looped(core=2, num_loops=2, exit_rule="margin:0.25")
    stored.config.training_data = {"dataset": "causal_python_docs", "keep_newlines": False}
    monkeypatch.setattr(handover, "run_of_checkpoint", lambda _: tmp_path)
    config = configured("loop_tiny", "mode=export", "checkpoint=x", "export.layout=ouro", "export.folder=y")
    facts = dict(handover.describe_export(config, stored, "margin:0.25", [{"input_ids": [3, 1, 4]}]))
    text = (
        "`margin:0.25` was fitted to 1.5 updates on 1,000 sequences of causal_python_docs (held_out); 1,001 others have"
    )
    assert facts == {
        "number format of the weights": "float32",
        "cache of keys and values": "256 numbers a token, 512 bytes in 16 bits",
        "text of the training": "as lines, without newlines (`dataset.keep_newlines=false`)",
        "calibration of the exit rule": f"{text} 1.52 updates",
        "updates of a token in the evaluation of the run with the exit rule `margin:0.25`": "1: 25.0%, 2: 75.0%",
    }
    fixed = build_looped(core=2, num_loops=2, exit_rule="fixed:1")
    assert "calibration of the exit rule" not in dict(handover.describe_export(config, fixed, "margin:0.25", []))


def test_a_rule_that_an_evaluation_recommended_names_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    advice = {"rule": {"rule": "margin:0.25"}, "chosen_on": 50}
    write_run(tmp_path, exit_rules={"sets": {"held_out": {"advice": {}}, "beyond": {"advice": advice}}})
    monkeypatch.setattr(handover, "run_of_checkpoint", lambda _: tmp_path)
    config = configured("loop_tiny", "mode=export", "checkpoint=x", "export.layout=ouro", "export.folder=y")
    model = build_looped(core=2, num_loops=2, exit_rule="margin:0.25")
    facts = dict(handover.describe_export(config, model, "margin:0.25", []))
    expected = "`margin:0.25` was chosen on 50 examples of causal_python_docs (beyond)"
    assert facts["calibration of the exit rule"] == expected


def test_inputs_are_those_of_the_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = tokenizer("roberta")
    texts = [words.convert_ids_to_tokens([5, 6, 7 + number % 3]) for number in range(20)]
    write_run(tmp_path)
    lines = "".join(json.dumps({"rule": "first", "tokens": tokens}) + "\n" for tokens in texts)
    (tmp_path / "sentences.jsonl").write_text(lines)
    monkeypatch.setattr(handover, "run_of_checkpoint", lambda _: tmp_path)
    config = configured("loop_tiny", "mode=export", "checkpoint=x", "export.layout=ouro", "export.folder=y")
    model = build_looped(**PLAIN, vocab_size=len(words))
    inputs = handover.collect_inputs(config, model, words, "x")
    recorded = [words(words.decode([5, 6, 7 + number]))["input_ids"] for number in range(3)]
    assert inputs[:3] == [{"input_ids": ids} for ids in recorded]
    assert len(inputs) == 10  # with fixed texts
    (tmp_path / "sentences.jsonl").unlink()
    assert handover.collect_inputs(config, model, words, "x")[:7] == inputs[3:]


def test_measured_depths_are_those_of_the_rule_in_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {"num_loops": 2, "core": 2, "norms": "branch", "state_norm": "fed", "gate": True}
    save_model(tmp_path, **fields, prelude=0, coda=0, exit_rule="margin:0.25")
    histogram = {"n": 8, "histogram": [0, 2, 6]}
    (tmp_path / "run").mkdir()
    monkeypatch.setattr(handover, "run_of_checkpoint", lambda _: tmp_path / "run")
    write_run(tmp_path / "run", halting={"unit": "token", "classes": {"all": histogram}})
    monkeypatch.setattr("adadepth.tasks.export.list_overridden_model_settings", lambda: ["exit_rule"])
    arguments = (f"checkpoint={tmp_path}/model", "export.layout=ouro", f"export.folder={tmp_path}/w")
    tasks.run(configured("loop_tiny", "mode=export", *arguments, "model.exit_rule=fixed:1"))
    card = (tmp_path / "w" / "README.md").read_text()
    assert (
        "| updates of a token in the evaluation of the run with the exit rule `margin:0.25` | 1: 25.0%, 2: 75" in card
    )
    assert "The depth is decided by the exit rule `fixed:1`." in card
    assert read_checks(tmp_path / "w")["exit_rule"] == "fixed:1"


def test_demos_have_inputs_of_their_data() -> None:
    """Draw hops for demos: their runs have no example sentences."""
    config = configured("act_hops", "mode=export", "checkpoint=demo:hops", "export.layout=x", "export.folder=y")
    pipeline = Pipeline.from_pretrained("demo:hops")
    inputs = handover.collect_inputs(config, pipeline.model, pipeline.tokenizer, "demo:hops")
    assert len(inputs) == 10
    assert {len(example["input_ids"]) for example in inputs} == {len(inputs[0]["input_ids"])}
    assert {tuple(example) for example in inputs} == {("input_ids",)}


def test_the_cells_of_a_maze_have_rows_and_columns() -> None:
    config = configured("act_maze", "mode=export", "checkpoint=demo:maze", "export.layout=x", "export.folder=y")
    pipeline = Pipeline.from_pretrained("demo:maze")
    inputs = handover.collect_inputs(config, pipeline.model, pipeline.tokenizer, "demo:maze")
    assert len(inputs) == 10
    for example in inputs:
        rows, columns = (np.array(example[name]).reshape(8, 8) for name in ("position_ids", "token_type_ids"))
        assert np.array_equal(rows - rows[0, 0], np.indices((8, 8))[0])
        assert np.array_equal(columns - columns[0, 0], np.indices((8, 8))[1])
    assert len({(example["position_ids"][0], example["token_type_ids"][0]) for example in inputs}) > 3
    entry = handover._label_tokens(pipeline.model, pipeline.tokenizer, inputs[0], 0.0)
    tensors = {name: torch.tensor([values]) for name, values in inputs[0].items()}
    with torch.no_grad():
        probabilities = pipeline.model(**tensors).logits[0].softmax(dim=-1)
        exchanged = tensors | {"position_ids": tensors["token_type_ids"], "token_type_ids": tensors["position_ids"]}
        elsewhere = pipeline.model(**exchanged).logits[0].softmax(dim=-1)
    assert entry["probabilities"] == pytest.approx(probabilities.amax(dim=-1).tolist())
    assert not torch.allclose(elsewhere, probabilities, atol=0.1)


def test_a_puzzle_has_a_grid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(2)
    model = TrmForPuzzles(
        TrmConfig(cells=16, vocab_size=6, hidden_size=16, intermediate_size=32, num_attention_heads=2)
    )
    words = build_puzzle_tokenizer(".1234")
    puzzle = [1, 2, 3, 4, 5] * 3 + [1]
    handover.write_checks(tmp_path, model.eval(), words, [{"input_ids": puzzle}], ExportConfig(layout="x"))
    (entry,) = read_checks(tmp_path)["inputs"]
    with torch.no_grad():
        answer = model(torch.tensor([puzzle])).logits[0].argmax(-1).tolist()
    assert entry["classes"] == answer
    assert " ".join(entry["grid"]).split() == words.convert_ids_to_tokens(answer)
    assert len(entry["grid"]) == 4


def test_the_scripts_need_nothing_of_this_package() -> None:
    for script in SCRIPTS.glob("*.py"):
        imports = [line for line in script.read_text().splitlines() if line.startswith(("import ", "from "))]
        assert not any("adadepth" in line for line in imports)
    importing = [path for path in PACKAGE.rglob("*.py") if "import handover_files" in path.read_text(encoding="utf-8")]
    assert importing == []
