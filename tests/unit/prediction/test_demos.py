"""Predictions of the demo models, compared with a plain loop."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from adadepth import Pipeline
from adadepth.errors import DataError
from adadepth.prediction.models import load_model_and_tokenizer
from adadepth.runtime.demos import list_demos
from adadepth.runtime.hub_access import resolve_path


@pytest.mark.parametrize("name", list_demos())
def test_weights_are_stored_as_halves_and_computed_with_as_float32(name: str) -> None:
    folder, (model, _) = Path(resolve_path("model", name)), load_model_and_tokenizer(name)
    stored = load_file(folder / "model.safetensors")
    loaded = model.state_dict()
    assert {value.dtype for value in stored.values()} == {torch.float16}
    assert {value.dtype for value in model.parameters()} == {torch.float32}
    assert all(torch.equal(loaded[key], value.float()) for key, value in stored.items())
    assert "training_data" in json.loads((folder / "config.json").read_text(encoding="utf-8"))


def draw_pointers(nodes: int, generator: np.random.Generator) -> tuple[list[str], list[str]]:
    """Return a row of symbols in which no node is more than five pointers from its colour, and the colours."""
    colours, order = ("red", "green", "blue", "yellow"), generator.permutation(nodes)
    symbols, answers, distances = [""] * nodes, [""] * nodes, [0] * nodes
    for count, node in enumerate(order):
        targets = [earlier for earlier in order[:count] if distances[earlier] < 5]
        if count < 4 or not targets:
            symbols[node] = answers[node] = colours[count % 4]
            continue
        target = generator.choice(targets)
        symbols[node], answers[node], distances[node] = f">{target}", answers[target], distances[target] + 1
    return symbols, answers


def test_the_pointer_demo_follows_pointers() -> None:
    chains = [draw_pointers(16, np.random.default_rng(seed)) for seed in range(16)]
    predict = Pipeline.from_pretrained("demo:hops")
    predictions = predict([" ".join(symbols) for symbols, _ in chains])
    pairs = [
        (token.label, answer)
        for prediction, (_, answers) in zip(predictions, chains, strict=True)
        for token, answer in zip(prediction.tokens, answers, strict=True)
    ]
    assert np.mean([label == answer for label, answer in pairs]) > 0.97


def test_a_maze_model_predicts_no_text() -> None:
    with pytest.raises(DataError, match="more than the 12 tokens that the model reads; mode=serve"):
        Pipeline.from_pretrained("demo:maze")(" ".join("S" + "." * 143))


def test_masked_words_get_the_most_updates() -> None:
    text = (
        "The expression list is evaluated once; it should yield an iterable object. An iterator is created for the "
        "result of the expression list. The suite is then executed once for each [MASK] provided by the iterator, in "
        "the order of ascending indices."
    )
    depths: dict[bool, list[float]] = {True: [], False: []}
    for prediction in Pipeline.from_pretrained("demo:words")([text, text.replace("iterable", "[MASK]")]):
        for token in prediction.tokens:
            if token.part is not None:
                depths[token.piece == "[MASK]"].append(token.updates)
    assert np.mean(depths[True]) > np.mean(depths[False]) + 1
