"""States that probes read: those of a plain loop over single sequences, for every head of a checkpoint."""

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
from tests.models_support import SMALL, make_padded_batch, make_small_config, spread_depths
from tests.parity.act_variants import encode_variant

LENGTHS = (10, 7, 3)


def build_deep_model(rule: str = "single") -> AlbertActModel:
    torch.manual_seed(0)
    model = AlbertActModel(make_small_config(state_rule=rule, initializer_range=0.3)).eval()
    spread_depths(model, 3.0)
    return model


def build_passes(model: Any, order: tuple[int, ...] = (2, 0, 1)) -> Any:
    """Return a function that yields batches of one or two rows out of order, as an evaluation by length does."""
    batch = make_padded_batch(LENGTHS)
    extra = {"labels": torch.tensor([1, 0, 2]), "difficulty": torch.tensor([5, 6, 7]), "index": torch.tensor([4, 8, 9])}

    def run(dataset: Any, options: Any) -> Any:
        for rows in (list(order[:2]), list(order[2:])):
            part = {name: values[rows] for name, values in {**batch, **extra}.items()}
            inputs = {name: part[name] for name in batch}
            with torch.no_grad():
                yield part, model(**inputs, **options(part))

    return run


def compute_plain_states(model: AlbertActModel, row: int) -> tuple[list[torch.Tensor], torch.Tensor, list[int]]:
    """Return x_0 to x_L of a sequence, each (T, H), the final states, and the updates of its tokens."""
    weights, batch, length = dict(model.named_parameters()), make_padded_batch(LENGTHS), LENGTHS[row]
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
    model = build_deep_model(rule)
    encoded = encode_set(build_passes(model), model, None)
    assert encoded.labels.tolist() == [1, 0, 2]
    assert encoded.difficulty is not None
    assert encoded.difficulty.tolist() == [5, 6, 7]
    every = []
    for row in range(3):
        steps, final, updates = compute_plain_states(model, row)
        for number, state in enumerate([*steps, final]):
            torch.testing.assert_close(encoded.states[row, number, 0], state[0], atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(encoded.states[row, number, 1], state.mean(dim=0), atol=1e-4, rtol=1e-4)
        every.append(updates)
    assert len({depth for updates in every for depth in updates}) > 2  # otherwise the test could not fail
    for update in range(1, model.max_updates + 1):
        ran = [[depth >= update for depth in updates] for updates in every]
        assert encoded.changed[update - 1, 0] == pytest.approx(sum(updates_of_row[0] for updates_of_row in ran) / 3)
        assert encoded.changed[update - 1, 1] == pytest.approx(sum(map(sum, ran)) / sum(LENGTHS))


def test_a_batch_that_stops_early_keeps_its_states() -> None:
    model = build_deep_model()
    spread_depths(model, 0.0, bias=20.0)  # all tokens halt at once
    encoded = encode_set(build_passes(model), model, None)
    assert encoded.states.shape[1] == model.max_updates + 2
    for number in range(2, model.max_updates + 2):
        torch.testing.assert_close(encoded.states[:, number], encoded.states[:, 1])
    assert encoded.changed.tolist() == [[1.0, 1.0], *[[0.0, 0.0]] * (model.max_updates - 1)]


def test_padding_is_not_read() -> None:
    states = torch.randn(2, 4, 3)
    mask = torch.tensor([[True, True, False, False], [True, True, True, True]])
    states_read = read_states([states, 2 * states], mask)
    torch.testing.assert_close(states_read[0, 0, 1], (states[0, 0] + states[0, 1]) / 2)
    torch.testing.assert_close(states_read[1, 1, 1], states[1].sum(dim=0) / 2)
    torch.testing.assert_close(states_read[:, 0, 0], states[:, 0])
    moved = states.clone()
    moved[0, 3] += 1  # padding
    moved[1, 2] += 1
    assert count_changed_tokens([states, moved], mask).tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize("head", [AlbertActForPreTraining, AlbertActForSequenceClassification])
def test_the_encoder_of_any_head_is_loaded(head: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = head(make_small_config()).eval()
    model.save_pretrained(tmp_path)
    encoder = load_encoder(str(tmp_path), family("albert_act").settings(name="albert_act"), [])
    batch = make_padded_batch(LENGTHS)
    with torch.no_grad():
        expected = model(**batch, output_hidden_states=True).hidden_states
        states = encoder(**batch, output_hidden_states=True).hidden_states
    assert len(states) == len(expected) > 2
    assert all(torch.equal(one, other) for one, other in zip(states, expected, strict=True))


def test_plain_albert_has_the_states_of_all_its_updates(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = PlainAlbertForSequenceClassification(AlbertConfig(**SMALL)).eval()
    model.save_pretrained(tmp_path)
    encoder = load_encoder(str(tmp_path), family("albert").settings(name="albert"), [])
    encoded = encode_set(build_passes(encoder), encoder, None)
    with torch.no_grad():
        states = model(**make_padded_batch(LENGTHS), output_hidden_states=True).hidden_states
    assert len(states) == model.max_updates + 1
    expected = torch.stack([state[:, 0] for state in states], dim=1)
    torch.testing.assert_close(encoded.states[:, :-1, 0], expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(encoded.states[:, -1], encoded.states[:, -2])
    assert encoded.changed.min() == 1


def test_a_family_without_an_encoder_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^model=ponder_albert: "):
        load_encoder("anywhere", family("ponder_albert").settings(name="ponder_albert"), [])
