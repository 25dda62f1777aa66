"""The order of training examples, a pure function of (seed, epoch)."""

from __future__ import annotations

from collections.abc import Iterator

from torch.utils.data import Sampler

from adadepth.data.randomness import Purpose, random_generator


class EpochSampler(Sampler[tuple[int, int]]):
    """Yields every (epoch, example number) once, shuffled afresh each epoch, or in order where there is no seed.

    The epoch travels with the number, because a worker that outlives an epoch would not see an attribute change.
    """

    def __init__(self, length: int, seed: int | None) -> None:
        self.length = length
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[tuple[int, int]]:
        epoch = self.epoch
        if self.seed is None:
            return ((epoch, index) for index in range(self.length))
        order = random_generator(self.seed, Purpose.ORDER, epoch, 0).permutation(self.length)
        return ((epoch, int(index)) for index in order)
