"""Examples that are drawn, of known difficulty."""

from dataclasses import dataclass
from enum import StrEnum

from adadepth.config.dataset import DatasetConfig, ExamplesConfig
from adadepth.declaration import BELOW_ONE, at_least, between, setting

Representation = StrEnum("Representation", ["vectors", "tokens"])
Counted = StrEnum("Counted", ["nonzero", "positive"])
LabelledUnit = StrEnum("LabelledUnit", ["token", "sequence"])


@dataclass
class GeneratedConfig(ExamplesConfig):
    """Examples that are drawn afresh in every epoch, and of which it is known how much computing a unit needs."""

    train_examples: int = setting(100000, "an epoch", between(1, 10**8))


@dataclass
class ParityConfig(GeneratedConfig):
    """Is the number of ones odd? The task of ACT (Graves 2016) and PonderNet."""

    representation: Representation = setting(Representation.vectors, "for a recurrent cell, or as tokens")
    size: int = setting(64, "values, each 0, 1 or -1", at_least(1))
    train_ones: list[int] = setting([1, 64], "lowest and highest number of ones")
    easy_epochs: int = setting(
        0, "epochs at first in which no training example has more ones than easy_ones", at_least(0)
    )
    easy_ones: int | None = setting(None, "with easy_epochs: easy examples first make hard ones learnable sooner")
    extrapolation_ones: list[int] | None = setting(None, "also evaluated: a range that training does not see")
    counted: Counted = setting(Counted.nonzero, "whether -1 counts as a one")


@dataclass
class FieldConfig(GeneratedConfig):
    """Generated examples that lie at a random place of a larger field, so that larger ones can be read as well."""

    field: int = setting(16, "positions along each side; the model needs as many", at_least(1))


@dataclass
class MazeConfig(FieldConfig):
    """Can a cell be reached from the start? A cell's difficulty is its distance."""

    size: int = setting(8, "cells along each side", at_least(1))
    walls: float = setting(0.4, "share of cells that are walls", BELOW_ONE)
    beyond_sizes: list[int] = setting([12], "also evaluated: sizes that training does not see")


@dataclass
class HopsConfig(GeneratedConfig):
    """Which colour do pointers lead to? A node's difficulty is how many pointers must be followed."""

    unit: LabelledUnit = setting(
        LabelledUnit.token, "every node has a label, or the sequence has that of one marked node"
    )
    nodes: int = setting(16, "of an example", at_least(2))
    colours: int = setting(4, "of the nodes that do not point to another", between(2, 8))
    train_hops: list[int] = setting([0, 5], "lowest and highest difficulty of labelled nodes")
    beyond_hops: list[int] | None = setting([6, 7], "also evaluated: not seen in training")


@dataclass
class AdditionConfig(FieldConfig):
    """The sum of two numbers, a column a token; a column's difficulty is how far away its carry is decided."""

    digits: int = setting(12, "of each number", at_least(1))
    nines: float = setting(0.5, "share of columns whose digits sum to 9, which hand a carry on", BELOW_ONE)
    beyond_digits: list[int] = setting([20], "also evaluated: longer numbers")


def positions_read(dataset: DatasetConfig) -> tuple[str, int]:
    """The setting that says how many positions a model must know, and its value."""
    if isinstance(dataset, FieldConfig):
        return "dataset.field", dataset.field
    return "dataset.sequence_length", dataset.sequence_length
