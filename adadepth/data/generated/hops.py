"""Pointer chasing: each node of a graph must follow a chain of pointers to find the colour of its root.

Some nodes, the roots, have a colour. Every other node points to one node. The pointers from a node always lead to a
root, and the colour of this root is the label of the node. The number of pointers on the way is the difficulty of the
node. One update of attention follows at least one pointer, and may learn to double its reach. Nodes are in random
order. A pointer is written as the position of its target: ``>0`` points to the first node. In causal order, nodes point
to earlier nodes only, and a pointer is written as a distance: ``<1`` points to the node before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from adadepth.data.batches import IGNORE
from adadepth.data.editable_grid import EditableGrid, GridRows, number_symbols
from adadepth.data.generated.base import (
    DrawnExamples,
    DrawnTags,
    build_symbol_example,
    build_symbol_tokenizer,
    build_tagging_data,
    check_room,
    encode_symbols,
    get_evaluation_size,
    to_range,
)
from adadepth.data.generated.pointer_chains import draw_pointer_chains
from adadepth.data.labelled.collators import SequenceCollator
from adadepth.data.randomness import EVALUATION_SEED, Purpose
from adadepth.data.run_data import Picture, RunData, count_set_examples, summarise_data
from adadepth.data.text.special_tokens import Layout
from adadepth.data.text.tokenizer import with_data_layout
from adadepth.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from adadepth.config.data import HopsConfig

COLOURS = ("red", "green", "blue", "yellow", "black", "white", "pink", "grey")
_MARKED = 1  # token type of the node whose colour is the label


class HopsExamples(DrawnExamples):
    """Generated examples of pointer chasing: graphs with chains of pointers, up to a highest number of hops.

    Args:
        dataset: Settings of the nodes and colours.
        hops: Lowest and highest difficulty of a labelled node.
        length: Number of examples.
        seed: Seed of the examples.
    """

    purpose = Purpose.HOPS

    def __init__(self, dataset: HopsConfig, hops: tuple[int, int], length: int, seed: int) -> None:
        super().__init__(length, seed)
        self.nodes, self.colours, self.drawing = dataset.nodes, dataset.colours, str(dataset.drawing)
        self.hops, self.causal = hops, dataset.causal

    def draw(self, rows: int, epoch: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw ``symbols`` (rows, nodes) int16, and the ``hops`` and ``colours`` of nodes, int8; see `draw_forests`.

        The column ``marked``, (rows,) int16, is one node of each row. Its number of hops is uniform in the range.
        """
        targets, hops, colours = self._draw_targets(rows, generator)
        if self.causal:
            targets = np.arange(self.nodes) - targets
        marked_hops = generator.integers(self.hops[0], self.hops[1] + 1, (rows, 1))
        lots = np.where(hops == marked_hops, generator.random(hops.shape, dtype=np.float32), -1.0)
        symbols = np.where(hops == 0, self.nodes + colours, targets)
        return {
            "symbols": symbols.astype(np.int16),
            "hops": hops,
            "colours": colours,
            "marked": lots.argmax(axis=1).astype(np.int16),
        }

    def _draw_targets(self, rows: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draw the pointers, hops and colours of graphs, in causal order if the settings require it."""
        if self.drawing == "natural":
            return draw_pointer_chains(rows, self.nodes, self.hops, self.colours, self.nodes, generator)
        forests = draw_forests(rows, self.nodes, self.hops[1], self.colours, generator)
        return reorder_causally(*forests, generator) if self.causal else forests


class TaggedHops(HopsExamples, DrawnTags):
    """Graphs with one token per node. The label of a token is its node's colour, its difficulty the number of hops."""

    def example(self, columns: dict[str, np.ndarray]) -> dict[str, Any]:
        """Return a graph as an example, with labels only at nodes whose number of hops is in the configured range."""
        hops = columns["hops"].astype(np.int64)
        is_labelled = (self.hops[0] <= hops) & (hops <= self.hops[1])
        return build_symbol_example(
            columns["symbols"], np.where(is_labelled, columns["colours"].astype(np.int64), IGNORE), hops
        )


class MarkedHops(HopsExamples):
    """Graphs between [CLS] and [SEP] with one marked node, whose colour is the label of the sequence."""

    def __init__(self, *args: Any, layout: Layout) -> None:
        super().__init__(*args)
        self.layout = layout

    def example(self, columns: dict[str, np.ndarray]) -> dict[str, Any]:
        """Return a graph as a sequence in which one node is marked by its token type."""
        example = self.layout.build([encode_symbols(columns["symbols"])])
        marked = int(columns["marked"])
        example["token_type_ids"][np.flatnonzero(example["special_tokens_mask"] == 0)[marked]] = _MARKED
        return {**example, "label": int(columns["colours"][marked]), "difficulty": int(columns["hops"][marked])}


def draw_forests(
    rows: int, nodes: int, longest: int, colours: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw graphs of pointers in which every number of hops up to ``longest`` is equally frequent.

    Each forest contains as many chains of ``longest`` pointers as fit, at least two. These chains share no node and end
    at different colours, so that the most frequent colour says little about a single node.

    Returns:
        Three arrays (rows, nodes). ``targets``, int64, is the position of the node that each node points to. A root
        points to itself. ``hops`` and ``colours`` are int8.
    """
    levels = longest + 1
    chains = np.tile(np.arange(levels, dtype=np.int8), nodes // levels)
    extra_levels = generator.integers(0, levels, (rows, nodes - len(chains)), dtype=np.int8)
    hops = np.sort(np.concatenate([np.broadcast_to(chains, (rows, len(chains))), extra_levels], axis=1), axis=1)
    counts = (hops[:, :, None] == np.arange(levels)).sum(axis=1)
    first = np.cumsum(counts, axis=1) - counts  # first node with each number of hops
    rank = np.arange(nodes) - np.take_along_axis(first, hops.astype(np.int64), axis=1)  # within its number of hops
    closer = np.maximum(hops.astype(np.int64) - 1, 0)
    targets = np.take_along_axis(counts, closer, axis=1)
    lots = (generator.random(hops.shape) * targets).astype(np.int64)
    parents = np.take_along_axis(first, closer, axis=1) + np.where(rank < targets, rank, lots)
    parents = np.where(hops == 0, np.arange(nodes), parents)
    palette = generator.random((rows, colours), dtype=np.float32).argsort(axis=1).astype(np.int8)
    root_colours = np.take_along_axis(palette, rank % colours, axis=1)  # of the roots
    for _ in range(longest):
        root_colours = np.take_along_axis(root_colours, parents, axis=1)
    # In a random order: node n of those sorted by hops lies at positions[n].
    order = generator.random(hops.shape, dtype=np.float32).argsort(axis=1)
    positions = order.argsort(axis=1)
    targets, hops, root_colours = (
        np.take_along_axis(column, order, axis=1)
        for column in (np.take_along_axis(positions, parents, axis=1), hops, root_colours)
    )
    return targets, hops, root_colours


def reorder_causally(
    targets: np.ndarray, hops: np.ndarray, colours: np.ndarray, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Reorder the nodes of each graph at random, such that every node comes after the node that it points to."""
    lots = generator.random(hops.shape)
    keys = lots
    for level in range(1, int(hops.max()) + 1):
        before = np.take_along_axis(keys, targets, axis=1)
        keys = np.where(hops == level, before + (1 - before) * lots, keys)
    order = keys.argsort(axis=1)
    positions = order.argsort(axis=1)
    targets, hops, colours = (
        np.take_along_axis(column, order, axis=1)
        for column in (np.take_along_axis(positions, targets, axis=1), hops, colours)
    )
    return targets, hops, colours


def load_hops(dataset: HopsConfig, seed: int, cls_tokens: int = 1) -> RunData:
    """Generate pointer-chasing data. Evaluation set ``inside`` has the trained range of hops, ``beyond`` another one.

    The evaluation sets depend on neither the seed nor the number of training examples.

    Args:
        dataset: Settings of the task and the number of examples.
        seed: Seed of the training examples.
        cls_tokens: Number of leading [CLS] tokens of a sequence with one label.

    Raises:
        ConfigError: If ``dataset.sequence_length`` is too small for all tokens.
    """
    symbols = list_node_symbols(dataset)
    labels = COLOURS[: dataset.colours]
    ranges = {"inside": dataset.train_hops}
    if dataset.beyond_hops is not None:
        ranges["beyond"] = dataset.beyond_hops
    facts = {"nodes": dataset.nodes, "colours": dataset.colours, "hops": {name: list(r) for name, r in ranges.items()}}
    sets = [("train", dataset.train_hops, dataset.train_examples, seed)]
    sets += [(name, ends, get_evaluation_size(dataset), EVALUATION_SEED) for name, ends in ranges.items()]
    picture: Picture | None = None if dataset.causal else "chains"  # it follows positions, not distances
    if dataset.unit == "token":
        tagged = {name: TaggedHops(dataset, to_range(ends), *how) for name, ends, *how in sets}
        return build_tagging_data(dataset, tagged.pop("train"), tagged, symbols, labels, facts, picture=picture)
    words = build_symbol_tokenizer(symbols)
    layout = Layout.from_tokenizer(words, dataset.sequence_length, cls_tokens)
    words = with_data_layout(words, layout)
    check_room(layout, dataset.nodes, "nodes")
    marked = {name: MarkedHops(dataset, to_range(ends), *how, layout=layout) for name, ends, *how in sets}
    train = marked.pop("train")
    collate = SequenceCollator(words.pad_token_id, dataset.sequence_length, dataset.pad_to_length)
    return RunData(
        train=train,
        evaluation=marked,
        tokenizer=words,
        collate=collate,
        summary=summarise_data(dataset, count_set_examples(train, marked), facts=facts),
        problem="classification",
        labels=labels,
        metrics=("accuracy",),
        has_difficulty=True,
    )


def list_node_symbols(dataset: HopsConfig) -> Sequence[str]:
    """Return every symbol of a node: first the pointers, then the colours of chain ends."""
    pointer = "<" if dataset.causal else ">"
    return (*(f"{pointer}{node}" for node in range(dataset.nodes)), *COLOURS[: dataset.colours])


def read_hops(dataset: HopsConfig, rows: GridRows, before: Mapping[str, Any]) -> dict[str, Any]:
    """Build an example from a graph that a user edited in the demo, with a label at every node or the marked one."""
    symbols = number_symbols(rows, list_node_symbols(dataset))[0].astype(np.int64)
    targets = _read_targets(symbols, dataset)
    hops, colours = np.zeros(len(symbols), dtype=np.int64), np.zeros(len(symbols), dtype=np.int64)
    for node in range(len(symbols)):
        root, count = node, 0
        while symbols[root] < dataset.nodes:
            root, count = int(targets[root]), count + 1
            if count > len(symbols):
                raise DataError(f"pointers from node {node} form a cycle and lead to no colour")
        hops[node], colours[node] = count, symbols[root] - dataset.nodes
    if "label" not in before:
        example = TaggedHops(dataset, (0, len(symbols)), 1, EVALUATION_SEED)
        return example.example({"symbols": symbols, "hops": hops, "colours": colours})
    ids, nodes = np.array(before["input_ids"]), np.flatnonzero(before["special_tokens_mask"] == 0)
    ids[nodes] = encode_symbols(symbols)
    marked = int(np.flatnonzero(before["token_type_ids"][nodes] == _MARKED)[0])
    return {**before, "input_ids": ids, "label": int(colours[marked]), "difficulty": int(hops[marked])}


def _read_targets(symbols: np.ndarray, dataset: HopsConfig) -> np.ndarray:
    """Return the index of the node that each node of an edited graph points to. Values at chain ends are arbitrary."""
    if not dataset.causal:
        return symbols
    targets: np.ndarray = np.arange(len(symbols)) - symbols
    if (wrong := np.flatnonzero((symbols < dataset.nodes) & ((targets < 0) | (symbols == 0)))).size:
        raise DataError(f"node {wrong[0]} does not point to an earlier node")
    return targets


HOPS_GRID = EditableGrid(list_node_symbols, read_hops)
