"""What ran, on what, where, and what it ended with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from adadepth.analysis.architecture.search import is_fixed
from adadepth.analysis.files import CONFIG, RunFiles, is_summary_of_seeds, run_unit
from adadepth.analysis.render.formats import clock, is_number, number, rounded
from adadepth.analysis.render.section import Section, absent, fill
from adadepth.analysis.render.table import Column, Table, text


def facts_section(files: RunFiles) -> Section:
    """Facts, final metrics, and the configuration as written."""
    missing = [absent(what, files, name) for what, name in
               (("Facts about the run are", "run.json"), ("The configuration is", CONFIG))
               if name in files.missing and not is_summary_of_seeds(files)]  # fmt: skip
    metrics = final_metrics(files)
    table = Table("final_metrics", [Column("metric", "metric", text, "text"), Column("value", "value", rounded(4))],
                  [{"metric": name, "value": value} for name, value in metrics])  # fmt: skip
    html = fill(
        "facts", missing=Markup("").join(missing), facts=facts(files), table=table if metrics else None,
        has_run="run.json" not in files.missing and not is_summary_of_seeds(files), config=config_text(files),
    )  # fmt: skip
    return Section("Run", "run", html, tables=[table] if metrics else [])


def title(files: RunFiles) -> str:
    """Name of the run's configuration, or of its folder."""
    return str(files.run.get("config_name") or files.config.get("name") or files.directory.resolve().name)


def facts(files: RunFiles) -> list[tuple[str, str]]:
    """What ran, on what, where: (name, value) for every fact that the files hold."""
    run, config = files.run, files.config
    model, data = config.get("model") or {}, config.get("dataset") or {}
    is_architecture, described = run_unit(files) == "architecture", files.halting.get("architecture")
    stage = config.get("halting") or {}
    is_search = is_architecture and not (described and is_fixed(described))
    found = {
        "Model": _listed(model, _MODEL_SETTINGS),
        "Halting": _listed(model, _HALTING_SETTINGS),
        "Second stage": _listed(stage, ("slope", "threshold")) if stage.get("alone") else "",
        "Layers": _listed(model, _LAYER_SETTINGS),
        "Network": _listed(model, _NETWORK_SETTINGS),
        "Search": _listed(config.get("search") or {}, _SEARCH_SETTINGS) if is_search else "",
        "Evaluation": _listed(config.get("context") or {}, _CONTEXT_SETTINGS) if is_architecture else "",
        "Data": _listed(data, ("name", "source", "sequence_length")),
        "Tokenizer": tokenizer(files) if is_architecture else "",
        "Step": number(files.halting["step"]) if "step" in files.halting else "",
        "Seed": _seeds(files),
        "Hardware": _text(run.get("hardware")),
        "Status": _text(run.get("status")),
        "Started": _text(run.get("started")),
        "Wall time": clock(run["wall_time_s"]) if is_number(run.get("wall_time_s")) else "",
        "Command": _text(run.get("command")),
        "Git commit": _text(run.get("git_commit")),
        "Versions": _text(run.get("versions")),
        "Best checkpoint": _text(run.get("best_checkpoint")),
        "Error": _text(run.get("error")),
    }
    return [(name, value) for name, value in found.items() if value]


_MODEL_SETTINGS = ("name", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_steps", "cell", "pretrained")
_HALTING_SETTINGS = (
    "act_epsilon", "act_penalty", "readout_weight", "penalty_reduction", "cap_remainder", "state_rule",
    "halt_bias_init", "pooling", "prior", "target_halt_probability", "kl_penalty_factor", "kl_direction", "truncation",
    "ce_normalisation", "halting_head", "exit_rule",
)  # fmt: skip
_LAYER_SETTINGS = (
    "base_model", "project_dim", "mix", "head", "alpha_distribution", "lambda_distribution_entropy",
    "lambda_distribution_depth", "topk_distribution", "distribution_cutoff", "pick_one_layer_only",
    "freeze_distribution", "freeze_base_model", "seed_compat",
)  # fmt: skip
_NETWORK_SETTINGS = (
    "architecture", "memory_length", "cutoffs", "proj_factor", "tie_word_embeddings", "attention_scale",
    "attention_out_act", "branch_norm", "share_position_bias", "projection_bias", "softmax_bias",
)  # fmt: skip
_SEARCH_SETTINGS = (
    "method", "path", "straight_through", "tau_start", "tau_end", "tau_schedule", "gate_learning_rate", "weights_only",
    "architecture_share", "latency_weight", "latency_costs", "sampled_paths", "stages", "retrain_from", "retrain_steps",
)  # fmt: skip
_CONTEXT_SETTINGS = ("memory_length", "clamp_length", "same_length")


def tokenizer(files: RunFiles) -> str:
    """What text was cut into: perplexities per token of different tokenizers do not compare."""
    settings, data = files.config.get("tokenizer") or {}, files.run.get("data") or {}
    trained = (data.get("tokenizer") if isinstance(data, Mapping) else None) or {}
    name = settings.get("path") or settings.get("kind")
    size = trained.get("vocab_size") or settings.get("vocab_size")
    found = [str(name)] if name else []
    found += [f"{number(size)} entries"] if size else []
    return ", ".join([*found, *(["lower-cased"] if settings.get("lowercase") and not settings.get("path") else [])])


def _seeds(files: RunFiles) -> str:
    seeds = files.seeds.get("seeds") or [files.run.get("seed", files.config.get("seed"))]
    if seeds == [None]:
        return ""
    return f"{', '.join(map(str, seeds))} ({len(seeds)} seed{'s' * (len(seeds) != 1)})"


def _listed(section: Mapping[str, Any], keys: Sequence[str]) -> str:
    found = ((key, section[key]) for key in keys if section.get(key) is not None)
    return ", ".join(str(value) if key == "name" else f"{key} {value}" for key, value in found)


def _text(value: Any) -> str:
    """A value of run.json on one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(item)}" for key, item in value.items() if item is not None)
    return "" if value is None else str(value)


def final_metrics(files: RunFiles) -> list[tuple[str, Any]]:
    """Numbers of the run's last evaluation and training log; halting, and single steps, have their own sections."""
    metrics = files.run.get("final_metrics") or {}
    return [
        (name, value)
        for name, value in metrics.items()
        if name.split("/")[0] in ("eval", "train") and "/step_" not in name
    ]


def config_text(files: RunFiles) -> str:
    """config.yaml as written."""
    return (files.directory / CONFIG).read_text(encoding="utf-8")[:12_000] if CONFIG not in files.missing else ""
