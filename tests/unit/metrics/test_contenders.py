"""Contenders in a study of exit rules: its rules, its control and its oracle."""

import pytest
import torch

from adadepth.halting.exit_rules import RULES, check_rule, parse_rule
from adadepth.metrics.exit_study import find_oracle_exits, list_standard_rules, permute_exits

BOTH = frozenset({"logits", "halting"})
LOGITS = frozenset({"logits"})


@pytest.mark.parametrize("signals", [BOTH, LOGITS])
@pytest.mark.parametrize("classes", [1, 2, 5])
@pytest.mark.parametrize("steps", [1, 3, 12, 43])
def test_the_standard_rules_are_all_supported(signals, classes, steps):
    labels = list_standard_rules(signals, classes, steps)
    assert len(labels) == len(set(labels))
    for label in labels:
        check_rule(parse_rule(label), signals, classes, steps, "some_model")
    fixed = [label for label in labels if label.startswith("fixed")]
    assert len(fixed) == min(steps, 12)
    assert {fixed[0], fixed[-1]} == {"fixed:1", f"fixed:{steps}"}


def test_the_standard_rules_include_every_name():
    every = BOTH | {"correctness", "states"}
    assert {label.split(":")[0] for label in list_standard_rules(every, 2, 12)} == set(RULES)


def test_random_exits_keep_the_histogram():
    exits = torch.randint(1, 7, (500,))
    shuffled = permute_exits(exits, torch.Generator().manual_seed(0))
    assert torch.equal(exits.sort().values, shuffled.sort().values)
    assert not torch.equal(exits, shuffled)


def test_the_oracle_takes_the_first_right_step():
    step_logits = torch.nn.functional.one_hot(torch.tensor([[0, 1, 1], [1, 0, 1], [0, 0, 0]]), 2).float()
    assert find_oracle_exits(step_logits, torch.tensor([1, 1, 1])).tolist() == [2, 1, 3]


def test_the_oracle_of_a_regression_takes_the_first_closest_step():
    values = torch.tensor([[0.0, 2.0, 1.0], [1.0, 1.0, 5.0]]).unsqueeze(-1)
    assert find_oracle_exits(values, torch.tensor([1.2, 1.0])).tolist() == [3, 1]
