"""GGUF files: keys and tensors, refused models, and predictions of llama.cpp against those of the model."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from adadepth import LoopedForCausalLM
from adadepth.config.export import ExportConfig
from adadepth.data.text.tokenizer import load_tokenizer
from adadepth.errors import ConfigError
from adadepth.models.looped.retrofit import retrofit
from tests.marks_support import keep_one_quick
from tests.runs_support import execute_run
from tests.toy_support import execute
from tests.unit.models.early_exit import early_exit_support
from tests.unit.models.looped import looped_support
from tests.unit.models.looped.retrofit_support import build_decoder, check_close

gguf = pytest.importorskip("gguf")
from adadepth.contrib.engines.gguf_file import GGUF_FILE, write_gguf  # noqa: E402

LOOPS: dict[str, Any] = {"core": 2, "state_norm": "fed", "num_key_value_heads": 2}
TEXT = looped_support.IDS[0].tolist()


def write(model: Any, folder: Path, **settings: Any) -> Path:
    """Write a model without a tokenizer."""
    source = folder / "no tokenizer"
    source.mkdir(exist_ok=True)
    write_gguf(model, folder, source, ExportConfig(format="gguf", **settings))
    return folder


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the keys and the tensors of a file."""
    reader = gguf.GGUFReader(folder / GGUF_FILE)
    keys = {name: field.contents() for name, field in reader.fields.items()}
    return keys, {tensor.name: tensor for tensor in reader.tensors}


def test_a_looped_model_is_stored_once_with_its_number_of_loops(tmp_path: Path) -> None:
    model = looped_support.build_looped(**LOOPS, num_loops=3)
    keys, tensors = read(write(model, tmp_path))
    sizes = {"block_count": 2, "num_loops": 3, "skip_loop_final_norm": False, "embedding_length": 32,
             "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 8,
             "rope.dimension_count": 8, "feed_forward_length": 48, "vocab_size": 53}  # fmt: skip
    assert {name: keys[f"nanbeige.{name}"] for name in sizes} == sizes
    assert keys["general.architecture"] == "nanbeige"
    assert keys["nanbeige.attention.layer_norm_rms_epsilon"] == pytest.approx(model.config.rms_norm_eps)
    assert keys["tokenizer.ggml.model"] == "none"
    assert sum(tensor.n_elements for tensor in tensors.values()) == sum(weight.numel() for weight in model.parameters())
    attention = model.model.core[1].self_attn
    for name, ours, heads in (("q", attention.q_proj, 4), ("k", attention.k_proj, 2)):
        stored = torch.from_numpy(tensors[f"blk.1.attn_{name}.weight"].data.copy())
        for head in range(heads):  # llama.cpp turns pairs of neighbours: dimension i and i + 4 become 2 i and 2 i + 1
            for pair in range(4):
                for half in range(2):
                    row = ours.weight[8 * head + 4 * half + pair]
                    assert torch.equal(stored[8 * head + 2 * pair + half], row)


@pytest.mark.parametrize(
    ("fields", "architecture"), [({"num_loops": 1}, "llama"), ({"num_loops": 2, "exit_rule": "fixed:1"}, "nanbeige")]
)
def test_the_layout_is_that_of_the_layers(fields: dict[str, Any], architecture: str, tmp_path: Path) -> None:
    keys, _ = read(write(looped_support.build_looped(**LOOPS, **fields), tmp_path))
    assert keys["general.architecture"] == architecture
    assert keys.get("nanbeige.num_loops", 1) == 1


@pytest.mark.parametrize(("weights", "worst"), [("f32", 0.0), ("f16", 2**-11), ("q8_0", 1 / 254 + 2**-11)])
def test_matrices_have_the_number_format_and_vectors_are_float32(weights: str, worst: float, tmp_path: Path) -> None:
    model = looped_support.build_looped(**LOOPS, num_loops=2)
    _, tensors = read(write(model, tmp_path, weights=weights))
    formats = {name: tensor.tensor_type.name.lower() for name, tensor in tensors.items()}
    assert {name for name, kind in formats.items() if kind == "f32"} >= {"output_norm.weight", "blk.0.ffn_norm.weight"}
    # Rows of 48 numbers are no whole blocks of 32.
    assert formats["blk.0.ffn_down.weight"] == ("f16" if weights == "q8_0" else weights)
    assert formats["token_embd.weight"] == formats["blk.1.attn_q.weight"] == weights
    stored = tensors["token_embd.weight"]
    values = torch.from_numpy(gguf.dequantize(stored.data, stored.tensor_type).copy())
    embeddings = model.model.embed_tokens.weight
    difference = (values.view_as(embeddings) - embeddings).abs() / embeddings.abs().amax(dim=1, keepdim=True)
    assert difference.max() <= worst


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        (
            lambda: looped_support.build_looped(**LOOPS),
            {"layout": "ouro"},
            "layout=ouro: export.format=gguf needs one of",
        ),
        (lambda: looped_support.build_looped(**LOOPS), {"layout": "lama"}, "(did you mean 'llama'?)"),
        (lambda: looped_support.build_looped(**LOOPS, num_loops=300), {}, "num_loops=300: 600 layers in all"),
        (lambda: looped_support.build_looped(**looped_support.HUGINN), {}, "layout=nanbeige needs"),
        (
            lambda: early_exit_support.build_early_exit(exit_rule="margin:0.5"),
            {},
            "layout=llama needs exit_rule=None or fixed:N",
        ),
        (lambda: build_variant(base="gemma2", layer_types=["full_attention"] * 4), {}, "layer_types=['full_attention'"),
        (lambda: build_variant(base="mistral", sliding_window=5), {}, "sliding_window=5: export.format=gguf needs"),
        (lambda: build_variant(base="qwen3", attention_bias=True), {}, "attention_bias=True: export.format=gguf needs"),
        (lambda: build_variant(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}), {},
         "rope_parameters.rope_type=linear: export.format=gguf needs rope_parameters.rope_type=default"),
    ],
)  # fmt: skip
def test_models_beyond_llama_cpp_are_one_line_errors(
    model: Any, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as raised:
        write(model(), tmp_path, **settings)
    assert "\n" not in str(raised.value)


def build_variant(base: str = "llama", **fields: Any) -> Any:
    """Return an early-exit model whose decoder has other settings."""
    model = early_exit_support.build_early_exit(base=base)
    for name, value in fields.items():
        setattr(model.config.base_config, name, value)
    return model


@pytest.fixture
def engine() -> Any:
    """Return the runner module that an export contains."""
    pytest.importorskip("llama_cpp")
    from adadepth.contrib.engines import run_gguf

    return run_gguf


@torch.no_grad()
def check_predictions(engine: Any, model: Any, folder: Path) -> None:
    """Check that the logits of all positions, and the most probable tokens, are those of the model."""
    loaded = engine.load(folder)
    logits = torch.tensor(engine.compute_logits(loaded, TEXT))
    ours = model(torch.tensor([TEXT])).logits[0]
    is_gemma = "gemma" in getattr(model.config.base_config, "model_type", "")  # its GELU is a table in float16
    check_close(logits, ours, 5e-3 if is_gemma else 1e-4)
    tokens = model.generate(torch.tensor([TEXT]), max_new_tokens=12, do_sample=False, eos_token_id=None)
    assert engine.generate(loaded, TEXT, 12) == tokens[0, len(TEXT) :].tolist()
    loaded.close()


@pytest.mark.parametrize("loops", keep_one_quick(3, [3, 1, 2, 4]))
def test_llama_cpp_runs_loops(loops: int, engine: Any, tmp_path: Path) -> None:
    model = looped_support.build_looped(**LOOPS, num_loops=4, exit_rule=f"fixed:{loops}")
    check_predictions(engine, model, write(model, tmp_path))


@pytest.mark.parametrize(("norm", "is_tied"), keep_one_quick(4, product(["none", "fed"], [True, False])))
def test_llama_cpp_runs_norms_and_heads_of_loops(norm: str, is_tied: bool, engine: Any, tmp_path: Path) -> None:
    model = looped_support.build_looped(**{**LOOPS, "state_norm": norm}, num_loops=3, tie_word_embeddings=is_tied)
    check_predictions(engine, model, write(model, tmp_path))


@pytest.mark.parametrize(("base", "is_tied"), keep_one_quick(5, product(early_exit_support.DECODERS, [False, True])))
def test_llama_cpp_runs_decoders(base: str, is_tied: bool, engine: Any, tmp_path: Path) -> None:
    fields: dict[str, Any] = {"num_key_value_heads": 2, "tie_word_embeddings": is_tied or base == "gemma2"}
    model = early_exit_support.build_early_exit(base=base, exit_layers=[3], exit_rule="fixed:1", **fields)
    check_predictions(engine, model, write(model, tmp_path))
    model.config.exit_rule = None
    check_predictions(engine, model, write(model, tmp_path))


@pytest.mark.parametrize("base", keep_one_quick(3, ["gemma2", "llama", "qwen3"]))
def test_llama_cpp_runs_one_loop_of_a_decoder(base: str, engine: Any, tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"sliding_window": 4, "attn_logit_softcapping": None} if base == "gemma2" else {}
    model = retrofit(build_decoder(base, **sizes), prelude=2, core=2, coda=2, num_loops=1)
    check_predictions(engine, model, write(model, tmp_path))


@pytest.mark.slow
def test_llama_cpp_runs_biases_of_llama(engine: Any, tmp_path: Path) -> None:
    model = retrofit(build_decoder("llama", attention_bias=True, mlp_bias=True), prelude=2, core=2, coda=2, num_loops=1)
    check_predictions(engine, model, write(model, tmp_path))


def test_llama_cpp_runs_scaled_positions(engine: Any, tmp_path: Path) -> None:
    scaled = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 16}  # fmt: skip
    model = early_exit_support.build_early_exit(exit_layers=[], rope_parameters=scaled)
    check_predictions(engine, model, write(model, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["f32", "q8_0"])
def test_a_trained_model_is_exported_and_answers_in_llama_cpp(weights: str, tmp_path: Path, capsys: Any) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    root = ("--config-name", "loop_tiny", "debug=default", "model.prelude=0", "model.norms=pre", "model.hidden_size=32")
    run = execute_run(tmp_path / "runs", *root, "model.num_loops=3")
    folder = tmp_path / "exported"
    export = (*root, "mode=export", f"checkpoint={run}", "export.format=gguf", f"export.folder={folder}")
    assert execute(*export, "model.exit_rule=fixed:2", f"export.weights={weights}") == 0
    assert "has no tokenizer" not in capsys.readouterr().out
    assert "rule `fixed:2`" in (folder / "README.md").read_text()
    model = LoopedForCausalLM.from_pretrained(run / "model").eval()
    tokenizer = load_tokenizer(str(run / "model"), needed=())
    engine = llama_cpp.Llama(str(folder / GGUF_FILE), n_threads=1, logits_all=True, verbose=False)
    prompt = "The function returns a list"
    tokens = engine.tokenize(prompt.encode(), add_bos=True, special=False)
    assert tokens == tokenizer(prompt)["input_ids"]
    ids = torch.tensor([tokens])
    with torch.no_grad():
        ours = model(ids, exit_rule="fixed:2").logits[0]
    engine.eval(tokens)
    check_close(torch.from_numpy(engine.scores[: len(tokens)]), ours, 1e-3 if weights == "f32" else 5e-2)
    if weights == "f32":
        answer = engine.create_completion(prompt, max_tokens=6, temperature=0.0)["choices"][0]["text"]
        written = model.generate(ids, max_new_tokens=6, do_sample=False, exit_rule="fixed:2")[0]
        assert answer.split() == tokenizer.decode(written[len(tokens) :], skip_special_tokens=True).split()
    engine.close()
