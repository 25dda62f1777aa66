"""report.html: one self-contained page drawn from the files of a run directory, and from nothing else.

What is missing becomes a sentence. The sections with drawings are made in `sections`; here are header and sentences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from adadepth.analysis.architecture import sections as architecture_sections
from adadepth.analysis.architecture.search import is_fixed
from adadepth.analysis.exits import sections as exit_sections
from adadepth.analysis.files import (
    ARCHITECTURES,
    BUDGETS,
    CONFIG,
    EXIT_RULES,
    EXITS,
    GRIDS,
    HALTING,
    METRICS,
    RIVALS,
    RUN,
    SEEDS,
    SENTENCES,
    RunFiles,
    budget_columns,
    read_run,
    run_unit,
)
from adadepth.analysis.layers import sections as layer_sections
from adadepth.analysis.measure.budgets import budget_label, rival_columns
from adadepth.analysis.render import difficulty as difficulty_sections
from adadepth.analysis.render import grid_sections, sections
from adadepth.analysis.render.colors import depth_color, text_on
from adadepth.atomic import write_atomic

REPORT = "report.html"
_MAX_TOKENS, _MAX_SENTENCES = 128, 12


def write_report(run_directory: Path) -> Path:
    """Write report.html into a run directory from the files in it.

    Any of them may be missing or damaged: the section it feeds then says so. Sections about exits, exit rules, compared
    architectures and seeds are there only if the run has such files; a directory that holds seeds.json and no
    halting.json gets a small page.

    Returns:
        The path of the report.
    """
    files = read_run(run_directory)
    environment = Environment(
        loader=PackageLoader("adadepth.analysis.render"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"number": number, "clock": clock, "percent": lambda share: f"{100 * share:.1f}%"}
    is_summary_of_seeds = bool(files.seeds) and HALTING in files.missing
    page = environment.get_template("seeds_page.html.j2" if is_summary_of_seeds else "report.html.j2").render(
        title=title(files),
        unit=run_unit(files),
        missing=files.missing,
        run=files.run,
        halting=files.halting,
        facts=facts(files),
        final_metrics=final_metrics(files),
        evaluation_speed=evaluation_speed(files),
        config=config_text(files),
        class_rows=sections.class_rows(files.halting),
        training=sections.depth_over_training(files),
        halting_charts=sections.halting_charts(files.halting),
        cosine_charts=sections.cosine_charts(files.halting),
        loss_charts=sections.loss_charts(files.metrics),
        budget_charts=sections.budget_chart(files.metrics),
        budgets=files.budgets,
        budget_targets=budget_targets(files),
        rivals=rival_columns(files.rivals) if files.rivals else None,
        sentences=sentences(files),
        depth_styles=depth_styles(max_depth(files)),
        difficulty=difficulty_sections.difficulty_section(files.halting),
        grid_sets=grid_sections.grid_sets(files),
        exit_sets=exit_sections.exit_sets(files.exits),
        study_sets=exit_sections.study_sets(files.exit_rules),
        layers=layer_sections.layer_section(files),
        architecture=architecture_sections.architecture_section(files),
        comparison=architecture_sections.comparison_section(files),
        tokenizer=tokenizer(files),
        seeds=files.seeds,
        seed_rows=exit_sections.seed_rows(files.seeds),
        layer_seeds=layer_sections.layer_seeds(files.seeds),
        architecture_seeds=architecture_sections.architecture_seeds(files.seeds),
        sources=sources(files),
    )
    path = run_directory / REPORT
    write_atomic(path, page)
    return path


# ---- header


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
        "Model": _listed(
            model,
            ("name", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_steps", "cell", "pretrained"),
        ),
        "Halting": _listed(
            model,
            (
                "act_epsilon",
                "act_penalty",
                "readout_weight",
                "penalty_reduction",
                "cap_remainder",
                "state_rule",
                "halt_bias_init",
                "prior",
                "target_halt_probability",
                "kl_penalty_factor",
                "kl_direction",
                "truncation",
                "ce_normalisation",
                "halting_head",
                "exit_rule",
            ),
        ),
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
        "Wall time": clock(run["wall_time_s"]) if _is_number(run.get("wall_time_s")) else "",
        "Command": _text(run.get("command")),
        "Git commit": _text(run.get("git_commit")),
        "Versions": _text(run.get("versions")),
        "Best checkpoint": _text(run.get("best_checkpoint")),
        "Error": _text(run.get("error")),
    }
    return [(name, value) for name, value in found.items() if value]


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


def evaluation_speed(files: RunFiles) -> float | None:
    """Tokens per second of the last evaluation, where the history has it."""
    found = [line["eval/tokens_per_second"] for line in files.metrics if "eval/tokens_per_second" in line]
    return found[-1] if found and _is_number(found[-1]) else None


def config_text(files: RunFiles) -> str:
    """config.yaml as written."""
    return (files.directory / CONFIG).read_text(encoding="utf-8")[:12_000] if CONFIG not in files.missing else ""


def sources(files: RunFiles) -> list[str]:
    """Names of the files that the page is drawn from."""
    optional = {
        EXITS: files.exits, EXIT_RULES: files.exit_rules, ARCHITECTURES: files.architectures, BUDGETS: files.budgets,
        RIVALS: files.rivals, GRIDS: files.grids, SEEDS: files.seeds,
    }  # fmt: skip
    always = [name for name in (RUN, CONFIG, METRICS, HALTING, SENTENCES) if name not in files.missing]
    return [*always, *(name for name, found in optional.items() if found)]


# ---- depth


def max_depth(files: RunFiles) -> int:
    """L of the run: from the statistics, else the deepest token of the sentences."""
    deepest = max((max(sentence.get("updates") or [1]) for sentence in files.sentences), default=1)
    return int(files.halting.get("max_depth", deepest))


def budget_targets(files: RunFiles) -> dict[str, Any] | None:
    """The checkpoint at several depths: its chart, and the rows of the table."""
    if not files.budgets:
        return None
    columns, rows = budget_columns(files.budgets)
    labels = [budget_label(row) for row in files.budgets["rows"]]
    return {
        "charts": sections.targets_chart(files.budgets),
        "columns": columns[1:],
        "rows": [(label, row[1:]) for label, row in zip(labels, rows, strict=True)],
    }


# ---- sentences


def sentences(files: RunFiles) -> list[dict[str, Any]]:
    """The example sentences, cut to what a page can show."""
    return [
        {
            "rule": sentence.get("rule", ""),
            "index": sentence.get("index"),
            "mean": sum(sentence["updates"]) / len(sentence["updates"]),
            "tokens": [_token(sentence, position) for position in range(min(len(sentence["tokens"]), _MAX_TOKENS))],
            "masked": any(sentence.get("mask_kind") or []),
            "tagged": any(sentence.get("original") or []) and not any(sentence.get("mask_kind") or []),
            "left_out": max(len(sentence["tokens"]) - _MAX_TOKENS, 0),
        }
        for sentence in files.sentences[:_MAX_SENTENCES]
        if sentence.get("tokens") and len(sentence.get("updates") or []) == len(sentence["tokens"])
    ]


def _token(sentence: Mapping[str, Any], position: int) -> dict[str, Any]:
    """One token: its text without the word-start mark, and whether a word starts there."""

    def entry(key: str) -> Any:
        values = sentence.get(key) or []
        return values[position] if position < len(values) else None

    text = str(sentence["tokens"][position])
    marked = any(str(token).startswith("▁") for token in sentence["tokens"])
    starts = not text.startswith("##") and (not marked or text.startswith(("▁", "[", "<")))
    return {
        "text": _plain(text),
        "depth": round(sentence["updates"][position]),
        "starts": starts,
        "kind": entry("mask_kind") or "",
        "original": None if entry("original") is None else _plain(str(entry("original"))),
        "predicted": None if entry("predicted") is None else _plain(str(entry("predicted"))),
        "remainder": entry("remainders"),
        "loss": entry("loss"),
    }


def _plain(token: str) -> str:
    return token.removeprefix("▁").removeprefix("##") or "▁"


def depth_styles(depth: int) -> list[tuple[int, str, str]]:
    """(depth, background, text colour) for depths 0..L."""
    colors = [(value, depth_color(value, depth)) for value in range(depth + 1)]
    return [(value, color, text_on(color)) for value, color in colors]


# ---- formats


def number(value: Any, digits: int = 3) -> str:
    """A number for people: thousands separated, `digits` decimals, powers of ten where it is very large or small."""
    if not _is_number(value):
        return "not available" if value is None else str(value)
    if isinstance(value, int) or (float(value).is_integer() and abs(value) >= 1000):
        return f"{value:,.0f}" if abs(value) < 1e12 else f"{value:.3e}"
    return f"{value:.{digits}f}" if 1e-3 <= abs(value) < 1e6 or value == 0 else f"{value:.3g}"


def clock(seconds: float) -> str:
    """Seconds as 1 h 02 min 03 s."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (
        f"{hours} h {minutes:02d} min {rest:02d} s"
        if hours
        else f"{minutes} min {rest:02d} s"
        if minutes
        else f"{rest} s"
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
