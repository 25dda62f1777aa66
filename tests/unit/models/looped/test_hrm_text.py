"""HRM-Text as saved by transformers, loaded by name: results of transformers' own class, exits and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, GenerationConfig, HrmTextForCausalLM

from adadepth import LoopedConfig, LoopedForCausalLM, Pipeline, decode_texts, tasks
from adadepth.contrib.serve.answers import compute_answer
from adadepth.contrib.serve.knobs import Setting
from adadepth.contrib.serve.serve import load_served_checkpoint
from adadepth.errors import CheckpointError, ConfigError, DataError
from adadepth.models.build import build_language_model
from adadepth.models.folder import read_config
from adadepth.prediction.models import resolve_model_class
from tests.configs.support import configured
from tests.marks_support import keep_one_quick
from tests.unit.data.tokenizers_support import tokenizer
from tests.unit.models.looped.looped_support import KINDS, build_looped
from tests.unit.models.looped.published_support import HRM_TEXT as SIZES
from tests.unit.models.looped.published_support import PIECES, build_hrm_text

LENGTH = 9
IDS = torch.randint(0, PIECES, (2, LENGTH), generator=torch.Generator().manual_seed(1))
PREFIX = (torch.arange(LENGTH) < torch.tensor([[6], [3]])).long()
GREEDY = {"max_new_tokens": 7, "do_sample": False, "pad_token_id": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hrm_text")
    build_hrm_text().save_pretrained(path)
    return path


@pytest.fixture
def ours(folder: Path) -> Any:
    return LoopedForCausalLM.from_pretrained(folder)


def check_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual.double(), expected.double(), atol=1e-5, rtol=1e-5)


# ---- Results of transformers' own class


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("cycles", keep_one_quick(2, [1, 2, 3]))
def test_logits_equal_transformers(cycles: int, dtype: torch.dtype, tmp_path: Path) -> None:
    """Compare plain and left-padded ids, and ids with a prefix of bidirectional attention."""
    theirs = build_hrm_text(cycles)
    theirs.save_pretrained(tmp_path)
    theirs = theirs.to(dtype)
    ours = LoopedForCausalLM.from_pretrained(tmp_path).to(dtype)
    mask = torch.ones_like(IDS)
    mask[0, :3] = 0
    with torch.no_grad():
        check_close(ours(IDS).logits, theirs(IDS).logits)
        padded = {"attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp(min=0)}
        check_close(ours(IDS, **padded).logits[mask.bool()], theirs(IDS, **padded).logits[mask.bool()])
        prefixed = ours(IDS, token_type_ids=PREFIX).logits
        check_close(prefixed, theirs(IDS, token_type_ids=PREFIX).logits)
        assert not torch.allclose(prefixed, ours(IDS).logits, atol=1e-3)


def test_every_exit_equals_a_model_with_fewer_cycles(ours: Any) -> None:
    with torch.no_grad():
        every = ours(IDS, num_loops=3, run_all_steps=True)
        for cycles in (1, 2, 3):
            expected = build_hrm_text(cycles)(IDS).logits
            check_close(every.step_logits[:, :, cycles - 1], expected)
            check_close(ours(IDS, num_loops=cycles).logits, expected)
            check_close(ours(IDS, num_loops=3, exit_rule=f"fixed:{cycles}").logits, expected)
    assert every.trace.updates.unique().tolist() == [3]


@pytest.mark.parametrize(
    "inputs", keep_one_quick(3, [{}, {"token_type_ids": PREFIX}, {"attention_mask": (IDS[0, 0] != IDS).long()}])
)
def test_greedy_generation_equals_transformers(ours: Any, inputs: dict[str, Any]) -> None:
    expected = build_hrm_text().generate(IDS, **inputs, **GREEDY)
    assert torch.equal(ours.generate(IDS, **inputs, **GREEDY), expected)
    static = ours.generate(IDS, **inputs, **GREEDY, cache_implementation="static", disable_compile=True)
    assert torch.equal(static, expected)
    if "token_type_ids" not in inputs:  # without a cache, transformers extends the prefix
        assert torch.equal(ours.generate(IDS, **inputs, **GREEDY, use_cache=False), expected)


def test_the_cache_has_the_layers_of_transformers(ours: Any) -> None:
    theirs = build_hrm_text()
    with torch.no_grad():
        layers, expected = (model(IDS, use_cache=True).past_key_values.layers for model in (ours, theirs))
    assert len(layers) == len(expected) == theirs.config.num_hidden_layers == ours.config.num_hidden_layers == 16
    for layer, reference in zip(layers, expected, strict=True):
        check_close(layer.keys, reference.keys)
        check_close(layer.values, reference.values)


@pytest.mark.parametrize(
    ("cycles", "trained"), keep_one_quick(3, [(1, [2]), (2, [2]), (3, [1, 3]), (2, [0, 1]), (1, [3, 1])])
)
def test_gradients_reach_the_cycles_trained_by_the_published_model(
    cycles: int, trained: list[int], tmp_path: Path
) -> None:
    theirs = build_hrm_text(cycles, L_bp_cycles=trained).train()
    theirs.save_pretrained(tmp_path)
    ours = LoopedForCausalLM.from_pretrained(tmp_path).train()
    theirs(IDS, labels=IDS).loss.backward()
    ours(IDS, labels=IDS).loss.backward()
    pairs = [(ours.lm_head, theirs.lm_head), (ours.model.embed_tokens, theirs.model.embed_tokens)]
    for layers, stack in ((ours.model.low, theirs.model.L_module), (ours.model.core, theirs.model.H_module)):
        for layer, reference in zip(layers, stack.layers, strict=True):
            pairs += [
                (getattr(layer.self_attn, f"{part}_proj"), getattr(reference.self_attn, f"{part}_proj"))
                for part in ("q", "k", "v", "o", "gate")
            ]
            pairs += [(layer.mlp.down_proj, reference.mlp.down_proj), (layer.mlp.up_proj, reference.mlp.up_proj)]
    for module, expected in pairs:
        check_close(module.weight.grad, expected.weight.grad)


def test_all_cycles_have_gradients_by_default(ours: Any) -> None:
    ours.config.low_backprop = None
    ours.train()(IDS, labels=IDS).loss.backward()
    every = ours.model.low[0].mlp.up_proj.weight.grad.clone()
    ours.zero_grad()
    ours.config.low_backprop = [2]
    ours(IDS, labels=IDS).loss.backward()
    assert not torch.allclose(ours.model.low[0].mlp.up_proj.weight.grad, every, atol=1e-4)


# ---- Exits, caches and compute


@pytest.mark.parametrize("policy", keep_one_quick(2, ["frozen", "all"]))
def test_exits_are_equal_with_and_without_generate(ours: Any, policy: str) -> None:
    """Decode in shared slots one text after the other, and with the loop of transformers."""
    rule, prompts = "margin:0.2", [IDS[0].tolist(), IDS[1, :4].tolist()]
    options = {"exit_rule": rule, "cache_policy": policy, "num_loops": 3}
    alone = [ours.generate(torch.tensor([prompt]), **GREEDY, **options)[0, len(prompt) :] for prompt in prompts]
    if policy == "all":
        plain = [
            ours.generate(torch.tensor([prompt]), **GREEDY, use_cache=False, exit_rule=rule, num_loops=3)
            for prompt in prompts
        ]
        assert [row[0, len(prompt) :].tolist() for row, prompt in zip(plain, prompts, strict=True)] == [
            tokens.tolist() for tokens in alone
        ]
    ours.config.num_loops = 3
    together = decode_texts(
        ours, prompts, GenerationConfig(max_new_tokens=7), places=2, exit_rule=rule, cache_policy=policy
    )
    assert [tokens.tolist() for tokens in together.tokens] == [tokens.tolist() for tokens in alone]
    assert len({step for steps in together.exit_steps for step in steps.tolist()}) > 1


def test_macs_equal_the_counter_of_torch(folder: Path) -> None:
    """Compare with torch's counter, which counts all pairs of tokens (half of them causally masked) and the head."""
    model = LoopedForCausalLM.from_pretrained(folder, attn_implementation="eager")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        trace = model(IDS).trace
    masked = 2 * 2 * (3 + 1) * 2 * 2 * 32 * LENGTH * (LENGTH - 1) / 2  # loops, layers, cycles, rows
    prediction = model.reading_work("logits", torch.full((2 * LENGTH,), LENGTH)).sum()
    assert counter.get_total_flops() == 2 * (model.price(trace).executed + masked + prediction)


def test_hidden_states_are_the_inputs_of_the_head(ours: Any) -> None:
    with torch.no_grad():
        output = ours(IDS, run_all_steps=True, output_hidden_states=True)
        bare = ours.model(IDS, output_hidden_states=True)
    assert [state.shape for state in output.hidden_states] == 3 * [(2, LENGTH, 32)]
    check_close(ours.lm_head(output.hidden_states[1]), output.step_logits[:, :, 0])
    assert all(torch.equal(*pair) for pair in zip(output.hidden_states, bare.hidden_states, strict=True))
    assert torch.equal(output.hidden_states[0], ours.model.embed(IDS))


# ---- Folders


def test_the_configuration_counts_the_layers_of_a_stack(folder: Path) -> None:
    """Check also files without `num_layers_per_stack`, where `num_hidden_layers` has its own meaning."""
    config = LoopedConfig.from_pretrained(folder)
    assert (config.core, config.low_layers, config.low_cycles, config.num_loops) == (2, 2, 3, 2)
    assert (config.embedding_scale, config.low_backprop, config.prefix_lm) == (5.0, [2], True)
    older = {"model_type": "hrm_text", "vocab_size": PIECES, "rope_theta": 5e5, "num_key_value_heads": 4, **SIZES}
    converted = LoopedConfig.from_dict(older)
    assert (converted.core, converted.num_hidden_layers, converted.rope_theta) == (2, 16, 5e5)


def test_split_matrices_are_loaded(folder: Path, tmp_path: Path) -> None:
    """Load matrices that transformers joins in its files."""
    theirs = build_hrm_text()
    assert not load_file(folder / "model.safetensors").keys() >= theirs.state_dict().keys()
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    save_file(theirs.state_dict(), tmp_path / "model.safetensors", metadata={"format": "pt"})
    loaded, expected = (LoopedForCausalLM.from_pretrained(path).state_dict() for path in (tmp_path, folder))
    assert all(torch.equal(loaded[name], weight) for name, weight in expected.items())


def test_transformers_keeps_its_own_classes(folder: Path, caplog: Any) -> None:
    """Check that model types with a class in transformers are not registered by this package."""
    assert type(AutoModelForCausalLM.from_pretrained(folder)) is HrmTextForCausalLM
    config = read_config("checkpoint", str(folder))
    assert type(config) is LoopedConfig
    assert "model of type" not in caplog.text
    assert resolve_model_class("checkpoint", str(folder), config) is LoopedForCausalLM


def test_a_saved_model_is_in_our_format(ours: Any, tmp_path: Path) -> None:
    ours.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "looped"
    for loaded in (LoopedForCausalLM.from_pretrained(tmp_path), AutoModelForCausalLM.from_pretrained(tmp_path)):
        assert type(loaded) is LoopedForCausalLM
        with torch.no_grad():
            assert torch.equal(loaded(IDS, token_type_ids=PREFIX).logits, ours(IDS, token_type_ids=PREFIX).logits)
        assert loaded.config.low_backprop == [2]


def test_transformers_loads_the_published_layout(folder: Path, ours: Any, tmp_path: Path) -> None:
    ours.save_pretrained(tmp_path, layout="hrm_text")
    written, published_weights = (load_file(path / "model.safetensors") for path in (tmp_path, folder))
    assert written.keys() == published_weights.keys()
    assert all(torch.equal(weight, published_weights[name]) for name, weight in written.items())
    described, expected = (json.loads((path / "config.json").read_text()) for path in (tmp_path, folder))
    assert {name: described[name] for name in expected if name in described and expected[name] != described[name]} == {}
    with torch.no_grad():
        logits = HrmTextForCausalLM.from_pretrained(tmp_path).eval()(IDS, token_type_ids=PREFIX).logits
        check_close(logits, ours(IDS, token_type_ids=PREFIX).logits)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"low_layers": 1}, "low_layers=1: layout=hrm_text needs low_layers=2"),
        ({"low_layers": 2, "gate": True}, "gate=True: layout=hrm_text needs gate=False"),
        ({"low_layers": 2, "norm_weights": True}, "norm_weights=True: layout=hrm_text needs norm_weights=False"),
    ],
)
def test_a_model_without_a_published_layout_is_refused_in_one_line(
    fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    model = build_looped(**KINDS["two states"] | fields)
    with pytest.raises(ConfigError, match=message):
        model.save_pretrained(tmp_path, layout="hrm_text")
    with pytest.raises(ConfigError, match="layout=huginn needs"):
        model.save_pretrained(tmp_path, layout="huginn")


@pytest.mark.parametrize(
    ("missing", "added", "message"),
    [
        ("model.z_L_init", None, "'model.low_start' are missing"),
        ("lm_head.weight", None, "'lm_head.weight' are missing"),
        ("model.L_module.layers.1.attn.gqkv_proj.weight", None, r"'model\.low\.1\.self_attn\.gate_proj\.weight' and 3"),
        ("model.H_module.layers.0.mlp.gate_up_proj.weight", None, r"'model\.core\.0\.mlp\.gate_proj\.weight' and 1"),
        (None, "model.H_module.final_norm.weight", r"contains the weights 'model\.H_module\.final_norm\.weight'"),
    ],
)  # fmt: skip
def test_incompatible_weights_are_refused_in_one_line(
    missing: str | None, added: str | None, message: str, folder: Path, tmp_path: Path
) -> None:
    weights = load_file(folder / "model.safetensors")
    weights.pop(missing, None)  # type: ignore[call-overload]
    weights |= {} if added is None else {added: torch.ones(32)}
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=message) as raised:
        LoopedForCausalLM.from_pretrained(tmp_path)
    assert str(tmp_path) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"attention_bias": True},
        {"mlp_bias": True},
        {"attention_dropout": 0.1},
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
    ],
)
def test_an_hrm_text_with_other_arithmetic_is_refused(changes: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    described = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(described | changes))
    with pytest.raises(CheckpointError, match=f"{next(iter(changes))}=") as raised:
        LoopedForCausalLM.from_pretrained(tmp_path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("fields", "options", "error", "message"),
    [
        ({"prefix_lm": False}, {"token_type_ids": PREFIX}, ConfigError, "only models with prefix_lm=true"),
        ({"_attn_implementation": "flash_attention_2"}, {"token_type_ids": PREFIX}, ConfigError, "need one of eager"),
        ({}, {"token_type_ids": PREFIX, "documents": IDS * 0}, DataError, "documents: cannot be combined"),
    ],
)
def test_a_wrong_call_is_refused_in_one_line(
    ours: Any, fields: dict[str, Any], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    for name, value in fields.items():
        setattr(ours.config, name, value)
    with pytest.raises(error, match=message):
        ours(IDS, **options)


# ---- From the command line


@pytest.fixture(scope="module")
def with_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a tokenizer and a text file next to it."""
    path = tmp_path_factory.mktemp("published") / "model"
    words = tokenizer("roberta")
    build_hrm_text(vocab_size=len(words) + 3).save_pretrained(path)
    words.save_pretrained(path)
    (path.parent / "text.txt").write_text("\n\n".join(["don't stop the naive cat: 12 of 345 cats don't"] * 60))
    return path


@pytest.mark.slow
def test_predictions_equal_the_pipeline(with_tokenizer: Path, tmp_path: Path) -> None:
    config = configured(
        "loop_tiny", "mode=predict", f"checkpoint={with_tokenizer}", f"output_dir={tmp_path}", "new_tokens=3",
        "text=a cat", "model.exit_rule=margin:0.3",
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("adadepth.tasks.language_model.list_overridden_model_settings", lambda: ["exit_rule"])
        tasks.run(config)
    (texts,) = tmp_path.glob("*/*/texts.json")
    (text,) = json.loads(texts.read_text(encoding="utf-8"))["texts"]
    pipeline = Pipeline.from_pretrained(with_tokenizer, new_tokens=3, exit_rule="margin:0.3")
    assert type(pipeline.model) is LoopedForCausalLM
    (expected,) = pipeline(["a cat"])
    assert [token["updates"] for token in text["tokens"]] == [token.updates for token in expected.tokens]
    assert text["score"] == pytest.approx(expected.score)


@pytest.mark.parametrize(
    ("overrides", "mean"), keep_one_quick(2, [({"exit_rule": "margin:0.02"}, None), ({"num_loops": 3}, 3)])
)
def test_an_evaluation_runs_other_loops_and_exit_rules(
    with_tokenizer: Path, tmp_path: Path, overrides: dict[str, Any], mean: int | None
) -> None:
    config = configured(
        "loop_retrofit", "mode=evaluate", f"checkpoint={with_tokenizer}", "dataset=causal_text",
        f"dataset.path={with_tokenizer.parent}/text.txt", f"output_dir={tmp_path}", "logger=none",
        "trainer.disable_tqdm=true", *(f"model.{name}={value}" for name, value in overrides.items()),
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("adadepth.tasks.language_model.list_overridden_model_settings", lambda: list(overrides))
        tasks.run(config)
    record = json.loads(next(tmp_path.glob("*/*/run.json")).read_text(encoding="utf-8"))
    mean_depth = record["final_metrics"]["halting/all/mean"]
    assert 1 < mean_depth < 2 if mean is None else mean_depth == mean


@pytest.mark.slow
def test_the_page_serves_hrm_text(with_tokenizer: Path) -> None:
    served = load_served_checkpoint(configured("loop_tiny", "mode=serve", f"checkpoint={with_tokenizer}"))
    answer = compute_answer(served, "a cat", Setting())
    (expected,) = served.pipeline(["a cat"])
    assert answer.result["texts"][0]["score"] == pytest.approx(expected.score)


@pytest.mark.slow
def test_training_starts_from_hrm_text(folder: Path) -> None:
    sizes = [f"model.{name}={SIZES[name]}" for name in ("hidden_size", "num_attention_heads", "intermediate_size")]
    layers = ["model.core=2", "model.low_layers=2", "model.head_dim=8", f"model.vocab_size={PIECES}"]
    settings = configured("loop_tiny", "model=hrm_text_1b", f"model.pretrained={folder}", *sizes, *layers).model
    model = build_language_model(settings, PIECES).eval()
    assert model.config.embedding_scale == 5.0  # the value of the folder
    with torch.no_grad():
        check_close(model(IDS, token_type_ids=PREFIX).logits, build_hrm_text()(IDS, token_type_ids=PREFIX).logits)
    with pytest.raises(ConfigError, match=r"model\.low_layers=16, but the pretrained model has 2"):
        build_language_model(configured("loop_tiny", "model=hrm_text_1b", f"model.pretrained={folder}").model, PIECES)
