"""Pointers in causal order: every node lies behind the one it points to, at the distance it names."""

from collections import Counter

from adadepth.config import TokenizerConfig
from adadepth.config.data import HopsConfig, HopsDrawing
from adadepth.data import load_labelled_data

FEW = {"max_evaluation_examples": 40, "train_examples": 400}


def test_pointers_lead_to_earlier_nodes() -> None:
    data = load_labelled_data(HopsConfig(name="hops_causal", causal=True, **FEW), TokenizerConfig(), 0)
    sets = {"train": data.train, **data.evaluation}
    ranges, seen = {"train": (0, 5), "inside": (0, 5), "beyond": (6, 7)}, {name: [0] * 8 for name in sets}
    for name, examples in sets.items():
        low, high = ranges[name]
        for example in (examples[number] for number in range(40)):
            symbols = data.tokenizer.convert_ids_to_tokens(example["input_ids"])
            for start in range(16):
                node, hops = start, 0
                while symbols[node].startswith("<"):
                    back = int(symbols[node].removeprefix("<"))
                    assert 1 <= back <= node
                    node, hops = node - back, hops + 1
                expected = data.labels.index(symbols[node]) if low <= hops <= high else -100
                assert (example["labels"][start], example["difficulties"][start]) == (expected, hops)
                seen[name][hops] += 1
    assert min(seen["inside"][:6]) > 0.5 * max(seen["inside"])
    assert min(seen["beyond"]) > 0.5 * max(seen["beyond"])


def test_natural_pointers_lead_to_any_earlier_node_or_colour() -> None:
    dataset = HopsConfig(name="hops_causal", causal=True, drawing=HopsDrawing.natural, nodes=12, colours=3, **FEW)
    data = load_labelled_data(dataset, TokenizerConfig(), 0)
    seen: Counter[str] = Counter()
    for number in range(400):
        example = data.train[number]
        symbols = data.tokenizer.convert_ids_to_tokens(example["input_ids"])
        seen[symbols[8]] += 1
        colours: list[str] = []
        hops: list[int] = []
        for node, symbol in enumerate(symbols):
            before = node - int(symbol.removeprefix("<")) if symbol.startswith("<") else None
            colours.append(symbol if before is None else colours[before])
            hops.append(0 if before is None else hops[before] + 1)
        expected = [
            data.labels.index(colour) if count <= 5 else -100 for colour, count in zip(colours, hops, strict=True)
        ]
        assert (example["labels"].tolist(), example["difficulties"].tolist()) == (expected, hops)
    assert set(seen) == {*(f"<{back}" for back in range(1, 9)), *data.labels}
    assert 18 < min(seen.values()) <= max(seen.values()) < 60  # 36 of each, and five deviations
    beyond = [data.evaluation["beyond"][number] for number in range(40)]
    assert all((example["labels"] >= 0).any() for example in beyond)
    assert all(example["difficulties"][example["labels"] >= 0].min() >= 6 for example in beyond)
