"""Low-rank adapters in runs: what trains, what is saved, and which readers load it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import adadepth
from adadepth.config.experiment import LoraConfig
from adadepth.errors import ConfigError
from adadepth.runs.directory import read_record
from adadepth.training.lora import add_adapters, list_trained_modules, merge_adapters, save_adapter
from tests.marks_support import keep_one_quick
from tests.runs_support import execute_run
from tests.toy_support import execute
from tests.training.support import assert_same_end, copy_interrupted_run
from tests.unit.models.early_exit.early_exit_support import HEADS, IDS, build_early_exit, draw_weights
from tests.unit.models.every_model_support import BUILD, build_training_batch
from tests.unit.models.looped.looped_support import build_looped

peft = pytest.importorskip("peft")
TIED = {"looped tied": lambda: build_looped(tie_word_embeddings=True)}
SMALL = (
    "debug=default", "trainer.disable_tqdm=true", "trainer.max_steps=4", "trainer.eval_steps=2",
    "trainer.save_steps=2", "trainer.save_total_limit=null", "trainer.logging_steps=1",
)  # fmt: skip
LORA = ("trainer.lora.rank=2", "trainer.lora.alpha=8", "trainer.lora.dropout=0.1", "trainer.learning_rate=0.01")
SIZES = ("model.hidden_size=16", "model.num_attention_heads=2", "model.intermediate_size=32")
CASES = {
    "LoopedForCausalLM": ("loop_tiny", "model.gate=true", "model.objective=gate", *SIZES),
    "EarlyExitForCausalLM": ("exit_tiny", *SIZES),
    "RoutedForCausalLM": ("mor_tiny", *SIZES),
    "AlbertActForPreTraining": ("act_tiny", "model.embedding_size=16", *SIZES),
}
QUICK = "LoopedForCausalLM"
PARAMS = [QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in CASES if name != QUICK)]


@pytest.fixture(scope="module", params=PARAMS)
def runs(request, tmp_path_factory) -> tuple[str, tuple[str, ...], Path, Path]:
    """Return the class of a model, the command of its runs, a pretrained run, and one with adapters on it."""
    folder, command = tmp_path_factory.mktemp("lora"), ("--config-name", *CASES[request.param], *SMALL)
    base = execute_run(folder / "base", *command)
    command = (*command, f"model.pretrained={base / 'model'}", f"tokenizer.path={base / 'model'}", *LORA)
    return request.param, command, base, execute_run(folder / "adapted", *command)


def load(name: str, folder: Path):
    return getattr(adadepth, name).from_pretrained(folder).eval()


@pytest.mark.slow
def test_matrices_of_the_base_are_saved_with_their_adapters(runs):
    name, _, base, run = runs
    before, after = (load_file(folder / "model" / "model.safetensors") for folder in (base, run))
    assert before.keys() == after.keys(), "a plain checkpoint"
    changed = {name for name, weight in before.items() if not torch.equal(weight, after[name])}
    heads = load(name, base / "model").list_heads()
    is_matrix = [not any(part in name for part in ("embeddings", "norm", "Norm", "bias")) for name in changed]
    assert all(right or any(head in name for head in heads) for name, right in zip(changed, is_matrix, strict=True))
    assert any("gate" in name or "act.dense" in name for name in changed), "halting heads train"
    assert not any("embed_tokens" in name or "word_embeddings" in name for name in changed)


def test_peft_merges_the_adapter_into_the_base(runs):
    name, _, base, run = runs
    merged = peft.PeftModel.from_pretrained(load(name, base / "model"), run / "adapter").merge_and_unload()
    expected, weights = load(name, run / "model").state_dict(), merged.state_dict()
    for weight in expected:
        torch.testing.assert_close(weights[weight], expected[weight], rtol=1e-5, atol=1e-6)


def test_a_checkpoint_is_read_with_its_adapters(runs):
    name, _, _, run = runs
    last = run / "checkpoints" / (read_record(run)["best_checkpoint"] or "checkpoint-4")
    assert any(".lora_A." in name for name in load_file(last / "model.safetensors"))
    expected, weights = load(name, run / "model").state_dict(), load(name, last).state_dict()
    for weight in expected:
        torch.testing.assert_close(weights[weight], expected[weight], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_run_is_evaluated_as_it_ended_and_resumes_bit_for_bit(runs, tmp_path):
    _, command, _, run = runs
    evaluated = execute_run(tmp_path / "e", *command, "mode=evaluate", f"checkpoint={run}")
    metric = "eval/loss"
    ends = [read_record(folder)["final_metrics"][metric] for folder in (run, evaluated)]
    assert ends[0] == pytest.approx(ends[1], rel=1e-6)
    stopped = copy_interrupted_run(2, run, tmp_path)
    shutil.rmtree(stopped / "adapter")
    assert execute(f"resume={stopped}") == 0
    assert_same_end(stopped, run)
    names = ("adapter_model.safetensors", "adapter_config.json")
    assert all((stopped / "adapter" / file).read_bytes() == (run / "adapter" / file).read_bytes() for file in names[:1])


@pytest.mark.parametrize(
    "name", keep_one_quick(3, [name for name in BUILD if name not in ("mixture", "supernet", "act choices")])
)
def test_every_adapter_learns_and_merging_changes_nothing(name):
    """Check gradients: a layer that some kernel multiplied without its adapter would have none."""
    torch.manual_seed(0)
    model = BUILD[name]()
    add_adapters(model, LoraConfig(rank=2))
    with torch.no_grad():
        for weight_name, weight in model.named_parameters():
            if ".lora_" in weight_name:
                weight.normal_(std=0.1)
    torch.manual_seed(0)
    model.train()(**build_training_batch(name)).loss.backward()
    adapters = {name: weight for name, weight in model.named_parameters() if ".lora_B." in name}
    silent = [name for name, weight in adapters.items() if weight.grad is None or not weight.grad.any()]
    pooler = [name for name in silent if "pooler" in name]
    assert adapters
    assert silent == pooler, "only a pooler may be unused"

    def predict():
        torch.manual_seed(0)
        with torch.no_grad():
            return model.eval()(**build_training_batch(name)).loss

    apart = predict()
    merge_adapters(model)
    assert not any(".lora_" in name for name in model.state_dict())
    torch.testing.assert_close(predict(), apart, rtol=1e-4, atol=1e-5)


EXITS = [
    (trains, fields)
    for trains in ("all", "exits")
    for fields in (
        {"exit_heads": "shared", "exit_gate": True}, {"exit_heads": "norm"}, {"exit_heads": "own"},
        {"exit_heads": "mlp", "exit_gate": True},
    )
    if trains == "all" or fields["exit_heads"] in ("own", "mlp")
]  # fmt: skip


@pytest.mark.parametrize("head", ["words", "texts"])
@pytest.mark.parametrize(("trains", "fields"), EXITS)
def test_adapters_and_exits_learn_and_peft_loads_them_on_the_base(trains, fields, head, tmp_path):
    """Train with `trains=exits`: the adapters are those of the exits, and the network stays as it is."""
    model_class, more, labels = HEADS[head]
    stock = draw_weights(build_early_exit(model_class, **more)._build_stock())
    stock.save_pretrained(tmp_path / "base")

    def build():
        settings = {"exit_layers": [1, 3], "trains": trains, **fields}
        return adadepth.add_exits(str(tmp_path / "base"), model_class=model_class, **settings)

    def predict(model):
        with torch.no_grad():
            return model.eval()(input_ids=IDS, run_all_steps=True).step_logits[:, :]

    torch.manual_seed(0)
    model, settings = build(), LoraConfig(rank=2)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    add_adapters(model, settings)
    optimizer = torch.optim.Adam([weight for weight in model.parameters() if weight.requires_grad], 0.01)
    for _ in range(2):
        optimizer.zero_grad()
        model.train()(IDS, labels=labels).loss.backward()
        optimizer.step()
    silent = [name for name, weight in model.named_parameters() if weight.requires_grad and weight.grad is None]
    assert silent == []
    save_adapter(model, settings, tmp_path / "adapter")
    trained = predict(model)
    network = ("model.", "head.")
    assert all(
        torch.equal(weight, before[name.replace(".base_layer", "")])
        for name, weight in model.state_dict().items()
        if name.startswith("model.") and ".lora_" not in name
    )
    loaded = peft.PeftModel.from_pretrained(build(), tmp_path / "adapter")
    assert torch.equal(predict(loaded), trained)
    merge_adapters(model)
    assert model.state_dict().keys() == before.keys()
    torch.testing.assert_close(predict(model), trained, rtol=1e-4, atol=1e-5)
    assert torch.equal(predict(loaded.merge_and_unload()), predict(model))
    unchanged = {name for name, weight in model.state_dict().items() if torch.equal(weight, before[name])}
    changed = before.keys() - unchanged
    exits = {
        name for name in before if name.startswith(("exits.", "gate."))
    }  # none with the norm of BERT, which has none
    assert bool(exits & changed) is bool(exits)
    assert any(name.startswith(network) for name in changed) is (trains == "all")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (LoraConfig(rank=2, target_modules=["q_proj"]),
         r"^trainer.lora.target_modules: 'model.layers.0.self_attn.q_proj' is frozen in this model, whose other parts"),
        (LoraConfig(rank=2, modules_to_save=["lm_head"]),
         r"^trainer.lora.modules_to_save: 'head.lm_head' is frozen in this model, whose other parts are trained$"),
    ],
)  # fmt: skip
def test_modules_of_a_frozen_network_are_refused(settings, message):
    model = build_early_exit(exit_heads="own", trains="exits")
    with pytest.raises(ConfigError, match=message):
        add_adapters(model, settings)


@pytest.mark.slow
@pytest.mark.parametrize("trains", ["all", "exits"])
def test_a_run_saves_adapters_and_exits(trains, tmp_path):
    draw_weights(build_early_exit(vocab_size=300)._build_stock()).save_pretrained(tmp_path / "base")
    command = (
        "--config-name", "exit_retrofit", f"model.pretrained={tmp_path / 'base'}", "model.exit_layers=[1,3]",
        "tokenizer.path=null", "tokenizer.vocab_size=300", f"model.trains={trains}", "matched_baseline=false",
        *SMALL, *LORA,
    )  # fmt: skip
    run = execute_run(tmp_path / "runs", *command)
    options = {"exit_layers": [1, 3], "exit_heads": "own", "trains": trains}
    base = adadepth.add_exits(str(tmp_path / "base"), **options)
    merged = peft.PeftModel.from_pretrained(base, run / "adapter").merge_and_unload().state_dict()
    last = run / "checkpoints" / (read_record(run)["best_checkpoint"] or "checkpoint-4")
    for weights in (merged, load("EarlyExitForCausalLM", last).state_dict()):
        for name, weight in load("EarlyExitForCausalLM", run / "model").state_dict().items():
            torch.testing.assert_close(weights[name], weight, rtol=1e-5, atol=1e-6)
    evaluated = execute_run(tmp_path / "e", *command, "mode=evaluate", f"checkpoint={run}")
    ends = [read_record(folder)["final_metrics"]["eval/loss"] for folder in (run, evaluated)]
    assert ends[0] == pytest.approx(ends[1], rel=1e-6)
    stopped = copy_interrupted_run(2, run, tmp_path / "copy")
    shutil.rmtree(stopped / "adapter")
    assert execute(f"resume={stopped}") == 0
    assert_same_end(stopped, run)


def test_adapters_of_named_matrices_are_saved(tmp_path):
    """Check names of the settings, which fit the layers before they have adapters."""
    model, settings = BUILD["albert"](), LoraConfig(rank=2, target_modules=["query"])
    add_adapters(model, settings)
    save_adapter(model, settings, tmp_path / "adapter")
    stored = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert {name.split(".")[-3] for name in stored if ".lora_" in name} == {"query"}


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("mixture", LoraConfig(rank=2), r"^trainer.lora.rank=2: \w+ trains no matrix of its base$"),
        ("albert", LoraConfig(rank=2, target_modules=["quary"]),
         r"^trainer.lora.target_modules: the model has no 'quary' \(did you mean 'query'\?\)$"),
        ("act pretraining", LoraConfig(rank=2, target_modules=["query", "decoder"]),
         r"^trainer.lora.target_modules: 'predictions.decoder' shares its matrix with "
         r"'albert.embeddings.word_embeddings', which has no adapter; modules_to_save=\[decoder\] trains both"),
        ("looped tied", LoraConfig(rank=2, target_modules=["lm_head"]),
         r"'lm_head' shares its matrix with 'model.embed_tokens', which has no adapter"),
        ("albert", LoraConfig(rank=2, modules_to_save=["head"]),
         r"^trainer.lora.modules_to_save: the model has no 'head'"),
    ],
)  # fmt: skip
def test_target_names_without_a_match_are_refused(name, settings, message):
    with pytest.raises(ConfigError, match=message):
        add_adapters((BUILD | TIED)[name](), settings)


@pytest.mark.parametrize(
    ("name", "module"),
    [("looped tied", "lm_head"), ("looped tied", "embed_tokens"), ("act pretraining", "predictions")],
)
def test_modules_that_share_a_matrix_are_saved_together(name, module, tmp_path):
    """Check both modules: PEFT would otherwise add the adapter to a base whose other matrix is unchanged."""
    model, settings = (BUILD | TIED)[name](), LoraConfig(rank=2, modules_to_save=[module])
    model.eval().save_pretrained(tmp_path / "base")
    add_adapters(model, settings)
    with torch.no_grad():
        model.get_input_embeddings().weight.add_(1.0)
    save_adapter(model, settings, tmp_path / "adapter")
    base = type(model).from_pretrained(tmp_path / "base")
    merged = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").merge_and_unload().eval()
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        outputs = [part(input_ids=ids) for part in (model, merged)]
    fields = [getattr(output, "prediction_logits", None) for output in outputs]
    logits = [output.logits if field is None else field for output, field in zip(outputs, fields, strict=True)]
    torch.testing.assert_close(*logits)


def test_heads_that_share_a_weight_are_saved(tmp_path):
    """Check a head for masked words whose bias is also that of its matrix."""
    model, settings = BUILD["albert"](), LoraConfig(rank=2)
    add_adapters(model, settings)
    head = model.get_submodule(list_trained_modules(model, settings, [])[0])
    head.register_parameter("twin", next(head.parameters()))
    save_adapter(model, settings, tmp_path / "adapter")
    stored = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert any(name.endswith(".twin") for name in stored)


def test_a_frozen_model_is_refused():
    model = BUILD["albert"]().requires_grad_(False)
    with pytest.raises(ConfigError, match=r"^trainer.lora.rank=2: \w+ trains no matrix of a hidden layer here$"):
        add_adapters(model, LoraConfig(rank=2))


def test_an_untied_exit_head_is_added_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    model = build_early_exit(exit_heads="own", trains="exits", tie_word_embeddings=True)
    weights = [weight.data_ptr() for weight in model.get_input_embeddings().parameters()]
    add_adapters(model, LoraConfig(rank=2))
    adapted = [module for module in model.modules() if isinstance(module, peft.tuners.lora.LoraLayer)]
    assert adapted
    assert not any(layer.get_base_layer().weight.data_ptr() in weights for layer in adapted)
    assert [str(warning.message) for warning in recwarn if "tie_word_embeddings" in str(warning.message)] == []
