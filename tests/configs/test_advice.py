"""Advice in messages of a composition, applied to the command it is about: the command is then valid."""

from __future__ import annotations

import shlex
from functools import cache
from pathlib import Path

import pytest

from adadepth.cli.checks.model import get_max_updates
from adadepth.errors import ConfigError
from adadepth.models.registry import families, family
from adadepth.report.run_files import RunFiles
from adadepth.report.verdict import NEEDED, target
from tests.advice_support import compile_pattern, compose_command, follow, list_templates, list_texts, parse_advice
from tests.configs.support import ROOTS, compose_config, configured
from tests.marks_support import keep_one_quick, mark_mostly_slow

# A wrong command, and the alternatives that its message advises: each of them repairs the command.
ADVICE: list[tuple[str, list[str]]] = [
    ("act_tiny budget=depth model.act_penalty=0.1", ["model.act_penalty=0", "budget=none budget.target=null"]),
    ("act_maze budget.target=4 model.act_penalty=0.1", ["model.act_penalty=0", "budget=none budget.target=null"]),
    (
        "ponder_tiny budget=depth",
        ["model.prior=uniform model.target_halt_probability=null", "model.kl_penalty_factor=0"],
    ),
    (
        "adalayers_tiny budget=blocks baseline=depth_penalty",
        ["model.lambda_distribution_depth=0", "budget=none budget.target=null"],
    ),
    (
        "par_tiny budget=latency search.latency_weight=0.1",
        ["search.latency_weight=0", "budget=none budget.target=null"],
    ),
    ("par_tiny budget=latency search.stop_unchanged=0.9", ["search.stop_unchanged=null"]),
    ("par_network budget=latency", ["--config-name=par_tiny"]),
    ("ponder_tiny model.prior=uniform", ["model.prior=geometric", "model.target_halt_probability=null"]),
    ("ponder_tiny halting.slope=3", ["halting.alone=true model.pretrained=RUN/model"]),
    ("ponder_tiny halting.alone=true", []),
    ("ponder_tiny halting.alone=true model.pretrained=x mode=estimate", ["mode=train", "'~halting.alone'"]),
    ("par_tiny model.architecture=sfffsf-f", ["--config-name=par_network"]),
    ("par_network search.path=sampled", ["--config-name=par_tiny", "'~search'"]),
    ("par_network search.latency_weight=1", ["--config-name=par_tiny", "'~search'"]),
    ("par_tiny model.cutoff_clusters=2 model.cutoffs=[250]", ["'model.cutoffs=[]'"]),
    ("adalayers_tiny budget=blocks model.distribution_cutoff=0", []),
    ("adalayers_tiny features.cache=true model.freeze_base_model=false", ["features.cache=false"]),
    ("adalayers_tiny trainer.fsdp=true features.cache=false", ["features.cache=true"]),
    ("adalayers_tiny model.layers_num=3", ["model.seed_compat=true"]),
    ("act_tiny model.state_rule=basic model.execution=ragged", ["model.state_rule=single"]),
    ("act_hops runtime.compile=true model.execution=ragged", ["model.execution=auto"]),
    ("act_squad model.readout_weight=0.5", ["model.readout_weight=0"]),
    ("act_cola model.readout_weight=0.5 model.pooling=mean", ["model.readout_weight=0", "model.pooling=first"]),
    ("loop_tiny model.objective=gate", ["model.gate=true"]),
    ("loop_tiny model.exit_rule=quantile:0.5", ["model.gate=true"]),
    ("loop_tiny model.train_loops=drawn", ["model.objective=last"]),
    (
        "loop_tiny model.low_layers=1 model.low_backprop=[1] model.train_loops=drawn model.objective=last",
        ["model.train_loops=fixed"],
    ),
    ("loop_tiny model.injection=restart", ["model.queries=previous"]),
    (
        "loop_tiny model.loop_curriculum=linear model.objective=gate_alone model.gate=true",
        ["model.loop_curriculum=none"],
    ),
    ("ponder_tiny model.halting_head_layers=3", ["model.halting_head=linear_cat"]),
    ("trm_tiny budget.target=2 budget.hold=0.2", ["budget.hold=0.15"]),
    ("act_tiny tokenizer.kind=word", ["--config-name=par_tiny"]),
    ("par_tiny tokenizer.kind=byte", ["tokenizer.vocab_size=null"]),
    ("par_tiny tokenizer=words tokenizer.symbols=[a]", ["tokenizer.kind=unigram tokenizer.vocab_size=8000"]),
    ("adalayers_conll dataset.class_weights=balanced", ["model.classes_weights=null"]),
    ("ponder_tiny dataset.class_weights=balanced", ["dataset.source=local dataset.path=PATH"]),
    ("act_squad dataset.null_score_threshold=1", ["dataset.unanswerable=true", "dataset=squad_v2"]),
    ("loop_hops dataset.drawing=natural dataset.causal=false", ["dataset.causal=true"]),
    ("act_tiny trainer.optimizer=adam_atan2 trainer.adam_epsilon=1e-7", ["trainer.adam_epsilon=1e-06"]),
    ("act_tiny trainer.muon_learning_rate=0.02", ["trainer.optimizer=muon"]),
    ("act_tiny trainer.optimizer=muon trainer.fsdp=true", ["trainer.optimizer=adamw"]),
    ("router_tuning trainer.lora.rank=8", ["model.trains=all"]),
    ("exit_retrofit model.save_base=false model.trains=all", ["model.trains=exits"]),
    ("act_tiny trainer.push_to_hub=true mode=estimate", ["mode=train"]),
    ("act_tiny trainer.plateau_patience=3", ["trainer.schedule=plateau trainer.warmup_steps=0"]),
    ("act_tiny trainer.schedule=plateau trainer.plateau_patience=3", ["trainer.warmup_steps=0"]),
    ("act_tiny trainer.hub_model_id=a", ["trainer.push_to_hub=true"]),
    (
        "act_tiny trainer.early_stopping_patience=3 trainer.load_best_model_at_end=false",
        ["trainer.load_best_model_at_end=true"],
    ),
    ("act_tiny predictions=true", ["--config-name=act_cola"]),
    ("ponder_tiny predictions=true trainer.halting_statistics=false", ["trainer.halting_statistics=true"]),
    (
        "ponder_tiny mode=evaluate checkpoint=latest score_halves=true trainer.halting_statistics=false",
        ["trainer.halting_statistics=true"],
    ),
    ("act_tiny mode=probe checkpoint=latest", ["--config-name=act_cola"]),
    ("act_cola dataset=bigram_shift mode=probe checkpoint=latest", ["dataset=cola"]),
    ("act_tiny dataset=cola", ["dataset=python_docs"]),
    ("finetune dataset=python_docs", ["dataset=cola", "--config-name=act_tiny"]),
    ("loop_tiny dataset=cola", ["dataset=causal_python_docs"]),
    ("par_network dataset=cola", ["dataset=stream_python_docs"]),
    ("par_tiny dataset=cola", ["dataset=stream_python_docs"]),
    ("act_cola dataset=parity_vectors", ["model=parity_rnn"]),
    ("act_tiny logger.artifacts=[report]", ["logger=wandb"]),
    (
        "act_tiny mode=evaluate checkpoint=latest 'budget.targets=[3]' trainer.halting_statistics=false",
        ["trainer.halting_statistics=true"],
    ),
    ("act_tiny 'budget.targets=[3]'", ["mode=evaluate checkpoint=latest"]),
    ("trm_tiny budget.target=2 trainer.halting_statistics=false", ["trainer.halting_statistics=true"]),
    ("act_tiny serve.port=3", ["mode=serve checkpoint=latest"]),
    ("act_tiny estimate.devices=2", ["mode=estimate"]),
    ("act_tiny input=x.csv mode=serve checkpoint=latest", ["mode=predict"]),
    ("act_tiny checkpoint=latest", ["mode=evaluate"]),
    ("act_tiny checkpoint=[a,b] mode=evaluate", ["mode=serve"]),
    ("act_tiny runs=[a]", ["mode=report"]),
    ("act_tiny mode=report", []),
    ("ponder_tiny exit_rules=[all]", ["mode=evaluate checkpoint=latest"]),
    ("act_tiny seeds=3 mode=estimate", ["mode=train"]),
    ("act_tiny dataset.path=x", ["dataset.source=local"]),
    ("act_tiny dataset.evaluation_path=x", ["dataset.source=local dataset.path=PATH"]),
    ("par_tiny dataset.test_path=x", ["dataset.source=local dataset.path=PATH"]),
    ("act_tiny 'dataset.evaluation_hub=[{path: a}]'", ["dataset.source=hub 'dataset.hub=[{path: NAME}]'"]),
    (
        "ponder_tiny dataset.held_out=0.1 dataset.evaluation_splits=[held_out]",
        ["dataset.source=local dataset.path=PATH"],
    ),
    ("ponder_tiny dataset.problem=multi_label dataset.metrics=[micro_f1]", ["dataset.source=local dataset.path=PATH"]),
    ("ponder_tiny dataset.difficulty_column=a", ["dataset.source=local dataset.path=PATH"]),
    (
        "act_cola dataset.metrics=[evaluate:a:b] trainer.metric_for_best_model=eval_loss",
        ["runtime.trust_remote_code=true"],
    ),
    (
        "act_tiny dataset=treebank dataset.path=x",
        ["mode=evaluate checkpoint=latest", "--config-name=act_pos dataset=ud_pos"],
    ),
    ("act_tiny optimise=halting/all/mean trainer.halting_statistics=false", ["trainer.halting_statistics=true"]),
    ("act_tiny halting.alone=true", []),
    ("act_tiny search.path=sampled", []),
    ("act_tiny features.precision=fp16", []),
    ("act_tiny context.memory_length=3", []),
    ("trm_tiny budget.target=2 model.exit_rule=patience:2", []),
    ("act_cola dataset=senteval dataset.path=x", []),
    (
        "act_cola dataset=senteval dataset.path=x dataset.task=a dataset.source=hub",
        ["dataset.source=local", "dataset.source=local"],
    ),
    ("act_tiny trainer.save_strategy=epoch", []),
]


@cache
def compose_message(command: str) -> str:
    """Return the message of a wrong command."""
    root, *overrides = shlex.split(command)
    with pytest.raises(ConfigError) as caught:
        configured(root, *overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    ("command", "expected"),
    mark_mostly_slow(ADVICE, lambda row: ADVICE.index(row) % 16 == 0),
    ids=[command for command, _ in ADVICE],
)
def test_an_advised_override_repairs_its_command(command: str, expected: list[str]) -> None:
    config = compose_command(command)
    alternatives = [advice for line in compose_message(command).splitlines() for advice in parse_advice(line, config)]
    assert alternatives == expected
    for advice in alternatives:
        configured(*_flatten(follow(command, advice)))


# Advice given after data or a model are read: a part of the text, and a command to which it applies.
LATER: list[tuple[str, str]] = [
    ("use dataset.problem=regression 'dataset.metrics=[pearson,mse]'", "finetune dataset=table dataset.path=x"),
    ("tokenizer.path=null", "act_tiny tokenizer=albert"),
    ("features.precision=fp16", "adalayers_imdb"),
    ("features.cache=false", "adalayers_imdb"),
    ("model=adalayers_minilm", "adalayers_imdb"),
    ("model=adalayers_minilm", "conll_tagger"),
    ("trainer.gradient_checkpointing=true", "act_tiny"),
    ("resume=latest", "act_tiny"),
    ("runtime.trust_remote_code=true", "finetune model=stock model.pretrained=x dataset=cola"),
    ("logger.mode=offline", "act_tiny logger=wandb logger.mode=online"),
    ("serve.port=0", "act_hops mode=serve checkpoint=latest serve.port=80"),
    ("mode=train", "act_cola mode=estimate"),
    ("trainer.per_device_train_batch_size={} fits", "act_tiny"),
    ("set it to true", "act_squad dataset.unanswerable=false"),
]  # fmt: skip


@pytest.mark.parametrize(("part", "command"), keep_one_quick(3, LATER))
def test_advice_of_later_messages_composes(part: str, command: str) -> None:
    assert any(part in text for _, text, _ in list_texts())
    alternatives = parse_advice(f"{command.partition('=')[0].split()[-1]}: {part.replace('{}', '2')}")
    assert alternatives
    for advice in alternatives:
        if advice != "resume=latest":  # there is no run: tests/cli/test_readme.py continues one
            configured(*_flatten(follow(command, advice)))


NEEDS_DATA = ("adalayers", "conll_tagger", "finetune", "loop_retrofit", "exit_retrofit")  # no data or weights


@pytest.mark.parametrize("root", mark_mostly_slow(
    [root for root in ROOTS if root not in NEEDS_DATA],
    lambda root: root in ("act_tiny", "ponder_tiny", "ponder_parity")
))  # fmt: skip
def test_advice_for_depth_that_does_not_adapt_composes(root: str) -> None:
    """Check the advice of a family, which warnings of its runs repeat, on every configuration of it."""
    config = configured(root)
    most = get_max_updates(config)
    advice = (family(config.model.name).advice or "").replace("DEPTH", str(max(1, round((most or 2) / 2))))
    for one in parse_advice(f"warning: {advice}"):
        if config.budget.target is None or not one.startswith("budget."):
            configured(*_flatten(follow(root, one)))


@pytest.mark.parametrize("name", keep_one_quick(4, families()))
def test_the_advised_option_belongs_to_its_family(name: str) -> None:
    option = family(name).option
    assert option is not None
    assert compose_config("act_cola", f"model={option}").model.name == name


@pytest.mark.parametrize(("command", "unit", "expected"), keep_one_quick(2, [
    ("act_tiny model=albert_act_mini budget.target=3", "updates", 3.0),
    ("act_wikitext2 model.num_hidden_layers=12 budget.target=7.1", "updates", 7.1),
    ("act_maze budget=work", "macs", 0.5),
    ("ponder_tiny model.kl_penalty_factor=0 budget.target=3", "updates", 3.0),
]))  # fmt: skip
def test_the_command_for_a_missed_target_composes(command: str, unit: str, expected: float) -> None:
    """Check the whole command in the report of a run whose depth missed its target, in the unit of the target."""
    root, *overrides = shlex.split(command)
    halting = {"unit": "token", "max_depth": 12, "classes": {"all": {"mean": 9.0}}, "cost": {NEEDED: 0.9}}
    files = RunFiles(
        directory=Path("outputs/a (b), c/RUN"),
        run={"command": shlex.join(["python", "adadepth/run.py", "--config-name", root, *overrides])},
        config={"budget": {"target": expected, "unit": unit}, "task": str(configured(root, *overrides).task)},
        metrics=[],
        halting=halting,
        sentences=[],
        missing={},
    )
    finding = target(files)
    assert finding is not None
    python, script, *words = shlex.split(
        finding.sentences[-1].partition("set the trained model to the target, with ")[2][:-1]
    )
    assert (python, script, words[:2]) == ("python", "adadepth/run.py", ["--config-name", root])
    config = configured(root, *words[2:])
    assert config.checkpoint == str(files.directory)
    assert (config.budget.targets, config.budget.unit) == ([expected], unit)


def _flatten(command: tuple[str, list[str]]) -> list[str]:
    return [command[0], *command[1]]


# Overrides that stand for a value of the user's, and texts that state facts instead of advice.
EXEMPT = {
    "export.format=gguf needs rope_parameters.rope_type=default": "the checkpoint's own value",
    "exit_rules=[{}] fits them": "tests/training/test_fitted_exit_rule.py follows it",
    "training a tokenizer on the training text, once for all runs": "a setting that shortens it, not a remedy",
    "not supported with model.mix=scalar": "tests/configs/test_mistakes.py",
    "as dataset=lengths has it": "names an example of such data",
    "trainer.state_diagnostics=true": "says what was set",
    "baseline=none": "says what was set",
    "matched_baseline=false": "says what was set",
    "The model has no exit rule (model.exit_rule=null)": "says what was set",
    "is better if {}; null chooses": "the user's own value: tests/configs/test_selection.py",
    "dataset.text_columns=[{}]": "says what was taken",
    "dataset.label_column={}": "says what was taken",
    "without splits; give dataset.path={train: FOLDER": "folders of the user's",
    "allow_changed_data=true": "tests/training/test_data_identity.py follows it",
    "serve.names=[NAME]": "a name of the user's",
    "resume={}": "says what was read",
    "trained with dataset.sequence_length={}": "says what differs",
    "dataset.sequence_length={}": "says what was chosen: tests/cli/test_own_tables.py",
    "trainer.max_steps={}": "says what was chosen",
    "trainer.eval_steps={}": "says what was chosen",
    "model.max_position_embeddings={}": "says what was chosen",
    "CPU cores (model={})": "says what was chosen",
    "dataset.held_out=0.1 'dataset.evaluation_splits=[{}]'": "a table of the user's",
    "mode=serve accepts whole examples": "a text of the user's",
    "text={}": "a command of the page: tests/contrib/serve/test_rendering.py runs it",
    "new_tokens={}": "a command of the page: tests/contrib/serve/test_rendering.py runs it",
    "mode=evaluate reads the examples": "what a command of the page does",
    "output_dir={}": "a folder for jobs",
    "Modes (mode=NAME)": "a heading of the help",
    "adadepth: transformers whose depth": "usage: tests/cli/test_documented_commands.py composes it",
    "model={}: task=finetune has no classifier": "what was given",
    "which mode=probe reads": "what was given",
    "mode=probe reads classes": "what was given",
    "is unknown; set a number": "a number of the user's",
    "only used with mode=train, but mode={}": "as that of seeds",
    "or choose another folder with dataset.cache_dir=...": "a folder of the user's",
    "choose one with 'dataset.path={{}}'": "files of the user's; tests/unit/data/test_labelled_errors.py",
    "read local files with dataset.path=...": "files of the user's: tests/configs/test_shipped.py",
    "give one with tokenizer.path=...": "a folder of the user's",
    "give dataset.evaluation_path=...": "files of the user's",
    "dataset.labels={}": "the user's own labels",
    "the package {} is missing": "pip; tests/contrib/serve/test_serve.py, tests/cli/test_optuna_sweep.py",
    "the package {} is not installed; pip install": "pip",
    "export.format={}: needs {}; pip install": "pip",
    "{}: export.format={} ": "a setting of a model: tests/contrib/engines/test_programs.py",
    "{}: export.format=executorch has": "a setting of a model: tests/contrib/engines/test_executorch.py",
    "export.format={} has no layouts; leave it out": "a setting that is left out",
    "python -m llama_cpp.server": "a command of a model card: tests/contrib/engines/test_server.py runs it",
    "DEPTH": "a family's advice, below",
    "readout_weight={}: {} has no readouts": "of models in Python",
    "or set model.vocab_size={}": "a fact of weights of the user's",
    "search.latency_weight={}: only used with": "a supernet of task=language_model, which no root has",
    "model.pretrained={} trains one": "a model of the user's",
    "no states were recorded": "what was given",
    "first write its {} alone": "a model of the user's: tests/unit/models/early_exit/test_exits_apart.py",
    "the tokenizer has only %d tokens": "a warning: tests/unit/models/looped/test_published.py",
    "the gate is not trained by model.objective": "a warning: tests/unit/tasks/test_log_messages.py",
    "(`dataset.keep_newlines={}`)": "a fact of a model card",
    "'exit_rules=[{}]'": "a rule that was studied: tests/training/test_finetune.py",
    "log in with `hf auth login`": "an account",
    "has one step, so there is no exit": "what was given",
    "task={} on dataset={}": "what was given",
    "estimate.words: set the vocabulary size": "a number of the user's",
    "start it with torchrun": "tests/cli/test_readme.py runs torchrun",
    "rival_of={}": "a command of the last screen: as that of preset",
    "exit_rules=[fixed:N]": "an evaluation beside the refused baseline: tests/training/test_rivals.py",
    "{} has {}; leave it out": "seeds of a run of the user's: tests/training/test_rivals.py",
    "exit_rules=[all]": "a command of the last screen: as that of preset",
    "budget.targets=[{}]": "a command of the last screen: as that of preset",
    "score_halves=true": "an override that a bench adds to its runs: tests/contrib/bench/test_runs.py",
    "budget.unit={}": "a command of the last screen: as that of preset",
    "seeds=3": "a command of the last screen: as that of preset",
    "search ends at step": "what was given",
    "search.stages={}: {} holds no finished search": "a run of the user's",
    "trainer.fsdp=true shards the model": "help of a key",
    ": required by ": "a missing value of the user's; tests/configs/test_mistakes.py",
    "cannot be combined with runtime.offline=true": "what was given",
    "resume it with runtime.threads={}": "a busy machine: tests/cli/test_beginning_and_end.py",
    "of a tokenizer with all words of a text": "help of a key",
    "not supported with layout={}": "a setting of a model in Python",
}  # fmt: skip


def test_all_advice_is_tested() -> None:
    """Check that every text that advises something has a row of `ADVICE` or `LATER`, or a reason here."""
    lines = [line for command, _ in ADVICE for line in compose_message(command).splitlines()]
    parts = [*EXEMPT, *(part for part, _ in LATER)]
    unknown = [
        (path, text)
        for path, text in list_templates()
        if not any(part in text for part in parts) and not any(map(compile_pattern(text).search, lines))
    ]
    assert not unknown
    stale = [part for part in EXEMPT if not any(part in text for _, text in list_templates())]
    assert not stale
