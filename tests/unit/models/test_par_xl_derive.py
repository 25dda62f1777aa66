"""Networks derived from a supernet: equal to it with one-hot gates, and saved and loaded."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

import adadepth
from adadepth import ParXLConfig, ParXLForCausalLM, ParXLSupernet, derive_par_xl
from adadepth.errors import ConfigError
from tests.marks_support import keep_one_quick
from tests.unit.models.par_xl_support import ORIGINAL, build_network, build_supernet, draw_words

CHANGES = [
    {}, ORIGINAL, {"branch_norm": "paper"}, {"cutoffs": [9, 20], "tie_word_embeddings": True},
    {"cutoffs": [9, 20], "tie_word_embeddings": True, "proj_dims": [7, 20]},
]  # fmt: skip


def build_one_hot_gates(architecture):
    return [[1e4 if operation == kind else 0.0 for operation in "sf-"] for kind in architecture]


@torch.no_grad()
def run_two_segments(model, **options):
    first = model(draw_words(length=5), **options)
    return first.logits, model(draw_words(length=3, seed=1), memory=first.memory, **options).logits


@pytest.mark.parametrize(
    ("architecture", "changes"), keep_one_quick(7, product(["sf-s", "ffff", "ssss", "-s-f", "----"], CHANGES))
)
def test_a_derived_network_equals_the_supernet_with_one_hot_gates(architecture, changes, tmp_path):
    supernet = build_supernet(gates=build_one_hot_gates(architecture), **changes)
    expected = run_two_segments(supernet, gates="soft")
    assert supernet.architecture() == architecture
    network = derive_par_xl(supernet)
    network.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is ParXLForCausalLM
    for logits in (run_two_segments(network), run_two_segments(loaded), run_two_segments(supernet, gates="argmax")):
        for logit, reference in zip(logits, expected, strict=True):
            torch.testing.assert_close(logit, reference, atol=1e-5, rtol=1e-5)


def test_a_derived_network_has_only_weights_that_it_uses():
    supernet = build_supernet()
    network = derive_par_xl(supernet, "sf-s")
    names = set(network.state_dict())
    assert names < set(supernet.state_dict())
    branches = {".".join(name.split(".")[2:4]) for name in names if name.startswith("model.blocks.")}
    assert branches == {"0.attention", "1.feed_forward", "3.attention"}
    assert (network.config.architecture, supernet.config.architecture) == ("sf-s", None)
    assert network(draw_words()).memory.shape[0] == 2
    assert supernet(draw_words()).memory.shape[0] == 4


def test_weights_are_copies():
    supernet = build_supernet()
    network = derive_par_xl(supernet, "ffff")
    before = network(draw_words()).logits
    with torch.no_grad():
        for weight in supernet.parameters():
            weight.zero_()
    assert torch.equal(network(draw_words()).logits, before)


def test_derivation_selects_the_most_probable_operations():
    assert derive_par_xl(build_supernet()).config.architecture == "sf-s"


def test_new_weights_fit_any_number_of_blocks():
    supernet = build_supernet(hidden_dropout_prob=0.2, cutoffs=[9])
    network = derive_par_xl(supernet, "sfsfsf", keep_weights=False)
    assert network.config.num_hidden_layers == 6
    assert (network.config.hidden_dropout_prob, network.config.cutoffs) == (0.2, [9])
    assert not torch.equal(network.model.embedding.tables[0].weight, supernet.model.embedding.tables[0].weight)


def test_derivation_keeps_precision_and_mode():
    supernet = build_supernet().to(torch.bfloat16).train()
    network = derive_par_xl(supernet)
    assert network.dtype == torch.bfloat16
    assert network.training


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        ("sfs", "architecture=sfs: 3 blocks, but the weights belong to a supernet with 4"),
        ("sfx-", "architecture=.*: 'x' at block 3"),
    ],
)
def test_other_architectures_are_refused(architecture, message):
    with pytest.raises(ConfigError, match=message):
        derive_par_xl(build_supernet(), architecture)


@pytest.mark.parametrize("changes", keep_one_quick(5, CHANGES))
def test_a_saved_supernet_is_the_same(changes, tmp_path):
    supernet = build_supernet(**changes)
    supernet.save_pretrained(tmp_path)
    loaded = ParXLSupernet.from_pretrained(tmp_path)
    assert torch.equal(loaded.gates, supernet.gates)
    for actual, expected in zip(run_two_segments(loaded), run_two_segments(supernet), strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-6)
    loaded.train().set_step(1, 4)
    supernet.train().set_step(1, 4)
    torch.testing.assert_close(loaded(draw_words()).logits, supernet(draw_words()).logits, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("auto", [ParXLForCausalLM, AutoModelForCausalLM])
def test_a_supernet_is_not_loaded_as_a_network(auto, tmp_path):
    build_supernet().save_pretrained(tmp_path)
    with pytest.raises(ConfigError) as caught:
        auto.from_pretrained(tmp_path)
    assert str(caught.value) == (
        "architecture=None: ParXLForCausalLM needs a fixed architecture; ParXLSupernet searches for one"
    )


def test_a_network_is_not_loaded_as_a_supernet(tmp_path):
    build_network("sf").save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"^architecture=sf: must be None, because ParXLSupernet searches"):
        ParXLSupernet.from_pretrained(tmp_path)


def test_derivation_ties_every_cluster(tmp_path):
    model = build_network("sf", cutoffs=[9, 20], tie_word_embeddings=True)
    for table, word in zip(model.head.tables, model.model.embedding.tables, strict=True):
        assert table.weight is word.weight
    untied = build_network("sf", cutoffs=[9, 20])
    assert len(untied.model.embedding.tables) == 1
    tables = 9 * 16 + 11 * 4 + 20 * 1
    projections = 16 * 4 + 16 * 1
    saved = sum(w.numel() for w in untied.parameters()) - sum(w.numel() for w in model.parameters())
    assert saved == 40 * 16 - projections
    assert sum(table.weight.numel() for table in model.head.tables) == tables


def test_models_are_registered_with_auto_classes(tmp_path):
    assert isinstance(AutoConfig.for_model("par_xl"), ParXLConfig)
    assert {"ParXLConfig", "ParXLForCausalLM", "ParXLSupernet", "derive_par_xl"} <= set(adadepth.__all__)
    from tokenizers import Tokenizer, models

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a")))
    tokenizer.save_pretrained(tmp_path)
    build_network("sf").config.save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path).convert_tokens_to_ids(["b", "a"]) == [1, 0]
