"""Models are evaluated with their own tokenizer or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import AddedToken
from transformers import AutoTokenizer

from adadepth import tasks
from adadepth.errors import UserError
from tests.configs.support import configured
from tests.marks_support import keep_one_quick


def evaluate(model: Path, out: Path, *overrides: str) -> None:
    tasks.run(
        configured(
            "act_tiny", "debug=default", "mode=evaluate", f"checkpoint={model}", f"output_dir={out}",
            "trainer.disable_tqdm=true", *overrides,
        )
    )  # fmt: skip


def remove_tokenizer(model: Path) -> None:
    (model / "tokenizer.json").unlink()


def halve_tokenizer(model: Path) -> None:
    os.truncate(model / "tokenizer.json", (model / "tokenizer.json").stat().st_size // 2)


def clear_tokenizer(model: Path) -> None:
    (model / "tokenizer.json").write_bytes(b"")


def forget(model: Path) -> None:
    (model / "tokenizer.json").write_text("{}", encoding="utf-8")


def remove_pieces(model: Path) -> None:
    stored = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
    stored["model"]["vocab"] = stored["model"]["vocab"][:5]
    (model / "tokenizer.json").write_text(json.dumps(stored), encoding="utf-8")


def add_tokens(model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.add_tokens([AddedToken(f"further{number}") for number in range(9)])
    tokenizer.save_pretrained(model)


@pytest.mark.parametrize(
    ("damage", "says"),
    keep_one_quick(
        3,
        [
            (remove_tokenizer, "no tokenizer in this folder"),
            (halve_tokenizer, "cannot load a tokenizer"),
            (clear_tokenizer, "cannot load a tokenizer"),
            (forget, "cannot load a tokenizer"),
            (remove_pieces, "it has 5 special tokens and no other piece"),
            (add_tokens, "tokens, the model"),
        ],
    ),
)
def test_a_model_without_its_tokenizer_is_refused(
    pretrained: Path, tmp_path: Path, damage: Callable[[Path], None], says: str
) -> None:
    model = tmp_path / "model"
    shutil.copytree(pretrained, model)
    damage(model)
    with pytest.raises(UserError, match=f"^tokenizer.path={model}: .*{says}") as caught:
        evaluate(model, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists(), "nothing is left behind"
