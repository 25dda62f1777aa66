"""Compose shipped configurations in this process."""

from __future__ import annotations

from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from adadepth.config import ExperimentConfig, register_schema
from adadepth.validation import checked

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
ROOTS = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
OPTIONS = sorted((path.parent.name, path.stem) for path in CONFIGS.glob("*/*.yaml") if path.parent.name != "hydra")
# What an option needs from the user before it can run.
NEEDS = {
    ("dataset", "text"): ["dataset.path=corpus.txt"],
    ("model", "albert_act_mini"): ["dataset.sequence_length=128"],
}


def composed(root: str, *overrides: str) -> DictConfig:
    register_schema()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return compose(root, overrides=list(overrides), return_hydra_config=True)


def configured(root: str = "act_tiny", *overrides: str) -> ExperimentConfig:
    return checked(composed(root, *overrides))
