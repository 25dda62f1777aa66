"""Architecture strings against the published ones and counts made by hand."""

from __future__ import annotations

import math
from itertools import pairwise, product

import pytest
import torch

from adadepth.errors import ConfigError
from adadepth.models.par_xl.configuration import (
    alternating,
    baseline_architectures,
    find_most_probable_at_cost,
    match_macs,
    paper_rule,
    parse_architecture,
    random_architecture,
    sandwich,
)
from tests.marks_support import keep_one_quick


def weigh(attention, feed_forward):
    return lambda architecture: attention * architecture.count("s") + feed_forward * architecture.count("f")


def test_an_architecture_is_a_string_of_operations():
    assert parse_architecture("model.architecture", " sfff-sf\n") == "sfff-sf"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "''.* no blocks"),
        ("  ", "no blocks"),
        ("sfx-", "'sfx-': 'x' at block 3 is not an operation"),
        ("Sf", "'Sf': 'S' at block 1"),
        ("s f", "' ' at block 2"),
        ("s\nf", r"'.n' at block 2"),
    ],
)
def test_invalid_architectures_are_refused(text, message):
    with pytest.raises(ConfigError, match=message) as caught:
        parse_architecture("model.architecture", text)
    assert str(caught.value).startswith("model.architecture=")
    assert str(caught.value).endswith("allowed: s (attention), f (feed-forward), - (identity), one per block")
    assert "\n" not in str(caught.value)


def test_alternating_architectures_repeat_attention_and_feed_forward():
    assert [alternating(blocks) for blocks in (1, 2, 5)] == ["s", "sf", "sfsfs"]


def test_networks_equal_those_of_the_paper():
    """Check PAR base: 32 blocks, 6 with attention, the last at block 21; 24 blocks: attention at 1, 6, 11 and 16."""
    assert paper_rule(32, 5) == "sfff" * 6 + "f" * 8
    assert paper_rule(24, 5) == "sffff" * 4 + "f" * 4


@pytest.mark.parametrize("ratio", [1, 2, 3, 5, 8])
def test_the_par_rule_holds_at_every_length(ratio):
    for blocks in range(1, 65):
        architecture = paper_rule(blocks, ratio)
        assert len(architecture) == blocks
        assert set(architecture) <= {"s", "f"}
        assert architecture[0] == "s"
        assert architecture.rindex("s") < max(2 * blocks / 3, 1)
        assert architecture.count("s") == min(max(blocks // ratio, 1), max(2 * blocks // 3, 1))
        attention_blocks = [number for number, operation in enumerate(architecture) if operation == "s"]
        assert len({later - earlier for earlier, later in pairwise(attention_blocks)}) <= 1


def test_the_published_sandwich():
    """Check 16 pairs, 6 of them split (Press et al. 2020)."""
    assert sandwich(32) == "s" * 6 + "sf" * 10 + "f" * 6
    assert [sandwich(blocks) for blocks in (1, 2, 3, 4, 6)] == ["s", "sf", "ssf", "ssff", "ssfsff"]


def test_a_sandwich_reorders_alternating_blocks():
    for blocks in range(1, 41):
        assert sorted(sandwich(blocks)) == sorted(alternating(blocks))


def test_random_architectures_are_reproducible_and_uniform():
    draws = [random_architecture(1000, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]
    assert set(draws[0]) == {"s", "f"}
    assert 440 < draws[0].count("s") < 560


@pytest.mark.parametrize("make", [alternating, paper_rule, sandwich])
@pytest.mark.parametrize("target", keep_one_quick(2, [0.0, 0.5, 3.9, 17.0, 40.3]))
def test_equal_macs_finds_the_closest_length(make, target):
    macs = weigh(3.6, 1.0)
    best = min((make(blocks) for blocks in range(1, 100)), key=lambda text: abs(macs(text) - target))
    assert match_macs(make, macs, target) == best


@pytest.mark.parametrize(("attention", "feed_forward"), [(0.77, 1.0), (1.04, 1.0), (3.6, 1.0)])
def test_baselines_have_the_macs_of_the_searched_network(attention, feed_forward):
    macs = weigh(attention, feed_forward)
    searched = "sfff" * 6 + "f-" * 4
    baselines = baseline_architectures(searched, macs, ratio=5, seed=0)
    assert list(baselines) == ["alternating", "paper_rule", "sandwich", "random"]
    for name, architecture in baselines.items():
        share = 0.05 if name == "random" else 0.5 * max(attention, feed_forward) / macs(searched)
        assert abs(macs(architecture) / macs(searched) - 1) <= share + 1e-9, name
    assert len(baselines["random"]) == len(baselines["alternating"])
    assert baselines == baseline_architectures(searched, macs, ratio=5, seed=0)
    assert baselines["random"] != baseline_architectures(searched, macs, ratio=5, seed=1)["random"]


def test_a_random_baseline_has_the_closest_macs():
    macs = weigh(10.0, 1.0)
    baselines = baseline_architectures("ff", macs)  # a block of attention costs 10, any two blocks at least 2
    assert baselines == {"alternating": "s", "paper_rule": "s", "sandwich": "s", "random": "f"}


@pytest.mark.parametrize("seed", keep_one_quick(3, range(6)))
@pytest.mark.parametrize("tolerance", [0.0, 0.05, 0.3])
def test_the_most_probable_architecture_at_a_cost_equals_enumeration(seed, tolerance):
    """Compare with all 243 architectures of five blocks."""
    generator = torch.Generator().manual_seed(seed)
    probabilities = (2 * torch.randn(5, 3, generator=generator, dtype=torch.float64)).softmax(dim=-1).tolist()
    costs, target = (1.7, 1.0, 0.1), 0.5 + 1.1 * seed

    def compute_cost(architecture):
        return sum(costs["sf-".index(operation)] for operation in architecture)

    def compute_probability(architecture):
        return math.prod(row["sf-".index(one)] for row, one in zip(probabilities, architecture, strict=True))

    architectures = ["".join(path) for path in product("sf-", repeat=5)]
    bound = max(tolerance * target, min(abs(compute_cost(path) - target) for path in architectures)) + 1e-9
    expected = max(
        (path for path in architectures if abs(compute_cost(path) - target) <= bound), key=compute_probability
    )
    selected = find_most_probable_at_cost(probabilities, costs, target, tolerance)
    assert compute_probability(selected) == pytest.approx(compute_probability(expected))
    assert abs(compute_cost(selected) - target) <= bound
