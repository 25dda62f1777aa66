"""The states that probes read: those of a plain loop over single sequences, whatever head a checkpoint has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AlbertConfig

from adadepth import AlbertActForPreTraining, AlbertActForSequenceClassification, AlbertActModel
from adadepth.contrib.probing.probe import count_changed_tokens, encode_set, read_states
from adadepth.errors import ConfigError
from adadepth.models.albert.modeling import PlainAlbertForSequenceClassification
from adadepth.models.albert_act.reference import apply_linear, normalise
from adadepth.models.build import load_encoder
from adadepth.models.registry import family
from tests.models_support import SMALL, padded_batch, small_config, spread_depths
from tests.parity.act_variants import encode_variant

LENGTHS = (10, 7, 3)


def deep_model(rule: str = "single") -> AlbertActModel:
    torch.manual_seed(0)
    model = AlbertActModel(small_config(state_rule=rule, initializer_range=0.3)).eval()
    spread_depths(model, 3.0)
    return model


def passes(model: Any, order: tuple[int, ...] = (2, 0, 1)) -> Any:
    """Batches of one or two rows, out of order, as an evaluation by length has them."""
    batch = padded_batch(LENGTHS)
    extra = {"labels": torch.tensor([1, 0, 2]), "difficulty": torch.tensor([5, 6, 7]), "index": torch.tensor([4, 8, 9])}

    def run(dataset: Any, options: Any) -> Any:
        for rows in (list(order[:2]), list(order[2:])):
            part = {name: values[rows] for name, values in {**batch, **extra}.items()}
            inputs = {name: part[name] for name in batch}
            with torch.no_grad():
                yield part, model(**inputs, **options(part))

    return run


def plain_states(model: AlbertActModel, row: int) -> tuple[list[torch.Tensor], torch.Tensor, list[int]]:
    """x_0 to x_L of a sequence, each (T, H), the final states, and the updates of its tokens."""
    weights, batch, length = dict(model.named_parameters()), padded_batch(LENGTHS), LENGTHS[row]
    ids, segments = (batch[name][row, :length] for name in ("input_ids", "token_type_ids"))
    final, updates, _, _, trails = encode_variant(weights, model.config, ids, segments)
    e = "embeddings."
    words = weights[e + "word_embeddings.weight"][ids] + weights[e + "token_type_embeddings.weight"][segments]
    words = words + weights[e + "position_embeddings.weight"][:length]
    embedded = normalise(weights, e + "LayerNorm", words, model.config.layer_norm_eps)
    first = apply_linear(weights, "encoder.embedding_hidden_mapping_in", embedded)
    steps = [torch.stack([trail[min(n, len(trail)) - 1] for trail in trails]) for n in range(1, model.max_updates + 1)]
    return [first, *steps], final, updates


@pytest.mark.parametrize("rule", ["single", "graves"])
def test_the_states_are_those_of_a_plain_loop(rule: str) -> None:
    model = deep_model(rule)
    found = encode_set(passes(model), model, None)
    assert found.labels.tolist() == [1, 0, 2]
    assert found.difficulty is not None
    assert found.difficulty.tolist() == [5, 6, 7]
    every = []
    for row in range(3):
        steps, final, updates = plain_states(model, row)
        for number, state in enumerate([*steps, final]):
            torch.testing.assert_close(found.states[row, number, 0], state[0], atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(found.states[row, number, 1], state.mean(dim=0), atol=1e-4, rtol=1e-4)
        every.append(updates)
    assert len({depth for updates in every for depth in updates}) > 2  # else nothing is told apart
    for update in range(1, model.max_updates + 1):
        ran = [[depth >= update for depth in updates] for updates in every]
        assert found.changed[update - 1, 0] == pytest.approx(sum(each[0] for each in ran) / 3)
        assert found.changed[update - 1, 1] == pytest.approx(sum(map(sum, ran)) / sum(LENGTHS))


def test_a_batch_that_stops_early_keeps_its_states() -> None:
    model = deep_model()
    spread_depths(model, 0.0, bias=20.0)  # everybody halts at once
    found = encode_set(passes(model), model, None)
    assert found.states.shape[1] == model.max_updates + 2
    for number in range(2, model.max_updates + 2):
        torch.testing.assert_close(found.states[:, number], found.states[:, 1])
    assert found.changed.tolist() == [[1.0, 1.0], *[[0.0, 0.0]] * (model.max_updates - 1)]


def test_padding_is_not_read() -> None:
    states = torch.randn(2, 4, 3)
    mask = torch.tensor([[True, True, False, False], [True, True, True, True]])
    found = read_states([states, 2 * states], mask)
    torch.testing.assert_close(found[0, 0, 1], (states[0, 0] + states[0, 1]) / 2)
    torch.testing.assert_close(found[1, 1, 1], states[1].sum(dim=0) / 2)
    torch.testing.assert_close(found[:, 0, 0], states[:, 0])
    moved = states.clone()
    moved[0, 3] += 1  # padding
    moved[1, 2] += 1
    assert count_changed_tokens([states, moved], mask).tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize("head", [AlbertActForPreTraining, AlbertActForSequenceClassification])
def test_the_encoder_is_that_of_any_head(head: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = head(small_config()).eval()
    model.save_pretrained(tmp_path)
    encoder = load_encoder(str(tmp_path), family("albert_act").settings(name="albert_act"), [])
    batch = padded_batch(LENGTHS)
    with torch.no_grad():
        expected = model(**batch, output_hidden_states=True).hidden_states
        found = encoder(**batch, output_hidden_states=True).hidden_states
    assert len(found) == len(expected) > 2
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_plain_albert_shows_the_states_of_all_its_updates(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = PlainAlbertForSequenceClassification(AlbertConfig(**SMALL)).eval()
    model.save_pretrained(tmp_path)
    encoder = load_encoder(str(tmp_path), family("albert").settings(name="albert"), [])
    found = encode_set(passes(encoder), encoder, None)
    with torch.no_grad():
        states = model(**padded_batch(LENGTHS), output_hidden_states=True).hidden_states
    assert len(states) == model.max_updates + 1
    expected = torch.stack([state[:, 0] for state in states], dim=1)
    torch.testing.assert_close(found.states[:, :-1, 0], expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.states[:, -1], found.states[:, -2])
    assert found.changed.min() == 1


def test_a_family_without_an_encoder_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^model=ponder_albert: "):
        load_encoder("anywhere", family("ponder_albert").settings(name="ponder_albert"), [])
