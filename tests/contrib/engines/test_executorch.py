"""ExecuTorch programs against the models themselves."""

import pytest
import torch

from adadepth.config.export import ExportConfig
from adadepth.contrib import engines
from adadepth.errors import ConfigError
from tests.contrib.engines.models_under_test import BRANCHING, DENSE, draw_batch, predict

pytestmark = pytest.mark.slow
pytest.importorskip("executorch")

REFUSED = {"early_exit_tokens", "looped_tokens"}


@pytest.mark.parametrize("name", sorted((BRANCHING | DENSE).keys() - REFUSED))
def test_a_program_predicts_as_its_model_does(name, tmp_path):
    from adadepth.contrib.engines import run_executorch

    model = (BRANCHING | DENSE)[name]()
    torch.manual_seed(1)
    batches = [draw_batch(model, 1, length) for length in (5, 12, 30)]
    engines.EXECUTORCH.write()(model, tmp_path, tmp_path, ExportConfig(format="executorch"))
    program = run_executorch.load(tmp_path)
    for batch in batches:
        batch = {name: torch.zeros_like(value) if name == "token_type_ids" else value for name, value in batch.items()}
        logits, depths = predict(model, batch)
        outputs = run_executorch.run(program, batch["input_ids"][0].tolist())
        torch.testing.assert_close(outputs[0], logits, rtol=1e-4, atol=5e-5)
        if len(outputs) > 1:
            assert torch.equal(outputs[1], depths)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_labels_of_tokens_are_a_one_line_error(name, tmp_path):
    with pytest.raises(ConfigError, match=r"^model_type=\w+: export.format=executorch has no sizes that depend on"):
        engines.EXECUTORCH.write()(DENSE[name](), tmp_path, tmp_path, ExportConfig(format="executorch"))
    assert not any(tmp_path.iterdir())
