"""Halves of an evaluation set: a depth is fitted on the first half and measured on the second."""

from __future__ import annotations

import pytest

from adadepth.errors import ConfigError
from adadepth.tasks.budgets import split_into_halves


class Windows(list[int]):
    """Examples with the number of their owner."""

    owners: tuple[int, ...] = (0, 0, 1, 2, 2, 3)


class OneQuestion(Windows):
    """Examples of one owner."""

    owners = (4, 4, 4)


def test_halves_share_no_example_and_are_the_same_in_every_call() -> None:
    first, second = split_into_halves(range(9))
    assert sorted([*first.indices, *second.indices]) == list(range(9))
    assert abs(len(first) - len(second)) <= 1
    assert [list(half.indices) for half in split_into_halves(range(9))] == [list(first.indices), list(second.indices)]


def test_windows_of_one_question_are_in_one_half() -> None:
    first, second = split_into_halves(Windows(range(6)))
    owners = [{Windows.owners[index] for index in half.indices} for half in (first, second)]
    assert owners[0].isdisjoint(owners[1])
    assert owners[0] | owners[1] == {0, 1, 2, 3}


@pytest.mark.parametrize("examples", [[0], OneQuestion([0, 1, 2])], ids=["one example", "one owner"])
def test_one_owner_is_too_few_for_a_fit(examples: list[int]) -> None:
    with pytest.raises(ConfigError, match=r"^budget\.targets, score_halves: .* needs at least two examples"):
        split_into_halves(examples)
