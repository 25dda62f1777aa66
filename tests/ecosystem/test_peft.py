"""Low-rank adapters of PEFT on the families: training, merging and loading."""

import pytest
import torch
from safetensors.torch import load_file

from adadepth import LoopedForCausalLM
from tests.ecosystem.families_under_test import CASES, build_targets
from tests.models_support import MOVING
from tests.unit.models.looped.looped_support import build_looped
from tests.unit.models.looped.plain_looped import run_plain_nanbeige
from tests.unit.models.looped.published_support import NANBEIGE, PIECES, draw_nanbeige_weights, write_folder
from tests.unit.models.routed.routed_support import build_routed

pytestmark = pytest.mark.slow
_ALBERT, _LLAMA = ("albert_layer", ["query", "value"]), ("layers", ["q_proj", "v_proj"])
# Task of PEFT, a part of the names of frozen weights, and the matrices with adapters.
ADAPTED = {
    "AlbertActForSequenceClassification": ("SEQ_CLS", *_ALBERT),
    "AlbertActForTokenClassification": ("TOKEN_CLS", *_ALBERT),
    "PonderAlbertForSequenceClassification": ("SEQ_CLS", *_ALBERT),
    "MultiExitAlbertForSequenceClassification": ("SEQ_CLS", *_ALBERT),
    "EarlyExitForCausalLM": ("CAUSAL_LM", *_LLAMA),
    "EarlyExitForSequenceClassification": ("SEQ_CLS", *_LLAMA),
    "EarlyExitForTokenClassification": ("TOKEN_CLS", *_LLAMA),
}
HEADS = [
    pytest.param(case, head, id=head.__name__) for case in CASES for head in case.models() if head.__name__ in ADAPTED
]


def add_adapters(case, head):
    peft = pytest.importorskip("peft")
    config = case.config()
    case.shape(config).initializer_range = MOVING["initializer_range"]
    torch.manual_seed(0)
    base = head(config)
    kind, _, matrices = ADAPTED[head.__name__]
    lora = peft.LoraConfig(task_type=kind, r=4, target_modules=matrices, lora_dropout=0.0)
    return base, peft.get_peft_model(base, lora), case.inputs(config)


def test_adapters_of_all_linear_layers_include_the_halting_unit_of_looped_models():
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    base = build_looped(gate=True, vocab_size=53).float()
    ids = torch.randint(3, 53, (2, 5))
    expected = base(ids, exit_rule="quantile:0.5")
    lora = peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules="all-linear")
    model = peft.get_peft_model(base, lora)
    output = model(input_ids=ids, exit_rule="quantile:0.5")
    assert torch.equal(output.logits, expected.logits)
    assert torch.equal(output.exit_steps, expected.exit_steps)
    assert any("model.gate.lora_A" in name for name, _ in model.named_parameters())


@pytest.mark.parametrize("network", ["linear", "mlp"])
def test_adapters_of_all_linear_layers_include_the_routers(network):
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    base = build_routed(vocab_size=53, router_network=network)
    lora = peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules="all-linear", init_lora_weights=False)
    model = peft.get_peft_model(base, lora).train()
    ids = torch.randint(3, 53, (2, 9))
    model(input_ids=ids, labels=ids).loss.backward()
    adapters = {name: weight for name, weight in model.named_parameters() if "router" in name and ".lora_" in name}
    assert adapters
    assert [name for name, weight in adapters.items() if weight.grad is None or not weight.grad.any()] == []


@pytest.mark.parametrize(("case", "head"), HEADS)
def test_only_adapter_and_head_learn_and_the_loss_falls(case, head):
    _, model, inputs = add_adapters(case, head)
    model.train()
    frozen = {name: weight.detach().clone() for name, weight in model.named_parameters() if not weight.requires_grad}
    assert any(ADAPTED[head.__name__][1] in name for name in frozen)
    optimizer = torch.optim.Adam([weight for weight in model.parameters() if weight.requires_grad], lr=0.01)
    losses = []
    for _ in range(20):
        torch.manual_seed(0)
        loss = model(**inputs, **build_targets(head)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss))
    assert losses[-1] < 0.9 * losses[0]
    after = dict(model.named_parameters())
    assert all(torch.equal(after[name], value) for name, value in frozen.items())
    assert any(weight.any() for name, weight in after.items() if "lora_B" in name)


@pytest.mark.parametrize(("case", "head"), HEADS)
def test_merged_and_loaded_adapters_predict_as_the_trained_one(case, head, tmp_path):
    peft = pytest.importorskip("peft")
    base, model, inputs = add_adapters(case, head)
    untrained = {name: weight.clone() for name, weight in head(base.config).state_dict().items()}
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.1)
        model.eval()
        without = model.base_model.model
        with model.disable_adapter():
            plain = model(**inputs).logits
        expected = model(**inputs).logits
    assert not torch.allclose(plain, expected)
    model.save_pretrained(tmp_path)
    # An adapter is loaded onto a base with its own weights, which the wrapped modules hold.
    weights = {name.replace(".base_layer", ""): weight for name, weight in without.state_dict().items()}
    weights = {name.replace(".modules_to_save.default", ""): weight for name, weight in weights.items()}
    fresh = head(base.config)
    fresh.load_state_dict({name: weights[name] for name in untrained})
    with torch.no_grad():
        loaded = peft.PeftModel.from_pretrained(fresh, tmp_path).eval()(**inputs).logits
        merged = model.merge_and_unload()
        assert type(merged) is head
        after = merged.eval()(**inputs).logits
    torch.testing.assert_close(loaded, expected, rtol=0, atol=0)
    torch.testing.assert_close(after, expected, rtol=1e-4, atol=1e-4)


def test_adapters_of_a_published_looped_folder_are_merged_and_written_to_its_layout(tmp_path):
    peft = pytest.importorskip("peft")
    folder = write_folder(tmp_path / "published", NANBEIGE, draw_nanbeige_weights())
    base = LoopedForCausalLM.from_pretrained(folder)
    ids = torch.randint(0, PIECES, (2, 9), generator=torch.Generator().manual_seed(0))
    before = base(ids).logits.detach()
    lora = peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj", "v_proj", "down_proj"])
    model = peft.get_peft_model(base, lora)
    optimizer = torch.optim.Adam([weight for weight in model.parameters() if weight.requires_grad], lr=0.02)
    losses = []
    for _ in range(2):
        losses.append(model(input_ids=ids, labels=ids).loss)
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[1] < losses[0]
    with torch.no_grad():
        expected = model.eval()(input_ids=ids).logits
        assert not torch.allclose(expected, before, atol=1e-2)
        merged = model.merge_and_unload()
        torch.testing.assert_close(merged(ids).logits, expected, rtol=1e-4, atol=1e-5)
        merged.save_pretrained(tmp_path / "written", layout="nanbeige")
        again = LoopedForCausalLM.from_pretrained(tmp_path / "written")
        assert torch.equal(again(ids).logits, merged(ids).logits)
    weights = load_file(tmp_path / "written" / "model.safetensors")
    published = draw_nanbeige_weights()
    assert weights.keys() == published.keys()
    changed = {name for name, weight in weights.items() if not torch.equal(weight, published[name])}
    assert changed == {name for name in published if any(part in name for part in lora.target_modules)}
    plain = torch.stack([run_plain_nanbeige(NANBEIGE, weights, text, 2).float() for text in ids])
    torch.testing.assert_close(again(ids).logits.detach(), plain, rtol=1e-4, atol=1e-4)
