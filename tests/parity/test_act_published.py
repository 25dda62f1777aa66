"""The published ACT-ALBERT weights, if available: updates of the tokens of the model card's sentence.

`ADADEPTH_ALBERT_ACT=FOLDER pytest tests/parity/test_act_published.py` reads the folder of `asi/albert-act-base` as
published. The expected numbers are those of the model card and of the authors' notebooks.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from adadepth import AlbertActModel, Pipeline

_FOLDER = os.environ.get("ADADEPTH_ALBERT_ACT", "")
pytestmark = pytest.mark.skipif(
    not Path(_FOLDER, "config.json").is_file(), reason="ADADEPTH_ALBERT_ACT names no folder of asi/albert-act-base"
)
SENTENCE = "a lump in the middle of the monkeys stirred and then fell quiet ."
IDS = [2, 17, 11900, 14, 8, 772, 11, 8, 20797, 14527, 12, 95, 1096, 2365, 76, 3]
UPDATES = [15, 9, 10, 7, 3, 8, 5, 7, 12, 10, 6, 8, 8, 9, 5, 8]


def test_tokens_get_the_published_updates() -> None:
    model = AlbertActModel.from_pretrained(_FOLDER).eval()
    with torch.no_grad():
        outputs = model(torch.tensor([IDS]))
    assert outputs.updates.tolist() == [UPDATES]


def test_a_text_gets_the_published_updates() -> None:
    """Use the tokenizer of the folder, whose ids differ from those of albert-base-v2."""
    pipeline = Pipeline.from_pretrained(_FOLDER)
    assert pipeline.tokenizer(SENTENCE)["input_ids"] == IDS
    (prediction,) = pipeline([SENTENCE])
    assert [token.updates for token in prediction.tokens or ()] == UPDATES
    assert prediction.updates == 8.125
