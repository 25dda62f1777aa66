"""Hand-over of mode `export`: inputs with our answers for a check of another engine, and facts for the model card."""

from __future__ import annotations

import dataclasses
import math
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from adadepth.config import ExperimentConfig, Task
from adadepth.config.answers import ANSWER_KINDS, AnswerSpec
from adadepth.config.export import ExportConfig, export_formats
from adadepth.config.kinds import get_problem
from adadepth.config.modes import get_mode_settings
from adadepth.data import load_labelled_data
from adadepth.data.text.passages import encode_texts
from adadepth.evaluation.model_size import count_cached_numbers
from adadepth.halting.exit_rules import parse_rule
from adadepth.metrics.exit_pareto import name_units
from adadepth.prediction.models import build_layout, get_prediction_type, has_generated_symbols, list_end_tokens
from adadepth.report.run_files import BUDGETS, EXIT_RULES, GRIDS, RunFiles, read_run, write_json
from adadepth.runs.data_identity import DataIdentity
from adadepth.runs.directory import run_of_checkpoint
from adadepth.tasks.identity import get_class_names
from adadepth.tasks.model_fields import cls_options
from adadepth.tasks.stored_models import choose_checkpoint_tokenizer

CHECKS = "check.json"
NEW_TOKENS = 16
_SCRIPTS = Path(__file__).with_name("handover_files")
_INPUTS = 10
_LONGEST_PROMPT = 32  # tokens, because every new token reads all before it again
# Largest difference of log probabilities and logits from ours that rounding of the weights and in the engine explains.
_TOLERANCES = {
    "float64": 1e-3,
    "float32": 1e-3,
    "f32": 1e-3,
    "float16": 0.02,
    "f16": 0.02,
    "bfloat16": 0.1,
    "q8_0": 0.1,
}
# Of other number formats, such as int8, it is measured: three times the largest difference of the inputs, because
# engines multiply integers otherwise on other processors, and at most this.
_SMALLEST_TOLERANCE, _LARGEST_TOLERANCE, _MARGIN = 1e-3, 0.3, 3
Inputs = Mapping[str, list[int]]  # inputs of a model by name, a number for every token or cell
PROMPTS = (
    "The train to the coast was late again this morning.",
    "Water boils at a lower temperature on a high mountain.",
    "She opened the letter, read it twice, and began to laugh.",
    "Return the number of items in the list.",
    "In the autumn, the leaves of most trees turn yellow and red.",
    "The committee has not decided where the new bridge will be built.",
    "If the file does not exist, an error is raised.",
    "He plays the piano badly, but with great pleasure.",
    "Two plus two is four, and three plus three is six.",
    "The old library will stay open until the end of the year.",
)


def write_checks(folder: Path, model: Any, tokenizer: Any, inputs: Sequence[Inputs], settings: ExportConfig) -> None:
    """Write the inputs with our answers to check.json, and copy check.py and the engine of the file format.

    Args:
        folder: Folder of the export.
        model: The exported model.
        tokenizer: Tokenizer of the model.
        inputs: Inputs of the model, whose answers are compared.
        settings: Settings of mode `export`.
    """
    weights, script = get_weight_format(model, settings), export_formats()[settings.format].engine
    engine = None
    if weights in _TOLERANCES or script is None:
        tie = _TOLERANCES.get(weights, _LARGEST_TOLERANCE)
    else:
        engine = _import_script(script)
        loaded = engine.load(folder)
        tie = _limit_tolerance(2 * max(_measure_difference(engine, loaded, model, example) for example in inputs))
    task, entries = _answer_inputs(model, tokenizer, inputs, tie)
    tolerance = tie
    if engine is not None:
        compare = _import_script(_SCRIPTS / "check.py").COMPARE[task]
        differences = [compare(entry, math.inf, engine, loaded).difference for entry in entries]
        tolerance = _limit_tolerance(_MARGIN * max(differences))
    content = {
        "format": settings.format,
        "layout": settings.layout,
        "weights": weights,
        "tolerance": tolerance,
        "exit_rule": getattr(model.config, "exit_rule", None),
        "task": task,
        "inputs": entries,
    }
    write_json(folder / CHECKS, content)
    shutil.copyfile(_SCRIPTS / "check.py", folder / "check.py")
    if script is not None:
        shutil.copyfile(script, folder / "engine.py")


def _import_script(path: Path) -> Any:
    """Import a script that is copied to the folder of an export."""
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def _limit_tolerance(tolerance: float) -> float:
    return min(max(tolerance, _SMALLEST_TOLERANCE), _LARGEST_TOLERANCE)


def _measure_difference(engine: Any, loaded: Any, model: Any, inputs: Inputs) -> float:
    """Return the largest difference of a logit in an engine from ours."""
    token_ids, grid = _split_inputs(inputs)
    logits = torch.tensor(engine.compute_logits(loaded, token_ids, **grid))
    return float((logits - _compute_logits(_run_model(model, inputs))).abs().max())


def _split_inputs(inputs: Inputs) -> tuple[list[int], dict[str, list[int]]]:
    """Return the token ids of an input, and its other numbers by name."""
    return inputs["input_ids"], {name: values for name, values in inputs.items() if name != "input_ids"}


def get_weight_format(model: Any, settings: ExportConfig) -> str:
    """Return the name of the number format of the written weights."""
    formats = export_formats()[settings.format].weights
    return settings.weights or (formats[0] if formats else str(model.dtype).removeprefix("torch."))


def _get_answers(model: Any) -> AnswerSpec:
    kind = get_prediction_type(model)
    assert kind is not None, "the model class was resolved by its answers"
    return ANSWER_KINDS[kind]


# ---- inputs


def collect_inputs(config: ExperimentConfig, model: Any, tokenizer: Any, path: str) -> list[Inputs]:
    """Return at most ten inputs for a model; none if the model has no answers or nothing fits it.

    They are examples that the evaluation of the run has recorded, then drawn examples of its data, then fixed texts.
    Inputs of a language model are cut at 32 tokens. A grid has the rows and columns of its cells, too.
    """
    if _get_answers(model).only_depths:
        return []
    longest = sys.maxsize if model.longest_sequence is None else model.longest_sequence
    inputs: list[Inputs] = []
    for examples in _iterate_examples(config, model, tokenizer, path):
        if _get_answers(model).continues_texts:
            examples = _shorten_texts(tokenizer, examples, longest - NEW_TOKENS)
        for example in examples:
            positions = example.get("position_ids", range(len(example["input_ids"])))
            if example not in inputs and max(positions, default=0) < longest:
                inputs.append(example)
        if len(inputs) >= _INPUTS:
            break
    return inputs[:_INPUTS]


def _shorten_texts(tokenizer: Any, examples: Sequence[Inputs], longest: int) -> list[Inputs]:
    """Return the first tokens of texts for a language model, as its tokenizer splits the text that they stand for.

    A server that is given the text then reads the same tokens.
    """
    cut = [example["input_ids"][:_LONGEST_PROMPT] for example in examples]
    encoded = [tokenizer(tokenizer.decode(ids, skip_special_tokens=True))["input_ids"] for ids in cut]
    return [{"input_ids": ids} for ids in encoded if 1 < len(ids) <= longest]  # the first token has no probability


def _iterate_examples(config: ExperimentConfig, model: Any, tokenizer: Any, path: str) -> Iterator[list[Inputs]]:
    """Yield the recorded examples, drawn examples and fixed texts, as far as they exist for a model."""
    answers, files = _get_answers(model), _read_checkpoint_run(config)
    if files is not None:
        if not _reads_grids(model):  # whose records lack the place of a grid in its field
            yield [{"input_ids": ids} for ids in _read_examples(files, tokenizer)]
        yield _draw_examples(config, model, path)
    trained = DataIdentity.from_config("checkpoint", str(model.name_or_path), model.config)
    if not answers.solves_puzzles and not has_generated_symbols(answers, trained):
        layout = build_layout(model, tokenizer, answers, None, trained)
        texts = encode_texts(tokenizer, layout, [(prompt,) for prompt in PROMPTS])
        yield [{"input_ids": [int(token) for token in text.example["input_ids"]]} for text in texts]


def _reads_grids(model: Any) -> bool:
    """Return whether positions and token types of a model are rows and columns of a grid."""
    return getattr(model.config, "has_columns", False)


def _read_checkpoint_run(config: ExperimentConfig) -> RunFiles | None:
    run = run_of_checkpoint(config)
    return None if run is None else read_run(run)


def _read_examples(files: RunFiles, tokenizer: Any) -> list[list[int]]:
    """Return the token ids of the example sentences or puzzles that the evaluation of a run has recorded."""
    examples = [sentence["tokens"] for sentence in files.sentences]
    for grids in files.of(GRIDS).get("sets", {}).values():
        examples += [list(chain.from_iterable(grid["cells"])) for grid in grids if grid["kind"] == "puzzle"]
    return [tokenizer.convert_tokens_to_ids(tokens) for tokens in examples if None not in tokens]


def _draw_examples(config: ExperimentConfig, model: Any, path: str) -> list[Inputs]:
    """Return examples of the run's first evaluation set, if its data are drawn."""
    dataset: Any = config.dataset
    if config.task is not Task.finetune or get_problem(dataset) is None or not hasattr(dataset, "train_examples"):
        return []
    few = min(_INPUTS, dataset.train_examples)
    dataset = dataclasses.replace(dataset, max_evaluation_examples=_INPUTS, train_examples=few)
    options = cls_options(config.model.name, model.config) | {"classes": get_class_names(model.config)}
    data = load_labelled_data(dataset, choose_checkpoint_tokenizer(config, path), config.seed, **options)
    examples = next(iter(data.evaluation.values()))
    names = ("input_ids", "position_ids", "token_type_ids") if _reads_grids(model) else ("input_ids",)
    first = [examples[number] for number in range(min(_INPUTS, len(examples)))]
    return [{name: [int(number) for number in example[name]] for name in names} for example in first]


# ---- answers


def _answer_inputs(
    model: Any, tokenizer: Any, inputs: Sequence[Inputs], tie: float
) -> tuple[str, list[dict[str, Any]]]:
    """Return the kind of the answers, and the entry of check.json for every input.

    Args:
        model: The exported model.
        tokenizer: Tokenizer of the model.
        inputs: Inputs of the model.
        tie: Lead of the largest logit up to which the label or token may be another one.
    """
    answers = _get_answers(model)
    if answers.continues_texts:
        task, entries = "language", [_continue_text(model, tokenizer, example["input_ids"], tie) for example in inputs]
    elif answers.classifies_texts:
        task, entries = "text", [_classify_text(model, example) for example in inputs]
    else:
        task, entries = "tokens", [_label_tokens(model, tokenizer, example, tie) for example in inputs]
    texts = [tokenizer.decode(example["input_ids"], skip_special_tokens=True) for example in inputs]
    names = [{"token_ids": ids} | ({"other_inputs": grid} if grid else {}) for ids, grid in map(_split_inputs, inputs)]
    return task, [{"text": text} | ids | entry for text, ids, entry in zip(texts, names, entries, strict=True)]


def _continue_text(model: Any, tokenizer: Any, token_ids: list[int], tie: float) -> dict[str, Any]:
    """Return the mean log probability of an input, and its greedy continuation up to an end of text.

    The first `certain` tokens of the continuation lead the second-best ones by more than a tie.
    """
    ends, continuation, leads = list_end_tokens(model, tokenizer), list[int](), list[float]()
    logits = _compute_logits(_run_model(model, {"input_ids": token_ids}))
    following = torch.tensor(token_ids[1:])[:, None]
    log_probability = float(logits[:-1].log_softmax(dim=-1).gather(1, following).mean())
    while len(continuation) < NEW_TOKENS:
        best = logits[-1].topk(2)
        if int(best.indices[0]) in ends:
            break
        continuation.append(int(best.indices[0]))
        leads.append(float(best.values[0] - best.values[1]))
        logits = _compute_logits(_run_model(model, {"input_ids": [*token_ids, *continuation]}))
    certain = next((number for number, lead in enumerate(leads) if lead <= tie), len(leads))
    return {
        "log_probability": log_probability,
        "continuation": {
            "token_ids": continuation,
            "text": _decode_continuation(tokenizer, token_ids, continuation),
            "certain": certain,
            "certain_text": _decode_continuation(tokenizer, token_ids, continuation[:certain]),
        },
    }


def _decode_continuation(tokenizer: Any, token_ids: list[int], continuation: list[int]) -> str:
    """Return the text of tokens after an input, in which their first one may continue a word of the input."""
    before = tokenizer.decode(token_ids, skip_special_tokens=True)
    return str(tokenizer.decode([*token_ids, *continuation], skip_special_tokens=True)).removeprefix(before)


def _classify_text(model: Any, inputs: Inputs) -> dict[str, Any]:
    """Return the logits of a text, its class if there are several, and its depth."""
    outputs = _run_model(model, inputs)
    (logits,) = _compute_logits(outputs)
    label = {} if len(logits) == 1 else {"label": str(model.config.id2label[int(logits.argmax())])}
    return {"logits": logits.tolist(), **label, "depth": _get_depth(outputs)}


def _label_tokens(model: Any, tokenizer: Any, inputs: Inputs, tie: float) -> dict[str, Any]:
    """Return the class of every token or cell with its probability, positions of ties, and the mean depth.

    A puzzle also has its solution.
    """
    answers = _get_answers(model)
    outputs = _run_model(model, inputs)
    logits = _compute_logits(outputs)[: len(inputs["input_ids"])]
    best = logits.topk(2, dim=-1)
    classes = best.indices[:, 0].tolist()
    probabilities = (best.values[:, 0] - logits.logsumexp(dim=-1)).exp().tolist()
    ties = (best.values[:, 0] - best.values[:, 1] <= tie).nonzero().flatten().tolist()
    names = model.config.id2label.__getitem__ if answers.tags_words else tokenizer.convert_ids_to_tokens
    labels = [str(names(number)) for number in classes]
    width = math.isqrt(len(labels))
    grid = [" ".join(labels[start : start + width]) for start in range(0, len(labels), width)]
    extra = {"grid": grid} if answers.solves_puzzles else {}
    answer = {"classes": classes, "labels": labels, "probabilities": probabilities, "ties": ties}
    return {**answer, **extra, "depth": _get_depth(outputs)}


@torch.inference_mode()
def _run_model(model: Any, inputs: Inputs) -> Any:
    """Return the outputs of a model for one input."""
    return model(**{name: torch.tensor([values]) for name, values in inputs.items()})


def _compute_logits(outputs: Any) -> Tensor:
    """Return the logits at every position of an input, float32 (T, V), or of a text, (1, C)."""
    logits = outputs.logits if outputs.logits is not None else outputs.prediction_logits
    rows: Tensor = logits.reshape(-1, logits.shape[-1]).float()
    return rows


def _get_depth(outputs: Any) -> float:
    return float(outputs.trace.updates.float().mean())


# ---- facts for the model card


def describe_export(
    config: ExperimentConfig, model: Any, stored_rule: str | None, inputs: Sequence[Inputs]
) -> list[tuple[str, str]]:
    """Return rows of the model card on what the written files compute and what was measured; unknown ones are left out.

    Args:
        config: Configuration with the checkpoint, whose run has the measurements.
        model: The exported model.
        stored_rule: Exit rule of the model in the checkpoint, which the command may have changed.
        inputs: Inputs of the model.
    """
    settings: ExportConfig = get_mode_settings(config, "export")
    rows = [("number format of the weights", get_weight_format(model, settings))]
    if inputs and _get_answers(model).continues_texts and model.can_generate():
        count = count_cached_numbers(model, inputs[0]["input_ids"])
        rows.append(("cache of keys and values", f"{count:,.0f} numbers a token, {2 * count:,.0f} bytes in 16 bits"))
    identity = DataIdentity.from_config("checkpoint", str(config.checkpoint), model.config)
    if identity is not None and identity.keep_newlines is not None:
        reading = "with its newlines" if identity.keep_newlines else "as lines, without newlines"
        rows.append(
            ("text of the training", f"{reading} (`dataset.keep_newlines={str(identity.keep_newlines).lower()}`)")
        )
    files = _read_checkpoint_run(config)
    if files is not None and not settings.drop_exits:
        rows += _describe_calibration(files, getattr(model.config, "exit_rule", None))
        rows += _describe_depths(files, files.run.get("exit_rule", stored_rule))
    return rows


def _describe_calibration(files: RunFiles, rule: str | None) -> list[tuple[str, str]]:
    """Return the data on which the threshold of an exit rule was chosen, if the run of the checkpoint has chosen it."""
    if rule is None:
        return []
    label, data = parse_rule(rule).label, files.config.get("dataset", {}).get("name")
    budgets = files.of(BUDGETS)
    for row in budgets.get("rows", ()):
        if row.get("fit") and "rule" in row and parse_rule(row["rule"]).label == label:
            text = (
                f"`{rule}` was fitted to {row['target']:g} {budgets['unit']} on {budgets['fitted_on']:,} sequences of "
                f"{data} ({budgets['set']}); {budgets['measured_on']:,} others have {row['mean']:.3g} updates"
            )
            return [("calibration of the exit rule", text)]
    for name, study in files.of(EXIT_RULES).get("sets", {}).items():
        advice = study.get("advice") or {}
        if advice and parse_rule(advice["rule"]["rule"]).label == label:
            text = f"`{rule}` was chosen on {advice['chosen_on']:,} {name_units(study)} of {data} ({name})"
            return [("calibration of the exit rule", text)]
    return []


def _describe_depths(files: RunFiles, rule: str | None) -> list[tuple[str, str]]:
    """Return the histogram of the depths that the last evaluation of the run measured with an exit rule."""
    everyone: Mapping[str, Any] = files.halting.get("classes", {}).get("all", {})
    counts = everyone.get("histogram") or []
    if not sum(counts):
        return []
    shares = ", ".join(f"{depth}: {count / sum(counts):.1%}" for depth, count in enumerate(counts) if count)
    condition = f" with the exit rule `{rule}`" if rule else ""
    unit = files.halting.get("unit", "unit")
    return [(f"updates of a {unit} in the evaluation of the run{condition}", shares)]
