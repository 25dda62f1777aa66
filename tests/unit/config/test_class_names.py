"""Matching of classes by their names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adadepth.config.class_names import match_classes, number_classes
from adadepth.errors import DataError


@pytest.mark.parametrize(
    ("names", "classes", "numbers"),
    [
        (["pos", "neg"], ["neg", "pos"], [1, 0]),
        (["b"], ["a", "b", "c"], [1]),
        (["Entailment", "neutral"], ["NEUTRAL", "CONTRADICTION", "ENTAILMENT"], [2, 0]),
        (["a", "z"], ["a", "b"], [0, None]),
        (["A", "a"], ["a", "A"], [1, 0]),
        (["A", "a", "B"], ["a", "A", "b"], [1, 0, None]),  # case tells the first two apart, so it counts
        (["A"], ["a", "A "], [0]),
        (["10", "2"], ["2", "10"], [1, 0]),
        (["straße"], ["STRASSE"], [0]),
        ([], ["a"], []),
    ],
)
def test_names_are_matched_to_class_numbers(names: list[str], classes: list[str], numbers: list[int | None]) -> None:
    assert match_classes(names, classes) == numbers


@given(st.lists(st.text(min_size=1), min_size=1, unique=True).flatmap(lambda names: st.tuples(
    st.just(names), st.permutations(names),
)))  # fmt: skip
def test_a_permutation_is_undone(lists: tuple[list[str], list[str]]) -> None:
    names, classes = lists
    assert [classes[number] for number in number_classes(names, classes, "labels")] == names


def test_the_first_unknown_class_is_reported_with_the_nearest() -> None:
    with pytest.raises(DataError, match=r"^here: the model has no class 'posi' \(did you mean 'pos'\?\); it predicts"):
        number_classes(["neg", "posi"], ["neg", "pos"], "here")
