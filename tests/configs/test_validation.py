"""Ranges and combinations: what is refused, in which words, and that all mistakes are told at once."""

from __future__ import annotations

import pytest

from adadepth.errors import ConfigError, UserError, nearest
from tests.configs.support import configured

MISTAKES = [
    (["model.act_penalty=-0.1"], "model.act_penalty=-0.1: must be at least 0"),
    (["model.act_penalty=nan"], "model.act_penalty=nan: must be at least 0"),
    (["model.act_epsilon=0"], "model.act_epsilon=0.0: must be above 0 and below 1"),
    (["model.act_epsilon=1"], "model.act_epsilon=1.0: "),
    (["model.halt_bias_init=inf"], "model.halt_bias_init=inf: must be a finite number"),
    (["model.execution=ragged", "model.state_rule=basic"], "model.execution=ragged: needs model.state_rule=single or"),
    (["model.execution=ragged", "model.attn_implementation=flex_attention"], "needs model.attn_implementation eager,"),
    (["model.execution=ragged", "runtime.compile=true"], "model.execution=ragged: not with runtime.compile=true"),
    (["model.num_attention_heads=7"], "model.num_attention_heads=7: must divide model.hidden_size=128"),
    (["model.num_attention_heads=0"], "model.num_attention_heads=0: "),
    (["model.hidden_dropout_prob=1"], "model.hidden_dropout_prob=1.0: "),
    (["dataset.sequence_length=513"], "dataset.sequence_length=513: the model has only"),
    (["dataset.masking.probability=0"], "dataset.masking.probability=0.0: "),
    (["dataset.masking.random_share=0.3"], "mask_share + random_share = 1.1, must be at most 1"),
    (["dataset=text"], "dataset.path: dataset.source=local needs a file"),
    (["dataset.source=hub"], "dataset.hub: dataset.source=hub needs a list"),
    (["dataset.source=hub", "dataset.hub=[{paht: a}]"], "dataset.hub[0].paht: unknown key (did you mean 'path'?)"),
    (["dataset.streaming=true"], "dataset.streaming=true: the embedded corpus is not streamed"),
    (["dataset.path=a.txt"], "dataset.path=a.txt: read only with dataset.source=local or auto"),
    (["dataset.evaluation_path=a.txt"], "dataset.evaluation_path=a.txt: read only with dataset.source=local"),
    (["dataset=wikipedia_bookcorpus", "trainer.max_steps=-1"], "trainer.max_steps=-1: dataset.streaming=true"),
    (["trainer.max_steps=0"], "trainer.max_steps=0: must be at least 1, or -1"),
    (["trainer.per_device_train_batch_size=0"], "trainer.per_device_train_batch_size=0: "),
    (["trainer.learning_rate=0"], "trainer.learning_rate=0.0: must be above 0"),
    (["trainer.save_steps=150"], "trainer.save_steps=150: must be a multiple of trainer.eval_steps=250"),
    (["trainer.save_strategy=epoch"], "trainer.save_strategy=epoch: must equal trainer.eval_strategy=steps"),
    (["trainer.eval_strategy='no'"], "trainer.eval_strategy=no: must be steps or epoch"),
    (["trainer.eval_steps=null", "trainer.save_steps=5"], "trainer.eval_steps: trainer.eval_strategy=steps needs it"),
    (["trainer.precision=fp16", "trainer.use_cpu=true"], "trainer.precision=fp16: needs a GPU"),
    (["trainer.fsdp=true", "trainer.deepspeed=ds.json"], "trainer.fsdp and trainer.deepspeed: choose one"),
    (["mode=evaluate", "checkpoint=a", "trainer.fsdp=true"], "trainer.fsdp=true: read only with mode=train, but mode="),
    (["trainer.deepspeed=3"], "trainer.deepspeed=3: must be a JSON file or a mapping"),
    (["trainer.dataloader_prefetch_factor=2"], "trainer.dataloader_prefetch_factor: needs runtime.num_workers"),
    (["runtime.num_workers=-1"], "runtime.num_workers=-1: must be from 0 to 1024"),
    (["mode=evaluate"], "checkpoint: mode=evaluate needs it"),
    (["mode=report"], "run: mode=report needs it"),
    (["checkpoint=a"], "checkpoint=a: read only with mode=evaluate, predict"),
    (["mode=evaluate", "checkpoint=a", "resume=latest"], "resume=latest: read only with mode=train, but mode=evaluate"),
    (["seed=-1"], "seed=-1: must be from 0 to 2^32 - 1"),
    (["name=a/b"], "name=a/b: must be a plain folder name"),
    (["optimise=loss"], "optimise=loss: must start with one of train/, eval/, halting/"),
    (
        ["optimise=halting/all/meen"],
        "no run has such a metric (did you mean 'halting/all/mean'?)",
    ),
    (
        ["optimise=train/los"],
        "no run has such a metric (did you mean 'train/loss'?); known: train/epoch, ",
    ),
    (["optimise=cost/executed_over_ful"], "no run has such a metric (did you mean 'cost/executed_over_full'?)"),
    (["optimise=search/expected_block"], "no run has such a metric (did you mean 'search/expected_blocks'?)"),
    (["optimise=budget/mesured"], "no run has such a metric (did you mean 'budget/measured'?)"),
    (["optimise=search/mean_entropy"], "model=albert_act has no architectures to search"),
    (
        ["optimise=budget/measured", "budget=none"],
        "optimise=budget/measured: only a training with budget.target has it",
    ),
    (["optimise=train/loss", "mode=evaluate", "checkpoint=a"], "optimise=train/loss: only a training has it"),
    (["optimise=halting/all/mean", "trainer.halting_statistics=false"], "needs trainer.halting_statistics=true"),
    (["optimise=eval/mlm_los"], "optimise=eval/mlm_los: an evaluation has no such metric (did you mean 'mlm_loss'?)"),
    (["trainer.metric_for_best_model=eval_lost"], "trainer.metric_for_best_model=eval_lost: an evaluation has no such"),
    (["+trainer.foo=1"], "trainer.foo: unknown key"),
]


@pytest.mark.parametrize(("overrides", "message"), MISTAKES, ids=str)
def test_a_mistake_is_refused_in_one_line(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configured("act_tiny", *overrides)
    matching = [line for line in str(caught.value).splitlines() if message in line]
    assert len(matching) == 1


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        configured(
            "act_tiny", "budget=none", "seed=-1", "model.act_penalty=-1", "trainer.learning_rate=-1", "mode=report"
        )
    assert len(str(caught.value).splitlines()) == 4


FINETUNING_MISTAKES = [
    ("ponder_tiny", ["model.target_halt_probability=0"], "model.target_halt_probability=0.0: "),
    ("ponder_tiny", ["model.target_halt_probability=1"], "model.target_halt_probability=1.0: "),
    (
        "ponder_tiny",
        ["model.prior=uniform"],
        "0.25: read only with model.prior=geometric; with model.prior=uniform set it",
    ),
    ("ponder_tiny", ["model.kl_penalty_factor=-1"], "model.kl_penalty_factor=-1.0: must be at least 0"),
    ("ponder_tiny", ["model.halting_head_layers=3"], "read only with model.halting_head=linear_cat"),
    ("ponder_tiny", ["model.hidden_size=null"], "model.hidden_size: a value is missing; without model.pretrained"),
    ("ponder_tiny", ["task=pretrain"], "dataset=bigram_shift: task=pretrain reads a corpus"),
    ("ponder_tiny", ["dataset=wikitext2"], "dataset=wikitext2: task=finetune reads labelled data"),
    ("ponder_tiny", ["dataset=parity_vectors"], "model=ponder_albert: dataset=parity_vectors needs a recurrent cell"),
    ("ponder_parity", ["model=ponder_albert_mini"], "model=ponder_albert: dataset=parity_vectors needs a recurrent"),
    ("ponder_tiny", ["model=parity_rnn"], "model=ponder_rnn: dataset=bigram_shift needs a model of tokens"),
    (
        "ponder_tiny",
        ["exit_rules=[all]"],
        "exit_rules=['all']: read only with mode=evaluate checkpoint=latest",
    ),
    ("ponder_tiny", ["seeds=0"], "seeds=0: "),
    ("ponder_tiny", ["seeds=2", "resume=latest"], "seeds=2: read only with mode=train, and not with resume"),
    ("ponder_tiny", ["optimise=eval/scor"], "optimise=eval/scor: "),
    ("ponder_cola", ["optimise=eval/accuracy"], "optimise=eval/accuracy: "),
    ("ponder_cola", ["dataset.source=local"], "dataset.path: "),
    ("ponder_cola", ["dataset.hub.path=null"], "dataset.hub.path: "),
    ("ponder_cola", ["dataset.text_columns=[]"], "dataset.text_columns=[]: must name one column, or two"),
    ("ponder_cola", ["dataset.evaluation_splits=[]"], "dataset.evaluation_splits=[]: "),
    ("ponder_cola", ["dataset.submission=[a,b]"], "dataset.submission=['a', 'b']: needs a name for each of ['test']"),
    ("ponder_cola", ["+dataset.test_hub.ax={path: a}"], "dataset.test_hub.ax: not in dataset.test_splits=['test']"),
    (
        "ponder_cola",
        ["dataset.test_splits=[ax]", "+dataset.test_hub.ax={path: a}"],
        "dataset.test_hub.ax: needs path, name and split, has path",
    ),
    ("ponder_parity", ["dataset.train_ones=[1,97]"], "dataset.train_ones=[1, 97]: must be [lowest, highest] within 1"),
    ("ponder_parity", ["dataset.train_ones=[]"], "dataset.train_ones=[]: must be [lowest, highest] within 1 and"),
    ("ponder_parity", ["dataset.train_ones=[0,0]"], "dataset.train_ones=[0, 0]: must be [lowest, highest] within 1"),
    (
        "ponder_parity",
        ["dataset.train_ones=[]", "dataset.easy_epochs=1", "dataset.easy_ones=0"],
        "dataset.train_ones=[]",
    ),
    ("ponder_parity", ["dataset.extrapolation_ones=[]"], "dataset.extrapolation_ones=[]: must be [lowest, highest]"),
    (
        "ponder_parity",
        ["dataset.extrapolation_ones=[5,3]"],
        "dataset.extrapolation_ones=[5, 3]: must be [lowest, highes",
    ),
]


@pytest.mark.parametrize(("root", "overrides", "message"), FINETUNING_MISTAKES, ids=str)
def test_a_mistake_in_fine_tuning_is_refused_in_one_line(root: str, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configured(root, *overrides)
    assert len([line for line in str(caught.value).splitlines() if message in line]) == 1


@pytest.mark.parametrize(("root", "override", "message"), [
    ("loop_hops", "model.num_loops=1000000000", "model.num_loops=1000000000: "),
    ("loop_hops", "model.core=100000", "model.core=100000: must be at most 4096"),
    ("act_tiny", "model.num_hidden_layers=1000000", "model.num_hidden_layers=1000000: must be at most 4096"),
    ("act_tiny", "model.intermediate_size=1000000000000", "model.intermediate_size=1000000000000: must be at most "),
    ("act_tiny", "tokenizer.vocab_size=1000000000000", "tokenizer.vocab_size=1000000000000: "),
])  # fmt: skip
def test_a_size_that_nobody_has_is_refused_before_it_is_counted_out(root: str, override: str, message: str) -> None:
    configured(root)
    with pytest.raises(ConfigError) as caught:
        configured(root, override)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("overrides", [
    ["model.act_penalty=0"],
    ["dataset.sequence_length=512"],
    ["trainer.save_strategy=best", "trainer.save_steps=150"],
    ["trainer.load_best_model_at_end=false", "trainer.save_steps=150"],
    ["trainer.max_grad_norm=0"],
    ["mode=evaluate", "checkpoint=latest"],
    ["mode=report", "run=latest"],
    ["trainer.fsdp=true", "trainer.fsdp_config={version: 2}"],
    ["trainer.deepspeed={zero_optimization: {stage: 2}}"],
], ids=lambda value: value[0])  # fmt: skip
def test_the_edges_are_allowed(overrides: list[str]) -> None:
    configured("act_tiny", *overrides)


@pytest.mark.parametrize(("value", "hint"), [
    ("refrence", " (did you mean 'reference'?)"), ("xyz", ""), (3, ""), ("Penalty", " (did you mean 'penalty'?)"),
])  # fmt: skip
def test_nearest(value: object, hint: str) -> None:
    assert nearest(value, ["reference", "penalty", "forced"]) == hint
    assert issubclass(ConfigError, UserError)
