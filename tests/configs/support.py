"""Compose shipped configurations in this process."""

from __future__ import annotations

import json
import pickle
from functools import cache
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from adadepth.cli.keys import list_model_schemas
from adadepth.cli.schemas import register_schema
from adadepth.cli.validation import build_config
from adadepth.config import ExperimentConfig
from adadepth.config.kinds import list_dataset_schemas
from adadepth.models.registry import config_folders

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
ROOTS = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
OPTIONS = sorted((path.parent.name, path.stem) for path in CONFIGS.glob("*/*.yaml") if path.parent.name != "hydra")
GROUPS = {path.name for folder in (CONFIGS, *config_folders()) for path in folder.iterdir() if path.is_dir()}
GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")
BASELINES = sorted(path.stem for path in CONFIGS.glob("baseline/*.yaml"))
# Root for the options of one task; any other option belongs to the pretraining root.
HOMES = {
    **{("model", name): "ponder_tiny" for name in (
        "ponder_albert_mini", "albert_mini", "pabee_mini", "ponder_albert_pretrained", "albert_pretrained",
        "albert_act_pretrained", "pabee_pretrained", "palbert_pretrained", "pondernet_pretrained", "stock",
    )},
    **{("dataset", name): "ponder_tiny" for name in (
        *GLUE, "table", "bigram_shift", "parity", "senteval", "agreement",
    )},
    **{("trainer", name): "ponder_tiny" for name in ("finetune", "finetune_lamb", "palbert", "scratch", "halting")},
    ("tokenizer", "pretrained"): "ponder_tiny",
    ("sweep", "glue"): "ponder_tiny",
    ("model", "ponder_albert_hops"): "ponder_hops", ("trainer", "ponder_hops"): "ponder_hops",
    **{("model", f"adalayers_{name}"): "adalayers_tiny" for name in (
        "minilm", "roberta_large", "bart_large_cnn", "bert_base",
    )},
    **{("dataset", name): "adalayers_tiny" for name in ("imdb", "conll2003", "wikiann", "ud_pos", "tagging_table")},
    **{("baseline", name): "adalayers_tiny" for name in BASELINES},
    **{("trainer", "adalayers" + name): f"adalayers{name}" for name in (
        "_cola", "_cola_bart", "_cola_single_pick", "_imdb", "_imdb_bart", "_rte", "_conll",
    )},
    **{("trainer", name): "adalayers_tiny" for name in ("adalayers", "head")},
    ("tokenizer", "base"): "adalayers_tiny",
    **{("model", f"par_xl_{size}"): "par_tiny" for size in ("mini", "small", "base")},
    **{("dataset", f"stream_{name}"): "par_tiny" for name in (
        "python_docs", "text", "wikitext2", "wikitext103",
    )},
    **{("tokenizer", name): "par_tiny" for name in ("words", "bytes", "wikitext")},
    **{("trainer", f"par_{size}"): "par_tiny" for size in ("tiny", "wikitext2", "base")},
    **{("preset", name): "par_tiny" for name in ("none", "seed")},
    **{("dataset", name): "act_squad" for name in ("squad", "squad_v2", "question_table")},
    **{("dataset", name): "act_swag" for name in ("swag", "choice_table")},
    **{("trainer", f"albert_{name}"): "act_squad" for name in ("squad", "squad_v2", "race")},
    **{(group, f"{prefix}{name}"): f"act_{name}" for name in ("maze", "hops", "addition") for group, prefix in (
        ("model", "albert_act_"), ("dataset", ""), ("trainer", ""),
    )},
    ("dataset", "hops_sequence"): "act_hops",
    ("trainer", "pos"): "act_pos",
    **{("budget", name): f"act_{name}" for name in ("maze", "hops", "addition")},
    **{("budget", f"act_{size}"): f"act_{size}" for size in ("tiny", "small", "base")},
    **{("budget", name): "adalayers_tiny" for name in ("layers", "blocks")},
    ("budget", "latency"): "par_tiny",
    ("model", "parity_rnn"): "ponder_parity",
    ("dataset", "parity_vectors"): "ponder_parity",
    ("trainer", "parity"): "ponder_parity",
    **{("dataset", name): "trm_tiny" for name in ("sudoku", "maze_path", "sudoku_extreme", "maze_hard")},
    **{("model", f"trm_{name}"): "trm_tiny" for name in ("mini", "attention", "positions")},
    ("model", "hrm"): "trm_tiny",
    **{("model", name): "ponder_tiny" for name in (
        "looped_mini", "looped_retrofit", "ouro_1_4b", "ouro_2_6b", "huginn_3_5b", "published_retrofit", "hrm_text_1b",
        "nanbeige_3b", "early_exit_mini", "early_exit_masked", "early_exit_pretrained", "early_exit_retrofit",
        "published_layerskip",
    )},
    **{("dataset", f"causal_{name}"): "loop_tiny" for name in ("python_docs", "text", "wikitext2")},
    ("dataset", "conversations"): "loop_tiny", ("trainer", "loop_tiny"): "loop_tiny",
    **{("model", name): "mor_tiny" for name in ("mor_mini", "mod_mini", "router_tuning")},
    ("model", "early_exit_minilm"): "exit_sst2", ("model", "early_exit_regression"): "exit_stsb",
    ("model", "early_exit_hops"): "exit_hops", ("model", "mor_hops"): "mor_hops",
    ("model", "looped_hops"): "loop_hops", ("dataset", "hops_causal"): "loop_hops",
    ("dataset", "lengths"): "loop_lengths",
    **{(group, name): f"loop_{name}" for name in ("trace", "mano") for group in ("dataset", "trainer")},
    ("trainer", "trm"): "trm_tiny", ("trainer", "trm_tiny"): "trm_tiny",
}  # fmt: skip
# Settings that an option needs from the user before it can run.
NEEDS = {
    ("dataset", "text"): ["dataset.path=corpus.txt"],
    ("dataset", "stream_text"): ["dataset.path=corpus.txt"],
    ("dataset", "causal_text"): ["dataset.path=corpus.txt"],
    ("dataset", "conversations"): ["dataset.path=chat.jsonl", "tokenizer.path=folder"],
    ("dataset", "table"): ["dataset.path=folder"],
    ("dataset", "senteval"): ["dataset.path=folder", "dataset.task=tree_depth"],
    ("dataset", "agreement"): ["dataset.path=agreement.tsv"],
    ("dataset", "tagging_table"): ["dataset.path=folder"],
    ("dataset", "question_table"): ["dataset.path=folder"],
    ("dataset", "choice_table"): ["dataset.path=folder"],
    ("budget", "blocks"): ["model.distribution_cutoff=0.01"],
    ("budget", "depth"): ["model.act_penalty=0"],
    ("budget", "work"): ["model.act_penalty=0"],
    ("model", "stock"): ["model.pretrained=folder"],
    **{("model", name): ["model.pretrained=folder"] for name in ("looped_retrofit", "published_retrofit")},
    ("model", "early_exit_retrofit"): ["model.pretrained=folder"],
    ("model", "router_tuning"): ["model.pretrained=folder"],
    ("model", "albert_act_mini"): ["dataset.sequence_length=128"],
}


def choose_root(group: str, option: str) -> str:
    """Return the root on which an option is tried."""
    return HOMES.get((group, option), "act_tiny")


def compose_config(root: str, *overrides: str) -> DictConfig:
    """Build a choice of options once a session, and set the values on a copy, with the call by which Hydra does."""
    values = [override for override in overrides if _is_value(override)]
    choices = tuple(override for override in overrides if override not in values)
    config = pickle.loads(
        _compose_choices(root, choices, (*list_model_schemas().items(), *list_dataset_schemas().items()))
    )
    for override in OverridesParser.create().parse_overrides(values):
        assert not override.is_sweep_override(), override.input_line
        OmegaConf.update(config, override.key_or_group, override.value(), merge=True)
        config.hydra.overrides.task.append(override.input_line)
    return config


def _is_value(override: str) -> bool:
    """Return whether an override is a plain `key=value`: no option of a group and no added or deleted key."""
    key = override.partition("=")[0]
    return key.replace(".", "").isidentifier() and not key.startswith("hydra") and key not in GROUPS


@cache
def _compose_choices(root: str, choices: tuple[str, ...], schemas: tuple[tuple[str, type], ...]) -> bytes:
    """Return a root with the options chosen, pickled; another set of schemas of models or data composes again."""
    _register(schemas)
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return pickle.dumps(compose(root, overrides=list(choices), return_hydra_config=True))


@cache
def _register(schemas: tuple[tuple[str, type], ...]) -> None:
    register_schema()


def configured(root: str = "act_tiny", *overrides: str) -> ExperimentConfig:
    return build_config(compose_config(root, *overrides))


def write_run(folder: Path, config: ExperimentConfig, *, has_tokenizer: bool = True, name: str = "run") -> Path:
    """Write the files of a finished run, as far as an evaluation checks them before it loads the model."""
    run = folder / config.name / name
    for model_folder in ("model", "checkpoints/checkpoint-2"):
        (run / model_folder).mkdir(parents=True)
        if has_tokenizer:
            (run / model_folder / "tokenizer.json").write_text("{}")
    (run / "run.json").write_text(json.dumps({"status": "finished"}))
    (run / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.structured(config)))
    return run
