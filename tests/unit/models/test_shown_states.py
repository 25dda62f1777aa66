"""Hidden states after every step of models whose sequences leave the batch."""

import pytest
import torch

from tests.marks_support import keep_one_quick
from tests.models_support import make_padded_batch, make_small_multi_exit, make_small_ponder

MAKERS = pytest.mark.parametrize("make", [make_small_ponder, make_small_multi_exit])


@MAKERS
def test_states_after_every_step_equal_repeated_application_of_the_block(make):
    model, batch = make(exit_rule="fixed:2", attn_implementation="eager"), make_padded_batch()
    encoder, seen = model.albert.encoder, batch["attention_mask"].bool()
    output = model(**batch, output_hidden_states=True, output_attentions=True)
    state = encoder.embedding_hidden_mapping_in(
        model.albert.embeddings(batch["input_ids"], batch["token_type_ids"], None)
    )
    mask = torch.where(seen[:, None, None], 0.0, torch.finfo(torch.float32).min)
    for step in range(model.max_updates):
        torch.testing.assert_close(output.hidden_states[step], state)
        state, weights, *_ = encoder.albert_layer(state, mask, output_attentions=True)
        torch.testing.assert_close(output.attentions[step], weights)
    torch.testing.assert_close(output.hidden_states[-1], state)
    assert len(output.hidden_states) == model.max_updates + 1


@MAKERS
def test_hidden_states_change_neither_exits_nor_predictions(make):
    model, batch = make(exit_rule="confidence:0.6"), make_padded_batch()
    looked, plain = model(**batch, output_hidden_states=True), model(**batch)
    assert plain.hidden_states is None
    assert torch.equal(looked.exit_steps, plain.exit_steps)
    torch.testing.assert_close(looked.logits, plain.logits)


@MAKERS
def test_hidden_states_are_selected_by_number(make):
    model, batch = make(), make_padded_batch()
    selected, every = model(**batch, output_hidden_states=[0, -1]), model(**batch, output_hidden_states=True)
    present = [number for number, state in enumerate(selected.hidden_states) if state is not None]
    assert present == [0, model.max_updates]
    assert torch.equal(selected.hidden_states[-1], every.hidden_states[-1])


@MAKERS
def test_states_of_rows_that_have_left_are_refused(make):
    with pytest.raises(ValueError, match="run_all_steps=False with hidden states"):
        make()(**make_padded_batch(), output_hidden_states=True, run_all_steps=False)


@pytest.mark.parametrize("reentrant", keep_one_quick(2, [True, False]))
@MAKERS
def test_gradients_survive_checkpointing(make, reentrant):
    batch = make_padded_batch() | {"labels": torch.tensor([0, 1, 1])}
    gradients = []
    for checkpointed in (False, True):
        model = make(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, classifier_dropout_prob=0.0).train()
        if checkpointed:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        model(**batch).loss.backward()
        gradients.append({name: weight.grad for name, weight in model.named_parameters()})
    torch.testing.assert_close(gradients[1], gradients[0])
