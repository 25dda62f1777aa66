"""Early-exit models against transformers' own: all layers, the first layers, and texts that leave the batch."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AlbertConfig,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    LlamaConfig,
    LlamaForCausalLM,
    Mamba2Config,
)

from adadepth import (
    EarlyExitConfig,
    EarlyExitForCausalLM,
    EarlyExitForMaskedLM,
    EarlyExitForSequenceClassification,
    EarlyExitForTokenClassification,
    add_exits,
)
from adadepth.config.choices import Pooling
from adadepth.errors import CheckpointError, ConfigError, DataError
from adadepth.models.build import build_classifier, build_language_model
from adadepth.models.early_exit.settings import EarlyExitSettings
from adadepth.models.shared.network_configuration import set_dropout
from adadepth.models.shared.network_model import split_model
from tests.marks_support import keep_one_quick, mark_mostly_slow
from tests.unit.models.early_exit.early_exit_support import (
    DECODERS,
    ENCODERS,
    IDS,
    LAYERS,
    LENGTH,
    MASK,
    PADDED,
    PIECES,
    SIZES,
    WIDTH,
    build_early_exit,
    check_close,
    draw_weights,
    get_stock,
)

LANGUAGE, TEXTS, TOKENS = EarlyExitForCausalLM, EarlyExitForSequenceClassification, EarlyExitForTokenClassification
MASKED = EarlyExitForMaskedLM
CASES = [(LANGUAGE, kind) for kind in DECODERS]
CASES += [(MASKED, kind) for kind in ENCODERS]
CASES += [(TEXTS, kind) for kind in (*ENCODERS, *DECODERS)]
CASES += [(TOKENS, kind) for kind in (*ENCODERS, *DECODERS) if kind != "olmo2"]
IDS_OF_CASES = [f"{head.__name__.removeprefix('EarlyExitFor')} {kind}" for head, kind in CASES]
QUICK = [
    *((LANGUAGE, kind) for kind in DECODERS),
    (MASKED, "bert"),
    (TEXTS, "modernbert"),
    (TEXTS, "llama"),
    (TOKENS, "bert"),
]


def compute_real_logits(logits: torch.Tensor) -> torch.Tensor:
    """Return the logits of tokens that are no padding."""
    return logits if logits.dim() == 2 else logits[MASK.bool()]


@pytest.mark.parametrize(("head", "kind"), mark_mostly_slow(CASES, lambda case: case in QUICK), ids=IDS_OF_CASES)
@torch.no_grad()
def test_full_depth_and_exits_equal_transformers_with_these_layers(head: Any, kind: str) -> None:
    model = build_early_exit(head, kind, num_labels=3)
    stock, shallow = get_stock(model), get_stock(model, layers=2)
    batch = {"input_ids": PADDED, "attention_mask": MASK}
    check_close(compute_real_logits(model(**batch).logits), compute_real_logits(stock(**batch).logits))
    check_close(
        compute_real_logits(model(**batch, exit_rule="fixed:2").logits), compute_real_logits(shallow(**batch).logits)
    )
    everything = model(**batch, run_all_steps=True, exit_rule="fixed:2")
    check_close(compute_real_logits(everything.logits), compute_real_logits(shallow(**batch).logits))


@pytest.mark.parametrize("heads", ["norm", "own", "mlp"])
@torch.no_grad()
def test_exits_use_their_configured_weights(heads: str) -> None:
    model = build_early_exit(exit_heads=heads, exit_layers=[1, 3])
    assert model.max_updates == 3
    exit, states = model.exits[1], torch.randn(5, WIDTH)
    expected = states
    if heads == "mlp":
        mlp = exit.mlp
        expected = states + mlp.down_proj(torch.nn.functional.gelu(mlp.up_proj(mlp.norm(states))))
    norm = exit.norm if heads == "norm" else exit.head.model.norm
    matrix = model.head.lm_head if heads == "norm" else exit.head.lm_head
    check_close(model.read(2, states), matrix(norm(expected)))
    check_close(model.read(3, states), model.head.lm_head(model.head.model.norm(states)))
    output = model(IDS, run_all_steps=True, exit_rule="margin:0.05", output_hidden_states=True)
    assert len(output.hidden_states) == 4
    every = torch.stack([model.read(step, output.hidden_states[step]) for step in (1, 2, 3)], dim=2)
    check_close(output.step_logits[...], every)
    check_close(output.step_logits[0, 5], every[0, 5])
    rows, tokens = torch.meshgrid(torch.arange(3), torch.arange(LENGTH), indexing="ij")
    assert len(output.exit_steps.unique()) > 1
    check_close(output.logits, every[rows, tokens, output.exit_steps - 1])


@pytest.mark.parametrize(("head", "kind"), keep_one_quick(3, [
    (TEXTS, "bert"), (TEXTS, "modernbert"), (TOKENS, "gemma2"), (TOKENS, "bert"), (LANGUAGE, "llama"),
    (LANGUAGE, "gemma2"), (TEXTS, "albert"), (TEXTS, "qwen2"), (MASKED, "electra"), (MASKED, "albert"),
]))  # fmt: skip
@torch.no_grad()
def test_leaving_the_batch_changes_no_prediction(head: Any, kind: str) -> None:
    model = build_early_exit(head, kind, num_labels=3)
    batch = {"attention_mask": MASK.repeat(4, 1)}
    batch["input_ids"] = (IDS.repeat(4, 1) + torch.arange(12).unsqueeze(1)) % 50 + 3
    batch["input_ids"] *= batch["attention_mask"]
    dense = model(**batch, run_all_steps=True, exit_rule="fixed:1")
    signal = dense.step_logits[...] if head in (LANGUAGE, MASKED) else dense.step_logits
    best = signal.float().softmax(dim=-1).topk(2, dim=-1).values
    margins = (best[..., 0] - best[..., 1]).amax(dim=-1)
    rule = f"margin:{float(margins.flatten().quantile(0.2)):.6f}"
    dense, ragged = model(**batch, run_all_steps=True, exit_rule=rule), model(**batch, exit_rule=rule)
    assert torch.equal(dense.exit_steps, ragged.exit_steps)
    assert len(dense.exit_steps[dense.exit_steps > 0].unique()) > 1
    real = batch["attention_mask"].bool()
    logits = (dense.logits, ragged.logits)
    check_close(*(logits if head is TEXTS else (part[real] for part in logits)))
    works = model.price(dense.trace), model.price(ragged.trace)
    assert works[0].adaptive == works[1].adaptive <= works[1].executed <= works[0].executed
    for row in (0, 3):  # alone
        alone = model(**{name: values[row : row + 1] for name, values in batch.items()}, exit_rule=rule)
        check_close(alone.exit_steps.flatten(), ragged.exit_steps.view(12, -1)[row] if head is not TOKENS else
             ragged.trace.updates[row][real[row]])  # fmt: skip


@torch.no_grad()
def test_macs_are_those_of_the_layers() -> None:
    """Check that a token counts the weights of its layers, and a pair of query and key twice the width."""
    model = build_early_exit(TEXTS, "bert", exit_layers=[1])
    layer = 4 * WIDTH**2 + 2 * WIDTH * 48
    work = model.price(model(PADDED, attention_mask=MASK, exit_rule="fixed:1").trace)
    lengths = MASK.sum(dim=1).double()
    per_layer = (lengths * (layer + 2 * WIDTH * lengths)).sum()
    check_close(work.adaptive, per_layer)
    check_close(work.full, LAYERS * per_layer)
    check_close(work.executed, torch.tensor(3.0 * LENGTH * (layer + 2 * WIDTH * LENGTH)))


@pytest.mark.parametrize("kind", keep_one_quick(2, ["llama", "gemma2", "smollm3"]))
@torch.no_grad()
def test_generation_equals_transformers(kind: str) -> None:
    model = build_early_exit(LANGUAGE, kind)
    stock = get_stock(model)
    mask = MASK.flip(1)
    options = {"attention_mask": mask, "max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    expected = stock.generate(IDS * mask, **options)
    assert torch.equal(model.generate(IDS * mask, **options), expected)
    assert torch.equal(model.generate(IDS * mask, **options, use_cache=False), expected)
    cached = model(IDS[:, :5], use_cache=True)
    check_close(model(IDS[:, 5:], past_key_values=cached.past_key_values).logits, stock(IDS).logits[:, 5:])
    cached = model(IDS[:, :5], use_cache=True, exit_rule="fixed:2")  # later tokens read all layers
    logits = model(IDS[:, 5:], past_key_values=cached.past_key_values, exit_rule="fixed:2").logits
    check_close(logits, model(IDS, exit_rule="fixed:2").logits[:, 5:])


@torch.no_grad()
def test_documents_in_one_row_equal_documents_alone() -> None:
    model = build_early_exit()
    documents = torch.tensor([[0] * 4 + [1] * 5]).expand(3, -1)
    logits = model(IDS, documents=documents).logits
    check_close(logits[:, :4], model(IDS[:, :4]).logits)
    check_close(logits[:, 4:], model(IDS[:, 4:]).logits)
    for options in ({"position_ids": torch.arange(LENGTH).unsqueeze(0)}, {"use_cache": True}, {"cache_policy": "all"}):
        with pytest.raises(DataError, match="documents: cannot be combined with a cache or position_ids"):
            model(IDS, documents=documents, **options)


@pytest.mark.parametrize("fields", keep_one_quick(3, [
    {"exit_heads": "own", "exit_layers": [1, 2]}, {"base": "gemma2"}, {"exit_heads": "mlp", "trains": "exits"},
    {"exit_heads": "norm", "base": "qwen3", "tie_word_embeddings": True},
]), ids=str)  # fmt: skip
@torch.no_grad()
def test_a_model_is_saved_and_loaded(fields: dict[str, Any], tmp_path: Path) -> None:
    model = build_early_exit(**fields)
    model.save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(config, EarlyExitConfig)
    assert config.base_config.to_dict() == model.config.base_config.to_dict()
    for loaded in (AutoModelForCausalLM.from_pretrained(tmp_path), LANGUAGE.from_pretrained(tmp_path)):
        for rule in ("fixed:1", "fixed:3"):
            assert torch.equal(loaded(IDS, exit_rule=rule).logits, model(IDS, exit_rule=rule).logits)
    trained = {name for name, weight in loaded.named_parameters() if weight.requires_grad}
    assert trained == {name for name, weight in model.named_parameters() if weight.requires_grad}


@pytest.mark.parametrize("fields", keep_one_quick(3, [
    {"exit_heads": "own"}, {"exit_heads": "mlp", "tie_word_embeddings": True}, {"exit_heads": "shared"},
]), ids=str)  # fmt: skip
@torch.no_grad()
def test_a_resized_model_keeps_its_predictions_and_is_saved_and_loaded(fields: dict[str, Any], tmp_path: Path) -> None:
    model = build_early_exit(**fields)
    before = model(IDS, run_all_steps=True).step_logits[...]
    assert model.resize_token_embeddings(PIECES + 5, mean_resizing=False).num_embeddings == PIECES + 5
    assert model.config.base_config.vocab_size == model.config.vocab_size == PIECES + 5
    resized = model(IDS, run_all_steps=True).step_logits[...]
    check_close(resized[..., :PIECES], before)
    assert resized.shape[-1] == PIECES + 5
    model.save_pretrained(tmp_path)
    check_close(LANGUAGE.from_pretrained(tmp_path)(IDS, run_all_steps=True).step_logits[...], resized)


@torch.no_grad()
def test_selected_hidden_states_and_tuples_have_the_fields_in_order() -> None:
    model = build_early_exit()
    output = model(IDS, output_hidden_states=[0, -1], return_dict=False)
    assert torch.equal(output[0], model(IDS).logits)
    check_close(output[1][-1], model(IDS, output_hidden_states=True).hidden_states[-1])
    assert [state is None for state in output[1]] == [False, True, True, True, False]


@pytest.mark.parametrize("fields", keep_one_quick(4, [
    {"base": "bert", "exit_heads": "own"}, {"base": "albert", "exit_heads": "norm"}, {"base": "roberta"},
    {"base": "modernbert", "exit_heads": "mlp", "trains": "exits"},
]), ids=str)  # fmt: skip
@torch.no_grad()
def test_a_model_of_masked_words_is_saved_and_loaded(fields: dict[str, Any], tmp_path: Path) -> None:
    model = build_early_exit(MASKED, **fields)
    model.save_pretrained(tmp_path)
    for auto in (AutoModelForMaskedLM, AutoModelForPreTraining):
        loaded = auto.from_pretrained(tmp_path)
        assert type(loaded) is MASKED
        for rule in ("fixed:1", "fixed:4"):
            assert torch.equal(loaded(IDS, exit_rule=rule).logits, model(IDS, exit_rule=rule).logits)


@torch.no_grad()
def test_layers_of_albert_are_repeated_groups() -> None:
    """Check six layers of two modules, each of two layers in a row, applied three times in turn."""
    sizes = {name: value for name, value in SIZES.items() if name != "num_hidden_layers"}
    base = AlbertConfig(**sizes, num_hidden_layers=6, num_hidden_groups=2, inner_group_num=2, num_labels=3)
    model = draw_weights(TEXTS(EarlyExitConfig(base_config=base, num_labels=3)))
    batch = {"input_ids": PADDED, "attention_mask": MASK}
    check_close(model(**batch).logits, get_stock(model)(**batch).logits)
    output = model(**batch, output_hidden_states=True)
    running = model.begin(batch)
    states = running.states
    check_close(states, output.hidden_states[0])
    for step, group in enumerate([0, 0, 0, 1, 1, 1], start=1):
        for layer in model.model.encoder.albert_layer_groups[group].albert_layers:
            states = layer(states, *running.inputs[0].arguments, **running.inputs[0].options)
        check_close(output.hidden_states[step], states)
    layer = 4 * WIDTH**2 + 2 * WIDTH * 48
    lengths = MASK.sum(dim=1).double()
    work = model.price(model(**batch, exit_rule="fixed:4").trace)
    check_close(work.adaptive, (4 * 2 * lengths * (layer + 2 * WIDTH * lengths)).sum())


def save_stock(kind: str, folder: Path, head: Any = LANGUAGE, **fields: Any) -> Any:
    """Save a model of transformers with random weights in a folder, and return it."""
    stock = draw_weights(build_early_exit(head, kind, **fields)._build_stock())
    stock.save_pretrained(folder)
    return stock


@pytest.mark.parametrize("kind", keep_one_quick(3, ["llama", "qwen3", "gemma2"]))
@torch.no_grad()
def test_exits_of_a_pretrained_decoder_start_as_its_head(kind: str, tmp_path: Path) -> None:
    stock = save_stock(kind, tmp_path)
    settings = EarlyExitSettings(pretrained=str(tmp_path), exit_heads="mlp", exit_layers=[2], trains="exits")
    model: Any = build_language_model(settings, PIECES)
    check_close(model(IDS).logits, stock(IDS).logits)
    states = torch.randn(4, WIDTH)
    check_close(model.read(1, states), model.read(2, states))
    model.train()
    with torch.enable_grad():
        model(IDS, labels=IDS).loss.backward()
    silent = {name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()}
    assert silent
    assert all(name.startswith("exits.") == (name not in silent) for name, _ in model.named_parameters()
               if not name.startswith("exits.0.mlp"))  # fmt: skip
    with pytest.raises(ConfigError, match=r"model.hidden_size=64 but 32 there"):
        build_language_model(EarlyExitSettings(pretrained=str(tmp_path), hidden_size=64), PIECES)
    with pytest.raises(ConfigError, match=r"it has 53 pieces, the tokenizer 60"):
        build_language_model(EarlyExitSettings(pretrained=str(tmp_path)), 60)


@pytest.mark.parametrize("tied", keep_one_quick(2, [True, False]))
@torch.no_grad()
def test_a_published_layerskip_folder_is_loaded(tied: bool, tmp_path: Path) -> None:
    """Load a plain Llama in bfloat16 with scaled rotary positions; Llama 3.2 also ties the embeddings."""
    rotary = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 32.0, "low_freq_factor": 1.0,
              "high_freq_factor": 4.0, "original_max_position_embeddings": 16}  # fmt: skip
    config = LlamaConfig(**SIZES, num_key_value_heads=2, rope_parameters=rotary, tie_word_embeddings=tied)
    draw_weights(LlamaForCausalLM(config)).to(torch.bfloat16).save_pretrained(tmp_path)
    stock = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    states = []
    for layer in stock.model.layers:
        layer.register_forward_hook(lambda module, inputs, output: states.append(output))
    expected = stock(IDS).logits
    for model in (add_exits(str(tmp_path)), build_language_model(EarlyExitSettings(pretrained=str(tmp_path)), PIECES)):
        assert model.config.exits == [1, 2, 3, 4]
        assert (model.config.exit_heads, model.config.exit_rule, len(model.exits)) == ("shared", None, 0)
        check_close(model(IDS).logits, expected)
        for number, read in enumerate(states, start=1):
            check_close(model(IDS, exit_rule=f"fixed:{number}").logits, stock.lm_head(stock.model.norm(read)))
    with pytest.raises(ConfigError, match="exit_layers"):
        add_exits(str(tmp_path), exit_layers=[5])


@pytest.mark.parametrize("kind", keep_one_quick(len(DECODERS), DECODERS))
@torch.no_grad()
def test_a_pretrained_network_keeps_its_first_layers(kind: str, tmp_path: Path) -> None:
    stock = save_stock(kind, tmp_path)
    model = add_exits(str(tmp_path), num_hidden_layers=2, exit_layers=[])
    stock.model.layers, stock.config.num_hidden_layers = stock.model.layers[:2], 2
    assert model.config.exits == [2]
    assert sum("layers.2." in name for name in model.state_dict()) == 0
    check_close(model(IDS).logits, stock(IDS).logits)
    with pytest.raises(ConfigError, match=r"model\.num_hidden_layers=5 but 4 there"):
        add_exits(str(tmp_path), num_hidden_layers=5)


@pytest.mark.parametrize("kind", keep_one_quick(3, ["bert", "roberta", "qwen2"]))
@torch.no_grad()
def test_a_pretrained_network_gets_a_classifier(kind: str, tmp_path: Path) -> None:
    stock = save_stock(kind, tmp_path, TOKENS if kind == "bert" else TEXTS, num_labels=2)
    fields = {"id2label": {0: "a", 1: "b", 2: "c"}, "label2id": {"a": 0, "b": 1, "c": 2}}
    model: Any = build_classifier(EarlyExitSettings(pretrained=str(tmp_path), exit_heads="own"), PIECES, fields)
    assert isinstance(model, TEXTS)
    assert model(IDS).logits.shape == (3, 3)
    stored = copy.deepcopy(stock.base_model).state_dict()
    for name, weight in model.model.state_dict().items():
        assert torch.equal(weight, stored[name]), name


@torch.no_grad()
def test_exits_with_mean_pooling_classify_the_mean_of_the_real_tokens() -> None:
    model = build_early_exit(TEXTS, "bert", num_labels=3, pooling="mean")
    stock = get_stock(model)
    states = stock.bert(PADDED, MASK, output_hidden_states=True).hidden_states[1:]
    logits = model(PADDED, MASK, run_all_steps=True).step_logits
    for layer, state in enumerate(states):
        for text, length in enumerate(MASK.sum(dim=1).tolist()):
            pooled = torch.tanh(stock.bert.pooler.dense(state[text, :length].mean(dim=0)))
            check_close(logits[text, layer], stock.classifier(pooled))


@torch.no_grad()
def test_a_pretrained_encoder_gets_mean_pooling(tmp_path: Path) -> None:
    save_stock("bert", tmp_path, TEXTS, num_labels=2)
    settings = EarlyExitSettings(pretrained=str(tmp_path), exit_heads="own", pooling=Pooling.mean)
    model: Any = build_classifier(settings, PIECES, {"id2label": {0: "a", 1: "b"}, "label2id": {"a": 0, "b": 1}})
    assert model.config.pooling == "mean"
    model.save_pretrained(tmp_path / "saved")
    loaded = TEXTS.from_pretrained(tmp_path / "saved")
    check_close(loaded.eval()(PADDED, MASK).logits, model.eval()(PADDED, MASK).logits)


@pytest.mark.parametrize(("head", "base"), [(TOKENS, "bert"), (TEXTS, "llama"), (LANGUAGE, "llama")])
def test_mean_pooling_of_other_models_is_refused(head: Any, base: str) -> None:
    with pytest.raises(ConfigError, match="pooling=mean: only classifiers of texts around an encoder"):
        build_early_exit(head, base, pooling="mean")


@pytest.mark.parametrize(("fields", "message"), [
    ({"base": "bart"}, "base=bart: BartForConditionalGeneration is no network of one stack with a head"),
    ({"base": "mixtral"}, "base=mixtral: mixtures of experts are not supported"),
    ({"base": "llama"}, "base=llama: transformers has no such network for EarlyExitForMaskedLM"),
    ({"base": "bert"}, "base=bert: transformers has no such network for EarlyExitForCausalLM"),
    ({"base": "lama"}, "base=lama: transformers has no such type (did you mean 'llama'?)"),
    ({"exit_layers": [5]}, "exit_layers=[5]: must be numbers of layers, from 1 to 4"),
    ({"exit_layers": [0]}, "exit_layers=[0]: must be numbers of layers, from 1 to 4"),
    ({"trains": "exits"}, "trains=exits: exit_heads=shared with 4 exits trains nothing"),
])  # fmt: skip
def test_invalid_settings_are_refused_in_one_line(fields: dict[str, Any], message: str) -> None:
    head = MASKED if fields.get("base") in ("bart", "llama") else LANGUAGE
    with pytest.raises(ConfigError) as raised:
        head(EarlyExitConfig(**{**SIZES, **fields}))
    assert str(raised.value).startswith(message)


def test_a_network_without_a_list_of_layers_is_refused() -> None:
    stock = build_early_exit(TEXTS, "albert")._build_stock()
    split_model(stock)  # removes the network
    with pytest.raises(ConfigError, match="base=albert: its network has no list of 4 layers"):
        split_model(stock)


def test_a_plain_network_is_refused_naming_the_function_that_adds_exits(tmp_path: Path) -> None:
    build_early_exit(TEXTS)._build_stock().save_pretrained(tmp_path)
    with pytest.raises(
        CheckpointError, match="type llama; EarlyExitForSequenceClassification reads early_exit"
    ) as error:
        TEXTS.from_pretrained(tmp_path)
    expected = f"add_exits({str(tmp_path)!r}, model_class={TEXTS.__name__}) adds exits to a network of transformers"
    assert str(error.value).endswith(expected)
    build_early_exit(MASKED, "bert")._build_stock().save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"', model_class=EarlyExitForMaskedLM\) adds exits"):
        MASKED.from_pretrained(tmp_path)


def test_weights_of_zero_are_refused() -> None:
    with pytest.raises(ConfigError, match="exit_weights=layerskip: must be another one"):
        EarlyExitConfig(exit_weights="layerskip", num_hidden_layers=1)


def test_a_language_model_is_exported_with_a_fixed_exit_only() -> None:
    model = build_early_exit(exit_rule="margin:0.5")
    with pytest.raises(
        ConfigError, match=r"exit_rule=margin:0.5: must be a fixed exit in torch.export, such as fixed:4"
    ):
        torch.export.export(model, (), {"input_ids": IDS})


@pytest.mark.parametrize("base", keep_one_quick(3, ["bert", "modernbert", "distilbert", "llama"]))
def test_all_dropout_has_the_configured_probability(base: str, tmp_path: Path) -> None:
    model_class = LANGUAGE if base == "llama" else TEXTS
    model = build_early_exit(model_class, base, dropout=0.3)
    assert {part.p for part in model.modules() if isinstance(part, torch.nn.Dropout)} <= {0.3}
    probabilities = {name: p for name, p in model.config.base_config.to_dict().items() if "dropout" in name}
    assert set(probabilities.values()) == {0.3}
    model.save_pretrained(tmp_path)
    loaded = model_class.from_pretrained(tmp_path).config.base_config.to_dict()
    assert loaded | probabilities == loaded


def test_dropout_of_a_network_without_dropout_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"^dropout=0.1: networks of type mamba2 have no dropout$"):
        set_dropout(Mamba2Config(), 0.1)
