"""Pointers in causal order: every node lies behind the one it points to, which is as far back as it says."""

from adadepth.data import load_labelled_data
from adadepth.settings import TokenizerConfig
from adadepth.settings.data import HopsConfig

FEW = {"max_evaluation_examples": 40, "train_examples": 400}


def test_pointers_lead_back() -> None:
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
                wanted = data.labels.index(symbols[node]) if low <= hops <= high else -100
                assert (example["labels"][start], example["difficulties"][start]) == (wanted, hops)
                seen[name][hops] += 1
    assert min(seen["inside"][:6]) > 0.5 * max(seen["inside"])
    assert min(seen["beyond"]) > 0.5 * max(seen["beyond"])
