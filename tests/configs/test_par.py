"""Configurations of PAR-XL: geometry of the sources, the preset of the original, and what is refused in which words."""

from __future__ import annotations

import pytest

from adadepth.errors import ConfigError
from adadepth.families.par_xl.configuration import paper_rule
from adadepth.families.par_xl.family import ParXLSettings
from adadepth.settings import StreamConfig
from tests.configs.support import CONFIGS, configured

MISTAKES = [
    ("par_tiny", ["search.tau_start=0"], "search.tau_start=0.0: must be above 0"),
    ("par_tiny", ["search.tau_end=-1"], "search.tau_end=-1.0: must be above 0"),
    ("par_tiny", ["model.cutoffs=[9,9]"], "model.cutoffs=[9, 9]: must be positive and increase"),
    ("par_tiny", ["model.cutoffs=[0]"], "model.cutoffs=[0]: must be positive and increase"),
    (
        "par_tiny",
        ["model.proj_dims=[32]"],
        "model.proj_dims=[32]: must be a positive width for each tail, of which there are 2",
    ),
    (
        "par_tiny",
        ["model.proj_dims=[32,0]"],
        "model.proj_dims=[32, 0]: must be a positive width for each tail, of which there are 2",
    ),
    (
        "par_base",
        ["model.proj_dims=[256,128,64]"],
        "model.proj_factor=1: read only without model.proj_dims=[256, 128, 64]",
    ),
    (
        "par_tiny",
        ["model.cutoff_clusters=3", "model.cutoffs=[]", "model.proj_dims=[32]"],
        "model.proj_dims=[32]: must be a positive width for each tail, of which there are 2",
    ),
    ("par_tiny", ["model.cutoff_clusters=3"], "model.cutoff_clusters=3: chooses the cutoffs; set model.cutoffs=[]"),
    ("par_tiny", ["model.cutoff_clusters=1", "model.cutoffs=[]"], "model.cutoff_clusters=1: must be at least 2"),
    ("par_tiny", ["model.num_attention_heads=3"], "model.num_attention_heads=3: must divide"),
    ("par_tiny", ["model.architecture=sf"], "model.architecture=sf: task=architecture_search searches it"),
    (
        "par_tiny",
        ["search.method=two_phase", "search.gate_learning_rate=null"],
        "search.gate_learning_rate: search.method=two_phase needs it",
    ),
    (
        "par_tiny",
        ["search.method=two_phase", "trainer.max_steps=-1"],
        "trainer.max_steps=-1: search.method=two_phase needs the number of updates",
    ),
    ("par_tiny", ["search.architecture_share=0.9"], "search.architecture_share=0.9: must be above 0 and at most 0.5"),
    ("par_tiny", ["search.shapes=[[8,8]]"], "search.shapes=[8, 8]: must be [length, memory, batch]"),
    ("par_tiny", ["search.stages=[]"], "search.stages=[]: at least one is needed, of search, derive, retrain, compare"),
    ("par_tiny", ["search.stop_unchanged=75"], "search.stop_unchanged=75.0: must be from 0 to 1"),
    (
        "par_tiny",
        ["search.stop_unchanged=0.75", "trainer.eval_strategy=no", "trainer.load_best_model_at_end=false"],
        "search.stop_unchanged=0.75: compares evaluations, but trainer.eval_strategy=no",
    ),
    (
        "par_tiny",
        ["search.stop_unchanged=0.75", "budget=latency", "budget.target=3"],
        "budget.target=3: search.stop_unchanged=0.75 may end the search before its schedule",
    ),
    ("par_tiny", ["search.sampled_paths=0"], "search.sampled_paths=0: "),
    ("par_tiny", ["task=language_model", "search.latency_weight=1"], "read only with task=architecture_search"),
    ("par_tiny", ["trainer.fsdp=true"], "trainer.fsdp=true: not in a search, whose gates are read between"),
    ("par_tiny", ["dataset=python_docs"], "task=architecture_search reads streams of text"),
    ("par_tiny", ["model=albert_act_mini"], "task=architecture_search trains par_xl"),
    ("par_tiny", ["dataset.test_path=a.txt"], "dataset.test_path=a.txt: read only with dataset.source=local"),
    (
        "par_tiny",
        ["dataset.test_hub=[{path: a}]"],
        "dataset.test_hub=[{'path': 'a'}]: read only with dataset.source=hub",
    ),
    ("par_base", ["dataset.evaluation_hub=[{paht: a}]"], "dataset.evaluation_hub[0].paht: unknown key (did you mean"),
    (
        "par_tiny",
        ["tokenizer=bytes", "tokenizer.vocab_size=9000"],
        "tokenizer.vocab_size=9000: tokenizer.kind=byte has",
    ),
    ("par_tiny", ["tokenizer.vocab_size=null"], "tokenizer.vocab_size: tokenizer.kind=unigram needs it"),
    (
        "par_tiny",
        ["tokenizer=words", "tokenizer.symbols=[a]"],
        "tokenizer.symbols=['a']: read only with tokenizer.kind",
    ),
    ("par_network", ["search.tau_end=0.5"], "search: read only by a supernet"),
    ("act_tiny", ["search.tau_end=0.5"], "search: read only by models of par_xl, but this one is of albert_act"),
    ("act_tiny", ["context.memory_length=3"], "context: read only by models of par_xl, but this one is of albert_act"),
    ("act_tiny", ["tokenizer.kind=word"], "tokenizer.kind=word: read only with streams of text"),
]


@pytest.mark.parametrize(("root", "overrides", "message"), MISTAKES, ids=str)
def test_a_mistake_is_refused_in_one_line(root: str, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configured(root, *overrides)
    assert len([line for line in str(caught.value).splitlines() if message in line]) == 1


def test_the_original_is_the_size_and_recipe_it_published() -> None:
    config = configured("par_wikitext2", "preset=seed")
    model, trainer = config.model, config.trainer
    assert isinstance(model, ParXLSettings)
    assert isinstance(config.dataset, StreamConfig)
    assert (model.hidden_size, model.num_attention_heads, model.intermediate_size) == (128, 4, 512)
    assert (model.num_hidden_layers, model.memory_length, model.cutoffs, model.proj_factor) == (6, 16, [250, 2500], 4)
    assert (model.attention_scale, model.attention_out_act, model.layer_norm_eps) == ("linear", "relu", 1e-3)
    assert model.initializer == "glorot"
    assert (model.share_position_bias, model.projection_bias, model.softmax_bias) == (False, True, True)
    assert (trainer.max_steps, trainer.learning_rate, trainer.warmup_steps) == (56_500, 1e-4, 4000)
    assert (trainer.per_device_train_batch_size, config.dataset.sequence_length) == (32, 32)
    assert (trainer.schedule, trainer.max_grad_norm, config.dataset.append_eos) == ("cosine", 0, False)
    assert (config.search.method, config.search.gate_learning_rate, config.search.seed_evaluation) == (
        "joint",
        None,
        True,
    )
    assert (config.tokenizer.vocab_size, config.tokenizer.lowercase, config.tokenizer.symbols) == (
        12_000,
        True,
        ["@-@"],
    )


def test_the_papers_search_is_fbnets_without_its_latency_term() -> None:
    config = configured("par_base")
    model, search = config.model, config.search
    assert isinstance(model, ParXLSettings)
    assert (model.hidden_size, model.num_hidden_layers, model.intermediate_size, model.memory_length) == (
        512,
        32,
        2048,
        192,
    )
    assert (search.method, search.gate_learning_rate, search.gate_weight_decay) == ("two_phase", 1e-2, 5e-4)
    assert (search.weights_only, search.architecture_share, search.latency_weight) == (10_000, 0.2, 0)
    assert (config.context.memory_length, config.context.clamp_length, config.context.same_length) == (640, 400, True)
    assert paper_rule(32) in (CONFIGS / "model" / "par_xl_base.yaml").read_text()
