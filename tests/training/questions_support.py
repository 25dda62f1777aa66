"""Support for tests of questions, contexts and choices: small tables, and the settings of runs on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SMALL = (
    "model=albert_act_mini", "model.embedding_size=16", "model.hidden_size=32", "model.num_hidden_layers=3",
    "model.num_attention_heads=2", "model.intermediate_size=64", "model.max_position_embeddings=64",
    "dataset.sequence_length=40", "tokenizer.path=null", "tokenizer.vocab_size=90", "debug=default",
    "trainer.disable_tqdm=true", "trainer.gradient_accumulation_steps=1", "trainer.weight_decay=0",
)  # fmt: skip


WINDOWS = ("dataset.stride=8", "dataset.max_question_length=12", "dataset.max_answer_length=6")


PLACES = ["garden", "kitchen", "cellar", "attic"]


PETS = ["cat", "dog", "owl"]


def make_question_rows(count: int, unanswerable: bool) -> list[dict[str, Any]]:
    """Return rows that ask where a pet is.

    Contexts are longer than a window. With `unanswerable`, the pet of every third question is not in the context.
    """
    rows = []
    for number in range(count):
        locations = [PLACES[(number + shift) % 4] for shift in range(3)]
        order = [PETS[(number // 2 + shift) % 3] for shift in range(3)]
        context = " ".join(
            f"the {pet} sat in the {location} for hours and hours ."
            for pet, location in zip(order, locations, strict=True)
        )
        target = "mouse" if unanswerable and number % 3 == 2 else order[number % 3]
        texts = [] if target == "mouse" else [locations[number % 3]]
        answers = {"text": texts, "answer_start": [context.index(text) for text in texts]}
        rows.append(
            {"id": f"q{number}", "question": f"where is the {target} ?", "context": context, "answers": answers}
        )
    return rows


def make_choice_rows(count: int) -> list[dict[str, Any]]:
    """Return rows that ask which ending names the pet of the context."""
    rows = []
    for number in range(count):
        pets = [*PETS, "mouse"]
        right = number % 4
        endings = {f"ending{choice}": f"is a {pets[(choice + number // 4) % 4]}" for choice in range(4)}
        pet = pets[(right + number // 4) % 4]
        rows.append({"sent1": f"there was a {pet} .", "sent2": "what sat", "label": right, **endings})
    return rows


def write_tables(folder: Path, root: str, unanswerable: bool = False, **splits: int) -> Path:
    folder.mkdir()
    for split, count in (splits or {"train": 12, "validation": 9}).items():
        rows = make_choice_rows(count) if root == "act_swag" else make_question_rows(count, unanswerable)
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def list_overrides(tmp_path: Path, root: str, *overrides: str, **table: Any) -> tuple[str, ...]:
    folder = tmp_path / "table"
    if not folder.exists():
        write_tables(folder, root, **table)
    windows = WINDOWS if root == "act_squad" else ()
    return (
        *SMALL,
        *windows,
        "dataset.source=local",
        f"dataset.path={folder}",
        f"dataset.cache_dir={tmp_path}/cache",
        *overrides,
    )
