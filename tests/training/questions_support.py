"""Questions, contexts and choices in small tables, and the settings of runs on them."""

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


def question_rows(count: int, unanswerable: bool) -> list[dict[str, Any]]:
    """Where is a pet? Contexts are longer than a window; in a third of those of version 2 the pet is not in them."""
    rows = []
    for number in range(count):
        places = [PLACES[(number + shift) % 4] for shift in range(3)]
        order = [PETS[(number // 2 + shift) % 3] for shift in range(3)]
        context = " ".join(
            f"the {pet} sat in the {place} for hours and hours ." for pet, place in zip(order, places, strict=True)
        )
        asked = "mouse" if unanswerable and number % 3 == 2 else order[number % 3]
        texts = [] if asked == "mouse" else [places[number % 3]]
        answers = {"text": texts, "answer_start": [context.index(text) for text in texts]}
        rows.append({"id": f"q{number}", "question": f"where is the {asked} ?", "context": context, "answers": answers})
    return rows


def choice_rows(count: int) -> list[dict[str, Any]]:
    """Which ending names the pet of the context?"""
    rows = []
    for number in range(count):
        pets = [*PETS, "mouse"]
        right = number % 4
        endings = {f"ending{choice}": f"is a {pets[(choice + number // 4) % 4]}" for choice in range(4)}
        pet = pets[(right + number // 4) % 4]
        rows.append({"sent1": f"there was a {pet} .", "sent2": "what sat", "label": right, **endings})
    return rows


def write(folder: Path, root: str, unanswerable: bool = False, **splits: int) -> Path:
    folder.mkdir()
    for split, count in (splits or {"train": 12, "validation": 9}).items():
        rows = choice_rows(count) if root == "act_swag" else question_rows(count, unanswerable)
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def settings(tmp_path: Path, root: str, *overrides: str, **table: Any) -> tuple[str, ...]:
    folder = tmp_path / "table"
    if not folder.exists():
        write(folder, root, **table)
    windows = WINDOWS if root == "act_squad" else ()
    return (
        *SMALL,
        *windows,
        "dataset.source=local",
        f"dataset.path={folder}",
        f"dataset.cache_dir={tmp_path}/cache",
        *overrides,
    )
