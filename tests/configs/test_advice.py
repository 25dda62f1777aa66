"""What messages of a composition advise, laid on the command that they are about: the command is then right."""

from __future__ import annotations

import shlex
from functools import cache

import pytest

from adadepth.errors import ConfigError
from tests.advice_support import advised, as_pattern, composition, follow, templates
from tests.configs.support import configured

# A command that is wrong, and the alternatives that its message advises: each is all that has to be changed.
ADVICE: list[tuple[str, list[str]]] = [
    ("act_tiny budget=depth", ["model.act_penalty=0", "budget=none budget.target=null"]),
    ("act_maze budget.target=4 model.act_penalty=0.1", ["model.act_penalty=0", "budget=none budget.target=null"]),
    ("ponder_tiny budget=depth", ["model.prior=uniform model.target_halt_probability=null", "model.kl_penalty_factor=0"]),
    ("adalayers_tiny budget=blocks baseline=depth_penalty", ["model.lambda_distribution_depth=0", "budget=none budget.target=null"]),
    ("par_tiny budget=latency search.latency_weight=0.1", ["search.latency_weight=0", "budget=none budget.target=null"]),
    ("par_tiny budget=latency search.stop_unchanged=0.9", ["search.stop_unchanged=null"]),
    ("par_network budget=latency", ["--config-name=par_tiny"]),
    ("ponder_tiny model.prior=uniform", ["model.prior=geometric", "model.target_halt_probability=null"]),
    ("ponder_tiny halting.slope=3", ["halting.alone=true model.pretrained=RUN/model"]),
    ("ponder_tiny halting.alone=true", []),
    ("ponder_tiny halting.alone=true model.pretrained=x mode=estimate", ["mode=train", "'~halting.alone'"]),
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
    ("loop_tiny model.injection=restart", ["model.queries=previous"]),
    ("loop_tiny model.loop_curriculum=linear model.objective=gate_alone model.gate=true", ["model.loop_curriculum=none"]),
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
    ("act_tiny trainer.push_to_hub=true mode=estimate", ["mode=train"]),
    ("act_tiny trainer.plateau_patience=3", ["trainer.schedule=plateau trainer.warmup_steps=0"]),
    ("act_tiny trainer.schedule=plateau trainer.plateau_patience=3", ["trainer.warmup_steps=0"]),
    ("act_tiny trainer.hub_model_id=a", ["trainer.push_to_hub=true"]),
    ("act_tiny trainer.early_stopping_patience=3 trainer.load_best_model_at_end=false", ["trainer.load_best_model_at_end=true"]),
    ("act_tiny predictions=true", ["--config-name=act_cola"]),
    ("ponder_tiny predictions=true trainer.halting_statistics=false", ["trainer.halting_statistics=true"]),
    ("act_tiny mode=probe checkpoint=latest", ["--config-name=act_cola"]),
    ("act_cola dataset=bigram_shift mode=probe checkpoint=latest", ["dataset=cola"]),
    ("act_tiny dataset=cola", ["dataset=python_docs"]),
    ("act_tiny task=finetune", ["dataset=cola"]),
    ("loop_tiny dataset=cola", ["dataset=causal_python_docs"]),
    ("par_network dataset=cola", ["dataset=stream_python_docs"]),
    ("par_tiny dataset=cola", ["dataset=stream_python_docs"]),
    ("act_cola dataset=parity_vectors", ["model=parity_rnn"]),
    ("act_tiny logger.artifacts=[report]", ["logger=wandb"]),
    ("act_tiny mode=evaluate checkpoint=latest 'budget.targets=[3]' trainer.halting_statistics=false", ["trainer.halting_statistics=true"]),
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
    ("ponder_tiny dataset.held_out=0.1 dataset.evaluation_splits=[held_out]", ["dataset.source=local dataset.path=PATH"]),
    ("ponder_tiny dataset.problem=multi_label dataset.metrics=[micro_f1]", ["dataset.source=local dataset.path=PATH"]),
    ("ponder_tiny dataset.difficulty_column=a", ["dataset.source=local dataset.path=PATH"]),
    ("act_cola dataset.metrics=[evaluate:a:b]", ["runtime.trust_remote_code=true"]),
    ("act_tiny dataset=treebank dataset.path=x", ["mode=evaluate checkpoint=latest", "--config-name=act_pos dataset=ud_pos"]),
    ("act_tiny optimise=halting/all/mean trainer.halting_statistics=false", ["trainer.halting_statistics=true"]),
    ("act_tiny halting.alone=true", []),
    ("act_tiny search.path=sampled", []),
    ("act_tiny features.precision=fp16", []),
    ("act_tiny context.memory_length=3", []),
    ("trm_tiny budget.target=2 model.exit_rule=patience:2", []),
    ("act_cola dataset=senteval dataset.path=x", []),
    ("act_cola dataset=senteval dataset.path=x dataset.task=a dataset.source=hub", ["dataset.source=local", "dataset.source=local"]),
    ("act_tiny trainer.save_strategy=epoch", []),
]  # fmt: skip


@cache
def message(command: str) -> str:
    """Return what is said of a wrong command."""
    root, *overrides = shlex.split(command)
    with pytest.raises(ConfigError) as caught:
        configured(root, *overrides)
    return str(caught.value)


@pytest.mark.parametrize(("command", "expected"), ADVICE, ids=[command for command, _ in ADVICE])
def test_an_advised_override_is_all_that_has_to_be_changed(command: str, expected: list[str]) -> None:
    config = composition(command)
    found = [advice for line in message(command).splitlines() for advice in advised(line, config)]
    assert found == expected
    for advice in found:
        root, overrides = follow(command, advice)
        configured(root, *overrides)
