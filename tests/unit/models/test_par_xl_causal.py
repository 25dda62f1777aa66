"""PAR-XL as a causal language model of transformers: labels, padding, outputs, embeddings and export."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModel, DataCollatorForLanguageModeling, PreTrainedTokenizerFast, Trainer, TrainingArguments

from adadepth import ParXLModel
from adadepth.errors import ConfigError, DataError
from tests.marks_support import keep_one_quick
from tests.unit.models.par_xl_support import VOCABULARY, build_network, build_supernet, draw_words

NETWORKS = {
    "plain": lambda: build_network("sfs-"),
    "clusters": lambda: build_network("sfs-", cutoffs=[9, 20], softmax_bias=True),
    "tied": lambda: build_network("ssf", cutoffs=[9, 20], tie_word_embeddings=True),
    "clamped": lambda: build_network("sfs-", clamp_length=3, same_length=True, share_position_bias=False),
    "supernet": build_supernet,
}


@pytest.fixture(params=list(NETWORKS))
def model(request):
    return NETWORKS[request.param]()


# ---- labels


def test_labels_are_shifted_in_the_model(model):
    ids = draw_words(rows=3, length=9)
    labels = ids.clone()
    labels[0, :4], labels[2, 6:] = -100, -100
    outputs = model(ids, labels=labels)
    log_probs = model(ids).logits
    assert torch.equal(outputs.logits, log_probs)
    expected = torch.nn.functional.cross_entropy(log_probs[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    torch.testing.assert_close(outputs.loss, expected)
    assert outputs.token_losses.shape == (3 * 8 - 3 - 3,)


def test_labels_and_targets_have_the_same_loss_and_gradient(model):
    ids = draw_words(rows=3, length=9)
    targets = torch.nn.functional.pad(ids[:, 1:], (0, 1), value=-100)
    gradients = []
    for options in ({"labels": ids}, {"targets": targets}):
        model.zero_grad()
        outputs = model(ids, **options)
        outputs.loss.backward()
        gradients.append((outputs.loss, outputs.token_losses, *(weight.grad for weight in model.parameters())))
    assert outputs.logits is None, "targets need no log-probabilities of other words"
    torch.testing.assert_close(*gradients, atol=1e-6, rtol=1e-4)


def test_the_loss_of_an_update_is_divided_by_its_items():
    model, ids = build_supernet(latency_weight=0.5, operation_costs=[3.0, 2.0, 0.0]), draw_words(rows=2, length=9)
    whole = model(ids, labels=ids)
    halves = [model(row, labels=row, num_items_in_batch=torch.tensor(16)).loss for row in ids.split(1)]
    torch.testing.assert_close(sum(halves), whole.loss)


def test_shifted_labels_equal_targets(model):
    ids = draw_words()
    options = {"targets": draw_words(seed=4), "shift_labels": draw_words(seed=4), "labels": ids}
    expected = model(ids, targets=options.pop("targets")).loss
    torch.testing.assert_close(model(ids, **options).loss, expected)
    with pytest.raises(TypeError, match="got unexpected arguments: shifted_labels"):
        model(ids, shifted_labels=ids)


def test_the_loss_is_the_first_entry_of_a_tuple(model):
    """Check tuples, whose first entry is the loss with labels and the log-probabilities without."""
    ids = draw_words()
    outputs = model(ids, labels=ids)
    assert outputs[0] is outputs.loss
    assert model(ids, return_dict=False)[0].shape == (2, 12, VOCABULARY)


def test_two_kinds_of_targets_are_refused_in_one_line():
    ids = draw_words()
    with pytest.raises(DataError, match=r"^labels and targets: pass one of them; targets are labels that are already"):
        build_network()(ids, labels=ids, targets=ids)


def build_tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {"<pad>": 0, "<unk>": 1, "</s>": 2} | {f"w{number}": number for number in range(3, VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", eos_token="</s>")


def build_trainer(model, folder, **arguments):
    """Build transformers' Trainer on texts of several lengths in which every word determines the next."""
    tokenizer = build_tokenizer()
    starts, lengths = draw_words(rows=1, length=24, seed=3)[0].tolist(), [5, 9, 3, 12] * 6
    texts = [[3 + (start + 5 * t) % 37 for t in range(n)] for start, n in zip(starts, lengths, strict=True)]
    data = [{"input_ids": text} for text in texts]
    options = {"learning_rate": 1e-2, "num_train_epochs": 3, "per_device_train_batch_size": 8} | arguments
    args = TrainingArguments(str(folder), report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True, **options)
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    return Trainer(model, args, data_collator=collator, train_dataset=data, eval_dataset=data)


@pytest.mark.parametrize("network", ["clusters", "supernet"])
def test_a_stock_trainer_trains_and_evaluates(network, tmp_path):
    trainer = build_trainer(NETWORKS[network](), tmp_path)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < 0.8 * before
    predicted = trainer.predict(trainer.eval_dataset)
    assert predicted.predictions.shape == (24, 12, VOCABULARY), "nothing but the log-probabilities is collected"


def test_accumulation_of_the_stock_trainer_changes_nothing(tmp_path):
    """Train on rows with different numbers of tokens, for which a mean of means would be another loss."""
    weights = []
    for rows, steps in ((8, 1), (2, 4)):
        trainer = build_trainer(
            build_network("sfs-"), tmp_path, max_steps=3, per_device_train_batch_size=rows,
            gradient_accumulation_steps=steps, optim="sgd", learning_rate=0.1,
        )  # fmt: skip
        trainer.train()
        weights.append(trainer.model.state_dict())
    torch.testing.assert_close(*weights, atol=1e-5, rtol=1e-4)


# ---- padding


def pad_left(texts):
    width = max(len(text) for text in texts)
    ids = torch.stack([torch.nn.functional.pad(text, (width - len(text), 0)) for text in texts])
    mask = torch.stack([torch.arange(width) >= width - len(text) for text in texts]).long()
    return ids, mask


@pytest.mark.parametrize("attention", keep_one_quick(2, ["sdpa", "eager"]))
@pytest.mark.parametrize("side", keep_one_quick(2, ["left", "right"]))
def test_padding_changes_no_real_token(model, side, attention):
    model.set_attn_implementation(attention)
    texts = [draw_words(rows=1, length=length, seed=length)[0] for length in (3, 11, 1, 7)]
    ids, mask = pad_left(texts)
    if side == "right":
        ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
        mask = mask.flip(1)
    outputs = model(ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100))
    assert outputs.loss.isfinite()
    for text, logits, real in zip(texts, outputs.logits, mask, strict=True):
        torch.testing.assert_close(logits[real.bool()], model(text[None]).logits[0], atol=1e-5, rtol=1e-5)
    assert outputs.trace.execution.tokens.tolist() == [3, 11, 1, 7]
    outputs.loss.backward()
    assert all(weight.grad.isfinite().all() for weight in model.parameters() if weight.grad is not None)


def test_a_mask_of_ones_changes_nothing(model):
    ids = draw_words()
    assert torch.equal(model(ids, attention_mask=torch.ones_like(ids)).logits, model(ids).logits)


def test_padding_in_memory_is_masked():
    model = build_network("sfs-", memory_length=20)
    texts = [draw_words(rows=1, length=length, seed=length)[0] for length in (4, 9)]
    ids, mask = pad_left(texts)
    memory = model(ids[:, :6], attention_mask=mask[:, :6]).memory
    second = model(ids[:, 6:], attention_mask=mask, memory=memory).logits
    whole = model(texts[0][None]).logits[0]
    torch.testing.assert_close(second[0], whole[1:], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", [(2, 11), (2, 13), (2, 1, 12, 12)])
def test_a_mask_that_does_not_fit_is_refused_in_one_line(shape):
    with pytest.raises(
        DataError, match=rf"^attention_mask of shape \({shape[0]}, .*: must be \(rows, 12\), "
    ) as caught:
        build_network()(draw_words(), attention_mask=torch.ones(shape))
    assert "\n" not in str(caught.value)


# ---- outputs


def test_attentions_are_those_of_attention_blocks():
    model, ids = build_network("fs-s", memory_length=5, attention_probs_dropout_prob=0.5), draw_words(length=4)
    first = model(ids)
    assert first.attentions is None
    second = model(ids, memory=first.memory, output_attentions=True)
    assert len(second.attentions) == 2
    for weights in second.attentions:
        assert weights.shape == (2, 2, 4, 8)
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 4))
        assert not weights.triu(5).any(), "no key after the query"
    torch.testing.assert_close(second.logits, model(ids, memory=first.memory).logits, atol=1e-5, rtol=1e-5)


def test_hidden_states_are_returned_on_request(model):
    ids = draw_words()
    assert model(ids).hidden_states is None
    states = model(ids, output_hidden_states=True).hidden_states
    assert len(states) == model.config.num_hidden_layers + 1
    torch.testing.assert_close(model.head.log_probs(states[-1]), model(ids).logits)


def test_embeddings_replace_ids(model):
    ids = draw_words()
    assert torch.equal(model(inputs_embeds=model.get_input_embeddings()(ids)).logits, model(ids).logits)
    for inputs in ({}, {"input_ids": ids, "inputs_embeds": torch.zeros(2, 12, 16)}):
        with pytest.raises(DataError, match=r"^input_ids, inputs_embeds: give exactly one of them$"):
            model(**inputs)


def test_log_probabilities_of_the_last_positions_are_computed_alone(model):
    ids = draw_words()
    whole = model(ids).logits
    torch.testing.assert_close(model(ids, logits_to_keep=2).logits, whole[:, -2:])
    torch.testing.assert_close(model(ids, logits_to_keep=torch.tensor([0, 5])).logits, whole[:, [0, 5]])


def test_the_inner_model_is_a_model(tmp_path):
    model, ids = build_network("sfs-"), draw_words()
    model.save_pretrained(tmp_path)
    inner = AutoModel.from_pretrained(tmp_path)
    assert type(inner) is ParXLModel is type(model.base_model)
    assert torch.equal(inner(ids).last_hidden_state, model.model(ids).last_hidden_state)
    inner.save_pretrained(tmp_path / "inner")
    assert ParXLModel.from_pretrained(tmp_path / "inner").dtype == torch.float32
    torch.manual_seed(0)
    assert ParXLModel(model.config).position_bias_u.std() > 0.1, "a model without a head initialises its weights"
    with pytest.raises(ConfigError, match=r"^architecture=None: ParXLModel needs a fixed architecture; ParXLSupernet"):
        build_supernet().model(ids)


def test_gradient_checkpointing_changes_no_gradient(model):
    """Compare gradients, also through a memory and those of the gates."""
    ids, gradients = draw_words(), []
    memory = model(ids).memory
    for checkpoints in (False, True):
        model.train()
        if checkpoints:
            model.activation_checkpointing_enable()
        model.zero_grad()
        model(ids, memory=memory, targets=ids).loss.backward()
        gradients.append([weight.grad.clone() for weight in model.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))


# ---- vocabulary


def test_a_plain_softmax_is_resized():
    model, ids = build_network("sfs-", softmax_bias=True), draw_words()
    before = model(ids).logits.detach()
    assert model.resize_token_embeddings(45) is model.get_input_embeddings()
    assert (model.config.vocab_size, model.get_input_embeddings().num_embeddings) == (45, 45)
    assert model.get_output_embeddings().weight.shape == (45, 16)
    after = model(torch.full_like(ids, 44)).logits
    assert after.shape == (2, 12, 45)
    torch.testing.assert_close(after.exp().sum(-1), torch.ones(2, 12))
    old = model(ids).logits.detach()[..., :40].log_softmax(-1)
    torch.testing.assert_close(old, before, atol=1e-5, rtol=1e-5)
    model(ids, labels=ids).loss.backward()
    model.resize_token_embeddings(40)
    torch.testing.assert_close(model(ids).logits, before, atol=1e-5, rtol=1e-5)
    model.resize_token_embeddings(pad_to_multiple_of=16)
    assert model.config.vocab_size == 48


@pytest.mark.parametrize("tied", [False, True])
def test_the_last_cluster_grows_and_shrinks(tied, tmp_path):
    model, ids = build_network("sfs-", cutoffs=[9, 20], tie_word_embeddings=tied, softmax_bias=True), draw_words()
    before = model(ids).logits.detach()
    model.resize_token_embeddings(43)
    after = model(torch.full_like(ids, 42)).logits
    torch.testing.assert_close(after.exp().sum(-1), torch.ones(2, 12))
    torch.testing.assert_close(model(ids).logits[..., :20], before[..., :20], atol=1e-5, rtol=1e-5)
    targets = torch.full_like(ids, 42)
    torch.testing.assert_close(model(targets, targets=targets).token_losses, -after[..., 42].flatten())
    if tied:
        assert model.model.embedding.tables[2].weight is model.head.tables[2].weight
    model.save_pretrained(tmp_path)
    assert torch.equal(type(model).from_pretrained(tmp_path)(targets).logits, after)
    model.resize_token_embeddings(21)
    assert model(ids.clamp(max=20)).logits.shape == (2, 12, 21)
    with pytest.raises(ConfigError, match=r"^new_num_tokens=20: must be above 20, the start of the last cluster"):
        model.resize_token_embeddings(20)


def test_input_embeddings_are_replaced():
    model, ids = build_network("sf"), draw_words()
    table, matrix = torch.nn.Embedding(50, 16), torch.nn.Linear(16, 50, bias=False)
    model.set_input_embeddings(table)
    model.set_output_embeddings(matrix)
    assert model.get_input_embeddings() is table
    assert model.get_output_embeddings() is matrix
    assert model(ids + 9).logits.shape == (2, 12, 50)
    assert model(ids, targets=ids + 9).loss.isfinite()
    clustered = build_network("sf", cutoffs=[9, 20], tie_word_embeddings=True)
    assert clustered.get_output_embeddings() is None
    with pytest.raises(ConfigError, match=r"^cutoffs=\[9, 20\]: tied embeddings have no single table to replace$"):
        clustered.set_input_embeddings(table)
    with pytest.raises(
        ConfigError,
        match=r"^cutoffs=\[9, 20\]: clustered embeddings have no "
        r"single matrix to replace$",
    ):
        clustered.set_output_embeddings(matrix)


# ---- export


@pytest.mark.slow
@pytest.mark.parametrize("remembers", [False, True])
def test_an_exported_network_equals_the_eager_one(remembers):
    """Export for any number of rows, with the memory as an input or without."""
    model = build_network("sfs-", cutoffs=[9, 20])

    def build_inputs(rows, seed):
        first, second = draw_words(rows, 5, seed), draw_words(rows, 6, seed + 1)
        return {"input_ids": second, "memory": model(first).memory} if remembers else {"input_ids": second}

    rows = torch.export.Dim("rows", min=2, max=64)
    shapes = {"input_ids": {0: rows}, "memory": {1: rows}} if remembers else {"input_ids": {0: rows}}
    program = torch.export.export(model, (), build_inputs(3, seed=0), dynamic_shapes=shapes, strict=False)
    other = build_inputs(5, seed=7)
    exported, eager = program.module()(**other), model(**other)
    torch.testing.assert_close(exported.logits, eager.logits, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(exported.memory, eager.memory)
    assert exported.trace.operations.weights.equal(eager.trace.operations.weights)
