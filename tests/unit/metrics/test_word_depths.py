"""Ranking of words, compared with one that stores every word of a set, over batches, processes and tokenizers."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from adadepth.evaluation.evaluation import VocabularyDepths, vocabulary_depths
from adadepth.evaluation.scorer import Scorer
from adadepth.metrics.significance import sum_clusters
from adadepth.metrics.words import FEWEST_CLUSTERS, FEWEST_OCCURRENCES, RANKED_WORDS, WordDepths, Words
from adadepth.report.depth_by_class import format_halting, ranked_words, write_halting_files
from adadepth.report.run_files import read_run
from tests.unit.report import synthetic

VOCABULARY, TAGS = 60, ("NOUN", "VERB", "X")
Batch = tuple[Words, torch.Tensor]


def make_batches(seed: int, sizes: tuple[int, ...] = (9, 1, 14, 20)) -> list[Batch]:
    """Return batches of pieces: those below 5 are no words, and every seventh id continues the word before it."""
    generator = np.random.default_rng(seed)
    batches = []
    for size in sizes:
        pieces = generator.integers(3, VOCABULARY, (size, 40))
        counted = pieces >= 5
        starts = ~counted | (pieces % 7 != 0)
        starts[:, 0] = True
        starts[:, 1:] |= ~counted[:, :-1]
        selected = counted & (generator.random(pieces.shape) < 0.1)
        tags = np.where(starts & counted, pieces % 2, -100)
        depths = generator.integers(1, 7, pieces.shape) + pieces % 3
        words = Words(*map(torch.from_numpy, (pieces, starts, counted, selected, tags)))
        batches.append((words, torch.from_numpy(depths).float()))
    return batches


def list_words(batches: list[Batch]) -> list[dict[str, Any]]:
    """Return all words one after the other."""
    entries: list[dict[str, Any]] = []
    row = 0
    for words, depths in batches:
        assert words.selected is not None
        assert words.tags is not None
        for row_number in range(len(depths)):
            row += 1
            for position in range(depths.shape[1]):
                if words.starts[row_number, position]:
                    entries.append(
                        {
                            "row": row,
                            "ids": [],
                            "depths": [],
                            "selected": False,
                            "tag": words.tags[row_number, position],
                        }
                    )
                word = entries[-1]
                word["ids"].append(int(words.pieces[row_number, position]))
                word["depths"].append(float(depths[row_number, position]))
                word["selected"] |= bool(words.selected[row_number, position])
    return [word for word in entries if word["ids"][0] >= 5]


def rank_words(words: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of the words that occur often enough, shallowest first."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for word in words:
        groups[f"w{word['ids'][0]}" + "…" * (len(word["ids"]) > 1)].append(word)
    rows = []
    for name, members in groups.items():
        measured = [word for word in members if not word["selected"]]
        rows.append({"word": name, **describe_words(measured), "selected": len(members) - len(measured)})
    often = [row for row in rows if row["n"] >= FEWEST_OCCURRENCES and row["sequences"] >= FEWEST_CLUSTERS]
    return sorted(often, key=lambda row: (row["mean"], "…" in row["word"], int(row["word"].strip("w…"))))


def describe_words(members: list[dict[str, Any]]) -> dict[str, Any]:
    means = np.array([np.mean(word["depths"]) for word in members])
    sums = sum_clusters(means, np.array([word["row"] for word in members]))
    low, high = (mean := sums.estimate_mean()).interval
    return {"n": len(members), "sequences": int(sums.clusters), "mean": mean.mean, "low": low, "high": high}


def summarise(parts: list[list[Batch]]) -> dict[str, Any]:
    """Return the summary of batches that several processes have."""
    depths = [WordDepths(VOCABULARY, "cpu", len(TAGS)) for _ in parts]
    for one, batches in zip(depths, parts, strict=True):
        for words, updates in batches:
            one.add(words, updates)
    for other in depths[1:]:
        for mine, theirs in zip(depths[0].tensors(), other.tensors(), strict=True):
            mine += theirs
    return depths[0].summary(lambda piece: f"w{piece}", TAGS)


def assert_equal_rows(actual: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Check that rows agree, their numbers up to rounding."""
    for mine, right in zip(actual, expected, strict=True):
        assert mine.keys() == right.keys()
        assert list(mine.values()) == [
            pytest.approx(value) if isinstance(value, float) else value for value in right.values()
        ]


def test_the_ranking_equals_that_of_all_words() -> None:
    batches = make_batches(0)
    words, ranking = list_words(batches), summarise([batches])
    expected = rank_words(words)
    assert ranking["ranked"] == len(expected) > 2 * RANKED_WORDS
    assert ranking["n"] == sum(not word["selected"] for word in words)
    assert ranking["selected"] == sum(word["selected"] for word in words) > 0
    assert_equal_rows(ranking["shallowest"], expected[:RANKED_WORDS])
    assert_equal_rows(ranking["deepest"], expected[: -RANKED_WORDS - 1 : -1])


def test_tags_have_all_their_words() -> None:
    batches = make_batches(1)
    words = list_words(batches)
    expected = [
        {"tag": name, **describe_words([word for word in words if word["tag"] == number])}
        for number, name in enumerate(TAGS[:2])
    ]
    assert_equal_rows(summarise([batches])["tags"], sorted(expected, key=lambda row: -row["mean"]))


def test_processes_and_batches_do_not_matter() -> None:
    batches = make_batches(2)
    apart, together = summarise([batches[:1], batches[1:]]), summarise([batches])
    for key in ("deepest", "shallowest", "tags"):
        assert_equal_rows(apart.pop(key), together.pop(key))
    assert apart == together


def test_stored_tables_do_not_grow_with_the_set() -> None:
    few, many = (WordDepths(VOCABULARY, "cpu", len(TAGS)) for _ in range(2))
    for words, depths in make_batches(3) * 5:
        many.add(words, depths)
    assert [tensor.shape for tensor in few.tensors()] == [tensor.shape for tensor in many.tensors()]


def test_a_small_set_ranks_nothing() -> None:
    ranking = summarise([make_batches(4, sizes=(3,))])
    assert (ranking["ranked"], ranking["deepest"], ranking["shallowest"]) == (0, [], [])
    assert all(row["low"] is None for row in ranking["tags"])


# ---- the words of a batch

PIECES = ("<pad>", "[CLS]", "[SEP]", "[MASK]", "<unk>", "▁the", "▁read", "er", "s", ".", "▁go")


def make_tokenizer() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel({piece: number for number, piece in enumerate(PIECES)}, "<unk>"))
    special = dict(zip(("pad", "cls", "sep", "mask", "unk"), PIECES[:5], strict=True))
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, **{f"{name}_token": piece for name, piece in special.items()}
    )


class WordScorer(Scorer):
    """Scorer of a text whose words are known to the tokenizer, or to the data."""

    def __init__(self, starts: list[int] | None = None) -> None:
        self.word_tokenizer = make_tokenizer()
        self.starts = starts

    def find_word_starts(self, batch: Any) -> torch.Tensor | None:
        if self.starts is None:
            return None
        is_start = torch.zeros(batch["input_ids"].shape, dtype=torch.bool)
        is_start[:, self.starts] = True
        return is_start


def count_words(batch: dict[str, torch.Tensor], starts: list[int] | None = None) -> dict[str, tuple[int, float]]:
    """Return n and sum of the depths of every word of a batch whose depths count from 1."""
    scorer = WordScorer(starts)
    depths = VocabularyDepths(scorer, scorer.word_tokenizer, torch.device("cpu"))
    depths.add(batch, torch.arange(1, 1 + batch["input_ids"].numel()).view(batch["input_ids"].shape).float())
    n, total = depths.tensors()[0][:2].tolist()
    names = [*PIECES, *(f"{piece}…" for piece in PIECES)]
    return {name: (int(n[key]), total[key]) for key, name in enumerate(names) if n[key]}


def make_batch(*pieces: str, length: int = 9) -> dict[str, torch.Tensor]:
    ids = [PIECES.index(piece) for piece in pieces]
    real = [1] * len(ids) + [0] * (length - len(ids))
    return {"input_ids": torch.tensor([ids + [0] * (length - len(ids))]), "attention_mask": torch.tensor([real])}


def test_words_begin_where_the_vocabulary_marks_them() -> None:
    batch = make_batch("[CLS]", "▁the", "▁read", "er", "s", ".", "[SEP]", "s")
    assert count_words(batch) == {"▁the": (1, 2.0), "▁read…": (1, 4.0), ".": (1, 6.0), "s": (1, 8.0)}


def test_words_begin_where_the_data_mark_them() -> None:
    batch = make_batch("[CLS]", "▁the", "▁read", "er", ".", "s", "[SEP]")
    assert count_words(batch, starts=[1, 3]) == {"▁the…": (1, 2.5), "er…": (1, 5.0)}


def test_a_word_with_a_piece_to_predict_is_not_measured() -> None:
    batch = make_batch("[CLS]", "[MASK]", "▁read", "[MASK]", "▁the", "▁go", "[SEP]")
    labels = torch.full((1, 9), -100)
    labels[0, [1, 3, 4]] = torch.tensor([PIECES.index(piece) for piece in ("▁go", "er", "▁the")])
    kinds = torch.tensor([[0, 1, 0, 1, 3, 0, 0, 0, 0]])
    assert count_words(batch | {"labels": labels, "mask_kind": kinds}) == {"▁go": (1, 6.0)}


def test_words_are_ranked_only_for_token_depths_of_text() -> None:
    device = torch.device("cpu")
    assert vocabulary_depths(WordScorer(), "token", device) is not None
    assert vocabulary_depths(WordScorer(), "sequence", device) is None
    assert vocabulary_depths(Scorer(), "token", device) is None


# ---- reports and console


def test_the_report_and_the_console_have_both_ends(tmp_path: Any) -> None:
    halting, sentences = synthetic.evaluate(6, 1.0, seed=0)
    words = summarise([make_batches(5)])
    halting["words"] = words
    write_halting_files(tmp_path, halting, sentences, 7, "held_out")
    section = ranked_words(read_run(tmp_path))
    assert section is not None
    assert section.of == f"n = {words['n']:,} words of held_out, step 7"
    assert [table.name for table in section.tables] == ["deepest_words", "shallowest_words", "depth_by_tag"]
    assert len(section.figures[0].panels) == 3
    deepest = words["deepest"][0]
    assert f"deepest words: {deepest['word']} {deepest['mean']:.2f} (n {deepest['n']})," in format_halting(halting, 7)
    assert "deepest tags: " in format_halting(halting, 7)


def test_a_set_without_ranked_words_has_no_section(tmp_path: Any) -> None:
    halting, sentences = synthetic.evaluate(6, 1.0, seed=0)
    write_halting_files(tmp_path, halting, sentences, 7)
    assert ranked_words(read_run(tmp_path)) is None
    write_halting_files(
        tmp_path, halting | {"words": summarise([make_batches(4, sizes=(3,))]) | {"tags": []}}, sentences, 7
    )
    assert ranked_words(read_run(tmp_path)) is None


def test_words_of_equal_depths_are_not_ranked(tmp_path: Any) -> None:
    halting, sentences = synthetic.evaluate(6, 1.0, seed=0)
    halting["words"] = summarise([make_batches(5)])
    halting["classes"]["all"]["std"] = 0.0
    write_halting_files(tmp_path, halting, sentences, 7)
    assert ranked_words(read_run(tmp_path)) is None
