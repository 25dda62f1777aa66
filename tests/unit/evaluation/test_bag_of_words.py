"""Baselines without word order: they learn what single words decide, and a plain count gives a word's commonest tag."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adadepth.config import LabelledConfig, Source, TaggingConfig, TokenizerConfig
from adadepth.config.data import SequenceProblem
from adadepth.data import load_labelled_data
from adadepth.evaluation.bag_of_words import score_bag_of_words
from adadepth.tasks import finetune
from tests.marks_support import keep_one_quick

FILLERS = ("tree", "river", "stone", "cloud", "house")


def load_rows(folder: Path, schema: Any, rows: dict[str, list[dict[str, Any]]], **changes: Any) -> Any:
    for split, lines in rows.items():
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = schema(
        name="t", source=Source.local, path=str(folder), cache_dir=str(folder / "cache"), sequence_length=32, **changes
    )
    return load_labelled_data(config, TokenizerConfig(vocab_size=60), 0)


def build_texts(first: int, count: int) -> list[str]:
    """Return texts in which each combination of a mood, an intensity and fillers occurs."""
    numbers = range(first, first + count)
    return [f"{FILLERS[n // 3 % 5]} {('good', 'bad', 'ugly')[n % 3]} {FILLERS[n % 5]}" for n in numbers]


@pytest.mark.parametrize(
    ("changes", "label_of"),
    keep_one_quick(
        3,
        [
            ({"metrics": ["accuracy"]}, lambda text: text.split()[1]),
            ({"metrics": ["accuracy"]}, lambda text: "yes" if "good" in text else "no"),
            (
                {"metrics": ["pearson"], "problem": SequenceProblem.regression},
                lambda text: {"good": 4.5, "bad": 1.0, "ugly": 0.5}[text.split()[1]],
            ),
            (
                {"metrics": ["micro_f1"], "problem": SequenceProblem.multi_label},
                lambda text: [word for word in ("good", "tree") if word in text],
            ),
        ],
    ),
    ids=["three classes", "two classes", "values", "several labels"],
)
def test_a_class_decided_by_single_words_is_learned(tmp_path: Path, changes: dict[str, Any], label_of: Any) -> None:
    rows = {
        split: [{"text": text, "label": label_of(text)} for text in build_texts(first, count)]
        for split, first, count in (("train", 0, 120), ("validation", 7, 30))
    }
    name, scores = score_bag_of_words(load_rows(tmp_path, LabelledConfig, rows, **changes)) or ("", {})
    assert name.startswith("ridge" if "problem" in changes and changes["metrics"] == ["pearson"] else "logistic")
    assert scores["validation"]["score"] > 0.97


def test_a_pair_has_columns_for_each_text(tmp_path: Path) -> None:
    """Check a class decided by which of two texts has a word: one bag for both could not learn it."""
    pairs = [("good", "bad"), ("bad", "good")]
    rows = []
    for number in range(80):
        first, second = pairs[number % 2]
        texts_of_row = {"text1": f"{FILLERS[number % 5]} {first}", "text2": f"{second} {FILLERS[number // 2 % 5]}"}
        rows.append({**texts_of_row, "label": number % 2})
    data = load_rows(tmp_path, LabelledConfig, {"train": rows, "validation": rows[:20]})
    scored = score_bag_of_words(data)
    assert scored is not None
    assert scored[1]["validation"]["accuracy"] == 1


def test_the_commonest_tag_of_a_word(tmp_path: Path) -> None:
    words = [[FILLERS[(n + m) % 5] for m in range(4)] for n in range(30)]
    tags = [["A" if (n * m + n) % 3 else "B" for m in range(4)] for n in range(30)]
    rows = [{"tokens": row, "ner_tags": names} for row, names in zip(words, tags, strict=True)]
    splits = {"train": rows[:20], "validation": rows[20:]}
    data = load_rows(tmp_path, TaggingConfig, splits, metrics=["token_accuracy"])
    counts: dict[str, Counter[str]] = {}
    for row in rows[:20]:
        for word, tag in zip(row["tokens"], row["ner_tags"], strict=True):
            counts.setdefault(word, Counter())[tag] += 1
    right = [
        counts[word].most_common(1)[0][0] == tag
        for row in rows[20:]
        for word, tag in zip(row["tokens"], row["ner_tags"], strict=True)
    ]
    scored = score_bag_of_words(data)
    assert scored is not None
    assert scored[1]["validation"]["token_accuracy"] == pytest.approx(sum(right) / len(right))


@pytest.mark.parametrize("is_enabled", [True, False])
def test_the_setting_switches_the_baseline_off(is_enabled: bool, tmp_path: Path) -> None:
    rows = [{"text": f"{FILLERS[n % 5]} {('good', 'bad')[n % 2]}", "label": ("a", "b")[n % 2]} for n in range(40)]
    data = load_rows(tmp_path, LabelledConfig, {"train": rows, "validation": rows[:20]})
    config: Any = SimpleNamespace(dataset=SimpleNamespace(source=Source.local), bag_of_words=is_enabled)
    args: Any = SimpleNamespace(process_index=0)
    assert ("bag_of_words" in finetune._score_baselines(config, args, data)) == is_enabled


def test_truncated_tokens_are_not_read(tmp_path: Path) -> None:
    """Put the word that decides the class last of 60 words: a sequence of 32 tokens lacks it."""
    rows = [
        {"text": " ".join([*[FILLERS[n % 5]] * 60, ("good", "bad")[n // 5 % 2]]), "label": n // 5 % 2}
        for n in range(80)
    ]
    data = load_rows(tmp_path, LabelledConfig, {"train": rows, "validation": rows[:20]}, metrics=["accuracy"])
    scored = score_bag_of_words(data)
    assert scored is not None
    assert scored[1]["validation"]["accuracy"] == 0.5


def test_truncated_words_of_a_tagger_get_the_tag_outside(tmp_path: Path) -> None:
    rows = [{"tokens": ["tree"] * 40, "ner_tags": ["A"] * 40} for _ in range(20)]
    rows[0] = {"tokens": ["stone"], "ner_tags": ["O"]}
    data = load_rows(tmp_path, TaggingConfig, {"train": rows, "validation": rows[1:]}, metrics=["token_accuracy"])
    examples = data.evaluation["validation"]
    read = sum(len(examples.find_first_pieces(index)) for index in range(len(examples)))
    assert 0 < read < 19 * 40
    scored = score_bag_of_words(data)
    assert scored is not None
    assert scored[1]["validation"]["token_accuracy"] == pytest.approx(read / (19 * 40))
