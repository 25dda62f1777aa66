"""Support for fine-tuning tests: runs at the debug length."""

from adadepth import tasks
from tests.configs.support import configured

SMALL = (
    "model.embedding_size=16", "model.hidden_size=32", "model.num_hidden_layers=4", "model.num_attention_heads=2",
    "model.intermediate_size=64", "model.max_position_embeddings=64", "dataset.sequence_length=32",
    "tokenizer.vocab_size=120",
)  # fmt: skip


def run(tmp_path, root, *overrides):
    """Run at the debug length, and return the folders of the runs, in order, and the metric."""
    config = configured(root, "debug=default", f"output_dir={tmp_path}/out", "trainer.disable_tqdm=true", *overrides)
    metric = tasks.run(config)
    return sorted((tmp_path / "out").glob("*/*")), metric
