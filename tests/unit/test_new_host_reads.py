"""Host reads of training steps: no code reads a value of the device, or uploads one, except where a list allows it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sources_support import PACKAGE, SOURCES, parse_source

ROOMS = ("models", "halting", "training")
READS = {"item", "tolist", "cpu", "nonzero", "masked_select", "new_tensor"}
UPLOADS = {"tensor", "as_tensor", "from_numpy"}
REDUCTIONS = {"sum", "max", "min", "amax", "amin", "mean", "any", "all", "argmax", "equal", "norm"}
CASTS = {"int", "float", "bool"}


def get_file(path: Path) -> str:
    """Return the path of a module in the package."""
    return path.relative_to(PACKAGE).as_posix()


def get_room(path: Path) -> str:
    """Return the part of the package that a module belongs to."""
    return path.relative_to(PACKAGE).parts[0]


def find_waits(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield each function that waits for the device, by its name with that of its class, and how."""

    def visit(node: ast.AST, owner: str) -> Iterator[tuple[str, str]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                yield from visit(child, f"{owner}.{child.name}".lstrip("."))
            else:
                if (way := describe_wait(child)) is not None:
                    yield owner, way
                yield from visit(child, owner)

    return visit(tree, "")


def describe_wait(node: ast.AST) -> str | None:
    """Return how an expression waits for the device, None if it is not seen to."""
    if isinstance(node, ast.Subscript):
        is_mask = isinstance(node.slice, ast.Compare) or (
            isinstance(node.slice, ast.UnaryOp) and isinstance(node.slice.op, ast.Invert)
        )
        return "mask as index" if is_mask else None
    if not isinstance(node, ast.Call):
        return None
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if isinstance(node.func, ast.Attribute):
        of_torch = isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"
        if of_torch and name in UPLOADS:
            return name if any(keyword.arg == "device" for keyword in node.keywords) else None
        if of_torch and name == "where" and len(node.args) == 1:
            return "where"
        return name if name in READS else None
    if name in CASTS and node.args and isinstance(node.args[0], ast.Call):
        function = node.args[0].func
        if isinstance(function, ast.Attribute) and function.attr in REDUCTIONS:
            return name
    return None


# What may wait, and why: functions of a file, or the whole file ("*").
_EXITS = "runs only what has not exited, which only the host can arrange; not in training"
_TARGETS = "a loss of the positions with a target, whose number is one read of the table in docs/guide.md"
_COUNTS = "multiply-accumulates of an evaluated batch"
_HOST = "its tensors are on the host"
_ONCE = "not in a step: when a run begins, ends, is logged or is stored"
EXCEPTIONS = {
    "halting/active_set.py": {"*": _EXITS},
    "halting/trace.py": {"DepthTrace.to_pandas": _ONCE},
    "models/adalayers/modeling.py": {
        "AdaLayersModel._find_active": "which layers are mixed, with a cutoff or a top k: a read of the table",
        "AdaLayersModel.truncate": _ONCE,
    },
    "models/albert_act/exiting.py": {"*": _EXITS},
    "models/albert_act/heads.py": {
        "AlbertActForMultipleChoice.labelled_units": _TARGETS,
        "AlbertActForSequenceClassification.labelled_units": _TARGETS,
    },
    "models/albert_act/ragged.py": {"*": _EXITS},
    "models/albert_act/readouts.py": {"*": _TARGETS},
    "models/depth/engine.py": {"*": _EXITS},
    "models/depth/outputs.py": {
        "StepwiseOutput._read_alias": "the last step of a batch, under its name in the published code, once a call",
        "price_steps": _COUNTS,
    },
    "models/depth/runner.py": {"RunningTexts.run_layers": "layer dropout: a read of the table"},
    "models/depth/subset.py": {"*": _EXITS},
    "models/early_exit/cache.py": {"*": _EXITS},
    "models/early_exit/causal_lm.py": {"*": _TARGETS},
    "models/early_exit/classifiers.py": {"EarlyExitForTokenClassification._find_slots": _TARGETS},
    "models/early_exit/masked_lm.py": {"EarlyExitForMaskedLM.forward": _TARGETS},
    "models/early_exit/modeling.py": {"ExitStepper.keep": _EXITS},
    "models/early_exit/token_steps.py": {"*": _EXITS},
    "models/early_exit/word_model.py": {"*": _TARGETS},
    "models/looped/cache.py": {"*": _EXITS},
    "models/looped/exits.py": {"*": _EXITS},
    "models/looped/heads.py": {
        "LoopedForCausalLM._compute_losses": _TARGETS,
        "LoopedForTokenClassification._find_slots": _TARGETS,
    },
    "models/looped/loop_state.py": {"*": _EXITS},
    "models/looped/modeling.py": {"LoopedModel._draw_states": "drawn states in evaluation are those of the CPU"},
    "models/looped/task_model.py": {
        "LoopedTaskModel._find_range_of_loops": "drawn numbers of loops: a read of the table",
    },
    "models/par_xl/adaptive_softmax.py": {"_rows_of_clusters": _TARGETS},
    "models/par_xl/configuration.py": {"random_architecture": _HOST},
    "models/par_xl/gates.py": {"sample_path": _HOST},
    "models/par_xl/modeling.py": {
        "ParXLLanguageModel._compute_target_losses": _TARGETS,
        "ParXLSupernet._select_most_probable": _ONCE,
        "ParXLSupernet.find_most_probable": _ONCE,
        "ParXLSupernet.sample_path": _ONCE,
        "ParXLSupernet.set_step": "a sampled path: a read of the table",
        "_compute_label_losses": _TARGETS,
    },
    "models/ponder/modeling.py": {
        "PonderClassificationLoss.__call__": "labels may be a list, as in the published code",
        "PonderTraining.prior_facts": _ONCE,
    },
    "models/routed/cache.py": {"RoutedCache._crop_columns": "assisted generation removes tokens"},
    "models/routed/heads.py": {"RoutedForCausalLM.compute_task_loss": _TARGETS},
    "models/routed/routers.py": {
        "Routing.depth_counts": "chosen depths of all tokens: a read of the table",
        "Routing.lengths": "lengths of padded rows: a read of the table",
    },
    "models/routed/spans.py": {
        "SpanRunner.run_chosen": "one read a span for choices by their values, in evaluation",
    },
    "models/shared/weights_digest.py": {"weights_digest": _ONCE},
    "models/shared/albert/heads.py": {"PretrainingHeads.predict_words": _TARGETS},
    "models/shared/albert/pricing.py": {"price_sequences": _COUNTS},
    "models/shared/albert/stepper.py": {"*": _EXITS},
    "models/shared/losses.py": {"check_classes": _HOST},
    "models/stock_classifier/modeling.py": {"StockClassifier._set_padding_id": "an error without a padding id"},
    "training/callbacks.py": {"StopCallback._check_stop": "votes of several processes"},
    "training/checkpointing.py": {"CheckpointingTrainer.restore_progress": _ONCE},
    "training/lora.py": {"save_adapter": _ONCE},
    "training/loss_tracking.py": {"*": _ONCE},
    "training/profiling.py": {"Stopwatch.tokens_per_second": _ONCE},
    "training/slot_training.py": {"TrainingSlots.logs": _ONCE},
    "training/stored_states.py": {"*": _ONCE},
    "training/trainer.py": {"DepthTrainer.get_eval_dataloader": _HOST, "DepthTrainer.prepare_batch": _HOST},
}


@pytest.mark.parametrize(
    "source",
    [
        "torch.tensor([1], device=d)", "torch.as_tensor(x, device=d)", "x.new_tensor([1])", "x.sum().item()",
        "x.tolist()", "x.cpu()", "x.nonzero()", "torch.where(x)", "x.masked_select(y)", "int(x.max())",
        "bool((x == y).all())", "x[x > 0]", "x[~y]",
    ],
)  # fmt: skip
def test_a_wait_is_found(source: str) -> None:
    assert [owner for owner, _ in find_waits(ast.parse(f"class A:\n    def f(self):\n        {source}"))] == ["A.f"]


@pytest.mark.parametrize("source", ["torch.tensor([1])", "torch.where(x, y, z)", "int(len(x))", "x[1:]", "float(y)"])
def test_code_without_waits_is_accepted(source: str) -> None:
    assert not [*find_waits(ast.parse(source))]


FAST = [path for path in SOURCES if get_room(path) in ROOMS and path.name != "reference.py"]  # references are plain


@pytest.mark.parametrize("path", FAST, ids=get_file)
def test_only_listed_exceptions_wait(path: Path) -> None:
    waits = dict(find_waits(parse_source(path)))
    allowed = EXCEPTIONS.get(get_file(path), {})
    surplus = {} if "*" in allowed else {owner: way for owner, way in waits.items() if owner not in allowed}
    assert not surplus, f"{get_file(path)}: waits for the device; build it there, or give a reason in EXCEPTIONS"
    assert not allowed.keys() - waits.keys() - {"*"}, "an exception that nothing needs"


def test_exceptions_name_existing_files() -> None:
    assert not EXCEPTIONS.keys() - {get_file(path) for path in SOURCES}
