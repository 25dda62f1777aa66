"""Support for tests of small language models on a made-up text, assembled as the task assembles them."""

from __future__ import annotations

import random
from pathlib import Path

from adadepth.config import ExperimentConfig
from adadepth.tasks.language_model import build_configured_model, build_language_session, load_data
from adadepth.training.arguments import training_arguments
from adadepth.training.callbacks import EpochCallback, StepCallback
from adadepth.training.trainer import DepthTrainer
from tests.configs.support import configured

WORDS = "the cat sat on a mat and then it slept for some hours in warm sun".split()  # noqa: SIM905


def write_text(path: Path, lines: int = 120) -> Path:
    """Write lines of random words, some of them blank, and return the path."""
    generator = random.Random(0)
    rows = [
        " ".join(generator.choices(WORDS, k=generator.randint(3, 9))) if generator.random() > 0.1 else ""
        for _ in range(lines)
    ]
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    return path


def build_stream_config(folder: Path, *overrides: str, root: str = "par_tiny") -> ExperimentConfig:
    """Return a configuration at the debug width on a made-up text.

    The model has three gated blocks, or four fixed ones with `root=par_network`.
    """
    text = folder / "text.txt"
    if not text.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_text(text)
    is_fixed = root == "par_network"
    return configured(
        root, "debug=default", "trainer.eval_steps=1", "trainer.save_steps=1", "dataset.evaluation_length=null",
        "model.architecture=sf-s" if is_fixed else "model.num_hidden_layers=3", "dataset=stream_text",
        f"dataset.path={text}", "dataset.evaluation_fraction=0.2", "dataset.sequence_length=8", "tokenizer=words",
        "tokenizer.vocab_size=null", "model.cutoffs=[6,12]", "trainer.disable_tqdm=true",
        f"output_dir={folder / 'outputs'}", *overrides,
    )  # fmt: skip


TRAINING_ONLY = (
    "task=language_model", "model.hidden_dropout_prob=0", "trainer.eval_strategy=no", "trainer.save_strategy=no",
    "trainer.load_best_model_at_end=false", "trainer.eval_on_start=false",
)  # fmt: skip


def build_stream_trainer(config: ExperimentConfig, folder: Path) -> DepthTrainer:
    """Build a trainer as the language-model task does, without the run's folder."""
    args = training_arguments(config, folder)
    data = load_data(config, args, config.tokenizer)
    session = build_language_session(config, args, data, build_configured_model(config, data)).with_extensions()
    epochs = EpochCallback()
    callbacks = [epochs, StepCallback()]
    trainer = DepthTrainer(
        session.model,
        args,
        data,
        session.evaluation_sets,
        session.start_evaluation,
        config.trainer,
        callbacks,
        session.extensions,
    )
    epochs.trainer = trainer
    return trainer


JOINT = ("search.method=joint", "search.gate_learning_rate=null")
